"""The time of one part under tile sizes, by a small model: traffic, instructions, and the latency of steps in waves."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from extract.facts import passes, swept
from extract.roles import Roles, roles, strides, tile_axis
from extract.sharing_cost import PLACE_BYTES, SharingCost, exchanges
from extract.tiles import VECTOR_BYTES, Access, Choice, Tiles, aligned
from extract.warps import LINE_BYTES, Request, request
from ir import term as T
from ir.dtype import DTYPES
from ir.interval import Ranges, run_along
from ir.loop import Buffer, Part
from ir.machine import LANES, Machine, resident_warps
from ir.node import postorder
from ir.ops import MONOIDS
from ir.tile import TileAxis

WORD_BYTES = 4
MAP_WORDS = 20
"""Register words beyond which a thread of a kernel without sweeps holds more than it needs to keep memory busy."""
QUOTIENTS = ("recip", "sigmoid")
CHEAP = ("neg", "abs", "not", "invert", "isnan")
NEAR_BYTES = 65536
"""The largest buffer that the first cache of every multiprocessor keeps for its blocks."""
MOST_WORDS = 136
"""Register words that the tiles of one thread may hold; larger tiles spill."""
ISSUE_WARPS = 8
"""Warps of a multiprocessor that keep its units busy."""
LATE_WORDS = 8
"""Register words of a thread for what it loads only after its folds."""
LOOP_WORDS = 64
"""Registers of a thread of a loop (`codegen.packed`)."""
KEPT_WORDS = 16
"""Register words of a thread that addresses and loop counters take."""
AGAIN_A_WORD = 4
"""Elements of a packed row that are computed again and written for each register word that this takes."""
LEAST_PACKED = 64
"""Elements of a 16-bit value in one thread from which on it stays packed (`codegen.packed`)."""
STAGED = {"bulk": 0.05, "async": 0.09, "": 0.16}
"""The share by which memory gets slower where loads go through shared memory on their way to registers."""
RESERVED_BYTES = 1024
"""Shared memory of a block that the system keeps for itself."""
WORDS_A_VALUE = 1.3
WORDS_A_QUOTIENT = 0.5
"""Register words for each element of the widest tile that is computed, and more for each division of such elements."""


class PartCost(SharingCost):
    """What the model reads from a part, once; `us` prices tile sizes."""

    def __init__(self, part: Part, buffers: Sequence[Buffer], axes: Mapping[str, int], machine: Machine) -> None:
        self.part, self.extents, self.machine = part, axes, machine
        self.tile_axes: dict[tuple[str, int], TileAxis] = {}
        self.orders: dict[tuple[int, ...], Sequence[str]] = {}
        by_name = {b.name: b for b in buffers}
        self.roles: Roles = roles(part, buffers)
        roots = [t for s in part.stores for t in (*s.index, s.value)]
        nodes = list(postorder(*roots))
        ranges = Ranges({T.Index(a): (0, max(0, n - 1)) for a, n in axes.items()})
        loads = [t for t in nodes if isinstance(t, T.Load)]
        self.loads = [
            _access(by_name[t.buffer], t.index, t.free, _leaving(t, by_name, roots, ranges), ranges, axes)
            for t in loads
        ]
        folded = set(postorder(*(k for t in nodes if isinstance(t, T.Fold | T.Stream | T.Scan) for k in t.terms)))
        self.early = {t.buffer for t in folded if isinstance(t, T.Load)}
        outside = _outside(roots)
        self.keeps = any(_dear(t) and t.free & self.roles.written for t in folded & outside)
        """Whether something dear that is folded is written too, so that it stays in registers in between."""
        self.stores = [_access(by_name[s.buffer], s.index, s.axes, (), ranges, axes) for s in part.stores]
        self.use = [(t in folded, t in outside) for t in loads]
        """Of each load, whether a fold uses it, and what is written."""
        self.work: defaultdict[frozenset[str], float] = defaultdict(float)
        self.again: defaultdict[frozenset[str], float] = defaultdict(float)
        """What every sweep computes again of the work, as folds use it and what is written."""
        for t in nodes:
            if isinstance(t, T.Select) and isinstance(t.y, T.Identity):
                continue  # a mask, over which loads mostly leave the identity anyway
            if isinstance(t, T.Unary | T.Binary | T.Select | T.Fold | T.Scan) and t.free:
                own = t.x.free | set(swept(t)) if isinstance(t, T.Fold | T.Scan) else t.free
                weight = machine.rates.special if _dear(t) else 1
                self.work[own] += weight
                self.again[own] += weight if t in folded & outside else 0
        most = max((len(axes) for axes in self.work), default=0)
        self.quotients = sum(isinstance(t, T.Unary) and t.op in QUOTIENTS and len(t.free) == most for t in nodes)
        self.kept = {t.free for t in nodes if isinstance(t, T.Fold)}
        carries = {(t.axis, c) for t in nodes if isinstance(t, T.Stream) for c in t.carries}
        self.kept |= {c.free - {axis} for axis, c in carries}
        self.states = [
            *((frozenset((axis,)), c.free | {axis}, _words(c.dtype)) for axis, c in carries),
            *(
                (frozenset(t.axes), t.x.free, _words(t.x.dtype) + PLACE_BYTES // WORD_BYTES)
                for t in nodes
                if isinstance(t, T.Fold) and MONOIDS[t.monoid].pair
            ),
            *((frozenset((t.axis,)), t.free, _words(t.dtype)) for t in nodes if isinstance(t, T.Scan)),
        ]
        """What a loop over some axes keeps for every position that a thread takes at a step: its axes, and its words.

        States between steps, and prefixes until the threads have met.
        """
        self.folds = Counter(_folded(t) for t in nodes if isinstance(t, T.Fold | T.Stream))
        self.scans = Counter(_folded(t) for t in nodes if isinstance(t, T.Scan))
        self.exchanges = exchanges(nodes, axes)
        free = {t.free for t in nodes} | {s.axes for s in part.stores}
        self.beside = {a: frozenset[str]().union(*(f for f in free if a in f)) - {a} for a in self.roles.order}
        """Of each axis, those that some value has with it."""
        counts = [passes(t) for t in roots]
        self.sweeps = {
            a: max(n.get(a, 0) for n in counts) + (a in self.roles.written) for a in sorted(self.roles.swept)
        }

    @cached_property
    def least_us(self) -> float:
        """The time in which memory moves every buffer once."""
        sizes = {a.buffer.name: a.buffer.bytes for a in self.accesses}
        return sum(sizes.values()) / self.machine.copy_bytes_per_s * 1e6

    @cached_property
    def near(self) -> list[str]:
        """Axes along which some access has its neighbours, then swept ones, fastest first."""
        side_by_side = {x.contiguous for x in self.accesses}
        order = self.roles.order[::-1]
        return [
            *(a for a in order if a in side_by_side),
            *(a for a in order if a in self.roles.swept - side_by_side),
        ]

    @cached_property
    def distinct_loads(self) -> list[Access]:
        """Loads whose values a thread may hold at one time."""
        return self._distinct(lambda name: name in self.early or not self.early)

    @cached_property
    def late_loads(self) -> list[Access]:
        """Loads that nothing needs before the folds: the compiler issues them behind these, a few at a time."""
        return self._distinct(lambda name: name not in self.early and bool(self.early))

    def _distinct(self, kept: Callable[[str], bool]) -> list[Access]:
        return list({(a.buffer.name, a.axes): a for a in self.loads if kept(a.buffer.name)}.values())

    def axis(self, name: str, tile: int) -> TileAxis:
        """An axis with a tile of that size; raises where the tile is illegal."""
        found = self.tile_axes.get((name, tile))
        if found is None:
            found = self.tile_axes[name, tile] = tile_axis(name, self.extents[name], tile, self.roles)
        return found

    def tiles(self, axes: Mapping[str, TileAxis], choice: Choice) -> Tiles:
        """The tiles of a choice, whose threads go along the axes in the order of `thread_order`."""
        key = tuple(a.tile for a in axes.values())
        order = self.orders.get(key)
        if order is None:
            order = self.orders[key] = self.thread_order(axes)
        return Tiles(axes, choice, order, self.dealt(order, axes, choice))

    def words(self, c: Tiles) -> int:
        """Register words that the tiles of a thread take: what it loads at once or computes of that, and its sums."""
        wide = max((c.held(axes) for axes in self.work), default=1)
        loaded, sums = self.kept_words(c, math.inf if self.passes else LATE_WORDS)
        if self.passes or self.packs(wide, c):
            return loaded + sums + (wide // AGAIN_A_WORD if self.roles.written else 0)
        return max(loaded, int((WORDS_A_VALUE + WORDS_A_QUOTIENT * self.quotients) * wide)) + sums

    def kept_words(self, c: Tiles, most_late: float = LATE_WORDS) -> tuple[int, int]:
        """Register words of what a thread loads at once, and of its sums and states."""
        loaded = sum(self.loaded_words(a, c) for a in self.distinct_loads if c.held(a.axes) > 1)
        late = sum(self.loaded_words(a, c) for a in self.late_loads if c.held(a.axes) > 1)
        sums = sum(n for axes in self.kept if (n := c.held(axes)) > 1)
        return loaded + int(min(late, most_late)), sums + self.carried(c)

    def spilled(self, c: Tiles) -> int:
        """Register words that a thread writes to memory and reads again, a step.

        Those of a loop's states and loads beyond its room, as folds alone take loads as they come; and in a cluster what
        is loaded late, which the compiler does not keep behind the barrier.
        """
        if self.carried(c):
            return max(0, sum(self.kept_words(c)) + KEPT_WORDS - LOOP_WORDS) * (self.chain(c) - 1)
        room = self.machine.registers_per_sm // c.choice.block // 8 * 8 - KEPT_WORDS
        return max(0, sum(self.kept_words(c, math.inf)) - room) if c.choice.cluster > 1 else 0

    def carried(self, c: Tiles) -> int:
        """Register words that a loop keeps for every position which a thread takes at a step."""
        return sum(
            n * words
            for over, axes, words in self.states
            if not over.isdisjoint(c.streams) and (n := c.held(axes)) > 1
        )

    def loaded_words(self, access: Access, c: Tiles) -> int:
        """Register words that a load fills; elements that come one by one are not packed."""
        packed = self.width(access, c) * access.element_bytes >= WORD_BYTES
        return max(1, c.held(access.axes) * (access.element_bytes if packed else WORD_BYTES) // WORD_BYTES)

    @property
    def passes(self) -> bool:
        """Whether each loaded value is folded at once, so that nothing is kept of what is computed of it."""
        return not self.roles.written and set(self.sweeps.values()) == {1}

    def packs(self, wide: int, c: Tiles) -> bool:
        """Whether long rows of 16-bit values stay packed between sweeps, and nothing else of them stays."""
        widest = {a.element_bytes for a in self.loads if c.held(a.axes) == wide}
        long = wide >= LEAST_PACKED and widest == {2}
        return long and not self.keeps and not (self.roles.written and self.late_loads)

    def most_words(self, c: Tiles) -> int:
        """Register words that the tiles of a thread may take."""
        return min(MOST_WORDS, self.machine.registers_per_sm // c.choice.block - KEPT_WORDS)

    def resident(self, c: Tiles, words: int) -> int:
        """Blocks that a multiprocessor holds at a time, whose threads keep so many register words of tiles."""
        m, block = self.machine, c.choice.block
        warps = resident_warps(m.registers_per_sm, -(-(words + KEPT_WORDS) // 8) * 8)
        most = m.smem_bytes_per_sm // (self.staged_bytes(c) + RESERVED_BYTES) if c.choice.staging else 32
        return max(1, min(m.threads_per_sm // block, warps * LANES // block, most, 32))

    def us(self, c: Tiles) -> float:
        """The modelled time: traffic, instructions and latency, which hide behind one another as blocks share a place.

        Infinite where a thread has too few registers.
        """
        m, rates, words = self.machine, self.machine.rates, self.words(c)
        if words > self.most_words(c):
            return math.inf
        blocks = c.count(self.roles.grid)
        share = max(blocks, 1) * c.working / m.sms
        busy, resident = min(1.0, share), self.resident(c, words)
        together = min(resident, max(share, 1.0))
        waves = share / resident
        waves = max(1.0, waves + (math.ceil(waves) - waves) / 2)
        memory, traffic, instructions = self.moved(c, blocks, resident)
        work = sum(
            (n + self.again[axes] * (self.repeats(axes, c) - 1)) * c.steps(axes) * c.held(axes)
            for axes, n in self.work.items()
        )
        exchange, exchange_us = self.exchange(c)
        exchange_us += (
            rates.exchange_cluster_us if c.choice.cluster > 1 < waves else 0.0
        )  # its blocks begin together
        chain = self.chain(c)
        instructions += rates.work * work + rates.kept + 4 * rates.access * self.spilled(c)
        # of each instruction of a thread in all blocks
        issue = blocks * c.choice.threads / (m.f32_flops_per_s / 2) / busy * 1e6
        issue *= max(1.0, ISSUE_WARPS / (together * c.choice.block / LANES))
        computing = rates.instruction_us * (instructions + exchange)
        latency = rates.step_us * self.waits(c) + exchange_us + computing
        widest = max(self.work, key=c.elements, default=frozenset[str]())
        idle = math.log2(c.choice.threads * c.held(widest) / c.elements(widest))
        moved = max(memory / m.copy_bytes_per_s, traffic / m.l2_bytes_per_s) * 1e6 * (1 + rates.idle * idle)
        moved /= min(1.0, rates.alone * share)
        moved *= 1 + (STAGED[c.choice.staging.how] if c.choice.staging else 0.0)
        order = min(rates.most_overlap, rates.overlap * max(1.0, min(resident, share)) ** rates.overlap_growth)
        instructions += exchange * (1 - 1 / waves)
        last = latency - computing * (1 - 1 / chain)
        earlier = max(0.0, latency * waves - last)
        hidden: float = (moved**order + (issue * instructions) ** order + earlier**order) ** (1 / order)
        # nothing hides how long the last wave waits for its last step, and what its threads share at the end
        total = max(hidden + last + issue * exchange / waves, blocks * c.choice.cluster * rates.block_us)
        spare = 0.0 if self.roles.swept else max(0.0, math.log2(max(1, words) / MAP_WORDS))
        clustered = math.log2(c.choice.cluster) if waves > 1 else 0.0
        return (rates.start_us + total) * (1 + rates.spare * spare + rates.clustered * clustered)

    def moved(self, c: Tiles, blocks: int, resident: int) -> tuple[float, float, float]:
        """Bytes from memory and through the L2 cache, and the instructions of a thread that move them."""
        instructions = 0.0
        m, rates = self.machine, self.machine.rates
        memory, traffic = defaultdict[object, float](float), defaultdict[object, float](float)
        for n, access in enumerate(self.accesses):
            loads = n < len(self.loads)
            sweeps = self.fetched(n, c) if loads else 1
            steps, held = c.steps(access.axes) * sweeps, c.held(access.axes)
            touched, width = self.request(access, c, loads), self.width(access, c)
            once = blocks * c.steps(access.axes) * c.elements(access.axes) * access.element_bytes * touched.waste
            again = (sweeps - 1) * self.missed(access, c, min(blocks, m.sms * resident / c.choice.cluster))
            # what lies in one tile comes once, however often it is loaded
            place = access.place if loads else n
            outside = any(c.axes[a].tile < c.axes[a].extent for a in access.clamped)
            key = (place, n if outside else None)
            shared = m.sms * access.buffer.bytes if access.buffer.bytes <= NEAR_BYTES else math.inf
            traffic[key] = max(traffic[key], min(once * sweeps, shared))
            moved = min(access.buffer.bytes, once) * (1 + again) * self.scatter(access, c, touched)
            memory[place] = max(memory[place], moved)
            accesses = rates.access * -(-held // width)
            accesses += rates.line * touched.spare_lines * -(-held // self.run(access, c))
            if loads and self.staged(n, c):  # what is stored in shared memory is read from there
                instructions += c.steps(access.axes) * self.loaded(n, c) * rates.access * -(-held // width)
            instructions += steps * (accesses + rates.widened * held * (access.element_bytes == 2))
        return sum(memory.values()), sum(traffic.values()), instructions

    def missed(self, access: Access, c: Tiles, at_a_time: float) -> float:
        """The share of what a sweep loads again that the L2 cache has lost: what runs at a time goes through it."""
        tile = c.elements(access.axes) * c.steps(access.axes) * access.element_bytes
        return min(1.0, at_a_time * tile / self.machine.l2_bytes)

    def request(self, access: Access, c: Tiles, loads: bool) -> Request:
        """What a warp touches at once; a load whose neighbours lie in other warps changes its layout in shared memory."""
        size = access.element_bytes
        digits = (self.turned(access, c) if loads else None) or c.digits
        steps = [(digits[a].lanes, digits[a].run * n * size) for a, n in access.strides.items()]
        return request(self.run(access, c) * size, steps)

    def run_bytes(self, access: Access, c: Tiles) -> int:
        """Bytes of a tile that lie side by side."""
        along = access.contiguous
        return access.element_bytes * (c.axes[along].tile if along else 1)

    def scatter(self, access: Access, c: Tiles, touched: Request) -> float:
        """How much longer memory takes for short runs and requests than for whole lines, and for narrow accesses."""
        if not access.strides:
            return 1.0
        short = math.log2(LINE_BYTES / self.run_bytes(access, c))
        small = math.log2(LINE_BYTES / touched.useful)
        narrow = math.log2(VECTOR_BYTES / (self.width(access, c) * access.element_bytes))
        rates = self.machine.rates
        return (
            1 + rates.short_run * max(0.0, short) + rates.small * max(0.0, small) + rates.narrow * max(0.0, narrow)
        )

    def width(self, access: Access, c: Tiles) -> int:
        """Elements that a thread moves at once."""
        return 1 if access.contiguous in access.clamped else min(self.run(access, c), access.vector)

    def run(self, access: Access, c: Tiles) -> int:
        """Elements side by side that a thread moves, at once or one after another."""
        near = access.contiguous
        if near is not None and near in access.clamped:
            return c.digits[near].run
        return min(c.choice.vector, VECTOR_BYTES // access.element_bytes) if near == c.choice.vector_axis else 1

    def widest_vector(self, axis: str) -> int:
        """Elements that 16-byte accesses along the axis move at once, where it divides and is aligned; else fewer."""
        return max((access.vector for access in self.accesses if access.contiguous == axis), default=1)


def _words(dtype: str) -> int:
    """Register words of one value."""
    return max(1, DTYPES[dtype].bytes // WORD_BYTES)


def _dear(t: T.Term) -> bool:
    """Whether a value is rather kept than computed again."""
    return isinstance(t, T.Unary) and t.op not in CHEAP


def _outside(roots: Sequence[T.Term]) -> set[T.Term]:
    """The terms that are no part of a fold, a scan or a stream."""
    found, stack = set(roots), list(roots)
    while stack:
        t = stack.pop()
        below = () if isinstance(t, T.Fold | T.Stream | T.Scan) else t.terms
        stack += [k for k in below if k not in found]
        found.update(below)
    return found


def _folded(t: T.Fold | T.Scan | T.Stream) -> tuple[frozenset[str], frozenset[str]]:
    """The axes of the results of a sweep, and those it runs over."""
    over = frozenset(swept(t))
    return t.free - over, over


def _access(
    buffer: Buffer,
    index: Sequence[T.Term],
    axes: frozenset[str],
    leaving: Iterable[T.Term],
    ranges: Ranges,
    extents: Mapping[str, int],
) -> Access:
    clamped = frozenset[str]().union(*(t.free for t in leaving))
    access = Access(buffer, axes, strides(buffer, index), clamped, tuple(index))
    near = access.contiguous
    if near is None:
        return access
    axis = TileAxis(near, extents[near], "whole", extents[near])
    width = aligned(buffer, index, axis, VECTOR_BYTES // access.element_bytes)
    if near not in clamped:
        while any(_parted(t, n, near, width, ranges) for t, n in zip(index, buffer.shape, strict=True)):
            width //= 2
    return replace(access, vector=width)


def _parted(t: T.Term, size: int, axis: str, width: int, ranges: Ranges) -> bool:
    """Whether an end of a dimension may lie inside an aligned run of so many positions along the axis."""
    low, high = ranges.of(t)
    if width == 1 or axis not in t.free or (low >= 0 and high < size):
        return False
    run = run_along(t, axis, width)
    return run is None or run[0] != 1 or run[1] % width != 0 or (high >= size and size % width != 0)


def _leaving(
    load: T.Load, buffers: Mapping[str, Buffer], roots: Sequence[T.Term], ranges: Ranges
) -> Iterator[T.Term]:
    """The index terms of a load that may leave its buffer where a value is asked for."""
    for t, n in zip(load.index, buffers[load.buffer].shape, strict=True):
        low, high = ranges.of(t)
        tests = {T.binary("le", T.number(0), t)} if low < 0 else set[T.Term]()
        tests |= {T.binary("lt", t, T.number(n))} if high >= n else set()
        if tests and _asked(load, roots, tests):
            yield t


def _asked(load: T.Load, roots: Sequence[T.Term], tests: set[T.Term]) -> bool:
    """Whether the load is used elsewhere than where all the tests hold."""
    found, stack = set(roots), list(roots)
    while stack:
        t = stack.pop()
        masked = isinstance(t, T.Select) and tests <= set(T.conjuncts(t.p))
        below = (t.p, t.y) if isinstance(t, T.Select) and masked else t.terms
        stack += [k for k in below if k not in found]
        found.update(below)
    return load in found
