"""Loop IR terms: a tensor is a scalar expression with named free axes, and its shape is the extents of those axes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeVar

import numpy as np

from ir.dtype import DTYPES, DType, bits_of, compute_type, is_float, is_integer, numpy_type, value_of
from ir.node import IRError, Node
from ir.ops import BINARY, MONOIDS, UNARY

ORIGINS = ("op", "cast")
V = TypeVar("V")


def union(sets: Iterable[frozenset[V]]) -> frozenset[V]:
    """The union of the sets: one of them where it holds all others, so that terms share what they need not own."""
    out = frozenset[V]()
    for s in sets:
        if not s <= out:
            out = s if out <= s else out | s
    return out


class Term(Node):
    """A typed scalar expression. `dtype` is the type of its value, `free` the axes it depends on."""

    terms: ClassVar[tuple[Term, ...]]
    """The children, all of which are terms."""
    dtype: ClassVar[DType]
    """The type of the value; `any` for a symbolic identity or a state of unknown type."""
    free: ClassVar[frozenset[str]]
    """Axes on which the value depends."""

    def check(self) -> None:
        """Compute the type and the free axes, which raises where a law is broken."""
        held = vars(self)
        held["terms"] = self.children
        held["dtype"] = self.type_law()
        held["free"] = self.axis_law()

    def type_law(self) -> DType:
        """The dtype, from the children's; raises `IRError` where they do not fit."""
        raise NotImplementedError(type(self).__name__)

    def axis_law(self) -> frozenset[str]:
        """The free axes, from the children's."""
        return union(t.free for t in self.terms)


class Const(Term):
    """A constant: the value whose bit pattern in `type` is `bits` (two's complement for integers)."""

    type: DType
    bits: int

    def type_law(self) -> DType:
        return self.type

    @property
    def value(self) -> float | int | bool:
        """The value as a Python number (bf16 and f16 as float)."""
        return value_of(self.type, self.bits)


class Index(Term):
    """The coordinate along `axis`, an i64 in [0, extent)."""

    axis: str

    def type_law(self) -> DType:
        return "i64"

    def axis_law(self) -> frozenset[str]:
        return frozenset((self.axis,))


class Extent(Term):
    """The number of positions of `axis`, an i64. Folds over prefixes see the running count."""

    axis: str

    def type_law(self) -> DType:
        return "i64"


class Identity(Term):
    """The identity of a monoid in any type: x (+) Identity = x exactly, also for -0.0, NaN and inf."""

    monoid: str

    def type_law(self) -> DType:
        return "any"


class Load(Term):
    """buffer[index]; each index is clamped to the buffer's extent, so that a load is always defined."""

    buffer: str
    type: DType
    index: tuple[Term, ...]

    def type_law(self) -> DType:
        for k, t in enumerate(self.index):
            if not is_integer(t.dtype):
                raise IRError(f"load {self.buffer}: index {k} is {t.dtype}, not an integer")
        return self.type


class Var(Term):
    """A named tile value in the body of a tile-level map; `axes` are the axes of the tile."""

    name: str
    type: DType
    axes: tuple[str, ...]

    def type_law(self) -> DType:
        return self.type

    def axis_law(self) -> frozenset[str]:
        return frozenset(self.axes)


class Unary(Term):
    """op(x), op a row of `ir.ops.UNARY`."""

    op: str
    x: Term

    def type_law(self) -> DType:
        row = UNARY.get(self.op)
        if row is None:
            raise IRError(f"unknown unary operator {self.op!r}")
        if row.floats_only and not (is_float(self.x.dtype) or self.x.dtype == "any"):
            raise IRError(f"{self.op}: operand is {self.x.dtype}, not a float")
        if row.result == "logic" and is_float(self.x.dtype):
            raise IRError(f"{self.op}: operand is {self.x.dtype}, not bool or integer")
        if row.result == "bool":
            return "bool"
        return compute_type(self.x.dtype) if row.result == "compute" else self.x.dtype


class Binary(Term):
    """op(x, y), op a row of `ir.ops.BINARY`. Integer operands have one type; floats join to the wider compute type."""

    op: str
    x: Term
    y: Term

    def type_law(self) -> DType:
        row = BINARY.get(self.op)
        if row is None:
            raise IRError(f"unknown binary operator {self.op!r}")
        joined = join(self.x.dtype, self.y.dtype, self.op)
        if row.floats_only and not (is_float(joined) or joined == "any"):
            raise IRError(f"{self.op}: operands are {joined}, not floats")
        if row.result == "bool":
            return "bool"
        if row.result == "logic" and is_float(joined):
            raise IRError(f"{self.op}: operands are {joined}, not bool or integer")
        return compute_type(joined) if row.result == "compute" else joined


