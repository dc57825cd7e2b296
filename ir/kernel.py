"""Kernel IR: what one thread of a block does, as structured statements over scalars and register arrays.

Blocks may work together in a cluster: then `block` numbers clusters, `thread` goes through all threads of a cluster,
block after block, and each block has its own copy of every shared array.

Expressions are `ir.term` terms whose leaves are `Var(name, dtype, ())` (a scalar of the thread), `Const`, and
`Load(array, dtype, (index,))` of a register array. Coordinates of the launch are the i32 scalars `block` (linear block
index) and `thread` (linear thread index). Integers are i32 unless an index needs 64 bits, then i64.

Element offsets count from the buffer's first element: `Buffer.offset` is already in the pointer a kernel receives.
Names of buffers, shared arrays, register arrays and scalars are distinct; a name lives to the end of its body.
Values stored or assigned have the dtype of the array they go to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import get_args

from ir.dtype import DTYPES, DType
from ir.loop import Buffer
from ir.node import IRError
from ir.term import Term, Var, binary, const

BLOCK, THREAD = Var("block", "i32", ()), Var("thread", "i32", ())
BULK_BYTES = 16
"""Of which the places and sizes of bulk copies are multiples."""
MBARRIER_BYTES = 8
COPY_BYTES = (4, 8, 16)
"""Sizes of a thread's own copies."""
COPIES = ("own", "all", "first")
"""Where a store to shared memory may go."""


@dataclass(frozen=True)
class Let:
    """A scalar of the thread, set once."""

    name: str
    value: Term


@dataclass(frozen=True)
class Array:
    """A register array of `size` elements; `size` 1 arrays are scalars that are assigned more than once."""

    name: str
    dtype: DType
    size: int


@dataclass(frozen=True)
class Assign:
    """array[index] = value; index is a compile-time constant after unrolling."""

    array: str
    index: Term
    value: Term


@dataclass(frozen=True)
class Pairwise:
    """array[index ..+2) = op(array[index ..+2), other[at ..+2)), two 16-bit floats at once; `op` is max or min."""

    array: str
    index: Term
    op: str
    other: str
    at: Term


@dataclass(frozen=True)
class For:
    """for (name = start; name < stop; name += step), unrolled where `unroll`; bounds are uniform over the block.

    The counter has the type of its bounds, which also holds what it ends at.
    """

    name: str
    start: Term
    stop: Term
    step: int
    unroll: bool
    body: tuple[Statement, ...]

    @property
    def counter(self) -> Var:
        """The counter as the body has it."""
        return Var(self.name, self.stop.dtype, ())


@dataclass(frozen=True)
class If:
    """Runs `body` in threads where `pred` holds; no collective stands inside unless pred is uniform over its scope."""

    pred: Term
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class LoadGlobal:
    """array[index .. index+width) = buffer at element `offset`, where `pred` (else the elements become `other`).

    `width` elements are consecutive and width * element size aligned; `cache` is a hint row (default, stream, keep).
    """

    array: str
    index: Term
    buffer: str
    offset: Term
    width: int
    pred: Term | None
    other: Term
    cache: str = "default"


@dataclass(frozen=True)
class StoreGlobal:
    """buffer at element `offset` .. +width = array[index ..], where `pred`; with `monoid` an atomic update (width 1)."""

    buffer: str
    offset: Term
    array: str
    index: Term
    width: int
    pred: Term | None
    monoid: str | None = None
    cache: str = "default"


@dataclass(frozen=True)
class Shared:
    """A shared-memory array of `size` elements; its content starts undefined."""

    name: str
    dtype: DType
    size: int


@dataclass(frozen=True)
class LoadShared:
    """array[index ..+width) = shared[offset ..+width), where `pred`, else `other`.

    Of a ring, `slot` is the one that is read.
    """

    array: str
    index: Term
    shared: str
    offset: Term
    width: int
    pred: Term | None = None
    other: Term | None = None
    slot: Term | None = None


@dataclass(frozen=True)
class StoreShared:
    """shared[offset ..+width) = array[index ..+width), where `pred`.

    `to` says in whose copy: that of its own block, or one element in those of all blocks of the cluster or of its first.
    """

    shared: str
    offset: Term
    array: str
    index: Term
    width: int
    pred: Term | None = None
    to: str = "own"


@dataclass(frozen=True)
class Shuffle:
    """array[index] = the value of `value` in the lane whose number is this lane's XOR `mask`; all lanes take part."""

    array: str
    index: Term
    value: Term
    mask: int


@dataclass(frozen=True)
class Barrier:
    """All threads of the `scope` (warp, block or cluster) arrive before any goes on; shared memory is ordered.

    Scope `begun` is one half of a barrier: the threads of a cluster wait until all its blocks have begun. Scope `gather`
    is another: those of the first block of a cluster wait for all, the others go on, and have nothing left to do.
    """

    scope: str = "block"


# ---- copies that threads do not wait for at once


@dataclass(frozen=True)
class Ring:
    """Shared memory of `slots` slots of `size` elements, which copies fill while threads do something else.

    A slot is copied into, committed, waited for, read, and released, and only then copied into again. The copies of a
    `bulk` ring are those of one thread for all: each slot has two mbarriers, `full` for its copies and `empty` for its
    releases, one of each thread; they are ready, and the ring is known to all threads, after this statement. In another
    ring each thread reads what it copied itself, so that only its own groups of copies are waited for.
    """

    name: str
    dtype: DType
    size: int
    slots: int
    bulk: bool = False


