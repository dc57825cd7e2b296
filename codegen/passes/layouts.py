"""Layouts: which thread and register holds which element, chosen for contiguous access, one assignment for each axis."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from codegen.passes.state import PartPlan, State, access_name
from codegen.passes.terms import linear
from ir import tile
from ir.dtype import DTYPES
from ir.interval import Interval, Ranges, run_along
from ir.layout import LANES, Family, Mode
from ir.loop import Buffer
from ir.node import IRError, postorder
from ir.schedule import Schedule
from ir.term import Index, Term, Var
from ir.tile import TileAxis, TileLoad, TilePart, TileStore

VECTOR_BYTES = 16
SECTOR_BYTES = 32
"""What memory moves at least: lanes that touch sectors of their own waste the rest."""
STAGED_BYTES = 32768
"""The largest tile that changes its layout in shared memory."""
_WORK = re.compile(r"(?:t|points)(\d+)(?:\+c(\d+))?")
_REDUCE = {"serial": 1, "lanes": LANES}


def work(schedule: Schedule) -> tuple[int, int]:
    """Threads of a block and blocks of a cluster, from WORK=tN, WORK=tN+cM or WORK=pointsN; N a multiple of the warp."""
    m = _WORK.fullmatch(schedule.get("WORK"))
    if m is None or int(m[1]) % LANES or not 0 < int(m[1]) <= 1024:
        raise IRError(
            f"WORK={schedule.get('WORK')}: tN or pointsN with N a multiple of {LANES} up to 1024 is expected"
        )
    return int(m[1]), int(m[2] or 1)


def vector_wishes(schedule: Schedule) -> dict[str, int]:
    """The elements along an axis that one thread holds side by side, from TILE=axis:tile/vN."""
    return {m[1]: int(m[2]) for m in re.finditer(r"(\w+):\d+/v(\d+)", schedule.get("TILE"))}


def choose_layouts(state: State) -> State:
    """Give every axis of every part its register and thread modes."""
    buffers = {b.name: b for b in state.tile.buffers}
    plans = []
    for part in state.tile.parts:
        chooser = _Chooser(part, buffers, state.tile.schedule, state.threads, state.cluster)
        layouts = chooser.family(chooser.order())
        plans.append(PartPlan(layouts, chooser.staged(layouts) if state.cluster == 1 else {}))
    return replace(state, plans=tuple(plans))


def element_offset(buffer: Buffer, index: tuple[Term, ...]) -> Term:
    """The element that an index reaches, counted from the buffer's first."""
    total: dict[Term, int] = {}
    for t, stride in zip(index, buffer.strides, strict=True):
        total[t] = total.get(t, 0) + stride
    return linear(total)


