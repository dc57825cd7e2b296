"""The suite's memory-bound kernels between unmapped pages, on poisoned memory, a thousand times: the bits never change.

Run as `python -m tests.gpu.guards FILE`, FILE being what `python -m tests.gpu.kernels` wrote: prints a line a program and
exits with the number of failures. Results also stay the same once the caller has dropped what it held and the allocator
has given its memory back. `python -m tests.gpu.guards past|before` reads one element beyond guarded memory, and must fail.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from codegen import gpu
from codegen.compile import compile_text
from ir.dtype import Array
from ir.kernel import KernelProgram
from tests.codegen.hand_built import buffer
from tests.gpu.launches import Step, Subject, load

LAUNCHES = 1000
PATTERNS = (0xFF, 0x5A)


class Held:
    """A subject's memory, with what its buffers hold before a launch."""

    def __init__(self, subject: Subject, memory: Mapping[str, gpu.Guarded | gpu.Memory]) -> None:
        self.subject, self.memory = subject, memory
        self.before = {n: subject.content(n) for n in subject.given}
        self.results = {n: np.empty(subject.bytes(n), np.uint8) for n in subject.results}
        self.places = {n: m.data_ptr() for n, m in memory.items()}

    def fill(self) -> None:
        """Write the inputs."""
        for n, array in self.before.items():
            gpu.store(array, self.places[n])

    def poison(self, pattern: int) -> None:
        """Fill every buffer that is not given."""
        for n in self.places.keys() - self.before.keys():
            gpu.poison(self.places[n], self.subject.bytes(n), pattern)

    def read(self) -> list[bytes]:
        """The bytes of the results."""
        for n, array in self.results.items():
            gpu.download(self.places[n], array)
        return [a.tobytes() for a in self.results.values()]

    def inputs_kept(self) -> bool:
        """Whether the given buffers that are no results hold what they held."""
        for n, array in self.before.items():
            got: Array = np.empty_like(array)
            gpu.download(self.places[n], got)
            if n not in self.results and got.tobytes() != array.tobytes():
                return False
        return True


def guarded(subject: Subject, at_end: bool) -> dict[str, gpu.Guarded]:
    """Every buffer of the subject at an unmapped page."""
    return {n: gpu.Guarded(subject.bytes(n), b.alignment, at_end) for n, b in subject.buffers.items()}


def repeated(subject: Subject, at_end: bool) -> tuple[str, list[bytes]]:
    """What is wrong with a thousand launches on guarded memory, and the results."""
    held = Held(subject, guarded(subject, at_end))
    held.fill()
    launches = subject.bound(held.memory)
    first: list[bytes] = []
    for k in range(LAUNCHES):
        held.poison(PATTERNS[k % 2])
        run_all(tuple(launches))
        got = held.read()
        if k and got != first:
            return f"launch {k} differs", first
        first = got
    return "" if held.inputs_kept() else "an input has changed", first


def run_all(launches: tuple[gpu.Launch, ...]) -> None:
    """Enqueue launches in order."""
    for launch in launches:
        launch.run()


def dropped(subject: Subject, want: list[bytes], graph: bool) -> str:
    """Launches, or a graph of them, when nothing else holds their memory any more."""
    memory = {n: gpu.Memory(subject.bytes(n)) for n in subject.buffers}
    held = Held(subject, memory)
    held.fill()
    launches = subject.bound(memory)
    run = gpu.Graph(launches).replay if graph else partial(run_all, tuple(launches))
    held.memory = {}
    del memory, launches
    gc.collect()
    gpu.empty_cache()
    others = [gpu.Memory(subject.bytes(n)) for n in subject.buffers for _ in range(4)]
    for m in others:
        gpu.poison(m.data_ptr(), m.size, PATTERNS[0])
    held.poison(PATTERNS[1])
    before = held.read()  # waits: the stream of a graph does not wait for the poison
    run()
    got = held.read()
    if got == want and held.inputs_kept():
        return ""
    return (
        f"{'a graph' if graph else 'a launch'} differs once its memory was dropped: {differing(got, want, before)}"
    )


def differing(got: list[bytes], want: list[bytes], before: list[bytes]) -> str:
    """How many bytes are not as they should be, and how many of those are as they were before."""
    x, y, z = (np.frombuffer(b"".join(b), np.uint8) for b in (got, want, before))
    return f"{(x != y).sum()} of {x.size} bytes, {((x != y) & (x == z)).sum()} of them as before"


BEYOND = {"past": "threadIdx.x + 1", "before": "(int)threadIdx.x - 1"}


def beyond(side: str) -> None:
    """Launch a kernel that reads one element beyond a guarded buffer."""
    text = f'extern "C" __global__ void over(float* y, const float* x) {{ y[threadIdx.x] = x[{BEYOND[side]}]; }}'
    buffers = {"y": buffer("y", "f32", 64, role="output"), "x": buffer("x", "f32", 64)}
    binary = compile_text(text, gpu.device_target())
    step = Step(KernelProgram("over", tuple(buffers.values()), 64, 1, ()), binary, ("y", "x"))
    repeated(Subject("over", (step,), buffers, ("x",), {}, ("y",)), side == "past")


def faults(side: str) -> str:
    """What is wrong with a process that reads beyond guarded memory: it must end with CUDA's word for that."""
    done = subprocess.run([sys.executable, "-m", "tests.gpu.guards", side], capture_output=True, text=True)
    if done.returncode and "IllegalAddress" in done.stderr:
        return ""
    return f"exit {done.returncode} {done.stderr.strip()[-200:]}"


def checked(subject: Subject) -> str:
    """What is wrong with a program's kernels."""
    results = []
    for at_end in (True, False):
        wrong, got = repeated(subject, at_end)
        if wrong:
            return f"{wrong}, buffers {'end' if at_end else 'start'} at an unmapped page"
        results.append(got)
    if results[0] != results[1]:
        return "the place of the buffers changes the bits"
    return dropped(subject, results[0], graph=False) or dropped(subject, results[0], graph=True)


def main(path: Path) -> int:
    """Check the kernels of the file; the number of failures."""
    usable, why = gpu.available()
    if not usable:
        print(why)
        return 1
    subjects = load(path)
    checks: dict[str, Callable[[], str]] = {s.name: lambda s=s: checked(s) for s in subjects}  # type: ignore[misc]
    checks |= {f"a planted read {side} its buffer": lambda side=side: faults(side) for side in BEYOND}  # type: ignore[misc]
    failures = 0
    for name, check in checks.items():
        wrong = check()
        failures += bool(wrong)
        print(f"{'fail' if wrong else 'ok':4} {name}{': ' + wrong if wrong else ''}", flush=True)
    print(f"{len(subjects)} programs, {LAUNCHES} launches at each end of their pages; {failures} failures")
    return failures


if __name__ == "__main__":
    if sys.argv[1] in BEYOND:
        beyond(sys.argv[1])
    else:
        sys.exit(main(Path(sys.argv[1])))