@dataclass(frozen=True)
class Copy:
    """Begin ring[slot][offset ..+width) = buffer at element `start` ..+width, where `pred`, else zeros (`cp.async`).

    A run is of 4, 8 or 16 bytes, and aligned to as many.
    """

    ring: str
    slot: Term
    offset: Term
    buffer: str
    start: Term
    width: int
    pred: Term | None = None


@dataclass(frozen=True)
class BulkCopy:
    """Begin ring[slot][offset ..+count) = buffer at element `start` ..+count, by one thread (`cp.async.bulk`).

    Both places and the size are multiples of 16 bytes (PTX ISA 9.7.9.25.4); what lies behind the run keeps its value.
    """

    ring: str
    slot: Term
    offset: Term
    buffer: str
    start: Term
    count: Term


@dataclass(frozen=True)
class Commit:
    """The thread's copies since its last commit are one group; of a bulk `ring`, all copies into `slot` have begun."""

    ring: str | None = None
    slot: Term | None = None


@dataclass(frozen=True)
class Wait:
    """Until all groups of the thread's copies but the last `pending` ones have arrived."""

    pending: int


@dataclass(frozen=True)
class WaitSlot:
    """Until a phase of an mbarrier of a bulk ring is over: its copies are there (`full`), or its readers done (`empty`).

    The n-th use of a slot, from 0, is over with the n-th phase, of the parity `phase`.
    """

    ring: str
    side: str
    slot: Term
    phase: Term


@dataclass(frozen=True)
class Release:
    """This thread reads no more of the slot: an arrival at a bulk ring, else nothing but the promise."""

    ring: str
    slot: Term


@dataclass(frozen=True)
class Alias:
    """A shared array of `size` elements in the first bytes of the shared array or ring `of`, which nothing uses any more.

    A block barrier stands between the last use of the one and the first use of the other.
    """

    name: str
    dtype: DType
    size: int
    of: str


Statement = (
    Let
    | Array
    | Assign
    | Pairwise
    | For
    | If
    | LoadGlobal
    | StoreGlobal
    | Shared
    | LoadShared
    | StoreShared
    | Shuffle
    | Barrier
    | Ring
    | Copy
    | BulkCopy
    | Commit
    | Wait
    | WaitSlot
    | Release
    | Alias
)
Named = Let | Array | Shared | Ring | Alias | For
"""Statements that give a name to something."""


@dataclass(frozen=True)
class KernelProgram:
    """A kernel ready to be written as text: parameters in order, threads and number of blocks, the body of a thread.

    With a `cluster` of several blocks, `threads` are those of a whole cluster and `blocks` counts clusters.
    """

    name: str
    buffers: tuple[Buffer, ...]
    threads: int
    blocks: int
    body: tuple[Statement, ...]
    cluster: int = 1

    @property
    def block_threads(self) -> int:
        """Threads of one block."""
        return self.threads // self.cluster

    @property
    def first_block(self) -> Term:
        """Whether a thread is of the first block of its cluster."""
        return binary("lt", THREAD, const(self.block_threads, "i32"))

    @property
    def grid(self) -> int:
        """Blocks of the launch."""
        return self.blocks * self.cluster

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        for b in self.buffers:
            if b.name == name:
                return b
        raise IRError(f"{self.name}: no buffer is named {name}")


def walk(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement in program order, a loop before its body."""
    for s in body:
        yield s
        if isinstance(s, For | If):
            yield from walk(s.body)


def shared_bytes(s: Shared | Ring | Alias) -> int:
    """Bytes of shared memory that a declaration names, with two mbarriers for each slot of a bulk ring."""
    match s:
        case Ring(_, dtype, size, slots, bulk):
            own = -(-slots * size * DTYPES[dtype].bytes // BULK_BYTES) * BULK_BYTES
            return own + (2 * MBARRIER_BYTES * slots if bulk else 0)
        case Shared(_, dtype, size) | Alias(_, dtype, size):
            return size * DTYPES[dtype].bytes


def shared_uses(s: Statement) -> set[str]:
    """The shared memory that a statement accesses, or waits for, with its body."""
    out = set[str]()
    for k in walk((s,)):
        match k:
            case (
                LoadShared(_, _, name)
                | StoreShared(name)
                | Copy(name)
                | BulkCopy(name)
                | WaitSlot(name)
                | Release(name)
            ):
                out.add(name)
            case Commit(str(name)):
                out.add(name)
    return out


_TERM_FIELDS = {kind: tuple(f.name for f in fields(kind) if "Term" in str(f.type)) for kind in get_args(Statement)}
"""The fields of each kind of statement that hold a term, or may."""


def terms(s: Statement) -> tuple[Term, ...]:
    """The terms of one statement, without those of its body."""
    return tuple(t for name in _TERM_FIELDS[type(s)] if (t := getattr(s, name)) is not None)


def map_terms(s: Statement, f: Callable[[Term], Term]) -> Statement:
    """The statement with `f` applied to each of its terms; its body is kept, and so is a statement that stays equal."""
    changed: dict[str, Term] = {}
    for name in _TERM_FIELDS[type(s)]:
        old = getattr(s, name)
        if old is not None and (new := f(old)) is not old:
            changed[name] = new
    return replace(s, **changed) if changed else s  # type: ignore[arg-type]
