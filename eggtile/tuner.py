"""Measuring a kernel under many lines, and a whole form under the best lines of its kernels, into the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from codegen.emit import emit
from codegen.lower import lower_tile
from codegen.trial import FIRST, Trial
from codegen.worker import Job, Worker
from eggtile.candidates import Candidate, Limits, Settler
from eggtile.clock import Clock
from eggtile.measured_lines import LegalPrices
from eggtile.pipeline import Options, RequestError, at_pointer, compile_kernel, roomy_schedule
from eggtile.plan import PlannedLaunch, Work, head
from eggtile.planning import work_of
from eggtile.trials import only_written, trials
from egraph.laws import LAWS
from extract.cost import Cost, kernel_cost
from extract.evidence import source_hash
from extract.key import Canonical, canonical, form_key
from extract.measurement import FORM, Measurement, Where, rank
from extract.prices import Prices, family_of, shapes_of, shapes_of_program, stores_something
from extract.spaces import fallback_schedule, space
from extract.stages import stages
from extract.tiling import tile_program
from ir.kernel import KernelProgram
from ir.loop import Buffer, Form, KernelForm, LoopProgram
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
        tile = tile_program(stage.kernel, stage.buffers, stage.axes, stage.schedule, known.quotients)
        program = lower_tile(tile, machine)
        out.append((program, emit(program)))
    return tuple(out)


@dataclass(frozen=True)
class Failure:
    """A line that is not fit to win, and why."""

    line: str
    status: str
    reason: str


@dataclass
class KernelReport:
    """What is known of one kernel: its space, the model's line, the best line, and those that failed."""

    name: str
    key: str
    shapes: str
    space: int
    modelled_us: float
    default: str
    default_us: float | None = None
    best: str | None = None
    best_us: float | None = None
    measured: int = 0
    adopted: int = 0
    known: int = 0
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class _Subject:
    """A kernel to measure, in canonical spelling."""

    kernel: KernelForm
    form: Form
    known: Canonical
    buffers: tuple[Buffer, ...]
    cost: Cost


