"""Which loads of a tile program may go through shared memory under a line's STAGE, and how much of it they take.

A load may where it is one of a stream that neither stands in another nor holds one (whose axis shares out the threads
first, so that several hold the same element), of a buffer that nothing stores to, by an index that is a
sum of multiples of coordinates inside the buffer, with neighbours side by side in the threads that come first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from extract.tiles import VECTOR_BYTES, Tiles, aligned
from ir import tile
from ir.dtype import DTYPES
from ir.interval import Ranges, inside
from ir.kernel import BULK_BYTES, COPY_BYTES, MBARRIER_BYTES
from ir.loop import Buffer
from ir.machine import Machine
from ir.node import postorder
from ir.schedule import Staging
from ir.term import Index, Term, Var
from ir.tile import TileAxis, TileLoad, TilePart, TileProgram, TileStore

SPARE_BYTES = 8192
"""Shared memory that is left to the exchange of folds, and to what the system takes of it."""


def unstaged(
    program: TileProgram, tiles: Sequence[Tiles], wish: Staging, machine: Machine, exchanged_bytes: int = 0
) -> str | None:
    """Why the line of a program that loads alike, with these tiles of its parts, which exchange so much, is not legal."""
    if tiles[0].choice.cluster > 1:
        return "blocks of a cluster stage nothing"
    if wish.how == "bulk" and not machine.bulk_copies:
        return f"the {machine.name} has no bulk copies"
    buffers = {b.name: b for b in program.buffers}
    stored = {s.buffer for p in program.parts for s in tile.walk(p.body) if isinstance(s, TileStore)}
    sizes = [_Stages(p, t, buffers, stored, wish).bytes for p, t in zip(program.parts, tiles, strict=True)]
    if not any(sizes):
        return f"no load of a swept axis{' that two sweeps make' if wish.kept else ''} can be staged"
    room = machine.smem_bytes_per_block - max(SPARE_BYTES, exchanged_bytes)
    if sum(sizes) > room:
        return f"{sum(sizes)} bytes of shared memory, at most {room} fit"
    return None


def shared_bytes(tile_bytes: Sequence[int], fills: Sequence[int], steps: Sequence[int], wish: Staging) -> int:
    """Shared memory of courses, given of each the bytes of a tile, how often one is filled, and the steps of a sweep."""
    depth = min([*fills, *([wish.depth] if wish.depth else [])], default=0)
    barriers = 2 * MBARRIER_BYTES if wish.how == "bulk" else 0
    slots = steps if wish.kept else [depth] * len(tile_bytes)
    return sum((size + barriers) * n for size, n in zip(tile_bytes, slots, strict=True))


class _Stages:
    """The courses of one part."""

    def __init__(
        self, part: TilePart, tiles: Tiles, buffers: Mapping[str, Buffer], stored: set[str], wish: Staging
    ) -> None:
        self.part, self.tiles, self.buffers, self.stored, self.wish = part, tiles, buffers, stored, wish
        self.ranges = Ranges({Index(a.name): (0, max(a.extent - 1, 0)) for a in part.axes})

    def axis(self, name: str) -> TileAxis:
        """The axis under the tiles at hand; one that tiling made anew is like the one that it is named after."""
        return self.tiles.axes.get(name) or self.tiles.axes[name.rsplit("_", 1)[0]]

    @property
    def bytes(self) -> int:
        """Shared memory that the part's courses take; 0 where it has none."""
        sweeps = defaultdict[tuple[str, str, tuple[Term, ...]], int](int)
        for s in (s for s in self.part.body if isinstance(s, tile.Stream)):
            if any(isinstance(inner, tile.Stream) for inner in s.body):
                continue
            loads = {(load.buffer, load.index): load for load in s.body if isinstance(load, TileLoad)}
            for load in loads.values():
                if self.fits(load, s.axis):
                    sweeps[s.axis, load.buffer, load.index] += 1
        found = [(key, n) for key, n in sweeps.items() if n > 1 or not self.wish.kept]
        steps = [self.axis(axis).tiles for (axis, _, _), _ in found]
        fills = [n * (1 if self.wish.kept else uses) for n, (_, uses) in zip(steps, found, strict=True)]
        return shared_bytes(
            [self.tile_bytes(buffer, index) for (_, buffer, index), _ in found], fills, steps, self.wish
        )

    def tile_bytes(self, buffer: str, index: Sequence[Term]) -> int:
        axes = frozenset[str]().union(*(t.free for t in index))
        own = self.tiles.held(axes) * self.tiles.choice.threads
        tile_elements = math.prod(self.axis(a).tile for a in axes)
        return (tile_elements if self.wish.how == "bulk" else own) * DTYPES[self.buffers[buffer].dtype].bytes

    def fits(self, s: TileLoad, axis: str) -> bool:
        """Whether a load in a stream of the axis may be staged."""
        buffer, digits = self.buffers[s.buffer], self.tiles.digits
        axes = frozenset[str]().union(*(t.free for t in s.index))
        if s.buffer in self.stored or self.axis(axis).tiles < 2 or axis not in axes:
            return False
        if any(isinstance(t, Var) for t in postorder(*s.index)) or not all(
            inside(self.ranges.of(t), (0, n - 1)) for t, n in zip(s.index, buffer.shape, strict=True)
        ):
            return False
        steps = self.steps(buffer, s.index)
        near = next((a for a in self.tiles.order if digits[a].count > 1 and a in axes), None)
        if near is None or steps is None or steps.get(near) != 1 or axis not in steps:
            return False
        bytes_each = DTYPES[buffer.dtype].bytes
        if self.wish.how == "bulk":
            unit = BULK_BYTES // bytes_each
            exact = all(self.cover(a) == self.axis(a).tile for a in axes)
            return exact and steps[axis] == 1 and aligned(buffer, s.index, self.axis(axis), unit) == unit
        own = self.tiles.sharing(axes)[0] == self.tiles.choice.threads
        return own and (self.wish.how == "" or self.width(buffer, s.index, near) * bytes_each in COPY_BYTES)

    def steps(self, buffer: Buffer, index: Sequence[Term]) -> dict[str, int] | None:
        """Elements that one step along each axis moves; None where the index is no sum of multiples of coordinates."""
        out: dict[str, int] = {}
        for t, stride in zip(index, buffer.strides, strict=True):
            for atom, c in self.ranges.affine(t).coefficients.items():
                if not isinstance(atom, Index):
                    return None
                out[atom.axis] = out.get(atom.axis, 0) + c * stride
        return {a: n for a, n in out.items() if n}

    def cover(self, axis: str) -> int:
        """Positions of a tile that threads and registers have places for."""
        digits = self.tiles.digits[axis]
        return digits.registers(self.axis(axis).tile) * digits.count

    def width(self, buffer: Buffer, index: Sequence[Term], near: str) -> int:
        """Elements that a thread moves at once."""
        choice = self.tiles.choice
        most = min(choice.vector, VECTOR_BYTES // DTYPES[buffer.dtype].bytes) if choice.vector_axis == near else 1
        return aligned(buffer, index, self.axis(near), most)
