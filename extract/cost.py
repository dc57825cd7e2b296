"""The time of one kernel by a model of the machine: a roofline with recompute, cache traffic and occupancy.

What keeps it from silly choices: work repeated for every tile, work on states once a step, traffic of tiles through
the second-level cache, few blocks on many multiprocessors, and the share of blocks that a predicate leaves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from extract.facts import levels
from extract.work import Axes, PartWork, Works, bytes_of
from ir.loop import Buffer, Form, KernelForm, Part
from ir.machine import Machine
from ir.term import Term

ROW_BYTES = 200_000  # a row up to this size stays in a block between its sweeps
POINTS = 1024  # positions of one block where nothing else decides
MOST_SPLITS = 16
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

    def cost(self, parts: Sequence[Part]) -> Cost:
        """The cost of a kernel made of these parts."""
        works = [PartWork([s.value for s in p.stores], frozenset(p.axes), self.works, self.safe) for p in parts]
        stored = sum(self._stored(p) for p in parts)
        options = [list(self._under_tiles(w)) for w in works]
        together: list[Sequence[_Tiled]]
        if len(options) == 1:
            together = [[c] for c in options[0]]
        else:
            together = _alike(options)
        best = min((self._time(costs, stored) for costs in together), key=lambda t: t.us)
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

    def _under_tiles(self, w: PartWork) -> Iterator[_Tiled]:
        traffic = self._traffic(w)
        memory: dict[str, int] = defaultdict(int)
        for t in traffic:
            once = min(t.bytes, self.buffers[t.buffer].bytes)
            visits = 1 if once < self.machine.l2_bytes / 2 else t.visits
            memory[t.buffer] = max(memory[t.buffer], once * visits)
        loops = max(w.sweeps.values(), default=0)
        sets = {w.axes, *w.counts, *(m for t in traffic for m in t.missing)}
        along = None
        for groups, share in _tiles(w):
            along = along or {axes: _along(w, axes, groups) for axes in sets}
            tiles = tuple(n for _, n in groups)
            repeats = {axes: _repeats(spans, tiles) for axes, spans in along.items()}
            seconds = {"tensor": 0.0, "scalar": 0.0, "special": 0.0}
            for missing, counts in w.counts.items():
                for unit, n in counts.items():
                    seconds[unit] += repeats[missing] * n / self._rate(unit, share)
            cache = sum(t.bytes * t.visits * max(repeats[m] for m in t.missing) for t in traffic)
            yield _Tiled(seconds, memory, cache, repeats[w.axes], tiles, loops, w.states)

    def _rate(self, unit: str, share: float) -> float:
        """Instructions a second of a unit (operations for the tensor cores)."""
        if unit == "tensor":
            return self.machine.tensor_flops_per_s * share
        return self.machine.f32_flops_per_s / 2 if unit == "scalar" else self.machine.special_per_s

    def _traffic(self, w: PartWork) -> list[_Traffic]:
        out = []
        for load, uses in w.loads.items():
            element = bytes_of(load.dtype)
            looped = frozenset(a for _, context in uses for a, _ in context) & load.free
            stays = self._points(looped) * element <= ROW_BYTES and w.main is None
            visits = 1 if stays else len({context for _, context in uses})
            missing = frozenset(m for m, _ in uses)
            out.append(_Traffic(load.buffer, self._points(load.free) * element, visits, missing))
        return out

    # ---- the whole kernel

    def _time(self, costs: Sequence[_Tiled], stored: int) -> _Time:
        m = self.machine
        memory: dict[str, int] = defaultdict(int)
        for c in costs:
            for name, n in c.memory.items():
                memory[name] = max(memory[name], n)
        warm = sum(n for name, n in memory.items() if self.buffers[name].role != "input")
        cold = sum(memory.values()) - warm
        blocks = sum(c.blocks for c in costs)
        split = min(MOST_SPLITS, m.sms // blocks) if blocks < m.sms else 1
        used = min(1.0, blocks * split / m.sms)
        tensor, scalar, special = (sum(c.seconds[u] for c in costs) for u in ("tensor", "scalar", "special"))
        waves = blocks * split / m.sms
        tail = min(1.5, math.ceil(waves) / waves) if waves >= 1 and tensor else 1.0
        compute = max(tensor * tail, scalar + special) + 0.25 * min(tensor, scalar + special)
        transfer = (cold + stored) / m.copy_bytes_per_s + warm / m.l2_bytes_per_s
        cache = (sum(c.cache_bytes for c in costs) + stored) / m.l2_bytes_per_s
        work, moved, cached = compute / used, transfer / max(used, 0.05), cache / used
        body = max(work, moved, cached) + OVERLAP_LOSS * min(work, moved)
        merge = (1.0 + 2e6 * split * stored / m.l2_bytes_per_s) if split > 1 else 0.0
        loops = max(c.sweeps for c in costs) + STATE_SHARE * sum(c.states for c in costs)
        us = m.launch_us + m.sweep_us * loops + body * 1e6 + merge
        if len(costs) > 1:  # the blocks of one part do not speed up another
            us = max(us, *(self._time([c], 0).us for c in costs))
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
    """One part under one tile: seconds by unit, bytes from memory by buffer, bytes through the cache."""

    seconds: Mapping[str, float]
    memory: Mapping[str, int]
    cache_bytes: float
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
    return [[min(o, key=lambda c: sum(c.seconds.values())) for o in options]]


Groups = tuple[tuple[Axes, int], ...]


def _tiles(w: PartWork) -> Iterator[tuple[Groups, float]]:
    """Groups of free axes with the positions of each that one tile covers, and the share of the peak rate."""
    main = w.main
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