def legal_width(offset: Term, axis: TileAxis, buffer: Buffer, limit: int) -> int:
    """The widest aligned run of consecutive elements along `axis`, up to `limit` and 16 bytes, that never leaves it."""
    size = DTYPES[buffer.dtype].bytes
    width = min(limit, VECTOR_BYTES // size)
    while width > 1:
        run = run_along(offset, axis.name, width)
        aligned = buffer.alignment % (width * size) == 0 and axis.extent % width == 0 and axis.tile % width == 0
        if aligned and run is not None and run[0] == 1 and run[1] % width == 0:
            break
        width //= 2
    return width


@dataclass(frozen=True)
class _Touch:
    """One access; `weight` is its say in what is contiguous: the elements of a tile, fourfold for a store."""

    name: str
    buffer: Buffer
    offset: Term
    axes: frozenset[str]
    weight: int


class _Chooser:
    def __init__(
        self, part: TilePart, buffers: Mapping[str, Buffer], schedule: Schedule, threads: int, cluster: int
    ) -> None:
        self.part, self.threads, self.cluster = part, threads, cluster
        self.wishes, reduce = vector_wishes(schedule), schedule.get("REDUCE").split("+")
        self.sharing = min((n for word, n in _REDUCE.items() if word in reduce), default=threads)
        pieces = cluster > 1 and reduce[-1].startswith("split")
        self.unit = min(self.sharing, threads // cluster) if pieces else 0
        """Threads that take a piece of a sweep each; 0 where none do."""
        self.values = tile.infer(part, buffers)
        self.ranges = Ranges({Index(a.name): (0, max(a.extent - 1, 0)) for a in part.axes})
        self.touches: list[_Touch] = []
        together = [v.free for v in self.values.values()]
        self.folded: set[str] = set()
        self.shared: set[str] = set()
        for s in tile.walk(part.body):
            match s:
                case TileLoad(_, buffer, index) | TileStore(buffer, index, _):
                    axes = frozenset[str]().union(*(t.free for t in index))
                    if isinstance(s, TileStore):
                        axes |= self.values[s.value].free
                        together.append(axes)
                    elements = math.prod(part.axis(a).tile for a in axes)
                    weight = elements * (4 if isinstance(s, TileStore) else 1)
                    b = buffers[buffer]
                    self.touches.append(_Touch(access_name(s), b, element_offset(b, index), axes, weight))
                case tile.TileFold(_, over, _, _):
                    self.folded |= set(over)
                case tile.Share(_, _, _, along):
                    self.shared.add(along)
        self.conflicts = {
            a.name: {n for axes in together if a.name in axes for n in axes if n != a.name} for a in part.axes
        }

    def family(self, order: Sequence[TileAxis]) -> Family:
        """Layouts over the axes in `order`, of which the first gets its threads first.

        What blocks share lies along registers alone, the fastest.
        """
        thread: dict[str, tuple[tuple[int, Mode], ...]] = {}
        register: list[Mode] = []
        for axis in order:
            vector = self.vector(axis)
            start = max(
                (before * m.size for a in self.conflicts[axis.name] for before, m in thread.get(a, ())), default=1
            )
            wanted = -(-axis.tile // vector)
            along = 1 if axis.name in self.shared else self.threads_along(axis, start, wanted)
            thread[axis.name] = ((start, Mode(along, axis.name, vector)),) if along > 1 else ()
            rest = -(-axis.tile // (vector * along))
            modes = (Mode(vector, axis.name, 1), Mode(rest, axis.name, vector * along))
            register += [m for m in modes if m.size > 1]
        register.sort(key=lambda m: m.axis not in self.shared)
        return Family(self.threads, thread, tuple(register), self.cluster)

    def order(self) -> list[TileAxis]:
        """Axes from the one that most accesses walk with stride 1 to the one with the longest strides.

        After the first, axes that no fold takes come before those that would have to exchange partial results.
        """
        votes = dict.fromkeys((a.name for a in self.part.axes), 0)
        nearest = dict.fromkeys(votes, math.inf)
        for touch in self.touches:
            for a in votes:
                step = self.step(touch, a)
                votes[a] += touch.weight if step == 1 else 0
                nearest[a] = min(nearest[a], step or math.inf)
        place = {a.name: k for k, a in enumerate(self.part.axes)}
        near = sorted(self.part.axes, key=lambda a: (-votes[a.name], nearest[a.name], -place[a.name]))
        return near[:1] + sorted(near[1:], key=lambda a: a.name in self.folded)

    def step(self, touch: _Touch, axis: str) -> int:
        """Elements that an access moves for one step along the axis; 0 where it does not move, or not evenly."""
        return abs(self.ranges.affine(touch.offset).coefficients.get(Index(axis), 0))

    def staged(self, layouts: Family) -> dict[str, Family]:
        """Loads whose neighbours in memory lie in registers or far threads, with layouts that walk memory."""
        out: dict[str, Family] = {}
        for touch in self.touches:
            if not touch.name.startswith("load") or any(isinstance(t, Var) for t in postorder(touch.offset)):
                continue
            axes = [a for a in self.order() if a.name in touch.axes]
            near = next((a for a in axes if self.step(touch, a.name) == 1), None)
            lanes = next((m.axis for m in layouts.over(touch.axes).thread if m.axis), None)
            elements = math.prod(a.tile for a in axes)
            if (
                near is None
                or lanes in (None, near.name)
                or near.tile * DTYPES[touch.buffer.dtype].bytes < SECTOR_BYTES
            ):
                continue
            family = self.family([near, *(a for a in axes if a != near)])
            whole = all(f.over(touch.axes).cover(a.name) == a.tile for f in (layouts, family) for a in axes)
            if whole and elements * DTYPES[touch.buffer.dtype].bytes <= STAGED_BYTES:
                out[touch.name] = family
        return out

    def vector(self, axis: TileAxis) -> int:
        """The wished vector, as far as some access can use it."""
        wish = min(self.wishes.get(axis.name, 1), axis.tile)
        wish = 1 << (wish.bit_length() - 1) if wish > 0 else 1
        usable = [_useful(t, axis, wish) for t in self.touches if axis.name in t.axes]
        return max(usable, default=1)

    def threads_along(self, axis: TileAxis, start: int, wanted: int) -> int:
        """How many of the threads that are left go along the axis: whole digits of lanes, then of warps, then of blocks."""
        left, block = self.threads // start, self.threads // self.cluster
        if start < self.unit:
            left = min(left, self.unit // start)
        elif axis.name in self.folded and not self.unit:
            left = min(left, self.sharing)
        fit = [d for d in range(1, left + 1) if self.threads // start % d == 0 and _splits(start, d, block)]
        return next((d for d in fit if d >= wanted), fit[-1])


def _useful(touch: _Touch, axis: TileAxis, wish: int) -> int:
    """The largest vector up to `wish` that the access moves in pieces as wide as it may."""
    most = legal_width(touch.offset, axis, touch.buffer, wish)
    per_move = VECTOR_BYTES // DTYPES[touch.buffer.dtype].bytes
    return wish if most == min(wish, per_move) else most


def _splits(start: int, size: int, block: int) -> bool:
    end = start * size
    lanes = (end <= LANES and size & (size - 1) == 0) or end % LANES == 0
    return lanes and (block % end == 0 or end % block == 0)


def reach(axis: TileAxis, layouts: Family, padded: bool) -> Interval:
    """The coordinates of an axis: inside its extent, or all positions that the layout has places for."""
    if not padded:
        return 0, max(axis.extent - 1, 0)
    cover = layouts.over((axis.name,)).cover(axis.name)
    return 0, max((axis.tiles - 1) * axis.tile, 0) + max(cover, axis.tile) - 1