class Tuner:
    """Measures into the store of its options; without a worker it only takes over what was measured of equal texts.

    `lock` is a file that stands for the card (`eggtile.turn`).
    """

    def __init__(
        self,
        options: Options,
        where: Where,
        worker: Worker | None,
        limits: Limits | None = None,
        clocks: Callable[[], str] = lambda: "",
        build: Build = build,
        lock: Path | None = None,
    ) -> None:
        if options.evidence is None or options.evidence.path is None:
            raise RequestError("what is measured needs a store to go to")
        self.options, self.machine, self.evidence = options, options.machine(), options.evidence
        self.where, self.worker, self.limits, self.build = where, worker, limits or Limits(), build
        self.settler = Settler(self.evidence, self.machine.target, self.limits, clocks, lock)

    # ---- kernels

    def kernel(self, kernel: KernelForm, form: Form) -> KernelReport:
        """Measure the model's first lines of a kernel, and the fall-back where none of them is right."""
        known = canonical(kernel, form, self.options.quotients)
        buffers = tuple(at_pointer(b) for b in known.buffers)
        subject = _Subject(kernel, form, known, buffers, kernel_cost(kernel, form, self.machine))
        listed = space(known.kernel, buffers, known.axes, self.machine)
        default = roomy_schedule(known, buffers, self.machine)
        report = KernelReport(
            kernel.name, known.key, shapes_of(kernel, form), listed.size, subject.cost.us, str(default)
        )
        self._lines(subject, dict.fromkeys((default, *listed.lines)), self.limits.lines, report)
        found = self._known(known.key, report.shapes)
        if not any(m.status == "ok" for m in found.values()) and self.worker is not None:
            self._lines(subject, [fallback_schedule(known.kernel)], 1, report)
            found = self._known(known.key, report.shapes)
        best = min((m for m in found.values() if m.status == "ok"), key=rank, default=None)
        report.default_us = found[report.default].time_us if report.default in found else None
        if best is not None:
            report.best, report.best_us = best.schedule, best.time_us
        report.failures = [Failure(m.schedule, m.status, m.reason) for m in found.values() if m.status != "ok"]
        return report

    def _known(self, key: str, shapes: str) -> dict[str, Measurement]:
        return self.evidence.lines(key, self.where, shapes=shapes)

    def _is_known(self, row: Measurement) -> bool:
        return row.schedule in self._known(row.key, row.shapes)

    def _lines(self, subject: _Subject, lines: Iterable[Schedule], texts: int, report: KernelReport) -> None:
        """Settle lines until so many texts are; lines with one text are measured once."""
        have, seen = self._known(subject.known.key, report.shapes), set[str]()
        fresh: dict[str, list[Candidate]] = {}
        for line in lines:
            if len(seen) >= texts:
                break
            if (known := have.get(str(line))) is not None:
                report.known += 1
                seen |= {known.source} - {""}
            elif (made := self._written(subject, line)) is not None:
                seen.add(made.row.source)
                fresh.setdefault(made.row.source, []).append(made)
        for source, alike in list(fresh.items()):
            if self._adopted(alike):
                report.adopted += len(fresh.pop(source))
        if fresh and self.worker is not None:
            first = [alike[0] for alike in fresh.values()]
            self.settler.compile(first)
            job = self._job(subject)
            for c in self.settler.settle(job, first, self.worker):
                report.measured += 1
                twins = fresh[c.row.source][1:]
                self.evidence.add(*(replace(c.row, schedule=twin.row.schedule) for twin in twins))

    def _written(self, subject: _Subject, line: Schedule) -> Candidate | None:
        """A candidate; a line that cannot be lowered is stored as refused."""
        family = family_of(subject.kernel, subject.cost, line)
        row = self._row(subject.known.key, str(line), family, shapes_of(subject.kernel, subject.form))
        row = replace(row, modelled_us=subject.cost.us)
        try:
            built = self.build(subject.known, subject.buffers, line, self.machine)
        except IRError as e:
            self.evidence.add(replace(row, reason=str(e)))
            return None
        made = Candidate(_work(built, subject.buffers), subject.buffers, row)
        made.row = replace(row, source=source_hash(made.text))
        return made

    def _row(self, key: str, line: str, family: str, shapes: str) -> Measurement:
        """A row of this place that says nothing yet."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Measurement(key, line, self.where, "refused", family=family, shapes=shapes, taken=now)

    def _adopted(self, alike: Sequence[Candidate]) -> bool:
        """Whether candidates with one text are known by what other code made of it; then they are stored."""
        row = alike[0].row
        for old in self.evidence.same_text(row.key, row.source, self.where, shapes=row.shapes):
            where = replace(old.where, code=self.where.code)
            known = replace(old, where=where, family=row.family, modelled_us=row.modelled_us)
            self.evidence.add(*(replace(known, schedule=c.row.schedule) for c in alike))
        return self._is_known(row)

    def _job(self, subject: _Subject) -> Job:
        """The kernel's trials; where they only sample its values, with the fall-back to hold the rest to."""
        known, used = subject.known, [LAWS[n].class_ for n in subject.form.laws if n in LAWS]
        exact = all(c == "exact" for c in used)
        expected = trials(known.kernel, subject.buffers, known.axes, exact, self.limits.work)
        fresh, extent = frozenset(only_written(known.kernel)), max(known.axes.values(), default=1)
        job = Job(subject.buffers, fresh, extent, tuple(expected))
        if all(t.whole for t in expected):
            return job
        built = self.build(subject.known, subject.buffers, fallback_schedule(known.kernel), self.machine)
        plain = Candidate(_work(built, subject.buffers), subject.buffers, self._row("", "fall-back", "", ""))
        return replace(job, fallback=plain.code() if self.settler.compiled(plain) else None)

    # ---- whole forms

    def forms(self, program: LoopProgram, found: Sequence[Form]) -> int:
        """Time forms whose kernels all have a right line side by side, if one of them is not known; gives how many."""
        prices = LegalPrices(self.evidence, self.machine, self.options.quotients)
        candidates = [c for f in found if (c := self._whole(program, f, prices)) is not None]
        candidates = list({c.row.key: c for c in candidates}.values())
        new = [c for c in candidates if not (self._is_known(c.row) or self._adopted([c]))]
        if not new or self.worker is None:
            return 0
        buffers, outputs = candidates[0].buffers, [b.name for b in program.buffers if b.role != "input"]
        self.settler.compile(candidates)
        ready = [c for c in candidates if self.settler.compiled(c)]
        job = Job(tuple(buffers), frozenset(outputs), max(program.axes.values(), default=1), (Trial(FIRST),))
        self.settler.open(job, self.worker)
        self.settler.race(ready, self.worker)
        return len(ready)

    def _whole(self, program: LoopProgram, form: Form, prices: Prices) -> Candidate | None:
        """A form under the best lines of its kernels; None where one has none, or where nothing is launched."""
        found = [prices.measured(k, form) for k in form.kernels if stores_something(k, form)]
        times = [m.time_us for m in found if m is not None and m.time_us is not None]
        if not found or len(times) < len(found):
            return None
        kernels = [compile_kernel(k, form, self.options, Clock(), {}, None) for k in form.kernels]
        lines = " | ".join(m.schedule for m in found if m)
        row = self._row(form_key(form, self.options.quotients), lines, FORM, shapes_of_program(program))
        made = Candidate(work_of(program, form, kernels), tuple(map(at_pointer, program.buffers)), row)
        made.row = replace(row, modelled_us=sum(times), source=source_hash(made.text))
        return made


def _work(built: Built, buffers: Sequence[Buffer]) -> Work:
    """Launches as data, with the buffers that stand between them."""
    launches = tuple(PlannedLaunch(head(p), text, tuple(b.name for b in p.buffers)) for p, text in built)
    outside = {b.name for b in buffers}
    scratch = {b.name: b for p, _ in built for b in p.buffers if b.name not in outside}
    return Work(launches, tuple(scratch.values()), ())