class Select(Term):
    """x where p, else y. The value that is not selected never matters, not even as NaN."""

    p: Term
    x: Term
    y: Term

    def type_law(self) -> DType:
        if self.p.dtype != "bool":
            raise IRError(f"select: predicate is {self.p.dtype}, not bool")
        return join(self.x.dtype, self.y.dtype, "select")


class Round(Term):
    """x converted to `type`: the only term that loses bits. `origin` is op (an eager operator's result) or cast."""

    type: DType
    origin: str
    x: Term

    def type_law(self) -> DType:
        if self.origin not in ORIGINS:
            raise IRError(f"round: origin {self.origin!r} is neither op nor cast")
        return self.type


class Fold(Term):
    """The monoid's product of x over all positions of `axes` (sorted, bound in x).

    In the compute type of x: f16 and bf16 sums are f32; max and min keep the type; arg-folds give i64 positions
    along their one axis.
    """

    axes: tuple[str, ...]
    monoid: str
    x: Term

    def type_law(self) -> DType:
        row = MONOIDS.get(self.monoid)
        if row is None:
            raise IRError(f"unknown monoid {self.monoid!r}")
        if not self.axes or tuple(sorted(set(self.axes))) != self.axes:
            raise IRError(f"fold: axes {self.axes} are not a sorted list of distinct names")
        if row.pair:
            if len(self.axes) != 1:
                raise IRError(f"{self.monoid}: folds one axis, not {len(self.axes)}")
            return "i64"
        return fold_type(self.monoid, self.x.dtype)

    def axis_law(self) -> frozenset[str]:
        return self.x.free - frozenset(self.axes)


class Scan(Term):
    """At position t of `axis`: the fold of x over positions 0..t. `axis` stays free."""

    axis: str
    monoid: str
    x: Term

    def type_law(self) -> DType:
        if MONOIDS[self.monoid].pair:
            return "i64"
        return fold_type(self.monoid, self.x.dtype)

    def axis_law(self) -> frozenset[str]:
        return self.x.free | {self.axis}


class At(Term):
    """x with `axis` bound to `index`: explicit substitution. Undefined, never a trap, where the index is out of range."""

    axis: str
    index: Term
    x: Term

    def type_law(self) -> DType:
        if not is_integer(self.index.dtype):
            raise IRError(f"at {self.axis}: index is {self.index.dtype}, not an integer")
        return self.x.dtype

    def axis_law(self) -> frozenset[str]:
        return (self.x.free - {self.axis}) | self.index.free


class State(Term):
    """The value of a stream's state before the current step (inside its updates); `axes` are the state's own axes."""

    name: str
    type: DType
    axes: tuple[str, ...]

    def type_law(self) -> DType:
        return self.type

    def axis_law(self) -> frozenset[str]:
        return frozenset(self.axes)


class Carry(Term):
    """One state of a stream: starts at the identity of `monoid`, becomes `update` at every step."""

    name: str
    monoid: str
    update: Term

    def type_law(self) -> DType:
        return self.update.dtype


class Stream(Term):
    """One sweep over `axis` that carries several states; its value is the last value of the state named `result`.

    Updates of one step see the states before the step (`State`) and the coordinate `Index(axis)`.
    """

    axis: str
    carries: tuple[Carry, ...]
    result: str

    def type_law(self) -> DType:
        for c in self.carries:
            if c.name == self.result:
                return c.dtype
        raise IRError(f"stream {self.axis}: no state is named {self.result}")

    def axis_law(self) -> frozenset[str]:
        return union(c.free for c in self.carries) - {self.axis}


class Prefix(Term):
    """Prefix semantics (e-graph only): x with every fold over `axis` cut to the prefix; see RULES of the streaming law.

    `which` is new (up to and with the step), old (before it), ratio (new / old) or delta (new - old).
    """

    which: str
    axis: str
    x: Term

    def type_law(self) -> DType:
        if self.which not in ("new", "old", "ratio", "delta"):
            raise IRError(f"prefix: {self.which!r} is none of new, old, ratio, delta")
        return self.x.dtype

    def axis_law(self) -> frozenset[str]:
        return self.x.free | {self.axis}


# ---- dtypes


def join(a: DType, b: DType, what: str) -> DType:
    """The common type of two operands: equal types, `any` with anything, or floats to the wider compute type."""
    if a == b or b == "any":
        return a
    if a == "any":
        return b
    if is_float(a) and is_float(b):
        ca, cb = compute_type(a), compute_type(b)
        return ca if DTYPES[ca].bytes >= DTYPES[cb].bytes else cb
    raise IRError(f"{what}: operands are {a} and {b}; convert one of them")


