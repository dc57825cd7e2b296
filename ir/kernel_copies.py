"""Shared memory of the blocks of a run in numpy, and copies into its rings, which arrive as late as they may.

A copy is on its way from its statement to the wait that covers it: who reads or writes its place before is wrong. In a
bulk ring, mbarriers count the copies and the releases of every slot.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ir import kernel as K
from ir.dtype import Array, DType, is_float, numpy_type
from ir.node import IRError

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
EVERYWHERE = -2
NEVER = np.iinfo(np.int64).max


def undefined(dtype: DType) -> float | int:
    """What memory holds before anything is written: NaN, or a large odd integer."""
    return np.nan if is_float(dtype) else 1 if dtype == "bool" else 0x5B


@dataclass
class SharedMemory:
    """A shared array of every cluster: values, whether defined, and who touched each element since the last barrier.

    The copies of a cluster's blocks are one: `copy` is the block that alone has the value of an element, or EVERYWHERE.
    `coming` are elements that a copy on its way fills, `released` those whose readers have said that they are done.
    """

    values: Array
    defined: Bools
    copy: Ints
    writer: Ints
    first_reader: Ints
    last_reader: Ints
    coming: Bools
    released: Bools

    @staticmethod
    def of(dtype: DType, size: int, blocks: int) -> SharedMemory:
        """Undefined memory for so many blocks."""
        shape = (blocks, size)
        values = np.full(shape, undefined(dtype), numpy_type(dtype))
        none, no = [np.full(shape, -1, np.int64) for _ in range(4)], [np.zeros(shape, np.bool_) for _ in range(3)]
        out = SharedMemory(values, no[0], none[0], none[1], none[2], none[3], no[1], no[2])
        out.first_reader[...] = NEVER
        return out

    def settle(self, clusters: Ints, threads: int) -> None:
        """A barrier of runs of so many threads in these clusters: it orders accesses that all lie in one run."""
        run = [np.where(np.isin(a, (-1, NEVER)), -1, a // threads) for a in self.touches]
        alone = np.isin(np.arange(len(self.values)), clusters)[:, None] & np.logical_and.reduce(
            [(a == b) | (a < 0) | (b < 0) for a in run for b in run]
        )
        self.writer[alone] = self.last_reader[alone] = -1
        self.first_reader[alone] = NEVER

    @property
    def touches(self) -> tuple[Ints, Ints, Ints]:
        """The threads that touched each element."""
        return self.writer, self.first_reader, self.last_reader

    def renamed(self) -> None:
        """Its memory serves something else from now on: nothing in it is defined."""
        self.defined[...] = False


@dataclass(frozen=True)
class Coming:
    """A copy on its way: the elements that it fills, with what, and the threads that began it."""

    memory: SharedMemory
    at: tuple[Ints, Ints]
    values: Array
    threads: Ints | int
    copy: Ints | int

    def arrive(self) -> None:
        """The elements have their values."""
        m = self.memory
        m.values[self.at], m.defined[self.at], m.coming[self.at] = self.values, True, False
        m.writer[self.at], m.copy[self.at] = self.threads, self.copy


@dataclass
class Copies:
    """What is on its way in all blocks of a run, which all do the same."""

    open: list[Coming] = field(default_factory=list)
    groups: list[list[Coming]] = field(default_factory=list)
    slots: defaultdict[tuple[str, int], list[Coming]] = field(default_factory=lambda: defaultdict(list))
    """Of bulk rings, by ring and slot: what will arrive there."""
    committed: set[tuple[str, int]] = field(default_factory=set)
    over: defaultdict[tuple[str, str, int], int] = field(default_factory=lambda: defaultdict(int))
    """Phases of an mbarrier, by ring, side and slot, that are over."""

    def begin(
        self, name: str, memory: SharedMemory, at: tuple[Ints, Ints], values: Array, me: Ints, copy: Ints
    ) -> None:
        """The copies of threads `me`, each of its own elements `at`."""
        others = (memory.last_reader[at] >= 0) & ((memory.first_reader[at] != me) | (memory.last_reader[at] != me))
        self._check(name, memory, at, others | ((memory.writer[at] >= 0) & (memory.writer[at] != me)))
        self.open.append(Coming(memory, at, values, me, copy))

    def begin_bulk(
        self, ring: K.BulkCopy, slot: int, memory: SharedMemory, at: tuple[Ints, Ints], values: Array
    ) -> None:
        """A copy by one thread of each block, which all threads will see."""
        self._check(ring.ring, memory, at, (memory.last_reader[at] >= 0) | memory.released[at])
        self.slots[ring.ring, slot].append(Coming(memory, at, values, -1, EVERYWHERE))

    @staticmethod
    def _check(name: str, memory: SharedMemory, at: tuple[Ints, Ints], used: Bools) -> None:
        if memory.coming[at].any():
            raise IRError(f"{name}: a copy goes where another one is on its way")
        if used.any():
            raise IRError(f"{name}: a copy goes to a slot that may still be read")
        memory.coming[at], memory.defined[at] = True, False

    def commit(self, ring: str | None, slot: int) -> None:
        """A group of copies is complete, or what one slot of a bulk ring waits for."""
        if ring is not None:
            self.committed.add((ring, slot))
            return
        self.groups.append(self.open)
        self.open = []

    def wait(self, pending: int) -> None:
        """All but the last groups arrive."""
        done = max(0, len(self.groups) - pending)
        for coming in (c for group in self.groups[:done] for c in group):
            coming.arrive()
        self.groups = self.groups[done:]

    def release(self, ring: str, slot: int, part: slice, memory: SharedMemory) -> None:
        """All threads are done with a slot of a bulk ring."""
        memory.released[:, part] |= memory.last_reader[:, part] >= 0
        memory.first_reader[:, part], memory.last_reader[:, part] = NEVER, -1
        self.over[ring, "empty", slot] += 1

    def wait_slot(self, s: K.WaitSlot, slot: int, phase: int, part: slice, memory: SharedMemory) -> None:
        """Until the phase of that parity is over; what arrives then arrives no sooner."""
        key = (s.ring, s.side, slot)
        if self.over[key] % 2 == phase:
            if s.side == "empty" or (s.ring, slot) not in self.committed:
                raise IRError(f"{s.ring}: slot {slot} waits for a phase of parity {phase} that does not end")
            self.committed.discard((s.ring, slot))
            for coming in self.slots.pop((s.ring, slot), []):
                coming.arrive()
            self.over[key] += 1
        if s.side == "empty":
            memory.released[:, part] = False
