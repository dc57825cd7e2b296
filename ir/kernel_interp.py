"""Kernel IR in numpy: all threads of many blocks, or clusters of blocks, in lockstep, one array element a thread.

Registers, shared memory and buffers that are not given start undefined: NaN, or a large odd integer. Accesses out of
bounds or misaligned, undefined registers or slots that are read, collectives under divergent control, and races, in
shared memory between two barriers or in global memory between threads, are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ir import kernel as K
from ir import meaning
from ir import term as T
from ir.dtype import DTYPES, Array, numpy_type
from ir.kernel_copies import EVERYWHERE, Bools, Copies, Ints, SharedMemory, undefined
from ir.layout import LANES
from ir.loop import Buffer
from ir.node import IRError
from ir.ops import BINARY
from ir.term import Term

CHUNK = 1 << 18
"""Threads that run in one lockstep."""


def reach(b: Buffer) -> int:
    """Elements from the buffer's first to its last, both counted."""
    return 1 + sum((n - 1) * s for n, s in zip(b.shape, b.strides, strict=True)) if b.size else 0


def to_flat(b: Buffer, values: Array) -> Array:
    """The storage of a buffer, from its start, that holds `values`; the gaps are undefined."""
    flat = np.full(b.offset + reach(b), undefined(b.dtype), numpy_type(b.dtype))
    _logical(b, flat)[...] = values
    return flat


def from_flat(b: Buffer, flat: Array) -> Array:
    """The values of a buffer that lies in `flat`."""
    return _logical(b, flat).copy()


def _logical(b: Buffer, flat: Array) -> Array:
    item = flat.dtype.itemsize
    return np.lib.stride_tricks.as_strided(flat[b.offset :], b.shape, [s * item for s in b.strides])


