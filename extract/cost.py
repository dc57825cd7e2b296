"""The time of one kernel by a model of the machine: a roofline with recompute, cache traffic and occupancy.

What keeps it from silly choices: work repeated for every tile, work on states once a step, traffic of tiles through
the second-level cache, few blocks on many multiprocessors, and the share of blocks that a predicate leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from extract.facts import levels
from extract.work import Axes, PartWork, Works, bytes_of
from ir.loop import Buffer, Form, KernelForm, Part
from ir.machine import Machine
from ir.term import Term

ROW_BYTES = 200_000  # a row up to this size stays in a block between its sweeps
SHORT_ROW_BYTES = 32_000  # a row up to this size is not worth more than one block
ROW_BLOCKS = 4  # of a cluster that share a row which stays
POINTS = 1024  # positions of one block where nothing else decides
MOST_SPLITS = 16
UNITS = {"tensor": 0, "scalar": 1, "special": 2}
CACHE = 3  # beside the units: bytes through the second-level cache
OVERLAP_LOSS = 0.2  # share of the shorter of arithmetic and transfer that the longer one does not hide
MERGE_US = 1.0  # for what several blocks make of one row, for each sweep that needs the one before it
STATE_SHARE = 0.05  # of a loop's fixed time, for every state that it carries
TILES = (
    (128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.85), (64, 128, 0.7), (128, 64, 0.7), (64, 64, 0.5),
    (16, 64, 0.25), (64, 16, 0.25), (16, 128, 0.3), (128, 16, 0.3), (16, 256, 0.35), (256, 16, 0.35),
)  # fmt: skip
"""Rows and columns of a contraction's tile, either operand's, and the share of the peak rate that it reaches."""


@dataclass(frozen=True)
class Cost:
    """What a kernel takes: `us` in all; the bounds it is made of; counts that do not depend on the schedule."""

    us: float
    flops: int
    bytes: int
    sweeps: Mapping[str, int]
    contractions: int
    states: int
    blocks: int
    compute_us: float
    memory_us: float
    cache_us: float
    tile: tuple[int, ...]

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """What tells a way of computing from another: loops, contractions and streamed states."""
        return tuple(self.sweeps.items()), self.contractions, self.states


def always(_: Term) -> bool:
    """Every exponential stays in range."""
    return True


def kernel_cost(kernel: KernelForm, form: Form, machine: Machine, safe: Callable[[Term], bool] = always) -> Cost:
    """The modelled cost of a kernel of `form`; `safe` says which arguments of exponentials stay in range."""
    buffers = {b.name: b for b in form.buffers}
    return Pricing(form.axes, buffers, machine, safe).cost(kernel.parts)


def sweeps(kernel: KernelForm) -> dict[str, int]:
    """Loops that fold over each axis, counted by their dependencies; a stream of any number of states is one loop."""
    out: dict[str, int] = {}
    for s in kernel.stores:
        for axis, n in levels(s.value).items():
            out[axis] = max(out.get(axis, 0), n)
    return dict(sorted(out.items()))


class Pricing:
    """The model over one set of axes and buffers on one machine."""

    def __init__(
        self,
        extents: Mapping[str, int],
        buffers: Mapping[str, Buffer],
        machine: Machine,
        safe: Callable[[Term], bool] = always,
    ) -> None:
        self.extents, self.buffers, self.machine, self.safe = extents, buffers, machine, safe
        self.works = Works(extents)
        self.row_bytes = ROW_BYTES * min(ROW_BLOCKS, machine.cluster_blocks)
        self._tilings: dict[tuple[Axes, Axes, Axes, Axes], _Tiling] = {}
        self._parts: dict[tuple[tuple[Term, ...], Axes], _Part] = {}
        self._bytes = {name: b.bytes for name, b in buffers.items()}

    def cost(self, parts: Sequence[Part]) -> Cost:
        """The cost of a kernel made of these parts."""
        found = [self._part(p) for p in parts]
        works = [f.work for f in found]
        stored = sum(self._stored(p) for p in parts)
        if len(parts) == 1:
            (part,) = found
            best = min([self._time(c, (*part.fetched, stored)) for c in part.tiled], key=_us)
        else:
            fetched = [f.fetched for f in found]
            moved = *self._fetched([t for f in found for t in f.traffic]), stored
            best = min(
                (self._together(costs, fetched, moved) for costs in _alike([f.tiled for f in found])), key=_us
            )
        loops: dict[str, int] = {}
        for w in works:
            loops.update({a: max(n, loops.get(a, 0)) for a, n in w.sweeps.items()})
        return Cost(
            best.us,
            sum(w.flops for w in works),
            best.bytes,
            dict(sorted(loops.items())),
            sum(len(w.contractions) for w in works),
            sum(w.states for w in works),
            best.blocks,
            best.compute_us,
            best.memory_us,
            best.cache_us,
            best.tile,
        )

    def _stored(self, part: Part) -> int:
        return sum(self.works.points(s.axes) * bytes_of(s.value.dtype) for s in part.stores)

    # ---- one part

    def _part(self, p: Part) -> _Part:
        """What a part takes; known of equal ones, as long as the same exponentials stay in range."""
        values, axes = tuple(s.value for s in p.stores), frozenset(p.axes)
        footprint = self.works.of(values)
        unsafe = self.works.unsafe(footprint, self.safe)
        known = self._parts.get((values, axes))
        if known is None or known.unsafe != unsafe:
            w = PartWork(values, axes, self.works, footprint, unsafe)
            traffic = self._traffic(w)
            known = _Part(unsafe, w, traffic, self._fetched(traffic), self._under_tiles(w, traffic))
            self._parts[values, axes] = known
        return known

    def _under_tiles(self, w: PartWork, traffic: Sequence[_Traffic]) -> list[_Tiled]:
        m, tiling = self.machine, self._tiling(w)
        work: dict[int, list[float]] = {}
        for lacked, units in w.counts.items():
            row = work.setdefault(tiling[lacked], [0.0, 0.0, 0.0, 0.0])
            for unit, n in units.items():
                row[UNITS[unit]] += n
        for t in traffic:
            work.setdefault(tiling.most(t.missing), [0.0, 0.0, 0.0, 0.0])[CACHE] += t.bytes * t.visits
        totals = [[0.0] * len(tiling.tiles) for _ in range(4)]
        for number, row in work.items():
            repeats = tiling.repeats[number]
            for k, n in enumerate(row):
                if n:
                    totals[k] = [x + n * times for x, times in zip(totals[k], repeats, strict=True)]
        scalar_per_s, special_per_s = m.f32_flops_per_s / 2, m.special_per_s
        loops = max((w.folds if self._stays(w) else w.sweeps).values(), default=0)
        merges = max(w.sweeps.values(), default=0) if self._longest(w) > SHORT_ROW_BYTES else 1
        found = zip(tiling.tiles, tiling.shares, *totals, tiling.repeats[tiling[w.axes]], strict=True)
        return [
            _Tiled(
                (tensor / (m.tensor_flops_per_s * share), scalar / scalar_per_s, special / special_per_s),
                cached,
                blocks,
                tile,
                loops,
                merges,
                w.states,
            )
            for tile, share, tensor, scalar, special, cached, blocks in found
        ]

    def _tiling(self, w: PartWork) -> _Tiling:
        """The tiles of a part; parts alike in axes share them."""
        sides = w.sides
        key = w.axes, *(sides or (NONE, NONE)), NONE if sides else w.axes.intersection(w.sweeps)
        if key not in self._tilings:
            self._tilings[key] = _Tiling(*key, sides is not None, self.works.points)
        return self._tilings[key]

    def _stays(self, w: PartWork) -> bool:
        """Whether all that the part loops over stays in a block, so that it is folded without being loaded anew.

        Long rows do not where they are so few that more blocks share them than a cluster has.
        """
        longest, m = self._longest(w), self.machine
        rows = w.points(w.axes - frozenset(w.folds))
        few = longest > SHORT_ROW_BYTES and 2 * rows * m.cluster_blocks < m.sms
        return not w.contractions and not few and longest <= self.row_bytes

    def _longest(self, w: PartWork) -> int:
        """Bytes of the longest row that the part loops over."""
        return max((w.points(k.free & frozenset(w.folds)) * bytes_of(k.dtype) for k in w.loads), default=0)

    def _fetched(self, traffic: Iterable[_Traffic]) -> tuple[int, int]:
        """Bytes that come from memory and, where an earlier kernel made them, from cache; a buffer comes once."""
        bytes_of_buffer: dict[str, int] = {}
        for t in traffic:
            once = min(t.bytes, self._bytes[t.buffer])
            visits = 1 if once < self.machine.l2_bytes / 2 else t.visits
            bytes_of_buffer[t.buffer] = max(bytes_of_buffer.get(t.buffer, 0), once * visits)
        warm = sum([n for name, n in bytes_of_buffer.items() if self.buffers[name].role != "input"])
        return sum(bytes_of_buffer.values()) - warm, warm

    def _traffic(self, w: PartWork) -> list[_Traffic]:
        out, contracts = [], bool(w.contractions)
        for load, uses in w.loads.items():
            element = bytes_of(load.dtype)
            looped = frozenset(a for _, context in uses for a, _ in context) & load.free
            stays = not contracts and w.points(looped) * element <= self.row_bytes
            visits = 1 if stays else len({context for _, context in uses})
            missing = frozenset(m for m, _ in uses)
            out.append(_Traffic(load.buffer, w.points(load.free) * element, visits, missing))
        return out

    # ---- the whole kernel

    def _together(
        self, costs: Sequence[_Tiled], fetched: Sequence[tuple[int, int]], moved: tuple[int, int, int]
    ) -> _Time:
        """Parts side by side, of which the blocks of one do not speed up another."""
        kernel = _Tiled(
            (sum(c.seconds[0] for c in costs), sum(c.seconds[1] for c in costs), sum(c.seconds[2] for c in costs)),
            sum(c.cache_bytes for c in costs),
            sum(c.blocks for c in costs),
            costs[0].tile,
            max(c.sweeps for c in costs),
            max(c.merges for c in costs),
            sum(c.states for c in costs),
        )
        alone = (self._time(c, (*f, 0)).us for c, f in zip(costs, fetched, strict=True))
        found = self._time(kernel, moved)
        return found._replace(us=max(found.us, *alone))

    def _time(self, c: _Tiled, moved: tuple[int, int, int]) -> _Time:
        """The kernel under one tile; `moved` are bytes from memory, from cache and to memory."""
        m, (cold, warm, stored), blocks = self.machine, moved, c.blocks
        split = min(MOST_SPLITS, m.sms // blocks) if blocks < m.sms else 1
        used = min(1.0, blocks * split / m.sms)
        tensor, scalar, special = c.seconds
        waves = blocks * split / m.sms
        tail = min(1.5, math.ceil(waves) / waves) if waves >= 1 and tensor else 1.0
        compute = max(tensor * tail, scalar + special) + 0.25 * min(tensor, scalar + special)
        transfer = (cold + stored) / m.copy_bytes_per_s + warm / m.l2_bytes_per_s
        cache = (c.cache_bytes + stored) / m.l2_bytes_per_s
        work, sent, cached = compute / used, transfer / max(used, 0.05), cache / used
        body = max(work, sent, cached) + OVERLAP_LOSS * min(work, sent)
        merge = (c.merges * MERGE_US + 2e6 * split * stored / m.l2_bytes_per_s) if split > 1 else 0.0
        us = m.launch_us + m.sweep_us * (c.sweeps + STATE_SHARE * c.states) + body * 1e6 + merge
        return _Time(us, cold + warm + stored, blocks, compute * 1e6, transfer * 1e6, cache * 1e6, c.tile)


class _Traffic(NamedTuple):
    """A load: bytes of its index range, loops that fetch it anew, and the free axes along which tiles repeat it."""

    buffer: str
    bytes: int
    visits: int
    missing: frozenset[Axes]


class _Tiled(NamedTuple):
    """One part under one tile: seconds by unit, and bytes through the cache."""

    seconds: tuple[float, float, float]
    cache_bytes: float
    blocks: int
    tile: tuple[int, ...]
    sweeps: int
    merges: int
    states: int


class _Part(NamedTuple):
    """A part: its exponentials that may leave their range, its work, and what it fetches and takes under each tile."""

    unsafe: frozenset[Term]
    work: PartWork
    traffic: Sequence[_Traffic]
    fetched: tuple[int, int]
    tiled: Sequence[_Tiled]


class _Time(NamedTuple):
    us: float
    bytes: int
    blocks: int
    compute_us: float
    memory_us: float
    cache_us: float
    tile: tuple[int, ...]


_us = itemgetter(0)
NONE: Axes = frozenset()


def _alike(options: Sequence[Sequence[_Tiled]]) -> list[Sequence[_Tiled]]:
    """Choices of one tile for each part: the same of the table for all, or the quickest where they differ in kind."""
    by_tile = [{c.tile: c for c in o} for o in options]
    shared = [t for t in by_tile[0] if all(t in b for b in by_tile)]
    if shared:
        return [[b[t] for b in by_tile] for t in shared]
    return [[min(o, key=lambda c: sum(c.seconds)) for o in options]]


class _Tiling(dict[Axes, int]):
    """The tiles that a part may have: positions along groups of its free axes, and shares of the peak rate.

    By a set of axes, the number in `repeats` of how many of each tile lie along it: so often work that lacks these axes
    is repeated.
    """

    def __init__(
        self, axes: Axes, rows: Axes, columns: Axes, across: Axes, contracts: bool, points: Callable[[Axes], int]
    ) -> None:
        self.points = points
        self.repeats: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._most: dict[frozenset[Axes], int] = {}
        tiles: dict[tuple[int, ...], float] = {}
        if contracts:
            self.groups: Sequence[Axes] = (rows, columns, axes - rows - columns)
            for bm, bn, share in TILES:
                tile = min(bm, points(rows)), min(bn, points(columns)), 1
                tiles[tile] = max(share, tiles.get(tile, 0.0))
        elif across:
            self.groups, tiles = (axes - across, across), {(1, points(across)): 1.0}
        else:
            self.groups, tiles = (axes,), {(POINTS,): 1.0}
        self.tiles, self.shares = [*tiles], [*tiles.values()]

    def __missing__(self, axes: Axes) -> int:
        met = [(k, self.points(g & axes), self.points(g - axes)) for k, g in enumerate(self.groups) if g & axes]
        self[axes] = self._number(
            tuple([math.prod([-(-n // max(1, tile[k] // rest)) for k, n, rest in met]) for tile in self.tiles])
        )
        return self[axes]

    def most(self, several: frozenset[Axes]) -> int:
        """The number of the most repeats under each tile."""
        if several not in self._most:
            self._most[several] = self._number(
                tuple(map(max, zip(*(self.repeats[self[a]] for a in several), strict=True)))
            )
        return self._most[several]

    def _number(self, repeats: tuple[int, ...]) -> int:
        if repeats not in self._numbers:
            self._numbers[repeats] = len(self.repeats)
            self.repeats.append(repeats)
        return self._numbers[repeats]
