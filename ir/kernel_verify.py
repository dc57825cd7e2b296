"""What must hold of a kernel program before it is written as text, and what it costs in registers and shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ir import kernel as K
from ir import term as T
from ir.dtype import DTYPES, DType, is_integer
from ir.interval import Interval, Ranges, divisor, inside, type_range
from ir.kernel_protocol import check_protocol, is_one_thread
from ir.machine import Machine
from ir.node import IRError, postorder
from ir.ops import MONOIDS
from ir.term import Term, Var

VECTOR_BYTES = 16


def verify_kernel(program: K.KernelProgram, machine: Machine | None = None) -> None:
    """Raise `IRError` where a rule of the level is broken, or where the program does not fit on the machine."""
    if program.threads % program.cluster:
        raise IRError(f"{program.name}: {program.threads} threads are no {program.cluster} equal blocks")
    _Verifier(program).body(program.body, _Scope.of(program))
    _check_shared(program.body, _Segment(_crossing(program), K.Barrier("begun") in K.walk(program.body)))
    check_protocol(program)
    _check_gather(program)
    if machine is not None:
        need = footprint(program)
        if not machine.bulk_copies and any(isinstance(s, K.Ring) and s.bulk for s in K.walk(program.body)):
            raise IRError(f"{program.name}: the {machine.name} has no bulk copies")
        if need.shared_bytes > machine.smem_bytes_per_block:
            have = machine.smem_bytes_per_block
            raise IRError(f"{program.name}: {need.shared_bytes} bytes of shared memory, the machine has {have}")


# ---- names, types, indices, alignment, divergence


@dataclass(frozen=True)
class _Scope:
    """What is known in a body: scalars, register arrays, shared arrays, and facts about scalars."""

    scalars: dict[Var, bool] = field(default_factory=dict)
    """Whether the scalar is equal in all threads of a block."""
    arrays: dict[str, tuple[DType, int]] = field(default_factory=dict)
    shared: dict[str, tuple[DType, int]] = field(default_factory=dict)
    rings: dict[str, K.Ring] = field(default_factory=dict)
    ranges: dict[Term, Interval] = field(default_factory=dict)
    divisors: dict[Term, int] = field(default_factory=dict)
    unrolled: frozenset[Term] = frozenset()
    uniform: bool = True
    one_thread: bool = False
    ones: set[Term] = field(default_factory=set)
    """Predicates that hold in one thread at most."""
    alone: bool = False
    """Whether only the first block of a cluster is here."""

    @staticmethod
    def of(program: K.KernelProgram) -> _Scope:
        ranges: dict[Term, Interval] = {
            K.BLOCK: (0, max(program.blocks - 1, 0)),
            K.THREAD: (0, program.threads - 1),
        }
        return _Scope({K.BLOCK: True, K.THREAD: False}, ranges=ranges)

    def inner(self) -> _Scope:
        """A scope for a body inside this one."""
        return replace(
            self,
            scalars=dict(self.scalars),
            arrays=dict(self.arrays),
            shared=dict(self.shared),
            rings=dict(self.rings),
            ones=set(self.ones),
            ranges=dict(self.ranges),
            divisors=dict(self.divisors),
        )


class _Verifier:
    def __init__(self, program: K.KernelProgram) -> None:
        self.program = program
        self.buffers = {b.name: b for b in program.buffers}
        self.stored = {s.buffer for s in K.walk(program.body) if isinstance(s, K.StoreGlobal)}
        self.written = set[tuple[str, int]]()
        """Registers that some statement so far sets."""

    def body(self, body: tuple[K.Statement, ...], scope: _Scope) -> None:
        for s in body:
            for t in K.terms(s):
                self.term(t, scope)
            match s:
                case K.Let(name, value):
                    self.let(Var(name, value.dtype, ()), value, scope)
                case K.Array(name, dtype, size):
                    self.fresh(name, scope)
                    scope.arrays[name] = (dtype, size)
                case K.Shared(name, dtype, size) | K.Alias(name, dtype, size):
                    self.fresh(name, scope)
                    scope.shared[name] = (dtype, size)
                case K.Assign(array, index, value):
                    self.set(array, index, 1, value.dtype, scope)
                case K.Pairwise(array, index, op, other, at):
                    dtype = scope.arrays.get(array, ("", 0))[0]
                    if dtype not in ("f16", "bf16") or op not in ("max", "min"):
                        raise IRError(f"{array}: {op} of pairs of {dtype or 'nothing'}")
                    self.used(array, index, 2, dtype, scope)
                    self.used(other, at, 2, dtype, scope)
                case K.For():
                    self.loop(s, scope)
                case K.If(pred, inner):
                    self.predicate(pred)
                    first = pred is self.program.first_block
                    uniform = scope.uniform and (first or self.is_uniform(pred, scope))
                    one = scope.one_thread or is_one_thread(pred, scope.ones)
                    inside = replace(scope.inner(), uniform=uniform, one_thread=one, alone=scope.alone or first)
                    self.body(inner, inside)
                case K.LoadGlobal(array, index, buffer, offset, width, pred, other):
                    self.in_memory(buffer, offset, width, pred, scope)
                    self.set(array, index, width, self.buffers[buffer].dtype, scope)
                    if other.dtype != self.buffers[buffer].dtype:
                        raise IRError(
                            f"load {buffer}: the default is {other.dtype}, not {self.buffers[buffer].dtype}"
                        )
                case K.StoreGlobal(buffer, offset, array, index, width, pred, monoid):
                    self.in_memory(buffer, offset, width, pred, scope)
                    self.used(array, index, width, self.buffers[buffer].dtype, scope)
                    if monoid is not None and (width != 1 or monoid not in MONOIDS or MONOIDS[monoid].pair):
                        raise IRError(f"store {buffer}: an update by {monoid} of {width} elements at once")
                case K.LoadShared(array, index, shared, offset, width, pred):
                    if (shared in scope.rings) != (s.slot is not None):
                        raise IRError(f"{shared}: a ring is read at a slot, and nothing else is")
                    self.set(array, index, width, self.in_shared(shared, offset, width, pred, scope), scope)
                case K.StoreShared(shared, offset, array, index, width, pred, to):
                    if shared in scope.rings:
                        raise IRError(f"{shared}: only copies go into a ring")
                    self.used(array, index, width, self.in_shared(shared, offset, width, pred, scope), scope)
                    if to not in K.COPIES or (to != "own" and (self.program.cluster == 1 or width > 1)):
                        raise IRError(f"{shared}: {width} elements go to {to} of {self.program.cluster} blocks")
                case K.Shuffle(array, index, value):
                    self.collective("shuffle", scope)
                    self.set(array, index, 1, value.dtype, scope)
                case K.Barrier(barrier_scope):
                    self.collective("barrier", scope)
                    across = barrier_scope in ("cluster", "begun", "gather")
                    if across and (self.program.cluster == 1 or scope.alone):
                        raise IRError(f"barrier {barrier_scope}: the blocks stand alone")
                case _:
                    self.staging(s, scope)

    # ---- rings

    def staging(self, s: K.Statement, scope: _Scope) -> None:
        """Copies, their waits, and releases: who does them, how they are aligned, where they go."""
        match s:
            case K.Ring(name, dtype, size, _, bulk):
                self.fresh(name, scope)
                if bulk:
                    self.collective("a bulk ring", scope)
                if self.program.cluster > 1:
                    raise IRError(f"{name}: a ring in a cluster of {self.program.cluster} blocks")
                scope.shared[name], scope.rings[name] = (dtype, size), s
            case K.Copy(ring, _, offset, buffer, start, width, pred):
                bytes_moved = width * self.begun(ring, buffer, False, scope)
                if bytes_moved not in K.COPY_BYTES:
                    raise IRError(
                        f"{ring}: a copy of {bytes_moved} bytes is none of {', '.join(map(str, K.COPY_BYTES))}"
                    )
                self.in_memory(buffer, start, width, pred, scope)
                self.in_shared(ring, offset, width, pred, scope)
            case K.BulkCopy(ring, _, offset, buffer, start, count):
                size, alignment = self.begun(ring, buffer, True, scope), self.buffers[buffer].alignment
                if not scope.one_thread:
                    raise IRError(f"{ring}: a bulk copy is begun by more than one thread")
                exact = [divisor(t, scope.divisors) * size % K.BULK_BYTES == 0 for t in (offset, start, count)]
                if alignment % K.BULK_BYTES or not all(exact):
                    raise IRError(f"{ring}: a bulk copy is not proved to be of multiples of {K.BULK_BYTES} bytes")
                ranges = Ranges(scope.ranges)
                if ranges.of(offset)[0] < 0 or ranges.of(offset)[1] + ranges.of(count)[1] > scope.rings[ring].size:
                    raise IRError(
                        f"{ring}: a bulk copy goes beyond the {scope.rings[ring].size} elements of a slot"
                    )
            case K.Commit(str(ring)) | K.WaitSlot(ring, "empty"):
                if not self.ring(ring, scope).bulk or not scope.one_thread:
                    raise IRError(f"{ring}: what is done for bulk copies is done by one thread that makes them")
            case K.WaitSlot(ring, side):
                self.collective("a wait", scope)
                if not self.ring(ring, scope).bulk or side != "full":
                    raise IRError(
                        f"{ring}: a wait for {side} of a slot, which is neither full nor empty of a bulk ring"
                    )
            case K.Release(ring):
                self.ring(ring, scope)
                self.collective("a release", scope)
            case K.Commit() | K.Wait():
                self.collective("a group of copies", scope)

    def begun(self, ring: str, buffer: str, bulk: bool, scope: _Scope) -> int:
        """Bytes of an element of a copy that begins, of a buffer that nothing stores."""
        if self.ring(ring, scope).bulk != bulk:
            raise IRError(f"{ring}: {'no bulk' if bulk else 'a bulk'} ring, or a copy of the other kind")
        if buffer not in self.buffers or buffer in self.stored:
            raise IRError(f"{ring}: {buffer} is no buffer that the kernel only reads")
        dtype = scope.rings[ring].dtype
        if self.buffers[buffer].dtype != dtype:
            raise IRError(f"{ring} holds {dtype}, not {self.buffers[buffer].dtype}")
        return DTYPES[dtype].bytes

    def ring(self, name: str, scope: _Scope) -> K.Ring:
        if name not in scope.rings:
            raise IRError(f"{name} is no ring")
        return scope.rings[name]

    # ---- names and types

    def fresh(self, name: str, scope: _Scope) -> None:
        scalars = {v.name for v in scope.scalars}
        if name in self.buffers or name in scope.arrays or name in scope.shared or name in scalars:
            raise IRError(f"{self.program.name}: the name {name} stands for two things")

    def term(self, t: Term, scope: _Scope) -> None:
        for s in postorder(t):
            match s:
                case Var(name):
                    if s not in scope.scalars:
                        raise IRError(f"scalar {name} of {s.dtype} is used before it is defined")
                case T.Load(array, dtype, (index,)):
                    self.used(array, index, 1, dtype, scope)
                case T.Const() | T.Unary() | T.Binary() | T.Select() | T.Round():
                    pass
                case _:
                    raise IRError(f"{type(s).__name__} has no place in a kernel")

    def is_uniform(self, t: Term, scope: _Scope) -> bool:
        """Whether the term is proved equal in all threads of a block."""
        return all(not isinstance(s, T.Load) and (not isinstance(s, Var) or scope.scalars[s]) for s in postorder(t))

    def let(self, scalar: Var, value: Term, scope: _Scope) -> None:
        self.fresh(scalar.name, scope)
        scope.scalars[scalar] = self.is_uniform(value, scope)
        if value.dtype == "bool" and is_one_thread(value, scope.ones):
            scope.ones.add(scalar)
        if is_integer(value.dtype):
            scope.ranges[scalar] = Ranges(scope.ranges).of(value)
            scope.divisors[scalar] = divisor(value, scope.divisors)

    def loop(self, s: K.For, scope: _Scope) -> None:
        self.fresh(s.name, scope)
        if s.step < 1 or not (self.is_uniform(s.start, scope) and self.is_uniform(s.stop, scope)):
            raise IRError(f"loop {s.name}: its bounds are not uniform, or its step {s.step} is not positive")
        inner, v, (low, high) = scope.inner(), s.counter, Ranges(scope.ranges).counter(s.start, s.stop, s.step)
        if s.start.dtype != v.dtype or not inside((low, high + s.step), type_range(v.dtype)):
            raise IRError(f"loop {s.name}: a counter of {v.dtype} does not hold its bounds, and what it ends at")
        inner.scalars[v], inner.ranges[v] = True, (low, high)
        inner.divisors[v] = math.gcd(divisor(s.start, scope.divisors), s.step)
        self.body(s.body, replace(inner, unrolled=scope.unrolled | {v}) if s.unroll else inner)

    def predicate(self, pred: Term | None) -> None:
        if pred is not None and pred.dtype != "bool":
            raise IRError(f"a predicate is {pred.dtype}, not bool")

    def set(self, array: str, index: Term, width: int, dtype: DType, scope: _Scope) -> None:
        """A statement sets registers."""
        low, high = self.registers(array, index, width, dtype, scope)
        self.written.update((array, k) for k in range(low, high + width))

    def used(self, array: str, index: Term, width: int, dtype: DType, scope: _Scope) -> None:
        """A statement needs registers that are set."""
        low, high = self.registers(array, index, width, dtype, scope)
        for k in range(low, high + width):
            if (array, k) not in self.written:
                raise IRError(f"{array}[{k}] is used before it is set")

    def registers(self, array: str, index: Term, width: int, dtype: DType, scope: _Scope) -> Interval:
        """The first registers of the runs at an index: they exist, have the type, and are known to the compiler."""
        if array not in scope.arrays:
            raise IRError(f"{array} is no register array")
        own, size = scope.arrays[array]
        if own != dtype:
            raise IRError(f"{array} holds {own}, not {dtype}")
        if any(not s.terms and not isinstance(s, T.Const) and s not in scope.unrolled for s in postorder(index)):
            raise IRError(f"{array}: a register index depends on a value of the thread")
        low, high = Ranges(scope.ranges).of(index)
        if low < 0 or high + width > size:
            raise IRError(f"{array}[{low}..{high + width}) is outside its {size} registers")
        return low, high

    def in_memory(self, buffer: str, offset: Term, width: int, pred: Term | None, scope: _Scope) -> None:
        self.predicate(pred)
        if buffer not in self.buffers:
            raise IRError(f"{buffer} is no buffer")
        b = self.buffers[buffer]
        self.run(buffer, offset, width, DTYPES[b.dtype].bytes, scope)
        if b.alignment % (width * DTYPES[b.dtype].bytes) and width > 1:
            raise IRError(f"{buffer}: aligned to {b.alignment} bytes, a run of {width} {b.dtype} needs more")

    def in_shared(self, shared: str, offset: Term, width: int, pred: Term | None, scope: _Scope) -> DType:
        self.predicate(pred)
        if shared not in scope.shared:
            raise IRError(f"{shared} is no shared array")
        self.run(shared, offset, width, DTYPES[scope.shared[shared][0]].bytes, scope)
        return scope.shared[shared][0]

    def run(self, name: str, offset: Term, width: int, size: int, scope: _Scope) -> None:
        if width < 1 or width & (width - 1) or (width > 1 and width * size > VECTOR_BYTES):
            raise IRError(f"{name}: a run of {width} elements of {size} bytes is no vector")
        if width > 1 and divisor(offset, scope.divisors) % width:
            raise IRError(f"{name}: a run of {width} elements is not proved aligned")

    def collective(self, what: str, scope: _Scope) -> None:
        if not scope.uniform:
            raise IRError(f"{what} under a branch that threads of a block may take differently")


# ---- shared memory by segments between barriers


def _crossing(program: K.KernelProgram) -> frozenset[str]:
    """Shared arrays that threads of other blocks write."""
    stores = (s for s in K.walk(program.body) if isinstance(s, K.StoreShared))
    return frozenset(s.shared for s in stores if s.to != "own")


@dataclass
class _Segment:
    """Shared arrays ever written, and those written and read since the last barrier that orders them."""

    crossing: frozenset[str]
    arrives: bool
    begun: bool = False
    ever: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)


def _check_shared(body: tuple[K.Statement, ...], now: _Segment) -> None:
    for s in body:
        match s:
            case K.For() | K.If():
                before = set(now.written), set(now.read)
                for _ in range(2 if isinstance(s, K.For) else 1):  # a step meets the accesses of the step before it
                    _check_shared(s.body, now)
                now.written |= before[0]
                now.read |= before[1]
            case K.Barrier("begun"):
                now.begun = True
            case K.Barrier("cluster" | "gather") if now.arrives and not now.begun:
                raise IRError("the blocks of a cluster arrive again before they have waited for all to begin")
            case K.Barrier(scope):
                now.written &= now.crossing if scope == "block" else frozenset()
                now.read &= now.crossing if scope == "block" else frozenset()
            case K.LoadShared(_, _, shared, slot=None):
                if shared not in now.ever:
                    raise IRError(f"{shared} is read before it is written")
                if shared in now.written:
                    raise IRError(f"{shared} is read and written with no barrier between")
                now.read.add(shared)
            case K.StoreShared(shared):
                if shared in now.crossing and not now.begun:
                    raise IRError(f"{shared} is written for other blocks before all blocks have begun")
                if shared in now.read:
                    raise IRError(f"{shared} is written while it may still be read: no barrier stands between")
                now.ever.add(shared)
                now.written.add(shared)


def _check_gather(program: K.KernelProgram) -> None:
    """After a gathering the first block has the rest of the kernel to itself."""
    gathers = [s for s in K.walk(program.body) if s == K.Barrier("gather")]
    if gathers:
        at = program.body.index(gathers[0]) if gathers[0] in program.body else len(program.body) - 1
        rest = [s for s in program.body[at + 1 :] if not isinstance(s, K.Let)]
        alone = len(rest) == 1 and isinstance(rest[0], K.If) and rest[0].pred is program.first_block
        if len(gathers) > 1 or not alone:
            raise IRError(f"{program.name}: what follows a gathering is not left to the first block of a cluster")


# ---- what it costs


@dataclass(frozen=True)
class Footprint:
    """`registers` is an estimate: the most 32-bit words of scalars and register arrays that live at one statement."""

    registers: int
    shared_bytes: int


def footprint(program: K.KernelProgram) -> Footprint:
    """Registers a thread and shared bytes a block."""
    lines = _lines(program.body)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    words: dict[str, int] = {}
    for at, (s, _) in enumerate(lines):
        match s:
            case K.Let(name, value):
                first[name], last[name], words[name] = at, at, -(-DTYPES[value.dtype].bytes // 4)
            case K.Array(name, dtype, size):
                first[name], last[name], words[name] = at, at, -(-DTYPES[dtype].bytes * size // 4)
        for name in _mentioned(s):
            if name in first:
                last[name] = max(last[name], _end(lines, at, first[name]))
    changes = [0] * (len(lines) + 1)
    for name, start in first.items():
        changes[start] += words[name]
        changes[last[name] + 1] -= words[name]
    live = peak = 0
    for change in changes:
        live += change
        peak = max(peak, live)
    shared = sum(K.shared_bytes(s) for s, _ in lines if isinstance(s, K.Shared | K.Ring))
    return Footprint(peak, shared)


_Line = tuple[K.Statement, tuple[int, int] | None]
"""A statement, and where the outermost serial loop around it begins and ends."""


def _lines(body: tuple[K.Statement, ...], start: int = 0) -> list[_Line]:
    """All statements in order, numbered from `start`, each with the loop around it."""
    out: list[_Line] = []
    for s in body:
        at = start + len(out)
        inner = _lines(s.body, at + 1) if isinstance(s, K.For | K.If) else []
        if isinstance(s, K.For) and not s.unroll:
            inner = [(k, (at, at + len(inner))) for k, _ in inner]
        out += [(s, None), *inner]
    return out


def _end(lines: list[_Line], at: int, first: int) -> int:
    """Where a value made at `first` and used at `at` dies: at the end of a loop that it was made before."""
    span = lines[at][1]
    return span[1] if span is not None and first < span[0] else at


def _mentioned(s: K.Statement) -> set[str]:
    names = {
        t.name if isinstance(t, Var) else t.buffer for t in postorder(*K.terms(s)) if isinstance(t, Var | T.Load)
    }
    if isinstance(s, K.Pairwise):
        names |= {s.array, s.other}
    if isinstance(s, K.Assign | K.LoadGlobal | K.StoreGlobal | K.LoadShared | K.StoreShared | K.Shuffle):
        names.add(s.array)
    return names
