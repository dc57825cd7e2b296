"""The measuring loop: propose lines, compile them side by side, gate, time, store, extract again until nothing changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import torch

from codegen.compile import Binary, CompileError, compile_text
from codegen.emit import emit
from codegen.lower import lower_tile
from codegen.resources import complaints
from codegen.worker import Code, Died, Job, Lap, Launch, Worker
from eggtile.pipeline import (
    Compiled,
    Options,
    Region,
    RequestError,
    at_pointer,
    capture_and_lower,
    choose_forms,
    chosen_region,
)
from eggtile.tables import progress
from eggtile.trials import WORK, only_written, trials
from egraph.laws import LAWS
from extract.cost import Cost, kernel_cost
from extract.evidence import Evidence, Measurement, Where, family_of, source_hash
from extract.key import Canonical, canonical
from extract.spaces import fallback_schedule, space
from extract.stages import stages
from extract.tiling import tile_program
from ir.kernel import KernelProgram, Shared, walk
from ir.loop import Buffer, Form, KernelForm
from ir.machine import Machine
from ir.node import IRError
from ir.schedule import Schedule

Built = tuple[tuple[KernelProgram, str], ...]
Build = Callable[[Canonical, Sequence[Buffer], Schedule, Machine], Built]
"""A kernel under a schedule: the program and the text of each launch."""


def build(known: Canonical, buffers: Sequence[Buffer], line: Schedule, machine: Machine) -> Built:
    """The kernel as the pipeline writes it."""
    out = []
    for stage in stages(known.kernel, buffers, known.axes, line, machine):
        program = lower_tile(tile_program(stage.kernel, stage.buffers, stage.axes, stage.schedule), machine)
        out.append((program, emit(program)))
    return tuple(out)


@dataclass(frozen=True)
class Limits:
    """Lines a kernel, rounds of a race, seconds that a candidate may take, compilations side by side, gate's work."""

    lines: int = 12
    rounds: int = 21
    candidate_s: float = 30.0
    threads: int = os.cpu_count() or 2
    work: int = WORK


@dataclass(frozen=True)
class Failure:
    """A line that is not fit to win, and why."""

    line: str
    status: str
    reason: str


@dataclass
class KernelReport:
    """What is known of one kernel: the model's first line, the best line, and those that failed."""

    name: str
    key: str
    modelled_us: float
    default: str
    default_us: float | None = None
    best: str | None = None
    best_us: float | None = None
    measured: int = 0
    adopted: int = 0
    known: int = 0
    failures: list[Failure] = field(default_factory=list)


@dataclass
class Report:
    """The end of a tuning run: a row a kernel, `chosen` those of the forms chosen at last, `complete` if in budget."""

    program: str
    kernels: list[KernelReport]
    chosen: list[str]
    forms: list[str]
    rounds: int
    seconds: float
    complete: bool

    @property
    def measured(self) -> int:
        """Candidates that this run has measured."""
        return sum(k.measured for k in self.kernels)

    def json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"measured": self.measured}


@dataclass(frozen=True)
class _Subject:
    """A kernel to measure, in canonical spelling."""

    kernel: KernelForm
    form: Form
    known: Canonical
    buffers: tuple[Buffer, ...]
    cost: Cost


@dataclass
class _Candidate:
    """A line with its launches, and the row that will be stored for it; `buffers` are those of the kernel."""

    line: Schedule
    built: Built
    buffers: tuple[Buffer, ...]
    row: Measurement
    binaries: Sequence[Binary | None] = ()

    @property
    def text(self) -> str:
        """The text of all launches."""
        return "\n".join(text for _, text in self.built)

    def code(self) -> Code:
        """What a worker needs of it."""
        places = {b.name: b for b in self.buffers}
        places |= {b.name: b for program, _ in self.built for b in program.buffers if b.name not in places}
        number = {name: n for n, name in enumerate(places)}
        launches = []
        for (program, text), binary in zip(self.built, self.binaries, strict=True):
            header = replace(program, body=tuple(s for s in walk(program.body) if isinstance(s, Shared)))
            launches.append(Launch(header, text, binary, tuple(number[b.name] for b in program.buffers)))
        return Code(tuple(launches), tuple(places.values())[len(self.buffers) :], str(self.line))


