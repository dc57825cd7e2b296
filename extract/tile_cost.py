"""The time of one part under tile sizes, by a small model: traffic, instructions, and the latency of steps in waves."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from extract.facts import levels, swept
from extract.roles import Roles, roles, strides
from ir import term as T
from ir.dtype import DTYPES
from ir.loop import Buffer, Part
from ir.machine import Machine
from ir.node import postorder
from ir.tile import TileAxis

SECTOR_BYTES, LINE_BYTES = 32, 128
VECTOR_BYTES = 16
MAP_WORDS = 20
"""Register words beyond which a thread of a kernel without sweeps holds more than it needs to keep memory busy."""
QUOTIENTS = ("recip", "sigmoid")
CHEAP = ("neg", "abs", "not", "invert", "isnan")
FOLD_THREADS = {"block": 1024, "lanes": 32, "serial": 1}
"""Per way of folding: the threads that may share a fold."""
LANES = 32
MOST_WORDS = 128
"""Register words that the tiles of one thread may hold; larger tiles spill."""
KEPT_WORDS = 16
"""Register words of a thread that addresses and loop counters take."""
LEAST_PACKED = 64
"""Elements of a 16-bit value in one thread from which on it stays packed (`codegen.packed`)."""
WORDS_A_VALUE = 1.3
WORDS_A_QUOTIENT = 0.5
"""Register words for each element of the widest tile that is computed, and more for each division of such elements."""


@dataclass(frozen=True)
class Access:
    """A load or a store: its buffer, the axes it runs over and the strides of those that are linear in its index."""

    buffer: Buffer
    axes: frozenset[str]
    strides: Mapping[str, int]

    @property
    def element_bytes(self) -> int:
        return DTYPES[self.buffer.dtype].bytes

    @cached_property
    def contiguous(self) -> str | None:
        """The axis along which neighbours lie side by side."""
        return next((a for a, s in self.strides.items() if s == 1), None)


@dataclass(frozen=True)
class Tiles:
    """A choice: tile and role of every axis, threads of a block, elements a thread holds side by side, how folds go.

    A tile is that of a cluster of `cluster` blocks.
    """

    axes: Mapping[str, TileAxis]
    block: int
    vector: int
    vector_axis: str | None
    reduce: str = "block"
    cluster: int = 1

    @property
    def threads(self) -> int:
        """Threads that work on a tile."""
        return self.block * self.cluster

    @property
    def sharing(self) -> int:
        """Threads that may share a fold."""
        return min(FOLD_THREADS[self.reduce], self.block) * self.cluster

    def elements(self, axes: frozenset[str]) -> int:
        """Positions of one tile over the axes."""
        return math.prod(self.axes[a].tile for a in axes)

    def held(self, axes: frozenset[str], swept: frozenset[str]) -> int:
        """Elements of such a tile in one thread, given which axes are swept and how many threads may share those."""
        folded = self.elements(axes & swept)
        sharing = min(self.sharing, folded)
        kept = -(-self.elements(axes - swept) * sharing // self.threads)
        kept = max(kept, self.run(axes - swept))
        return max(-(-folded // sharing), self.run(axes & swept)) * kept

    def run(self, axes: frozenset[str]) -> int:
        """Elements that a thread holds at least of a tile over the axes."""
        return min(self.vector, self.axes[self.vector_axis].tile) if self.vector_axis in axes else 1

    def steps(self, axes: frozenset[str]) -> int:
        """Steps of the streams over the streamed ones among the axes."""
        return math.prod(a.tiles for a in self.axes.values() if a.role == "stream" and a.name in axes)


class PartCost:
    """What the model reads from a part, once; `us` prices tile sizes."""

    def __init__(self, part: Part, buffers: Sequence[Buffer], axes: Mapping[str, int], machine: Machine) -> None:
        self.part, self.extents, self.machine = part, axes, machine
        by_name = {b.name: b for b in buffers}
        self.roles: Roles = roles(part, buffers)
        roots = [t for s in part.stores for t in (*s.index, s.value)]
        nodes = list(postorder(*roots))
        self.loads = [_access(by_name[t.buffer], t.index, t.free) for t in nodes if isinstance(t, T.Load)]
        self.stores = [_access(by_name[s.buffer], s.index, s.axes) for s in part.stores]
        self.work: defaultdict[frozenset[str], float] = defaultdict(float)
        for t in nodes:
            if isinstance(t, T.Unary | T.Binary | T.Select | T.Fold | T.Scan) and t.free:
                own = t.x.free | set(swept(t)) if isinstance(t, T.Fold | T.Scan) else t.free
                self.work[own] += machine.rates.special if isinstance(t, T.Unary) and t.op not in CHEAP else 1
        most = max((len(axes) for axes in self.work), default=0)
        self.quotients = sum(isinstance(t, T.Unary) and t.op in QUOTIENTS and len(t.free) == most for t in nodes)
        self.kept = {t.free for t in nodes if isinstance(t, T.Fold)}
        self.kept |= {c.free - {t.axis} for t in nodes if isinstance(t, T.Stream) for c in t.carries}
        self.folds = [_folded(t) for t in nodes if isinstance(t, T.Fold | T.Stream)]
        self.scans = [_folded(t) for t in nodes if isinstance(t, T.Scan)]
        self.sweeps: Counter[str] = Counter()
        for t in roots:
            for a, n in levels(t).items():
                self.sweeps[a] = max(self.sweeps[a], n + (a in self.roles.written))

    @cached_property
    def accesses(self) -> list[Access]:
        """All loads and stores."""
        return [*self.loads, *self.stores]

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
        return list({(a.buffer.name, a.axes): a for a in self.loads}.values())

    def held(self, axes: frozenset[str], c: Tiles) -> int:
        """Elements of a tile over the axes in one thread."""
        return c.held(axes, self.roles.swept)

    def words(self, c: Tiles) -> int:
        """Register words that the tiles of a thread take: what it loads at once or computes of that, and its sums."""
        wide = max((self.held(axes, c) for axes in self.work), default=1)
        loaded = sum(
            max(1, self.held(a.axes, c) * a.element_bytes // 4)
            for a in self.distinct_loads
            if self.held(a.axes, c) > 1
        )
        sums = sum(n for axes in self.kept if (n := self.held(axes, c)) > 1)
        if self.passes or self.packs(wide, c):
            return loaded + sums
        return max(loaded, int((WORDS_A_VALUE + WORDS_A_QUOTIENT * self.quotients) * wide)) + sums

    @property
    def passes(self) -> bool:
        """Whether each loaded value is folded at once, so that nothing is kept of what is computed of it."""
        return not self.roles.written and set(self.sweeps.values()) == {1}

    def packs(self, wide: int, c: Tiles) -> bool:
        """Whether long rows of 16-bit values stay packed between sweeps that write nothing along them."""
        halves = all(a.element_bytes == 2 for a in self.distinct_loads if self.held(a.axes, c) == wide)
        return wide >= LEAST_PACKED and halves and not self.roles.written

    def most_words(self, c: Tiles) -> int:
        """Register words that the tiles of a thread may take."""
        return min(MOST_WORDS, self.machine.registers_per_sm // c.block - KEPT_WORDS)

    def resident(self, c: Tiles) -> int:
        """Blocks that a multiprocessor holds at a time."""
        registers = -(-(self.words(c) + KEPT_WORDS) // 8) * 8 * c.block
        return max(1, min(self.machine.threads_per_sm // c.block, self.machine.registers_per_sm // registers, 32))

    def us(self, c: Tiles) -> float:
        """The modelled time: traffic, instructions and latency, which hide behind one another as blocks share a place."""
        m, rates = self.machine, self.machine.rates
        blocks = math.prod(c.axes[a].tiles for a in self.roles.grid)
        share = max(blocks, 1) * c.cluster / m.sms
        busy, resident = min(1.0, share), self.resident(c)
        memory, traffic, instructions = self.moved(c, blocks)
        work = sum(n * c.steps(axes) * self.repeats(axes, c) * self.held(axes, c) for axes, n in self.work.items())
        exchange, exchange_us = self.exchange(c)
        exchange_us += rates.exchange_cluster_us if c.cluster > 1 else 0.0  # its blocks begin together
        instructions += rates.work * work + exchange + rates.kept
        issue = blocks * c.threads * instructions / (m.f32_flops_per_s / 2)
        waves = share / resident
        waves = max(1.0, waves + (math.ceil(waves) - waves) / 2)
        latency = waves * (rates.step_us * self.chain(c) + exchange_us + rates.instruction_us * instructions)
        widest = max((c.elements(axes) // c.run(axes) for axes in self.work), default=1)
        idle = max(0.0, math.log2(c.threads / widest))
        moved = max(memory / m.copy_bytes_per_s, traffic / m.l2_bytes_per_s) / busy * 1e6 * (1 + rates.idle * idle)
        order = min(rates.most_overlap, rates.overlap * max(1.0, min(resident, share)) ** rates.overlap_growth)
        total: float = (moved**order + (issue / busy * 1e6) ** order + latency**order) ** (1 / order)
        spare = 0.0 if self.roles.swept else max(0.0, math.log2(max(1, self.words(c)) / MAP_WORDS))
        clustered = math.log2(c.cluster) if waves > 1 else 0.0
        return (m.launch_us + total) * (1 + rates.spare * spare + rates.clustered * clustered)

    def moved(self, c: Tiles, blocks: int) -> tuple[float, float, float]:
        """Bytes from memory and through the L2 cache, and the instructions of a thread that move them."""
        memory = traffic = instructions = 0.0
        rates = self.machine.rates
        for access in self.accesses:
            steps, held = c.steps(access.axes) * self.repeats(access.axes, c), self.held(access.axes, c)
            moved = blocks * steps * c.elements(access.axes) * access.element_bytes / self.efficiency(access, c)
            traffic += moved
            memory += min(access.buffer.bytes, moved) * self.scatter(access, c)
            accesses = -(-held // self.width(access, c))
            instructions += steps * (rates.access * accesses + rates.widened * held * (access.element_bytes == 2))
        return memory, traffic, instructions

    def exchange(self, c: Tiles) -> tuple[float, float]:
        """Instructions of a thread, and the time it waits, for the folds that threads share."""
        instructions = us = 0.0
        rates = self.machine.rates
        for kept, folded in (*self.folds, *self.scans):
            runs = c.elements(folded) // c.run(folded)
            sharing = max(1, min(c.sharing, runs))
            results = max(c.elements(kept) * sharing / c.threads, c.run(kept))
            results *= rates.scan * runs / sharing if (kept, folded) in self.scans else 1
            instructions += results * rates.shuffle * math.log2(min(sharing, LANES))
            if sharing > LANES:
                instructions += results * rates.slot * c.block / LANES
                us += rates.exchange_block_us * (1 + c.block / 2048)
                us += rates.exchange_cluster_us if sharing > c.block else 0.0
            elif sharing > 1:
                us += rates.exchange_lanes_us
        return instructions, us

    def repeats(self, axes: frozenset[str], c: Tiles) -> int:
        """How many sweeps use a value over these axes again, where one of them is streamed."""
        return max((self.sweeps[a] for a in axes if c.axes[a].role == "stream"), default=1)

    def chain(self, c: Tiles) -> int:
        """Steps of streams that follow one another in a block, and one for what is outside of them."""
        streams = [a for a in c.axes.values() if a.role == "stream"]
        return 1 + math.prod(a.tiles for a in streams) * max((self.sweeps[a.name] for a in streams), default=0)

    def run_bytes(self, access: Access, c: Tiles) -> int:
        """Bytes of a tile that lie side by side."""
        along = access.contiguous
        return access.element_bytes * (c.axes[along].tile if along else 1)

    def efficiency(self, access: Access, c: Tiles) -> float:
        """The share of a sector that an access uses."""
        if not access.strides:
            return 1.0
        run = self.run_bytes(access, c)
        return max(run / SECTOR_BYTES if run < SECTOR_BYTES else 1.0, 1 / SECTOR_BYTES) * (
            1.0 if run >= LINE_BYTES else 0.8
        )

    def scatter(self, access: Access, c: Tiles) -> float:
        """How much longer memory takes for short runs than for whole lines, and for narrow accesses than for wide ones."""
        if not access.strides:
            return 1.0
        short = math.log2(LINE_BYTES / self.run_bytes(access, c))
        narrow = math.log2(VECTOR_BYTES / (self.width(access, c) * access.element_bytes))
        rates = self.machine.rates
        return 1 + rates.short_run * max(0.0, short) + rates.narrow * max(0.0, narrow)

    def width(self, access: Access, c: Tiles) -> int:
        """Elements that a thread moves at once."""
        return min(c.vector, VECTOR_BYTES // access.element_bytes) if access.contiguous == c.vector_axis else 1

    def widest_vector(self, axis: str) -> int:
        """Elements that 16-byte accesses along the axis move at once, where it divides and is aligned; else fewer."""
        widths = [1]
        for access in self.accesses:
            if access.contiguous == axis:
                width = VECTOR_BYTES // access.element_bytes
                others = [s for a, s in access.strides.items() if a != axis]
                while width > 1 and (
                    self.extents[axis] % width
                    or any(s % width for s in others)
                    or access.buffer.alignment % (width * access.element_bytes)
                ):
                    width //= 2
                widths.append(width)
        return max(widths)


def _folded(t: T.Fold | T.Scan | T.Stream) -> tuple[frozenset[str], frozenset[str]]:
    """The axes of the results of a sweep, and those it runs over."""
    over = frozenset(swept(t))
    return t.free - over, over


def _access(buffer: Buffer, index: Sequence[T.Term], axes: frozenset[str]) -> Access:
    return Access(buffer, axes, strides(buffer, index))
