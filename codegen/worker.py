"""The process that runs candidates: it gates and times kernels for a tuner, and alone dies where one hangs or crashes.

The tuner holds a `Worker` and asks it; the process answers one message at a time through a pipe. Whatever a device
raises ends the process, since a fault poisons its context; the next question starts another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from codegen import gpu
from codegen.compile import Binary
from codegen.gate import GUARD_BYTES, Gate, GateError, Run, Verdict
from codegen.gpu import Time
from codegen.trial import Trial
from ir.dtype import Array
from ir.kernel import KernelProgram
from ir.loop import Buffer
from ir.node import IRError

START_S = 120.0
GRACE_S = 5.0  # after which a process whose tuner is gone ends by itself
HOT_ROUNDS = 3
HOPELESS = 3.0  # times the fastest hot time: such a candidate is not timed cold
NEAR = 1.05  # times the fastest cold time: such a candidate is timed again
LONG_US = 8000.0  # that it then takes: what the one before leaves in the caches is spread over many passes
HUNG = 77
POISON = 0xFF  # of scratch buffers: not a number in every float type
COMMAND = (sys.executable, "-c", f"from {__name__} import GpuDevice, main; main(GpuDevice())")


@dataclass(frozen=True)
class Launch:
    """One launch: its header (`kernel` holds no terms), its text, what the compiler made of it, and its arguments.

    An argument is the number of a buffer of the job, or from there on of a scratch buffer of the candidate.
    """

    kernel: KernelProgram
    text: str
    binary: Binary | None
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Code:
    """A candidate ready to run: launches in order, and the buffers that stand between them."""

    launches: tuple[Launch, ...]
    scratch: tuple[Buffer, ...]
    line: str


@dataclass(frozen=True)
class Job:
    """The kernel whose candidates follow; `fallback` is the candidate that sampled trials compare with.

    `fresh` buffers are only written, integers index up to `extent` positions.
    """

    buffers: tuple[Buffer, ...]
    fresh: frozenset[str]
    extent: int
    trials: tuple[Trial, ...]
    fallback: Code | None = None


@dataclass(frozen=True)
class Check:
    """Gate a candidate; the answer is a `Verdict`."""

    code: Code


@dataclass(frozen=True)
class Race:
    """Time candidates side by side; the answer is a `Lap` for each."""

    codes: tuple[Code, ...]
    rounds: int


@dataclass(frozen=True)
class Lap:
    """A candidate's time: cold, or hot only where that shows that it cannot win."""

    time: Time
    cold: bool


class Device(Protocol):
    """What runs kernels; `load` gives what `run` and `race` take."""

    def open(self, images: Sequence[Sequence[Array]], starts: Sequence[int]) -> None:
        """Take in the memory of every trial: byte images of the buffers, each of which begins at its start."""

    def load(self, code: Code) -> Any: ...

    def run(self, loaded: Any, trial: int, after: Sequence[Array]) -> None:
        """Launch on the memory of a trial; its images come back in `after`."""

    def race(self, loaded: Sequence[Any], cold: Sequence[bool], rounds: int) -> list[Lap]:
        """Time candidates side by side on the memory of the first trial; inputs that are `cold` come from DRAM."""


