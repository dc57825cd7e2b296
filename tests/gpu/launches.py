"""Compiled programs as data that a process without PyTorch can launch.

Run as `python -m tests.gpu.launches FILE`: every kernel of every program in the file once, on memory of its own. It is
what compute-sanitizer watches, so it holds as little as possible.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from codegen import gpu
from codegen.compile import Binary
from ir.dtype import Array, is_float, rounded, storage_type, to_storage
from ir.kernel import KernelProgram
from ir.loop import Buffer


@dataclass(frozen=True)
class Step:
    """One launch; its arguments are buffers of the subject by name."""

    program: KernelProgram
    binary: Binary
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """A program: launches in order over buffers, of which `given` are filled at first and `results` are looked at.

    `values` has the content of given buffers that cannot be drawn; the others hold random floats.
    """

    name: str
    steps: tuple[Step, ...]
    buffers: Mapping[str, Buffer]
    given: tuple[str, ...]
    values: Mapping[str, Array]
    results: tuple[str, ...]

    def content(self, name: str) -> Array:
        """What a given buffer holds at first, in the storage type."""
        if name in self.values:
            return self.values[name]
        b = self.buffers[name]
        assert is_float(b.dtype), f"{name} of {self.name} is {b.dtype}"
        drawn = np.random.default_rng(len(name)).standard_normal(
            self.bytes(name) // np.dtype(storage_type(b.dtype)).itemsize
        )
        return to_storage(rounded(drawn, b.dtype), b.dtype)

    def bytes(self, name: str) -> int:
        """Bytes from a buffer's first element to its last."""
        return gpu.span_bytes(self.buffers[name])

    def bound(self, memory: Mapping[str, gpu.Argument]) -> list[gpu.Launch]:
        """The launches on memory by name."""
        return [gpu.Kernel(s.program, s.binary).bind([memory[a] for a in s.arguments]) for s in self.steps]


def save(subjects: list[Subject], path: Path) -> None:
    """Write the subjects for another process of this project."""
    path.write_bytes(pickle.dumps(subjects))


def load(path: Path) -> list[Subject]:
    """The subjects that `save` wrote."""
    found: list[Subject] = pickle.loads(path.read_bytes())
    return found


def main(path: Path) -> None:
    """Launch everything once; nothing is caught, so that a fault is seen."""
    gpu.plain_allocations()
    for subject in load(path):
        memory = {n: gpu.Memory(subject.bytes(n)) for n in subject.buffers}
        for n in subject.given:
            gpu.store(subject.content(n), memory[n].data_ptr())
        for launch in subject.bound(memory):
            launch.run()
        for n in subject.results:
            gpu.download(memory[n], np.empty(subject.bytes(n), np.uint8))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