def run_kernel(program: K.KernelProgram, buffers: Mapping[str, Array]) -> dict[str, Array]:
    """The flat contents of every buffer after the kernel, given flat contents before; those not given start undefined."""
    memory: dict[str, _Global] = {}
    for b in program.buffers:
        values = buffers.get(b.name, np.full(b.offset + reach(b), undefined(b.dtype)))
        if values.shape != (b.offset + reach(b),):
            raise IRError(f"{program.name}: {b.name} needs {b.offset + reach(b)} elements, not {values.shape}")
        memory[b.name] = _Global(b, values.astype(numpy_type(b.dtype)))
    together = max(1, CHUNK // program.threads)
    for first in range(0, program.blocks, together):
        _Run(program, memory, first, min(together, program.blocks - first)).body(program.body, None)
    return {name: g.values for name, g in memory.items()}


class _Global:
    """A buffer's storage, and which thread of the launch wrote each element."""

    def __init__(self, b: Buffer, values: Array) -> None:
        self.buffer, self.values = b, values
        self.writer = np.full(len(values), -1, np.int64)

    def places(self, offset: Ints, width: int) -> Ints:
        """Storage elements of runs of `width`, checked."""
        b = self.buffer
        wrong = (offset < 0) | (offset + width > reach(b))
        if wrong.any():
            raise IRError(f"{b.name}: element {offset[wrong][0]} is outside its {reach(b)} elements")
        if width > 1 and (b.alignment % (width * DTYPES[b.dtype].bytes) or (offset % width).any()):
            raise IRError(f"{b.name}: a run of {width} elements is not aligned")
        return offset + b.offset


@dataclass
class _Registers:
    values: Array
    defined: Bools


@dataclass
class _Run:
    """Some blocks of a launch; a `mask` says which threads are active, None that all are."""

    program: K.KernelProgram
    memory: dict[str, _Global]
    first: int
    blocks: int
    scalars: dict[str, Array] = field(default_factory=dict)
    arrays: dict[str, _Registers] = field(default_factory=dict)
    shared: dict[str, SharedMemory] = field(default_factory=dict)
    rings: dict[str, K.Ring] = field(default_factory=dict)
    copies: Copies = field(default_factory=Copies)

    def __post_init__(self) -> None:
        threads = self.program.threads
        self.block: Ints = np.repeat(np.arange(self.blocks), threads)
        self.thread: Ints = np.tile(np.arange(threads), self.blocks)
        self.count = self.blocks * threads
        self.scalars["block"] = (self.block + self.first).astype(np.int32)
        self.scalars["thread"] = self.thread.astype(np.int32)

    # ---- values

    def value(self, t: Term, mask: Bools | None) -> Array:
        """The term in every thread; what inactive threads get is meaningless."""

        def leaf(s: Term) -> Array:
            match s:
                case T.Var(name):
                    if name not in self.scalars:
                        raise IRError(f"scalar {name} is read before it is set")
                    return self.scalars[name]
                case T.Load(array, _, index):
                    return np.asarray(self.read(array, self.constant(index[0], mask), 1, mask)[0])
            raise IRError(f"{type(s).__name__} has no place in a kernel")

        return np.broadcast_to(meaning.pointwise(t, leaf, False), (self.count,))

    def constant(self, t: Term, mask: Bools | None) -> int:
        """A term that is equal in all active threads."""
        values = self.active(self.value(t, mask), mask)
        if len(values) and (values != values[0]).any():
            raise IRError("a register index or loop bound differs between threads")
        return int(values[0]) if len(values) else 0

    def active(self, values: Array, mask: Bools | None) -> Array:
        return values if mask is None else np.asarray(values[mask])

    def read(self, name: str, place: int, width: int, mask: Bools | None) -> Array:
        array = self.arrays.get(name)
        if array is None or place < 0 or place + width > len(array.values):
            raise IRError(f"{name}[{place}..{place + width}) is no declared register")
        for k in range(place, place + width):
            if not self.active(array.defined[k], mask).all():
                raise IRError(f"{name}[{k}] is read before it is set")
        return np.asarray(array.values[place : place + width])

    def write(self, name: str, place: int, values: Array, mask: Bools | None) -> None:
        array = self.arrays.get(name)
        if array is None or place < 0 or place + len(values) > len(array.values):
            raise IRError(f"{name}[{place}..{place + len(values)}) is no declared register")
        for k, row in enumerate(values, place):
            where = slice(None) if mask is None else mask
            array.values[k][where] = np.broadcast_to(row, (self.count,))[where]
            array.defined[k][where] = True

    def under(self, pred: Term | None, mask: Bools | None) -> Bools:
        holds = np.ones(self.count, np.bool_) if pred is None else self.value(pred, mask)
        return np.asarray(holds if mask is None else holds & mask)

    # ---- statements

    def body(self, body: tuple[K.Statement, ...], mask: Bools | None) -> None:
        for s in body:
            match s:
                case K.Let(name, value):
                    self.scalars[name] = self.value(value, mask).copy()
                case K.Array(name, dtype, size):
                    values = np.full((size, self.count), undefined(dtype), numpy_type(dtype))
                    self.arrays[name] = _Registers(values, np.zeros(values.shape, np.bool_))
                case K.Shared(name, dtype, size):
                    self.shared.setdefault(name, SharedMemory.of(dtype, size, self.blocks))
                case K.Alias():
                    self.alias(s)
                case K.Ring(name, dtype, size, slots):
                    self.rings[name] = s
                    self.shared.setdefault(name, SharedMemory.of(dtype, size * slots, self.blocks))
                case K.Assign(array, index, value):
                    self.write(array, self.constant(index, mask), self.value(value, mask)[None], mask)
                case K.Pairwise():
                    self.pairwise(s, mask)
                case K.For():
                    self.loop(s, mask)
                case K.If(pred, inner):
                    taken = self.under(pred, mask)
                    if taken.any():
                        self.body(inner, None if taken.all() else taken)
                case K.LoadGlobal() | K.LoadShared():
                    self.load(s, mask)
                case K.StoreGlobal() | K.StoreShared():
                    self.store(s, mask)
                case K.Shuffle():
                    self.shuffle(s, mask)
                case K.Barrier():
                    self.barrier(s, mask)
                case _:
                    self.staging(s, mask)

    def pairwise(self, s: K.Pairwise, mask: Bools | None) -> None:
        index = self.constant(s.index, mask)
        mine, other = self.read(s.array, index, 2, mask), self.read(s.other, self.constant(s.at, mask), 2, mask)
        self.write(s.array, index, BINARY[s.op].meaning(mine, other), mask)

    def loop(self, s: K.For, mask: Bools | None) -> None:
        for k in range(self.constant(s.start, mask), self.constant(s.stop, mask), s.step):
            self.scalars[s.name] = np.full(self.count, k, numpy_type(s.counter.dtype))
            self.body(s.body, mask)

    def load(self, s: K.LoadGlobal | K.LoadShared, mask: Bools | None) -> None:
        on = self.under(s.pred, mask)
        default = 0 if s.other is None else self.value(s.other, mask)
        offset = self.value(s.offset, mask)[on].astype(np.int64)
        if isinstance(s, K.LoadShared) and s.slot is not None:
            offset = self.in_slot(s.shared, offset, s.width) + self.slot(s.shared, s.slot, mask).start
        fetch = self.from_global if isinstance(s, K.LoadGlobal) else self.from_shared
        source = s.buffer if isinstance(s, K.LoadGlobal) else s.shared
        found = fetch(source, offset, s.width, on)
        values = np.empty((s.width, self.count), found.dtype)
        values[:] = default
        values[:, on] = found
        self.write(s.array, self.constant(s.index, mask), values, mask if s.other is not None else on)

    def from_global(self, name: str, offset: Ints, width: int, on: Bools) -> Array:
        g = self.memory[name]
        places = g.places(offset, width)
        me = (self.block[on] + self.first) * self.program.threads + self.thread[on]
        runs = np.stack([places + k for k in range(width)])
        writer = g.writer[runs]
        if ((writer >= 0) & (writer != me)).any():
            raise IRError(f"{name}: an element is read that another thread writes")
        return np.asarray(g.values[runs])

    def from_shared(self, name: str, offset: Ints, width: int, on: Bools) -> Array:
        array, (block, me) = self.slots(name, offset, width, on)
        out = []
        for k in range(width):
            at = (block, offset + k)
            if array.coming[at].any():
                raise IRError(f"{name}: a slot is read before the copy into it is waited for")
            if not array.defined[at].all():
                raise IRError(f"{name}: a slot is read before it is set")
            if ((array.writer[at] >= 0) & (array.writer[at] != me)).any():
                raise IRError(f"{name}: a slot is read in the segment in which another thread writes it")
            if ((array.copy[at] != EVERYWHERE) & (array.copy[at] != me // self.program.block_threads)).any():
                raise IRError(f"{name}: a slot is read that another block of the cluster has in its own copy")
            np.minimum.at(array.first_reader, at, me)
            np.maximum.at(array.last_reader, at, me)
            out.append(array.values[at])
        return np.stack(out)

    def slots(self, name: str, offset: Ints, width: int, on: Bools) -> tuple[SharedMemory, tuple[Ints, Ints]]:
        if name not in self.shared:
            raise IRError(f"{name} is no declared shared array")
        array = self.shared[name]
        if ((offset < 0) | (offset + width > array.values.shape[1])).any():
            raise IRError(f"{name}: an access is outside its {array.values.shape[1]} slots")
        if width > 1 and (offset % width).any():
            raise IRError(f"{name}: a run of {width} slots is not aligned")
        return array, (self.block[on], self.thread[on])

    def store(self, s: K.StoreGlobal | K.StoreShared, mask: Bools | None) -> None:
        on = self.under(s.pred, mask)
        offset = self.value(s.offset, mask)[on].astype(np.int64)
        values = self.read(s.array, self.constant(s.index, mask), s.width, on)[:, on]
        if isinstance(s, K.StoreShared):
            self.to_shared(s, offset, values, on)
        else:
            self.to_global(s.buffer, offset, values, s.monoid, on)

    def to_global(self, name: str, offset: Ints, values: Array, monoid: str | None, on: Bools) -> None:
        g = self.memory[name]
        runs = np.stack([g.places(offset, len(values)) + k for k in range(len(values))])
        if monoid is not None:
            places = (runs.ravel(),)
            g.values = meaning.scatter(monoid, g.values, places, values.ravel(), g.buffer.dtype, False)
            return
        if (g.writer[runs] >= 0).any() or len(np.unique(runs)) < runs.size:
            raise IRError(f"{name}: an element is written twice")
        g.writer[runs] = (self.block[on] + self.first) * self.program.threads + self.thread[on]
        g.values[runs] = values

    def to_shared(self, s: K.StoreShared, offset: Ints, values: Array, on: Bools) -> None:
        name = s.shared
        array, (block, me) = self.slots(name, offset, len(values), on)
        across = {"all": EVERYWHERE, "first": 0}
        array_copy = me // self.program.block_threads if s.to == "own" else across[s.to]
        for k, row in enumerate(values):
            at = (block, offset + k)
            if len(np.unique(block * array.values.shape[1] + offset + k)) < len(offset):
                raise IRError(f"{name}: two threads write one slot")
            read = (array.last_reader[at] >= 0) & ((array.first_reader[at] != me) | (array.last_reader[at] != me))
            if (read | ((array.writer[at] >= 0) & (array.writer[at] != me))).any():
                raise IRError(f"{name}: a slot is written in the segment in which another thread uses it")
            array.values[at], array.defined[at], array.writer[at], array.copy[at] = row, True, me, array_copy

    # ---- rings

    def alias(self, s: K.Alias) -> None:
        """Memory of its own serves as well, as long as what lay there before is used no more."""
        old = self.shared[s.of]
        if (old.last_reader >= 0).any() or (old.writer >= 0).any() or old.coming.any():
            raise IRError(f"{s.name}: {s.of}, whose memory it takes, is still in use")
        old.renamed()
        self.shared.setdefault(s.name, SharedMemory.of(s.dtype, s.size, self.blocks))

    def slot(self, ring: str, slot: Term, mask: Bools | None) -> slice:
        """The elements of a slot among those of the ring."""
        size, number = self.rings[ring].size, self.constant(slot, mask)
        if not 0 <= number < self.rings[ring].slots:
            raise IRError(f"{ring}: slot {number} of {self.rings[ring].slots}")
        return slice(number * size, (number + 1) * size)

    def in_slot(self, ring: str, offset: Ints, width: int | Ints) -> Ints:
        """Offsets in a slot, checked."""
        if ((offset < 0) | (offset + width > self.rings[ring].size)).any():
            raise IRError(f"{ring}: an access is outside the {self.rings[ring].size} elements of a slot")
        return offset

    def staging(self, s: K.Statement, mask: Bools | None) -> None:
        """Copies, their waits, and releases."""
        match s:
            case K.Copy():
                self.copy(s, mask)
            case K.BulkCopy():
                self.bulk_copy(s, mask)
            case K.Commit(ring, slot):
                part = self.slot(ring, slot, mask) if ring is not None and slot is not None else slice(0, 0)
                if ring is None:
                    self.together(mask, self.program.block_threads, "commit")
                self.copies.commit(ring, self.number(ring, part))
            case K.Wait(pending):
                self.together(mask, self.program.block_threads, "wait")
                self.copies.wait(pending)
            case K.WaitSlot(ring, side, slot, phase):
                if side == "full":
                    self.together(mask, self.program.block_threads, "wait")
                part, parity = self.slot(ring, slot, mask), self.constant(phase, mask)
                self.copies.wait_slot(s, self.number(ring, part), parity, part, self.shared[ring])
            case K.Release(ring, slot):
                self.together(mask, self.program.block_threads, "release")
                part = self.slot(ring, slot, mask)
                if self.rings[ring].bulk:
                    self.copies.release(ring, self.number(ring, part), part, self.shared[ring])

    def number(self, ring: str | None, part: slice) -> int:
        return part.start // self.rings[ring].size if ring is not None else 0

    def copy(self, s: K.Copy, mask: Bools | None) -> None:
        active = np.ones(self.count, np.bool_) if mask is None else mask
        on, first = self.under(s.pred, mask), self.slot(s.ring, s.slot, mask).start
        offset = self.in_slot(s.ring, self.value(s.offset, mask)[active].astype(np.int64), s.width) + first
        memory, (block, me) = self.slots(s.ring, offset, s.width, active)
        values = np.zeros((s.width, self.count), memory.values.dtype)
        values[:, on] = self.from_global(s.buffer, self.value(s.start, mask)[on].astype(np.int64), s.width, on)
        own = me // self.program.block_threads
        for k in range(s.width):
            self.copies.begin(s.ring, memory, (block, offset + k), values[k][active], me, own)

    def bulk_copy(self, s: K.BulkCopy, mask: Bools | None) -> None:
        active = np.ones(self.count, np.bool_) if mask is None else mask
        if (np.bincount(self.block[active], minlength=self.blocks) > 1).any():
            raise IRError(f"{s.ring}: several threads of a block begin a bulk copy")
        part = self.slot(s.ring, s.slot, mask)
        offset, start, count = (self.value(t, mask)[active].astype(np.int64) for t in (s.offset, s.start, s.count))
        bytes_each = DTYPES[self.rings[s.ring].dtype].bytes
        if any((n * bytes_each % K.BULK_BYTES).any() for n in (offset, start, count)):
            raise IRError(f"{s.ring}: a bulk copy is no multiple of {K.BULK_BYTES} bytes")
        self.in_slot(s.ring, offset, count)
        run = np.arange(count.sum()) - np.repeat(count.cumsum() - count, count)
        chosen = np.repeat(np.flatnonzero(active), count)
        values = self.memory[s.buffer].values[self.memory[s.buffer].places(np.repeat(start, count) + run, 1)]
        at = self.block[chosen], np.repeat(offset, count) + run + part.start
        self.copies.begin_bulk(s, self.number(s.ring, part), self.shared[s.ring], at, values)

    def shuffle(self, s: K.Shuffle, mask: Bools | None) -> None:
        self.together(mask, LANES, "shuffle")
        lane = np.arange(self.count) % LANES
        source = np.arange(self.count) - lane + (lane ^ s.mask)
        if not 0 <= s.mask < LANES:
            raise IRError(f"shuffle: mask {s.mask} is no lane")
        self.write(s.array, self.constant(s.index, mask), self.value(s.value, mask)[source][None], mask)

    def barrier(self, s: K.Barrier, mask: Bools | None) -> None:
        program = self.program
        scopes = {"block": program.block_threads, **dict.fromkeys(("cluster", "begun", "gather"), program.threads)}
        if s.scope not in scopes:
            raise IRError(f"barrier: scope {s.scope} is not known")
        self.together(mask, scopes[s.scope], "barrier")
        if s.scope != "begun":
            clusters = np.unique(self.active(self.block, mask))
            for array in self.shared.values():
                array.settle(clusters, scopes[s.scope])

    def together(self, mask: Bools | None, group: int, what: str) -> None:
        """A collective needs all threads of its group or none."""
        if mask is not None:
            active = mask.reshape(-1, group)
            if (active.any(axis=1) != active.all(axis=1)).any():
                raise IRError(f"{what}: some threads of its scope do not arrive")