class Loaded:
    """A candidate on the current CUDA device."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.kernels = []
        for launch in code.launches:
            if launch.binary is None:
                raise IRError(f"{code.line} is not compiled")
            self.kernels.append(gpu.Kernel(launch.kernel, launch.binary))

    def bind(self, buffers: Sequence[gpu.Argument]) -> list[gpu.Launch]:
        """The launches on the buffers of the job, and on scratch buffers of their own."""
        places = [*buffers, *(gpu.Memory(gpu.span_bytes(b), POISON) for b in self.code.scratch)]
        arguments = ([places[n] for n in launch.arguments] for launch in self.code.launches)
        return [k.bind(own) for k, own in zip(self.kernels, arguments, strict=True)]


class GpuDevice:
    """The current CUDA device: it keeps the memory of every trial, and one set of buffers on which kernels run."""

    def open(self, images: Sequence[Sequence[Array]], starts: Sequence[int]) -> None:
        self.kept, self.own = [], []  # what the last job held is free before more is taken
        self.kept = [[gpu.upload(i) for i in own] for own in images]
        self.own = [gpu.Memory(i.nbytes) for i in images[0]]
        self.starts = starts

    def load(self, code: Code) -> Loaded:
        return Loaded(code)

    def run(self, loaded: Loaded, trial: int, after: Sequence[Array]) -> None:
        for kept, own in zip(self.kept[trial], self.own, strict=True):
            gpu.copy(kept, own)
        for launch in loaded.bind([m.data_ptr() + s for m, s in zip(self.own, self.starts, strict=True)]):
            launch.run()
        for memory, i in zip(self.own, after, strict=True):
            gpu.download(memory, i)

    def race(self, loaded: Sequence[Loaded], cold: Sequence[bool], rounds: int) -> list[Lap]:
        held = [
            gpu.clone(m.data_ptr() + start, m.size - start - GUARD_BYTES)  # aligned, as a user's buffers are
            for m, start in zip(self.kept[0], self.starts, strict=True)
        ]
        launches = [k.bind(held) for k in loaded]
        hot = gpu.times([[own] for own in launches], HOT_ROUNDS)
        limit = HOPELESS * min(t.median_us for t in hot)
        inputs = {m.data_ptr(): m.size for m, c in zip(held, cold, strict=True) if c and m.size}
        laps = [Lap(t, False) for t in hot]
        left = [k for k, t in enumerate(hot) if t.median_us <= limit]
        while left:
            for k, t in zip(left, _cold_times([launches[k] for k in left], inputs, rounds), strict=True):
                laps[k] = Lap(t, True)
            best = min(lap.time.median_us for lap in laps if lap.cold)
            left = [k for k, lap in enumerate(laps) if not lap.cold and lap.time.median_us <= best]
        near = [k for k, lap in enumerate(laps) if lap.cold and lap.time.median_us <= NEAR * best]
        for k, t in zip(near, _cold_times([launches[k] for k in near], inputs, rounds, LONG_US), strict=True):
            laps[k] = Lap(t, True)
        return laps


def _cold_times(
    contenders: Sequence[Sequence[gpu.Launch]],
    inputs: Mapping[int, int],
    rounds: int,
    least_us: float = gpu.REPLAY_US,
) -> list[gpu.Time]:
    """Times of contenders side by side, with these inputs (address: bytes) from DRAM, in replays of so long."""
    every = [launch for own in contenders for launch in own]
    ends = list(accumulate(len(own) for own in contenders))
    passes = gpu.rotated(every, inputs) if inputs else [every]
    return gpu.times([[p[a:b] for p in passes] for a, b in zip((0, *ends), ends, strict=False)], rounds, least_us)


# ---- the process


def _opened(device: Device, job: Job) -> tuple[Gate, str]:
    """The gate of a job, and what is wrong with its fall-back, to which candidates are then not held."""
    gate = Gate(job.buffers, job.trials, job.fresh, job.extent)
    device.open(gate.images, gate.starts)
    try:
        if job.fallback is not None:
            gate.hold_to(_runner(device, job.fallback))
    except GateError as e:
        return gate, str(e)
    return gate, ""


def _runner(device: Device, code: Code) -> Run:
    return partial(device.run, device.load(code))


def _answer(device: Device, gate: Gate, message: Check | Race) -> Verdict | list[Lap]:
    if isinstance(message, Check):
        return gate.verdict(_runner(device, message.code))
    cold = [b.role == "input" for b in gate.buffers]
    return device.race([device.load(c) for c in message.codes], cold, message.rounds)


def serve(connection: Connection, device: Device) -> None:
    """Answer until the tuner is gone; a question that outlasts its limit by far ends the process."""
    connection.send("ready")
    gate: Gate | None = None
    while True:
        try:
            message, limit_s = connection.recv()
        except EOFError:
            return
        watch = threading.Timer(limit_s + GRACE_S, os._exit, (HUNG,))
        watch.daemon = True
        watch.start()
        answer: object
        if isinstance(message, Job):
            gate, answer = _opened(device, message)
        else:
            assert gate is not None
            answer = _answer(device, gate, message)
        connection.send(answer)
        watch.cancel()


def main(device: Device) -> None:
    """Serve on the pipe whose number is the first argument; whatever is raised becomes the last line of stderr."""
    try:
        serve(Connection(int(sys.argv[1])), device)
    except Exception as e:  # the context may be poisoned: end at once, without its destructors
        print(f"{type(e).__name__}: {e}".replace("\n", " "), file=sys.stderr, flush=True)
        os._exit(1)


# ---- the tuner's side


class Died(IRError):
    """The process is gone: `status` is hung or crashed."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status, self.reason = status, reason


class Worker:
    """A worker process, started when it is first asked and again after it died."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self.command = tuple(command)
        self.process: subprocess.Popen[bytes] | None = None
        self.job: Job | None = None
        self.starts = 0

    def open(self, job: Job, limit_s: float) -> str:
        """Take up a kernel; gives what is wrong with its fall-back."""
        self.job = None
        self._started(limit_s)
        said = str(self._ask(job, limit_s))
        self.job = job
        return said

    def check(self, code: Code, limit_s: float) -> Verdict:
        """Gate a candidate of the open job; raises `Died`."""
        self._started(limit_s)
        answer = self._ask(Check(code), limit_s)
        assert isinstance(answer, Verdict)
        return answer

    def race(self, codes: Sequence[Code], rounds: int, limit_s: float) -> list[Lap]:
        """Time candidates of the open job side by side; raises `Died`."""
        self._started(limit_s)
        answer = self._ask(Race(tuple(codes), rounds), limit_s)
        assert isinstance(answer, list)
        return answer

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.connection.close()
            self.errors.close()
            self.process = None

    def _started(self, limit_s: float) -> None:
        if self.process is not None:
            return
        self.connection, theirs = Pipe()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self.process = subprocess.Popen(
            [*self.command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.errors,
            stderr=self.errors,
        )
        theirs.close()
        self.starts += 1
        try:
            self._answer(START_S)
            if self.job is not None:
                self._ask(self.job, limit_s)
        except Died as e:
            raise IRError(f"the worker does not start: {e.reason}") from None

    def _ask(self, message: object, limit_s: float) -> object:
        try:
            self.connection.send((message, limit_s))
        except BrokenPipeError:
            raise self._dead() from None
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> object:
        if not self.connection.poll(limit_s):
            self.close()
            raise Died("hung", f"no answer within {limit_s:g} s")
        try:
            answer: object = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._dead() from None
        return answer

    def _dead(self) -> Died:
        assert self.process is not None
        code = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        self.close()
        if code < 0:
            return Died("crashed", f"killed by {signal.Signals(-code).name}")
        return Died("hung" if code == HUNG else "crashed", lines[-1] if lines else f"exit code {code}")
