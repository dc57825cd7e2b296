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

from ir.dtype import DType
from ir.loop import Buffer
from ir.node import IRError
from ir.term import Term, Var

BLOCK, THREAD = Var("block", "i32", ()), Var("thread", "i32", ())


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
    """for (i32 name = start; name < stop; name += step), unrolled where `unroll`; bounds are uniform over the block."""

    name: str
    start: Term
    stop: Term
    step: int
    unroll: bool
    body: tuple[Statement, ...]


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
    """array[index ..+width) = shared[offset ..+width), where `pred`, else `other`."""

    array: str
    index: Term
    shared: str
    offset: Term
    width: int
    pred: Term | None = None
    other: Term | None = None


@dataclass(frozen=True)
class StoreShared:
    """shared[offset ..+width) = array[index ..+width), where `pred`.

    `everywhere` stores one element to the copies of all blocks of the cluster.
    """

    shared: str
    offset: Term
    array: str
    index: Term
    width: int
    pred: Term | None = None
    everywhere: bool = False


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

    Scope `begun` is one half of a barrier: the threads of a cluster wait until all its blocks have begun.
    """

    scope: str = "block"


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
)


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
