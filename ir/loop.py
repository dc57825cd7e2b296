"""Loop IR programs: named axes with extents, buffers, and results that store a term at an index."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ir.dtype import DTYPES, DType
from ir.node import IRError
from ir.term import Term


@dataclass(frozen=True)
class Buffer:
    """A strided array: element [i] stands at offset + sum(i * stride), in elements of `dtype`.

    `role` is input (never written unless a result names it), output, or scratch (made and used inside a form).
    `alignment` is the guaranteed alignment of the base address plus offset, in bytes.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    role: str = "input"
    alignment: int = 16

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def bytes(self) -> int:
        """Bytes of all elements, each counted once."""
        return self.size * DTYPES[self.dtype].bytes


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


@dataclass(frozen=True)
class Store:
    """buffer[index] = value for every point of the axes free in index or value.

    With a `monoid` the stored value is combined with what the buffer holds (a scatter). Index maps of plain stores
    are injective. Storing to an input buffer is a mutation.
    """

    buffer: str
    index: tuple[Term, ...]
    value: Term
    monoid: str | None = None

    @property
    def axes(self) -> frozenset[str]:
        """The axes over which the store runs."""
        return self.value.free.union(*(t.free for t in self.index))


@dataclass(frozen=True)
class Whole:
    """A tensor of the level above whose term stands in the program, and the terms of its operands."""

    label: str
    term: Term
    operands: tuple[Term, ...]


@dataclass(frozen=True)
class LoopProgram:
    """A whole program, or a region between calls. Results are computed from the inputs as they were before any store.

    `tensors` names what the program was lowered from; it is no part of its meaning, nor of its text.
    """

    name: str
    axes: Mapping[str, int]
    buffers: tuple[Buffer, ...]
    results: tuple[Store, ...]
    tensors: tuple[Whole, ...] = field(default=(), compare=False)

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        for b in self.buffers:
            if b.name == name:
                return b
        raise IRError(f"{self.name}: no buffer is named {name}")


@dataclass(frozen=True)
class Part:
    """Stores that share their axes: one tile of one kernel computes them together."""

    axes: tuple[str, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class KernelForm:
    """One kernel of a form, before it is scheduled: parts laid side by side in one grid. No term holds At or Prefix."""

    name: str
    parts: tuple[Part, ...]

    @property
    def stores(self) -> tuple[Store, ...]:
        """All stores of all parts."""
        return tuple(s for p in self.parts for s in p.stores)


@dataclass(frozen=True)
class Form:
    """A cover of the program's results by kernels, in an order in which every scratch buffer is made before it is read."""

    name: str
    axes: Mapping[str, int]
    buffers: tuple[Buffer, ...]
    kernels: tuple[KernelForm, ...]
    laws: tuple[str, ...] = ()
    cost_us: float = math.nan
    details: Mapping[str, object] = field(default_factory=dict)

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        for b in self.buffers:
            if b.name == name:
                return b
        raise IRError(f"form {self.name}: no buffer is named {name}")