class Tuner:
    """Measures kernels into a store; without a worker it only takes over what was measured of equal texts."""

    def __init__(
        self,
        machine: Machine,
        evidence: Evidence,
        where: Where,
        worker: Worker | None,
        limits: Limits | None = None,
        clocks: Callable[[], str] = lambda: "",
        build: Build = build,
    ) -> None:
        self.machine, self.evidence, self.where, self.worker = machine, evidence, where, worker
        self.limits, self.clocks, self.build = limits or Limits(), clocks, build

    def kernel(self, kernel: KernelForm, form: Form) -> KernelReport:
        """Measure the model's first lines of a kernel, and the fall-back where none of them is right."""
        known = canonical(kernel, form)
        buffers = tuple(at_pointer(b) for b in known.buffers)
        cost = kernel_cost(kernel, form, self.machine)
        subject = _Subject(kernel, form, known, buffers, cost)
        lines = space(known.kernel, buffers, known.axes, self.machine).lines[: self.limits.lines]
        report = KernelReport(kernel.name, known.key, cost.us, str(lines[0]))
        report.known = len({*map(str, lines)} & {*self.evidence.lines(known.key, self.where)})
        self._lines(subject, lines, report)
        found = self.evidence.lines(known.key, self.where)
        if not any(m.status == "ok" for m in found.values()) and self.worker is not None:
            self._lines(subject, [fallback_schedule(known.kernel)], report)
            found = self.evidence.lines(known.key, self.where)
        right = sorted((m for m in found.values() if m.status == "ok"), key=lambda m: m.time_us or 0.0)
        report.default_us = found[report.default].time_us if report.default in found else None
        if right:
            report.best, report.best_us = right[0].schedule, right[0].time_us
        report.failures = [Failure(m.schedule, m.status, m.reason) for m in found.values() if m.status != "ok"]
        return report

    def _lines(self, subject: _Subject, lines: Sequence[Schedule], report: KernelReport) -> None:
        """Settle every line that the store does not know; lines with one text are measured once."""
        have = self.evidence.lines(subject.known.key, self.where)
        by_text: dict[str, list[_Candidate]] = {}
        for line in lines:
            if str(line) not in have and (made := self._written(subject, line)) is not None:
                by_text.setdefault(made.text, []).append(made)
        for text, alike in list(by_text.items()):
            old = self.evidence.same_text(subject.known.key, alike[0].row.source, self.where)
            if old is not None:
                where = replace(old.where, code=self.where.code)
                self.evidence.add(*(replace(old, schedule=str(c.line), where=where) for c in alike))
                report.adopted += len(by_text.pop(text))
        if by_text and self.worker is not None:
            for c, row in self._measured(subject, [alike[0] for alike in by_text.values()], self.worker):
                report.measured += 1
                self.evidence.add(*(replace(row, schedule=str(twin.line)) for twin in by_text[c.text][1:]))

    def _written(self, subject: _Subject, line: Schedule) -> _Candidate | None:
        """A candidate's text; a line that cannot be lowered is stored as refused."""
        row = Measurement(
            subject.known.key,
            str(line),
            self.where,
            "refused",
            family=family_of(subject.kernel, subject.cost, line),
            modelled_us=subject.cost.us,
            taken=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        try:
            built = self.build(subject.known, subject.buffers, line, self.machine)
        except IRError as e:
            self.evidence.add(replace(row, reason=str(e)))
            return None
        made = _Candidate(line, built, subject.buffers, row)
        made.row = replace(row, source=source_hash(made.text))
        return made

    # ---- compile, gate, time

    def _measured(
        self, subject: _Subject, candidates: Sequence[_Candidate], worker: Worker
    ) -> Iterator[tuple[_Candidate, Measurement]]:
        """Settle candidates and store every one as soon as it is settled."""
        with ThreadPoolExecutor(self.limits.threads) as pool:
            compiling = [
                [pool.submit(compile_text, text, self.machine.target) for _, text in c.built] for c in candidates
            ]
            job = self._job(subject)
            if not all(t.whole for t in job.trials):
                job = replace(job, fallback=self._fallback(subject))
            compiled = [c for c, f in zip(candidates, compiling, strict=True) if self._compiled(c, f)]
        passed = []
        if compiled:
            self._open(job, worker)
        for c in compiled:
            try:
                verdict = worker.check(c.code(), self.limits.candidate_s)
                c.row = replace(
                    c.row, status=verdict.status, error=verdict.error, bound=verdict.bound, reason=verdict.reason
                )
            except Died as e:
                c.row = replace(c.row, status=e.status, reason=e.reason)
            if c.row.status == "ok":
                passed.append(c)
            else:
                self.evidence.add(_finite(c.row))
        for c, lap in self._raced(passed, worker):
            if isinstance(lap, Died):
                c.row = replace(c.row, status=lap.status, reason=f"while it was timed: {lap.reason}")
            else:
                c.row = _timed(c.row, lap, self.clocks())
            self.evidence.add(_finite(c.row))
        return ((c, _finite(c.row)) for c in candidates)

    def _compiled(self, c: _Candidate, futures: Sequence[Future[Binary]]) -> bool:
        """Whether a candidate is fit to run; what does not compile or spills is stored."""
        try:
            binaries = [f.result() for f in futures]
        except CompileError as e:
            c.row = replace(c.row, reason=str(e).splitlines()[0])
            self.evidence.add(c.row)
            return False
        c.binaries, found = binaries, [x for b in binaries for x in complaints(b.log)]
        c.row = replace(
            c.row,
            registers=max(b.registers for b in binaries),
            spill_bytes=max(b.spill_bytes for b in binaries),
            shared_bytes=max(b.shared_bytes for b in binaries),
        )
        if found:
            c.row = replace(c.row, status="spills", reason="; ".join(found))
            self.evidence.add(c.row)
        return not found

    def _job(self, subject: _Subject) -> Job:
        known, used = subject.known, [LAWS[n].class_ for n in subject.form.laws if n in LAWS]
        expected = trials(
            known.kernel, subject.buffers, known.axes, all(c == "exact" for c in used), self.limits.work
        )
        fresh = frozenset(only_written(known.kernel))
        return Job(subject.buffers, fresh, max(known.axes.values(), default=1), tuple(expected))

    def _fallback(self, subject: _Subject) -> Code:
        line = fallback_schedule(subject.known.kernel)
        built = self.build(subject.known, subject.buffers, line, self.machine)
        binaries = [compile_text(text, self.machine.target) for _, text in built]
        return _Candidate(line, built, subject.buffers, Measurement("", "", self.where, "ok"), binaries).code()

    def _open(self, job: Job, worker: Worker) -> None:
        """Open the job; without its fall-back where that does not run."""
        try:
            worker.open(job, 4 * self.limits.candidate_s)
        except Died:
            worker.open(replace(job, fallback=None), 4 * self.limits.candidate_s)

    def _raced(self, candidates: Sequence[_Candidate], worker: Worker) -> Iterator[tuple[_Candidate, Lap | Died]]:
        """Time candidates side by side; where that kills the worker, halves are timed, down to the one at fault."""
        if not candidates:
            return
        codes = [c.code() for c in candidates]
        try:
            laps = worker.race(codes, self.limits.rounds, self.limits.candidate_s + len(codes))
        except Died as e:
            if len(candidates) == 1:
                yield candidates[0], e
                return
            middle = len(candidates) // 2
            yield from self._raced(candidates[:middle], worker)
            yield from self._raced(candidates[middle:], worker)
            return
        yield from zip(candidates, laps, strict=True)


def _timed(row: Measurement, lap: Lap, clocks: str) -> Measurement:
    t = lap.time
    reason = "" if lap.cold else "timed with warm inputs only, as far from the best"
    return replace(
        row, time_us=t.median_us, low_us=t.low_us, high_us=t.high_us, rounds=t.rounds, clocks=clocks, reason=reason
    )


def _finite(row: Measurement) -> Measurement:
    """The row with None for an infinite or undefined error, which JSON cannot hold."""
    return row if row.error is None or abs(row.error) < float("inf") else replace(row, error=None)


# ---- programs


def tune(
    fn: Callable[..., object] | torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    name: str,
    options: Options,
    tuner: Tuner,
    budget_s: float = 600.0,
) -> Report:
    """Measure the kernels of the best forms and of the default one; extract again at measured prices until stable."""
    if options.evidence is not tuner.evidence:
        raise RequestError("the options and the tuner have different stores of evidence")
    start = time.monotonic()
    options = replace(options, explain=True)  # the gate asks of exact forms what the others need not hold
    compiled = choose_forms(capture_and_lower(fn, inputs, name, options))
    reports: dict[str, KernelReport] = {}
    rounds, complete = 0, True
    with progress() as bar:
        task = bar.add_task("measuring kernels", total=None)
        while fresh := {key: at for key, at in _kernels(compiled).items() if key not in reports}:
            bar.update(task, total=len(reports) + len(fresh))
            for key, (kernel, form) in fresh.items():
                if time.monotonic() - start > budget_s:
                    complete = False
                    break
                reports[key] = tuner.kernel(kernel, form)
                bar.advance(task)
            if not complete:
                break
            rounds += 1
            compiled.steps = [
                chosen_region(s.program, s.graph, options) if isinstance(s, Region) else s for s in compiled.steps
            ]
    chosen = [canonical(k, r.chosen).key for r in compiled.regions for k in r.chosen.kernels]
    forms = [r.chosen.name for r in compiled.regions]
    seconds = time.monotonic() - start
    return Report(name, list(reports.values()), chosen, forms, rounds, seconds, complete)


def _kernels(compiled: Compiled) -> dict[str, tuple[KernelForm, Form]]:
    """The kernels worth measuring by key: those of the chosen form, of the other best ones, and of the default."""
    found: dict[str, tuple[KernelForm, Form]] = {}
    for r in compiled.regions:
        for form in (r.chosen, *r.forms, r.default):
            for kernel in form.kernels:
                if not any(all(form.axes[a] for a in s.axes) for s in kernel.stores):
                    continue  # nothing is stored along an empty axis
                found.setdefault(canonical(kernel, form).key, (kernel, form))
    return found
