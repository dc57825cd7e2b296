"""The time of one kernel by a model of the machine: a roofline with recompute, cache traffic and occupancy.

What keeps it from silly choices: work repeated for every tile, work on states once a step, traffic of tiles through
the second-level cache, few blocks on many multiprocessors, and the share of blocks that a predicate leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from extract.facts import levels
from extract.work import Axes, Contraction, PartWork, Works, bytes_of
from ir.loop import Buffer, Form, KernelForm, Part
from ir.machine import Machine
from ir.term import Term

ROW_BYTES = 200_000  # a row up to this size stays in a block between its sweeps
ROW_BLOCKS = 4  # of a cluster that share a row which stays
POINTS = 1024  # positions of one block where nothing else decides
MOST_SPLITS = 16
UNITS = ("tensor", "scalar", "special")
OVERLAP_LOSS = 0.2  # share of the shorter of arithmetic and transfer that the longer one does not hide
STATE_SHARE = 0.05  # of a loop's fixed time, for every state that it carries
TILES = (
    (128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.85), (64, 128, 0.7), (128, 64, 0.7), (64, 64, 0.5),
    (16, 64, 0.25), (16, 128, 0.3), (16, 256, 0.35),
)  # fmt: skip
"""Rows and columns of a contraction's tile, and the share of the peak rate that it reaches."""


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

    @property
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

    def cost(self, parts: Sequence[Part]) -> Cost:
        """The cost of a kernel made of these parts."""
        works = [PartWork([s.value for s in p.stores], frozenset(p.axes), self.works, self.safe) for p in parts]
        stored = sum(self._stored(p) for p in parts)
        traffic = [self._traffic(w) for w in works]
        options = [list(self._under_tiles(w, t)) for w, t in zip(works, traffic, strict=True)]
        moved = *self._fetched(t for ts in traffic for t in ts), stored
        together = _alike(options) if len(options) > 1 else [[c] for c in options[0]]
        best = min((self._time(costs, moved) for costs in together), key=lambda t: t.us)
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
        return sum(self._points(s.axes) * bytes_of(s.value.dtype) for s in part.stores)

    def _points(self, axes: Axes) -> int:
        return math.prod(max(1, self.extents[a]) for a in axes)

    # ---- one part

    def _under_tiles(self, w: PartWork, traffic: Sequence[_Traffic]) -> Iterator[_Tiled]:
        main, m = w.main, self.machine
        fetched = self._fetched(traffic)
        number = {axes: k for k, axes in enumerate({w.axes, *w.counts, *(a for t in traffic for a in t.missing)})}
        counts = [(number[a], [c.get(u, 0.0) for u in UNITS]) for a, c in w.counts.items()]
        moved = [([number[a] for a in t.missing], t.bytes * t.visits) for t in traffic]
        loops = max((w.folds if self._stays(w) else w.sweeps).values(), default=0)
        spans: list[Spans] = []
        for groups, share in _tiles(w, main):
            spans = spans or [_along(w, axes, groups) for axes in number]
            tiles = tuple(n for _, n in groups)
            repeats = [_repeats(s, tiles) for s in spans]
            tensor, scalar, special = (sum(repeats[at] * n[unit] for at, n in counts) for unit in range(3))
            seconds = (
                tensor / (m.tensor_flops_per_s * share),
                scalar / (m.f32_flops_per_s / 2),
                special / m.special_per_s,
            )
            cache = sum(n * max([repeats[k] for k in at]) for at, n in moved)
            yield _Tiled(seconds, fetched, cache, repeats[number[w.axes]], tiles, loops, w.states)

    def _stays(self, w: PartWork) -> bool:
        """Whether all that the part loops over stays in a block, so that it is folded without being loaded anew."""
        looped = (w.points(load.free & frozenset(w.folds)) * bytes_of(load.dtype) for load in w.loads)
        return not w.contractions and max(looped, default=0) <= self.row_bytes

    def _fetched(self, traffic: Iterable[_Traffic]) -> tuple[int, int]:
        """Bytes that come from memory and, where an earlier kernel made them, from cache; a buffer comes once."""
        bytes_of_buffer: dict[str, int] = {}
        for t in traffic:
            once = min(t.bytes, self.buffers[t.buffer].bytes)
            visits = 1 if once < self.machine.l2_bytes / 2 else t.visits
            bytes_of_buffer[t.buffer] = max(bytes_of_buffer.get(t.buffer, 0), once * visits)
        warm = sum(n for name, n in bytes_of_buffer.items() if self.buffers[name].role != "input")
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

    def _time(self, costs: Sequence[_Tiled], moved: tuple[int, int, int]) -> _Time:
        """The kernel under one tile; `moved` are bytes from memory, from cache and to memory."""
        m, (cold, warm, stored) = self.machine, moved
        blocks = sum(c.blocks for c in costs)
        split = min(MOST_SPLITS, m.sms // blocks) if blocks < m.sms else 1
        used = min(1.0, blocks * split / m.sms)
        tensor, scalar, special = map(sum, zip(*(c.seconds for c in costs), strict=True))
        waves = blocks * split / m.sms
        tail = min(1.5, math.ceil(waves) / waves) if waves >= 1 and tensor else 1.0
        compute = max(tensor * tail, scalar + special) + 0.25 * min(tensor, scalar + special)
        transfer = (cold + stored) / m.copy_bytes_per_s + warm / m.l2_bytes_per_s
        cache = (sum(c.cache_bytes for c in costs) + stored) / m.l2_bytes_per_s
        work, sent, cached = compute / used, transfer / max(used, 0.05), cache / used
        body = max(work, sent, cached) + OVERLAP_LOSS * min(work, sent)
        merge = (1.0 + 2e6 * split * stored / m.l2_bytes_per_s) if split > 1 else 0.0
        loops = max(c.sweeps for c in costs) + STATE_SHARE * sum(c.states for c in costs)
        us = m.launch_us + m.sweep_us * loops + body * 1e6 + merge
        if len(costs) > 1:  # the blocks of one part do not speed up another
            us = max(us, *(self._time([c], (*c.fetched, 0)).us for c in costs))
        total = cold + warm + stored
        return _Time(us, total, blocks, compute * 1e6, transfer * 1e6, cache * 1e6, costs[0].tile)


@dataclass(frozen=True)
class _Traffic:
    """A load: bytes of its index range, loops that fetch it anew, and the free axes along which tiles repeat it."""

    buffer: str
    bytes: int
    visits: int
    missing: frozenset[Axes]


@dataclass(frozen=True)
class _Tiled:
    """One part under one tile: seconds by unit, bytes from memory and from earlier kernels, bytes through the cache."""

    seconds: tuple[float, float, float]
    fetched: tuple[int, int]
    cache_bytes: int
    blocks: int
    tile: tuple[int, ...]
    sweeps: int
    states: int


@dataclass(frozen=True)
class _Time:
    us: float
    bytes: int
    blocks: int
    compute_us: float
    memory_us: float
    cache_us: float
    tile: tuple[int, ...]


def _alike(options: Sequence[Sequence[_Tiled]]) -> list[Sequence[_Tiled]]:
    """Choices of one tile for each part: the same of the table for all, or the quickest where they differ in kind."""
    by_tile = [{c.tile: c for c in o} for o in options]
    shared = [t for t in by_tile[0] if all(t in b for b in by_tile)]
    if shared:
        return [[b[t] for b in by_tile] for t in shared]
    return [[min(o, key=lambda c: sum(c.seconds)) for o in options]]


Groups = tuple[tuple[Axes, int], ...]


def _tiles(w: PartWork, main: Contraction | None) -> Iterator[tuple[Groups, float]]:
    """Groups of free axes with the positions of each that one tile covers, and the share of the peak rate."""
    if main is not None:
        m, n = (main.a.free - main.b.free) & w.axes, (main.b.free - main.a.free) & w.axes
        rows, columns = w.points(m), w.points(n)
        best: dict[Groups, float] = {}
        for bm, bn, share in TILES:
            groups = (m, min(bm, rows)), (n, min(bn, columns)), (w.axes - m - n, 1)
            best[groups] = max(share, best.get(groups, 0.0))
        yield from best.items()
        return
    across = frozenset(w.sweeps) & w.axes
    if across:
        yield ((w.axes - across, 1), (across, w.points(across))), 1.0
    else:
        yield ((w.axes, POINTS),), 1.0


Spans = tuple[tuple[int, int, int], ...]


def _along(w: PartWork, axes: Axes, groups: Groups) -> Spans:
    """Per group of axes that `axes` meets: its number, positions along `axes`, and along the rest of the group."""
    return tuple(
        (k, w.points(group & axes), w.points(group - axes)) for k, (group, _) in enumerate(groups) if group & axes
    )


def _repeats(spans: Spans, tiles: tuple[int, ...]) -> int:
    """How many tiles lie along a set of axes, so how often work that lacks these axes is repeated."""
    out = 1
    for k, points, rest in spans:
        out *= -(-points // max(1, tiles[k] // rest))
    return out
