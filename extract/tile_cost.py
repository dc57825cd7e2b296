"""The time of one part under tile sizes, by a small model: traffic, instructions, and the latency of steps in waves."""

from __future__ import annotations

import math
from collections import Counter
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
STEP_US = 0.7
INSTRUCTION_US = 0.002
MOVE_COST = 4
OVERLAP = 0.1
IDLE = 0.02
FOLD_US = {"block": 0.3, "lanes": 0.1, "serial": 0.0}
FOLD_THREADS = {"block": 1024, "lanes": 32, "serial": 1}
"""Per way of folding: the time that threads take to exchange results, and the threads that may share a fold."""
MOST_WORDS = 128
"""Register words that the tiles of one thread may hold; larger tiles spill."""
KEPT_WORDS = 24
"""Register words of a thread that addresses and loop counters take."""
SPECIAL_COST = 4
"""Instructions that a special function counts for."""


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
    """A choice: tile and role of every axis, threads of a block, elements a thread holds side by side, how folds go."""

    axes: Mapping[str, TileAxis]
    threads: int
    vector: int
    vector_axis: str | None
    reduce: str = "block"

    def elements(self, axes: frozenset[str]) -> int:
        """Positions of one tile over the axes."""
        return math.prod(self.axes[a].tile for a in axes)

    def held(self, axes: frozenset[str], swept: frozenset[str]) -> int:
        """Elements of such a tile in one thread, given which axes are swept and how many threads may share those."""
        folded = self.elements(axes & swept)
        sharing = min(FOLD_THREADS[self.reduce], folded, self.threads)
        each = -(-folded // sharing) * -(-self.elements(axes - swept) * sharing // self.threads)
        least = min(self.vector, self.axes[self.vector_axis].tile) if self.vector_axis in axes else 1
        return max(each, least)

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
        self.work: Counter[frozenset[str]] = Counter()
        for t in nodes:
            if isinstance(t, T.Unary | T.Binary | T.Select | T.Fold | T.Scan) and t.free:
                own = t.x.free | set(swept(t)) if isinstance(t, T.Fold | T.Scan) else t.free
                self.work[own] += SPECIAL_COST if isinstance(t, T.Unary) and t.dtype == "f32" else 1
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
        """Register words that the tiles of a thread take: every load over several elements, and two of the widest."""
        wide = max((self.held(axes, c) for axes in self.work), default=1)
        return 2 * wide + sum(
            max(1, self.held(a.axes, c) * a.element_bytes // 4)
            for a in self.distinct_loads
            if self.held(a.axes, c) > 1
        )

    def most_words(self, c: Tiles) -> int:
        """Register words that the tiles of a thread may take."""
        return min(MOST_WORDS, self.machine.registers_per_sm // c.threads - KEPT_WORDS)

    def us(self, c: Tiles) -> float:
        """The modelled time."""
        m = self.machine
        blocks = math.prod(c.axes[a].tiles for a in self.roles.grid)
        busy = min(1.0, max(blocks, 1) / m.sms)
        traffic = memory = moves = 0.0
        for access in self.accesses:
            steps = c.steps(access.axes) * self.repeats(access.axes, c)
            moved = blocks * steps * c.elements(access.axes) * access.element_bytes / self.efficiency(access, c)
            traffic += moved
            memory += min(access.buffer.bytes, moved)
            wide = min(c.vector, VECTOR_BYTES // access.element_bytes) if access.contiguous == c.vector_axis else 1
            moves += steps * -(-self.held(access.axes, c) // wide)
        work = sum(n * c.steps(axes) * self.repeats(axes, c) * self.held(axes, c) for axes, n in self.work.items())
        instructions = work + MOVE_COST * moves
        issue = blocks * c.threads * instructions / (m.f32_flops_per_s / 2)
        registers = c.threads * (self.words(c) + KEPT_WORDS)
        at_once = max(1, min(m.threads_per_sm // c.threads, m.registers_per_sm // registers, 32)) * m.sms
        alone = STEP_US * self.chain(c) + FOLD_US[c.reduce] * sum(self.sweeps.values())
        latency = -(-blocks // at_once) * (alone + instructions * INSTRUCTION_US)
        times = (
            memory / m.copy_bytes_per_s / busy * 1e6,
            traffic / m.l2_bytes_per_s / busy * 1e6,
            issue / busy * 1e6,
            latency,
        )
        widest = max((c.elements(axes) for axes in self.work), default=1)
        idle = max(0.0, math.log2(c.threads / widest))
        return (m.launch_us + max(times) + OVERLAP * sum(times)) * (1 + IDLE * idle)

    def repeats(self, axes: frozenset[str], c: Tiles) -> int:
        """How many sweeps use a value over these axes again, where one of them is streamed."""
        return max((self.sweeps[a] for a in axes if c.axes[a].role == "stream"), default=1)

    def chain(self, c: Tiles) -> int:
        """Steps of streams that follow one another in a block, and one for what is outside of them."""
        streams = [a for a in c.axes.values() if a.role == "stream"]
        return 1 + math.prod(a.tiles for a in streams) * max((self.sweeps[a.name] for a in streams), default=0)

    def efficiency(self, access: Access, c: Tiles) -> float:
        """The share of a sector that an access uses."""
        if not access.strides:
            return 1.0
        along = access.contiguous
        run = access.element_bytes * (c.axes[along].tile if along else 1)
        return max(run / SECTOR_BYTES if run < SECTOR_BYTES else 1.0, 1 / SECTOR_BYTES) * (
            1.0 if run >= LINE_BYTES else 0.8
        )

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


def _access(buffer: Buffer, index: Sequence[T.Term], axes: frozenset[str]) -> Access:
    return Access(buffer, axes, strides(buffer, index))