def fold_type(monoid: str, dtype: DType) -> DType:
    """The type of a fold of values of `dtype`."""
    return dtype if monoid in ("max", "min", "and", "or") else compute_type(dtype)


# ---- constructors that normalise (exact in every type)


def const(value: float | int | bool, dtype: DType) -> Const:
    """The constant `value` rounded to `dtype`."""
    return Const(dtype, bits_of(dtype, value))


def number(value: int) -> Const:
    """An index constant (i64)."""
    return const(value, "i64")


def unary(op: str, x: Term) -> Term:
    """op(x); folds constants of exact operators, and double negation."""
    if isinstance(x, Const) and (UNARY[op].result in ("same", "logic") or op == "not"):
        out = UNARY[op].meaning(np.asarray(x.value, dtype=numpy_type(x.type)))
        return const(out.item(), Unary(op, x).dtype)
    if op == "neg" and isinstance(x, Unary) and x.op == "neg":
        return x.x
    return Unary(op, x)


def binary(op: str, x: Term, y: Term) -> Term:
    """op(x, y); integer constants fold, integer identities vanish, and commutative operands are put in canonical order."""
    if op in ("gt", "ge"):
        return binary("lt" if op == "gt" else "le", y, x)
    if op == "sub":
        return binary("add", x, unary("neg", y))
    if op == "div":
        return binary("mul", x, unary("recip", y))
    if is_integer(x.dtype) and x.dtype == y.dtype:
        simple = _integer_simplified(op, x, y)
        if simple is not None:
            return simple
    if BINARY[op].commutes and order_key(y) < order_key(x):
        x, y = y, x
    return Binary(op, x, y)


def _integer_simplified(op: str, x: Term, y: Term) -> Term | None:
    if isinstance(x, Const) and isinstance(y, Const):
        a, b = (np.asarray(t.value, dtype=numpy_type(t.dtype)) for t in (x, y))
        if not (op in ("floordiv", "truncdiv", "mod", "fmod") and b == 0):
            with np.errstate(all="ignore"):
                return const(BINARY[op].meaning(a, b).item(), Binary(op, x, y).dtype)
    if op in ("add", "mul") and isinstance(x, Const):
        x, y = y, x
    if isinstance(y, Const):
        if (op == "add" and y.value == 0) or (op in ("mul", "floordiv", "truncdiv") and y.value == 1):
            return x
        if (op == "mul" and y.value == 0) or (op == "mod" and y.value == 1):
            return const(0, x.dtype)
        if op == "add" and isinstance(x, Binary) and x.op == "add" and isinstance(x.y, Const):
            return binary("add", x.x, binary("add", x.y, y))
    return None


def select(p: Term, x: Term, y: Term) -> Term:
    """Select(p, x, y), or the chosen side where p is constant or both sides are one."""
    if isinstance(p, Const):
        return x if p.value else y
    return x if x is y else Select(p, x, y)


def round_to(dtype: DType, origin: str, x: Term) -> Term:
    """Round, or x itself where the conversion changes no value: the same type, or f16/bf16 used as its compute type."""
    if x.dtype == dtype or (dtype == "f32" and compute_type(x.dtype) == "f32" and is_float(x.dtype)):
        return x
    if isinstance(x, Const) and (is_float(dtype) or dtype == "bool" or not is_float(x.type)):
        return const(x.value, dtype)
    return Round(dtype, origin, x)


def fold(axes: tuple[str, ...] | str, monoid: str, x: Term) -> Term:
    """Fold over `axes` in any order; nested folds of one monoid merge; no axes gives x (in the fold's type)."""
    names = (axes,) if isinstance(axes, str) else axes
    if not names:
        return x
    if isinstance(x, Fold) and x.monoid == monoid and not MONOIDS[monoid].pair and not set(x.axes) & set(names):
        return Fold(tuple(sorted((*names, *x.axes))), monoid, x.x)
    return Fold(tuple(sorted(names)), monoid, x)


def conjuncts(pred: Term) -> Iterator[Term]:
    """The terms that must all hold for a predicate to hold."""
    if isinstance(pred, Binary) and pred.op == "and" and pred.dtype == "bool":
        yield from conjuncts(pred.x)
        yield from conjuncts(pred.y)
    else:
        yield pred


_KIND_ORDER = {"Index": 0, "Load": 1, "Var": 1, "Const": 8, "Extent": 7, "Identity": 9}


def order_key(t: Term) -> tuple[int, str]:
    """A total, run-independent order for commutative operands: leaves first, constants last, then by digest."""
    return _KIND_ORDER.get(type(t).__name__, 5), t.digest
