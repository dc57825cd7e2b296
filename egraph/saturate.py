"""Saturation: a program's terms go into egglog, laws run phase by phase within a budget, the e-graph comes back as data."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from egglog import bindings

from egraph.analysis import prelude, stated
from egraph.encode import FIXED, PREFIX_CONSTRUCTORS, Rows, encode
from egraph.graph import AnalysisReport, Budget, EGraph, EGraphError, LawReport, PhaseReport, Report
from egraph.law import Law
from egraph.laws import PLUMBING, laws
from egraph.matches import Rule, Signature, recorded
from egraph.readback import Reader
from egraph.recall import explained
from ir.loop import LoopProgram
from ir.term import Term

Tags = Mapping[str, tuple[Term, tuple[Term, ...]]]


@dataclass(frozen=True)
class Phase:
    """Rulesets that run together until nothing changes; facts and normal forms are saturated before every round."""

    name: str
    rulesets: tuple[str, ...]


ALL = (
    Phase("normalise", ()),
    Phase("contract", ("split", "hoist")),
    Phase("stream", ("split", "online", "mark", "push")),
    Phase("settle", ()),
)
AS_WRITTEN = (Phase("as written", ()),)
RULESETS = frozenset(("split", "hoist", "online", "mark", "push"))
ROUNDS_PER_LOOK = 4
LARGE = 5_000  # nodes; a graph this large is looked at after every round


COMMANDS = re.compile(r"\n(?=\()")  # one by one, since each parsed node of a text holds a copy of all of it
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
SPENT = re.compile(r'"([^"]*)": ([\d.]+)(ns|µs|ms|s)')
PER_RULE = "search_and_apply_time_per_rule"
BOOKKEEPING = {"merge_time_per_ruleset": "rows put in", "rebuild_time_per_ruleset": "congruence"}


def rule_seconds(report: str, field: str = PER_RULE) -> Iterator[tuple[str, float]]:
    """Each rule (or ruleset) with its time in a field of a printed run report.

    The attributes of the report hold these times a thousandfold too small, cut to whole microseconds.
    """
    times = report.partition(field + ": {")[2].partition("}")[0]
    for m in SPENT.finditer(times):
        yield m[1], float(m[2]) * UNITS[m[3]]


class Engine:
    """One egglog e-graph, with the seconds and matches of each law and of everything else that runs."""

    def __init__(self, folder: Path) -> None:
        self.egraph = bindings.EGraph(fact_directory=str(folder))
        self.seconds: dict[str, float] = defaultdict(float)
        self.matches: dict[str, int] = defaultdict(int)

    def run(self, text: str) -> bool:
        """Run egglog text; whether a schedule in it changed the graph."""
        changed = False
        for command in COMMANDS.split(text):
            start = time.perf_counter()
            for output in self.egraph.run_program(*self.egraph.parse_program(command)):
                if isinstance(output, bindings.RunScheduleOutput):
                    changed = changed or output.report.updated
                    self._count(output.report, time.perf_counter() - start)
        return changed

    def _count(self, report: bindings.RunReport, elapsed: float) -> None:
        """Credit a schedule that took `elapsed` seconds to its rules; what they do not account for is `scheduling`."""
        for rule, matches in report.num_matches_per_rule.items():
            self.matches[rule.partition("/")[0]] += matches
        text = str(report)
        spent = list(rule_seconds(text))
        for field, name in BOOKKEEPING.items():
            spent += ((name, seconds) for _, seconds in rule_seconds(text, field))
        spent.append(("scheduling", elapsed - sum(seconds for _, seconds in spent)))
        for rule, seconds in spent:
            self.seconds[rule.partition("/")[0]] += seconds

    def nodes(self, constructors: Collection[str]) -> int:
        """The rows of the given constructors."""
        (sizes,) = self.egraph.run_program(*self.egraph.parse_program("(print-size)"))
        assert isinstance(sizes, bindings.PrintAllFunctionsSize)
        return sum(n for name, n in sizes.sizes if name in constructors)

    def saturate(self, phase: Phase, constructors: Collection[str], budget: Budget, deadline: float) -> PhaseReport:
        """Run one phase until it is saturated or the budget is spent; the facts of what there is are always complete."""
        start, before = time.perf_counter(), sum(self.seconds.values())
        runs = " ".join(f"(run {r})" for r in phase.rulesets)
        one = f"(seq (saturate (seq (saturate (run facts)) (run norm))) {runs})"
        done, nodes, stop = 0, self.nodes(constructors), ""
        while not stop:
            rounds = min(ROUNDS_PER_LOOK if nodes < LARGE else 1, budget.iterations - done)
            if nodes > budget.nodes:
                stop = "nodes"
            elif time.perf_counter() > deadline:
                stop = "seconds"
            elif rounds <= 0:
                stop = "iterations"
            elif not self.run(f"(run-schedule (repeat {rounds} {one}))"):
                done, stop = done + rounds, "saturated"
            else:
                done, nodes = done + rounds, self.nodes(constructors)
        if stop != "saturated":
            self.run("(run-schedule (saturate (run facts)))")
        seconds = time.perf_counter() - start
        self.seconds["looking between rounds"] += seconds - (sum(self.seconds.values()) - before)
        return PhaseReport(phase.name, seconds, nodes, done, stop)


def saturate(
    program: LoopProgram,
    numerics: str = "default",
    without: Collection[str] = (),
    phases: Sequence[Phase] = ALL,
    budget: Budget | None = None,
    tags: Tags | None = None,
    explain: bool = False,
) -> EGraph:
    """The e-graph of a program under the laws of a numerics setting, less those named in `without`.

    No phases give the program as written. `tags` are names of whole tensors, each with its term and its operands.
    With `explain` every rule writes down its matches and the graph is `Explained`. Laws hold where no axis is empty (the
    largest of no values less itself is NaN, the sum of no values 0): a program with an empty axis stays as written.
    """
    phases = phases if all(program.axes.values()) else ()
    for phase in phases:
        for ruleset in phase.rulesets:
            if ruleset not in RULESETS:  # egglog panics on one that it does not know
                raise EGraphError(f"phase {phase.name}: {ruleset!r} is none of {', '.join(sorted(RULESETS))}")
    budget = budget or Budget()
    allowed = laws(numerics, without)
    chosen = allowed if phases else ()
    start = time.perf_counter()
    rows = encode(
        (r.value for r in program.results),
        ((label, term, operands) for label, (term, operands) in (tags or {}).items()),
    )
    text = _text(rows, chosen, PLUMBING if phases else "")
    rules: tuple[Rule, ...] = ()
    signatures: Mapping[str, Signature] = {}
    if explain:
        text, rules, signatures = recorded(text)
    with TemporaryDirectory() as folder:
        engine = Engine(Path(folder))
        engine.run(titled(text))
        built = time.perf_counter()
        rows.write(Path(folder))
        engine.run(_insertion(rows))
    inserted = time.perf_counter()
    engine.seconds.clear()
    engine.matches.clear()
    names = {c.name for c in (*FIXED, *PREFIX_CONSTRUCTORS, *rows.constructors)}
    deadline = inserted + budget.seconds
    reports = [engine.saturate(p, names, budget, deadline) for p in phases or AS_WRITTEN]
    saturated = time.perf_counter()
    reader = Reader(engine.egraph, rows, program)
    graph = reader.graph()
    if explain:
        graph = explained(graph, reader, rules, signatures)
    end = time.perf_counter()
    report = Report(
        tuple(reports),
        _law_reports(engine, chosen),
        _analysis_reports(engine, chosen),
        built - start,
        inserted - built,
        end - saturated,
        end - start,
        graph.nodes,
        len(graph.classes),
    )
    return replace(graph, report=report)


def _text(rows: Rows, chosen: Sequence[Law], plumbing: str) -> str:
    loads = [c for c in rows.constructors if c.op == "Load"]
    return "\n".join([prelude(loads), plumbing, *(rule for x in chosen for rule in x.text())])


def _insertion(rows: Rows) -> str:
    axes = sorted(
        {a for t in rows.number for a in t.free} | {a for t in rows.number for a in getattr(t, "axes", ())}
    )
    return "\n".join(
        (
            rows.text,
            " ".join(f'(axis "{a}")' for a in axes),
            stated(rows.number),
            "(run-schedule (run insert))",
        )
    )


def titled(text: str) -> str:
    """The program with a name for every rule that has none: the first table that it adds to."""
    commands = COMMANDS.split(text)
    for k, command in enumerate(commands):
        if command.startswith("(rule ") and " :name " not in command:
            table = command[command.rindex("((") :].removeprefix("((set ").lstrip("(").split()[0]
            commands[k] = f'{command.rstrip()[:-1]} :name "{table}/{k}")'
    return "\n".join(commands)


def _law_reports(engine: Engine, chosen: Sequence[Law]) -> tuple[LawReport, ...]:
    return tuple(
        LawReport(x.name, x.family, x.class_, engine.matches.get(x.name, 0), engine.seconds.get(x.name, 0.0))
        for x in chosen
    )


def _analysis_reports(engine: Engine, chosen: Sequence[Law]) -> tuple[AnalysisReport, ...]:
    names = engine.seconds.keys() - {x.name for x in chosen}
    return tuple(AnalysisReport(n, engine.matches.get(n, 0), engine.seconds[n]) for n in sorted(names))
