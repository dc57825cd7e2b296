"""Candidates: compiled side by side, gated and timed by a worker in its turn, and stored as each is settled."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from codegen.compile import Binary, CompileError, compile_text
from codegen.resources import complaints
from codegen.worker import Code, Died, Job, Lap, Launch, Worker
from eggtile.plan import Work
from eggtile.trials import WORK
from eggtile.turn import turn
from extract.evidence import Evidence
from extract.measurement import WARM_ONLY, Measurement
from ir.loop import Buffer


@dataclass(frozen=True)
class Limits:
    """Texts of a kernel, rounds of a race, seconds that a candidate may take, compilations side by side, gate's work."""

    lines: int = 12
    rounds: int = 21
    candidate_s: float = 30.0
    threads: int = os.cpu_count() or 2
    work: int = WORK


@dataclass
class Candidate:
    """Launches on `buffers` and on scratch buffers of their own, and the row that will be stored for them."""

    work: Work
    buffers: Sequence[Buffer]
    row: Measurement
    binaries: Sequence[Binary] = ()

    @property
    def text(self) -> str:
        """The text of all launches."""
        return "\n".join(launch.text for launch in self.work.launches)

    def code(self) -> Code:
        """What a worker needs of it."""
        number = {b.name: n for n, b in enumerate((*self.buffers, *self.work.scratch))}
        launches = [
            Launch(planned.kernel, planned.text, binary, tuple(number[a] for a in planned.arguments))
            for planned, binary in zip(self.work.launches, self.binaries, strict=True)
        ]
        return Code(tuple(launches), self.work.scratch, self.row.schedule)


class Settler:
    """Settles candidates into a store; `settled` is called for each. `lock` stands for the card (`eggtile.turn`)."""

    def __init__(
        self,
        evidence: Evidence,
        target: str,
        limits: Limits,
        clocks: Callable[[], str] = lambda: "",
        lock: Path | None = None,
    ) -> None:
        self.evidence, self.target, self.limits, self.clocks, self.lock = evidence, target, limits, clocks, lock
        self.settled: Callable[[], object] = lambda: None
        self._binaries: dict[str, Future[Binary]] = {}
        self._pool = ThreadPoolExecutor(limits.threads)

    def compile(self, candidates: Sequence[Candidate]) -> None:
        """Begin to compile texts that are not compiled yet."""
        for launch in (launch for c in candidates for launch in c.work.launches):
            if launch.text not in self._binaries:
                self._binaries[launch.text] = self._pool.submit(compile_text, launch.text, self.target)

    def compiled(self, c: Candidate) -> bool:
        """Whether a candidate is fit to run; its row says why where it is not."""
        self.compile([c])
        try:
            c.binaries = [self._binaries[launch.text].result() for launch in c.work.launches]
        except CompileError as e:
            c.row = replace(c.row, reason=str(e).splitlines()[0])
            return False
        found = [x for b in c.binaries for x in complaints(b.log)]
        c.row = replace(
            c.row,
            registers=max(b.registers for b in c.binaries),
            spill_bytes=max(b.spill_bytes for b in c.binaries),
            shared_bytes=max(b.shared_bytes for b in c.binaries),
            status="spills" if found else c.row.status,
            reason="; ".join(found),
        )
        return not found

    def settle(self, job: Job, candidates: Sequence[Candidate], worker: Worker) -> Sequence[Candidate]:
        """The candidates, each gated, timed if it passes, and stored as soon as it is settled."""
        compiled, passed = [], []
        for c in candidates:
            if self.compiled(c):
                compiled.append(c)
            else:
                self.store(c)
        if compiled:
            self.open(job, worker)
        for c in compiled:
            try:
                with turn(self.lock, alone=False):
                    found = worker.check(c.code(), self.limits.candidate_s)
                c.row = replace(
                    c.row, status=found.status, error=found.error, bound=found.bound, reason=found.reason
                )
            except Died as e:
                c.row = replace(c.row, status=e.status, reason=e.reason)
            if c.row.status == "ok":
                passed.append(c)
            else:
                self.store(c)
        self.race(passed, worker)
        return candidates

    def store(self, c: Candidate) -> None:
        """Store the row of a candidate; infinite errors, which JSON lacks, are the largest number, or none."""
        most = sys.float_info.max if c.row.status == "ok" else None
        error, bound = (x if x is None or x < float("inf") else most for x in (c.row.error, c.row.bound))
        c.row = replace(c.row, error=error, bound=bound)
        self.evidence.add(c.row)
        self.settled()

    def open(self, job: Job, worker: Worker) -> None:
        """Open the job; without its fall-back where that does not run."""
        with turn(self.lock, alone=False):
            try:
                worker.open(job, 4 * self.limits.candidate_s)
            except Died:
                worker.open(replace(job, fallback=None), 4 * self.limits.candidate_s)

    def race(self, candidates: Sequence[Candidate], worker: Worker) -> None:
        """Time candidates side by side and store them."""
        for c, lap in self._laps(candidates, worker):
            if isinstance(lap, Died):
                c.row = replace(c.row, status=lap.status, reason=f"while it was timed: {lap.reason}")
            else:
                c.row = _timed(c.row, lap)
            self.store(c)

    def _laps(self, candidates: Sequence[Candidate], worker: Worker) -> Iterator[tuple[Candidate, Lap | Died]]:
        """Time candidates side by side; where that kills the worker, halves are timed, down to the one at fault."""
        if not candidates:
            return
        codes = [c.code() for c in candidates]
        try:
            with turn(self.lock, alone=True):
                laps = worker.race(codes, self.limits.rounds, self.limits.candidate_s * (1 + len(codes) / 12))
                clocks = self.clocks()
        except Died as e:
            if len(candidates) == 1:
                yield candidates[0], e
                return
            middle = len(candidates) // 2
            yield from self._laps(candidates[:middle], worker)
            yield from self._laps(candidates[middle:], worker)
            return
        for c, lap in zip(candidates, laps, strict=True):
            c.row = replace(c.row, clocks=clocks)
            yield c, lap


def _timed(row: Measurement, lap: Lap) -> Measurement:
    t = lap.time
    reason = "" if lap.cold else WARM_ONLY
    return replace(
        row, status="ok", time_us=t.median_us, low_us=t.low_us, high_us=t.high_us, rounds=t.rounds, reason=reason
    )
