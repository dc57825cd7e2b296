"""`eggtile explore`, `dump`, `diff`, `query`: the forms of a program, why they are equal, the graph that holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import rich
import typer
from rich.table import Table

from eggtile.cli_options import Code, Inputs, Json, Numerics, Program, Target, emit_json, options_of, started
from eggtile.differ import differences
from eggtile.explore import form_signature, report
from eggtile.graph_dump import TEXTS, to_object
from eggtile.pipeline import Compiled, Options, Region, RequestError, choose_forms
from eggtile.query import answers
from egraph.derive import Step, derivation, shown
from egraph.laws import LAWS
from egraph.prefixes import over
from egraph.trace import Explained
from extract.lineage import Reasons
from ir.loop import Form
from ir.node import postorder
from ir.term import Term, Var
from ir.text import show_term

LARGE = 6  # nodes of a written value that gets a name where steps are shown
Dump = Annotated[Path, typer.Argument(help="A file that `dump --format json` wrote.", show_default=False)]


app = typer.Typer()


@app.command()
def explore(
    program: Program = None,
    code: Code = None,
    inputs: Inputs = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many distinct forms to find.")] = 12,
    numerics: Numerics = "default",
    target: Target = "sm_90a",
    why: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Show the steps from form A to form B; a form is its number, or default."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="Show the best form without this law beside the best with it.")
    ] = None,
    json_: Json = False,
) -> None:
    """List the distinct equivalent forms of a program with their costs, sweeps, laws and errors."""
    check_laws(without or [])
    compiled = started(program, code, inputs, options_of(numerics, target, k=k, explain=True))[1]
    choose_forms(compiled)
    if without:
        other = choose_forms(restarted(compiled, tuple(without)))
        rows = [ablated(a, b, without) for a, b in zip(compiled.regions, other.regions, strict=True)]
        return emit_json({"regions": rows}) if json_ else print_ablated(rows, without)
    if why is not None:
        chains = [chain(region, *why) for region in compiled.regions]
        return emit_json({"regions": chains}) if json_ else print_chains(chains)
    found = report(compiled)
    if json_:
        return emit_json(found)
    for part in found.get("regions", [found]):
        rich.print(forms_table(part))
        print_laws(part)
    return None


def print_laws(part: dict[str, Any]) -> None:
    """The laws behind forms, each list once."""
    forms: dict[tuple[str, ...], list[str]] = {}
    for f in part["forms"]:
        forms.setdefault(tuple(f["laws"]), []).append("default" if f["default"] else str(f["id"]))
    for laws, ids in forms.items():
        typer.echo(f"laws of {', '.join(ids)}: {', '.join(laws) or 'none'}")


def check_laws(names: list[str]) -> None:
    """Refuse the name of a law that is none."""
    for name in names:
        if name not in LAWS:
            raise RequestError(f"no law is named {name}; see eggtile laws")


def restarted(compiled: Compiled, without: tuple[str, ...]) -> Compiled:
    """The same program before its forms are chosen, with laws left out."""
    given = vars(compiled.options) | {"without": without, "k": 1}
    return Compiled(compiled.captured, compiled.arity, compiled.lowered, Options(**given), compiled.clock)


def ablated(with_: Region, without: Region, names: list[str]) -> dict[str, Any]:
    """The best form with all laws and the best without some."""
    rows = [
        {"cost_us": f.cost_us, "signature": form_signature(f), "laws": list(f.laws)}
        for f in (with_.forms[0], without.forms[0])
    ]
    return {"without": names, "best": rows[0], "best_without": rows[1]}


def print_ablated(rows: list[dict[str, Any]], names: list[str]) -> None:
    """A table of two rows for each region."""
    for row in rows:
        table = Table("laws", "cost us", "kernels: loops, contractions, states", "laws used")
        for label, key in (("all", "best"), (f"without {', '.join(names)}", "best_without")):
            best = row[key]
            table.add_row(label, f"{best['cost_us']:.2f}", "\n".join(best["signature"]), " ".join(best["laws"]))
        rich.print(table)


# ---- why


def chain(region: Region, a: str, b: str) -> dict[str, Any]:
    """The steps from one form to another: those of A that B does not need are undone, those of B alone are made."""
    left, right = form_of(region, a), form_of(region, b)
    first, second = steps_of(region, left), steps_of(region, right)
    known = {(s.law, s.before, s.after) for s in first}
    kept = {(s.law, s.before, s.after) for s in second}
    undone = [s for s in reversed(first) if (s.law, s.before, s.after) not in kept]
    made = [s for s in second if (s.law, s.before, s.after) not in known]
    written = frozenset(t for r in region.program.results for t in postorder(r.value))
    names = Names(written)
    steps = [step_row(s, names, undo=True) for s in undone] + [step_row(s, names, undo=False) for s in made]
    ends = [{"form": n, "signature": form_signature(f), "laws": list(f.laws)} for n, f in ((a, left), (b, right))]
    return {
        "from": ends[0],
        "to": ends[1],
        "shared_steps": len(second) - len(made),
        "where": names.lines,
        "steps": steps,
    }


def form_of(region: Region, name: str) -> Form:
    """The form with a number; `default` is the one as written."""
    if name == "default":
        return region.default
    if not name.isdigit() or int(name) > len(region.forms):
        raise RequestError(f"there is no form {name}; forms are 0 to {len(region.forms)}, or default")
    return [*region.forms, region.default][int(name)]


def steps_of(region: Region, form: Form) -> list[Step]:
    """The derivation of a form from the program as written."""
    graph = region.graph
    assert isinstance(graph, Explained), "explore saturates with explain"
    reasons: Reasons = form.details.get("reasons", ())  # type: ignore[assignment]
    return derivation(graph, graph.trace.matches(reasons)[0])


class Names:
    """Names for the larger values of the program as written, so that a step shows what is new in it."""

    def __init__(self, written: frozenset[Term]) -> None:
        self.written = written
        self.known: dict[Term, Term] = {}
        self.lines: list[str] = []

    def text(self, t: Term) -> str:
        """A term whose operands are named where they are large."""
        return show_term(self._over(shown(t)))

    def _over(self, t: Term) -> Term:
        return over(t, [self._named(k) for k in t.terms])

    def _named(self, t: Term) -> Term:
        if t not in self.written or sum(1 for _ in postorder(t)) < LARGE:
            return self._over(t)
        if t not in self.known:
            text = show_term(self._over(t))
            self.known[t] = Var(f"v{len(self.known)}", t.dtype, tuple(sorted(t.free)))
            self.lines.append(f"{show_term(self.known[t])} = {text}")
        return self.known[t]


def step_row(s: Step, names: Names, undo: bool) -> dict[str, Any]:
    """A step as data; an undone one goes from right to left."""
    before, after = (s.after, s.before) if undo else (s.before, s.after)
    return {
        "law": s.law,
        "class": LAWS[s.law].class_,
        "undo": undo,
        "place": s.place,
        "before": names.text(before),
        "after": names.text(after),
        "replayed": s.replayed,
        "error": s.error,
    }


def print_chains(chains: list[dict[str, Any]]) -> None:
    """The steps of every region, and how each was confirmed."""
    for c in chains:
        for end in (c["from"], c["to"]):
            typer.echo(f"form {end['form']}: " + "; ".join(end["signature"]))
        typer.echo(
            f"{len(c['steps'])} steps, and {c['shared_steps']} that both forms share"
            + ("; where" if c["where"] else "")
        )
        typer.echo("\n".join(f"     {line}" for line in c["where"]), nl=bool(c["where"]))
        for n, s in enumerate(c["steps"], 1):
            place = f"in #{s['place']}" if s["place"] >= 0 else "in a value of a proof"
            typer.echo(f"{n:3}. {'undo ' if s['undo'] else ''}{s['law']} ({s['class']}) {place}: {confirmed(s)}")
            typer.echo(f"       {s['before']}\n    =  {s['after']}")
        typer.echo(
            "Left and right of each step are equal, so either may stand for the other where a form reads it."
        )
        typer.echo(
            "A state of a sweep is old[axis] before a step and becomes new[axis]: what new[axis] equals is the loop's body."
        )


def confirmed(s: Mapping[str, Any]) -> str:
    """How a step was confirmed."""
    if s["replayed"]:
        return "replayed by matching the law"
    return "not checked" if s["error"] is None else f"checked by numbers, relative difference {s['error']:.1e}"


def forms_table(part: dict[str, Any]) -> Table:
    """The forms of one region as a table."""
    graph = part["egraph"]
    table = Table(title=f"{graph['classes']} classes, {graph['nodes']} nodes")
    for name in ("form", "cost us", "kernels", "sweeps", "flops", "bytes", "class", "error"):
        table.add_column(name, overflow="fold")
    for f in part["forms"]:
        swept: dict[str, int] = {}
        for kernel in f["kernels"]:
            for axis, count in kernel["sweeps"].items():
                swept[axis] = swept.get(axis, 0) + count
        mark = "*" if f["chosen"] else "default" if f["default"] else ""
        error = "" if f["max_rel_err"] is None else f"{f['max_rel_err']:.1e}"
        sweeps = " ".join(f"{a}:{n}" for a, n in sorted(swept.items()))
        row = (f["cost_us"], len(f["kernels"]), sweeps, f["flops"], f["bytes"], f["class"], error)
        table.add_row(f"{f['id']} {mark}", f"{row[0]:.2f}", *map(str, row[1:]))
    return table


# ---- dumps


@app.command()
def dump(
    program: Program = None,
    code: Code = None,
    inputs: Inputs = None,
    format_: Annotated[str, typer.Option("--format", help="json, text, egg, dot, svg or html.")] = "json",
    output: Annotated[
        Path | None, typer.Option("-o", help="The file to write (standard output if absent).")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many distinct forms a JSON dump holds.")] = 12,
    numerics: Numerics = "default",
) -> None:
    """Write the saturated e-graph of every region; as JSON with its forms."""
    if format_ != "json" and format_ not in TEXTS:
        raise RequestError(f"unknown format {format_}; formats are json, {', '.join(TEXTS)}")
    options = options_of(numerics, k=k if format_ == "json" else 1, explain=format_ == "json")
    compiled = choose_forms(started(program, code, inputs, options)[1])
    if format_ == "json":
        text = json.dumps(to_object(compiled), indent=1, default=str)
    else:
        text = "\n".join(TEXTS[format_](r.graph) for r in compiled.regions)
    if output is None:
        return typer.echo(text)
    try:
        output.write_text(text + "\n")
    except OSError as e:
        raise RequestError(f"cannot write {output}: {e.strerror}") from None
    return None


def loaded(path: Path) -> dict[str, Any]:
    """A dump from a file."""
    try:
        data = json.loads(path.read_text())
    except OSError as e:
        raise RequestError(f"cannot read {path}: {e.strerror}") from None
    except json.JSONDecodeError as e:
        raise RequestError(f"{path} is not JSON: {e.msg} in line {e.lineno}") from None
    if not isinstance(data, dict) or "regions" not in data:
        raise RequestError(f"{path} is not a dump; eggtile dump --format json makes one")
    return data


@app.command()
def diff(a: Dump, b: Dump, json_: Json = False) -> None:
    """Say how two dumps differ: classes and nodes by their terms, forms, laws."""
    found = differences(loaded(a), loaded(b))
    if json_:
        return emit_json(found)
    for what, sides in found.items():
        for sign, key in (("-", "only_a"), ("+", "only_b")):
            typer.echo(
                "\n".join(f"{sign} {what[:-1] if what != 'classes' else 'class'} {x}" for x in sides[key]) or "",
                nl=bool(sides[key]),
            )
    if not any(side for sides in found.values() for side in sides.values()):
        typer.echo("the dumps hold the same classes, nodes, forms and laws")
    return None


@app.command()
def query(
    a: Dump, text: Annotated[str, typer.Argument(metavar="QUERY", help=answers.__doc__)], json_: Json = False
) -> None:
    """Find forms or classes of a dump, like: forms where sweeps(j) == 1 and reads(x) <= 2."""
    found = answers(loaded(a), text)
    if json_:
        return emit_json(found)
    for row in found:
        typer.echo(" ".join(f"{k}={v}" for k, v in row.items()))
    typer.echo(f"{len(found)} found", err=True)
    return None
