"""A choice of tiles, and the threads along each of their axes; loads and stores by the strides of their indices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from extract.warps import Digits
from ir.dtype import DTYPES
from ir.interval import run_along
from ir.loop import Buffer
from ir.schedule import Staging
from ir.term import Term
from ir.tile import TileAxis

VECTOR_BYTES = 16


@dataclass(frozen=True)
class Access:
    """A load or a store: its buffer, the axes it runs over and the strides of those that are linear in its index.

    Along `clamped` axes its index may leave the buffer, so that its elements come one by one. `vector` is the longest run
    of neighbours that can move at once: aligned everywhere, and on one side of the buffer's end.
    """

    buffer: Buffer
    axes: frozenset[str]
    strides: Mapping[str, int]
    clamped: frozenset[str] = frozenset()
    index: tuple[Term, ...] = ()
    vector: int = 1

    @cached_property
    def element_bytes(self) -> int:
        return DTYPES[self.buffer.dtype].bytes

    @cached_property
    def place(self) -> tuple[str, frozenset[tuple[str, int]]]:
        """What accesses have in common that differ by a shift."""
        return self.buffer.name, frozenset(self.strides.items())

    @cached_property
    def contiguous(self) -> str | None:
        """The axis along which neighbours lie side by side."""
        return next((a for a, s in self.strides.items() if s == 1), None)


@dataclass(frozen=True)
class Choice:
    """Threads of a block, elements a thread holds side by side along an axis, how folds go, blocks of a cluster.

    Where units of so many threads take a piece of a sweep each, `pieces` is the axis that numbers them. `staging` is how
    loads go through shared memory, if they do.
    """

    block: int
    vector: int = 1
    vector_axis: str | None = None
    reduce: str = "block"
    cluster: int = 1
    unit: int = 0
    pieces: str = ""
    staging: Staging | None = None

    @cached_property
    def threads(self) -> int:
        """Threads that work on a tile, which is that of a whole cluster."""
        return self.block * self.cluster

    def run(self, axis: TileAxis) -> int:
        """Elements side by side along an axis."""
        return min(self.vector, axis.tile) if axis.name == self.vector_axis else 1


@dataclass(frozen=True)
class Tiles:
    """Tile and role of every axis under a choice, and the threads along each, in the order in which they are dealt out."""

    axes: Mapping[str, TileAxis]
    choice: Choice
    order: Sequence[str]
    digits: Mapping[str, Digits]
    _held: dict[frozenset[str], int] = field(default_factory=dict)
    _elements: dict[frozenset[str], int] = field(default_factory=dict)
    _steps: dict[frozenset[str], int] = field(default_factory=dict)

    @cached_property
    def streams(self) -> Mapping[str, int]:
        """The steps of each axis that is streamed."""
        return {a.name: a.tiles for a in self.axes.values() if a.role == "stream"}

    @cached_property
    def registers(self) -> Mapping[str, int]:
        """The elements of a tile that one thread has along each axis."""
        return {a: d.registers(self.axes[a].tile) for a, d in self.digits.items()}

    @cached_property
    def working(self) -> int:
        """Blocks of a cluster that have a part of the tile of their own; the others do what these do."""
        return max(1, math.prod([d.count for d in self.digits.values()]) // self.choice.block)

    def elements(self, axes: frozenset[str]) -> int:
        """Positions of one tile over the axes, without those past an extent."""
        found = self._elements.get(axes)
        if found is None:
            found = math.prod([self.axes[a].covered for a in axes])
            self._elements[axes] = found
        return found

    def count(self, axes: Iterable[str]) -> int:
        """Tiles that cover the axes."""
        return math.prod([self.axes[a].tiles for a in axes])

    def held(self, axes: frozenset[str]) -> int:
        """Elements of such a tile in one thread."""
        found = self._held.get(axes)
        if found is None:
            found = self._held[axes] = math.prod([self.registers[a] for a in axes])
        return found

    def sharing(self, axes: Iterable[str]) -> tuple[int, int]:
        """Threads that lie along the axes, and those of them that are lanes of a warp."""
        found = [self.digits[a] for a in axes]
        return math.prod([d.count for d in found]), math.prod([d.lanes for d in found])

    def run(self, axes: Iterable[str]) -> int:
        """Elements that a thread holds side by side of a tile over the axes."""
        return math.prod(self.digits[a].run for a in axes)

    def steps(self, axes: frozenset[str]) -> int:
        """Steps of the streams over the streamed ones among the axes."""
        found = self._steps.get(axes)
        if found is None:
            found = self._steps[axes] = math.prod([n for a, n in self.streams.items() if a in axes])
        return found


def aligned(buffer: Buffer, index: Sequence[Term], axis: TileAxis, most: int) -> int:
    """The longest run of so many neighbours along an axis that begins at a multiple of its length everywhere."""
    width = most
    while width > 1:
        runs = [run_along(t, axis.name, width) for t in index]
        moved = [(r[0] * n, r[1] * n) for r, n in zip(runs, buffer.strides, strict=True) if r is not None]
        whole = len(moved) == len(runs) and sum(step for step, _ in moved) == 1
        even = math.gcd(*(multiple for _, multiple in moved)) % width == 0
        size = width * DTYPES[buffer.dtype].bytes
        if whole and even and not (axis.extent % width or axis.tile % width or buffer.alignment % size):
            return width
        width //= 2
    return width
