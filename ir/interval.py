"""Integer interval analysis of terms: ranges, affine forms, decided predicates, divisors, and runs along one axis.

Every integer or bool term has an interval inside its type's range; arithmetic that may wrap gives the whole range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ir import term as T
from ir.dtype import DTYPES, DType, is_float, is_integer
from ir.node import postorder
from ir.term import Term

Interval = tuple[int, int]


def type_range(dtype: DType) -> Interval:
    """All values of an integer or bool type."""
    info = DTYPES[dtype]
    if info.kind in ("bool", "uint"):
        return 0, 1 if info.kind == "bool" else (1 << 8 * info.bytes) - 1
    half = 1 << (8 * info.bytes - 1)
    return -half, half - 1


def inside(inner: Interval, outer: Interval) -> bool:
    """Whether every value of `inner` lies in `outer`."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


@dataclass(frozen=True)
class Affine:
    """constant + sum of coefficient * atom, exact in the integers."""

    coefficients: Mapping[Term, int]
    constant: int

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        """self + factor * other."""
        out = dict(self.coefficients)
        for atom, c in other.coefficients.items():
            out[atom] = out.get(atom, 0) + factor * c
        return Affine({a: c for a, c in out.items() if c}, self.constant + factor * other.constant)

    def scaled(self, factor: int) -> Affine:
        """factor * self."""
        return Affine({}, 0).plus(self, factor)


class Ranges:
    """Intervals of terms, given those of leaves (Index or Var terms); a leaf without one has its type's range."""

    def __init__(self, leaves: Mapping[Term, Interval]) -> None:
        self.leaves = leaves
        self.memo: dict[Term, Interval] = {}
        self.forms: dict[Term, Affine] = {}

    def of(self, t: Term) -> Interval:
        """The interval of an integer or bool term."""
        if t not in self.memo:
            for s in postorder(t):
                if s not in self.memo and not is_float(s.dtype) and s.dtype != "any":
                    whole = type_range(s.dtype)
                    found = self._node(s)
                    self.memo[s] = whole if found is None or not inside(found, whole) else found
        return self.memo[t]

    def _node(self, t: Term) -> Interval | None:
        match t:
            case T.Const():
                return int(t.value), int(t.value)
            case T.Index() | T.Var():
                return self.leaves.get(t)
            case T.Round(_, _, x) if not is_float(x.dtype) and x.dtype != "any":
                return (0, 1) if t.type == "bool" else self.memo[x]
            case T.Unary("neg", x) if t.dtype != "bool":
                return -self.memo[x][1], -self.memo[x][0]
            case T.Unary("not", x) if x.dtype == "bool":
                return 1 - self.memo[x][1], 1 - self.memo[x][0]
            case T.Select(p, x, y):
                known = self.decide(p)
                sides = [self.memo.get(k) for k in ((x, y) if known is None else (x,) if known else (y,))]
                ranges = [r for r in sides if r is not None]
                whole = len(ranges) == len(sides)  # an identity has no range before it has a type
                return (min(a for a, _ in ranges), max(b for _, b in ranges)) if whole else None
            case T.Binary(_, x, y) if not is_float(x.dtype) and "any" not in (x.dtype, y.dtype):
                return self._binary(t)
        return None

    def _binary(self, t: T.Binary) -> Interval | None:
        (a, b), (c, d) = self.memo[t.x], self.memo[t.y]
        match t.op:
            case "add":
                return a + c, b + d
            case "mul":
                corners = (a * c, a * d, b * c, b * d)
                return min(corners), max(corners)
            case "max":
                return max(a, c), max(b, d)
            case "min":
                return min(a, c), min(b, d)
            case "floordiv" | "truncdiv" if c > 0 and (a >= 0 or t.op == "floordiv"):
                corners = (a // c, a // d, b // c, b // d)
                return min(corners), max(corners)
            case "mod" | "fmod" if c > 0 and (a >= 0 or t.op == "mod"):
                return (a, b) if a >= 0 and b < c else (0, min(d - 1, b) if a >= 0 else d - 1)
            case "and" | "or" | "xor" if t.dtype == "bool":
                low, high = {"and": (min(a, c), min(b, d)), "or": (max(a, c), max(b, d)), "xor": (0, 1)}[t.op]
                return low, high
            case "and" if a >= 0 and c >= 0:
                return 0, min(b, d)
            case "shr" if a >= 0 and c >= 0:
                return a >> min(d, 63), b >> c
            case "shl" if a >= 0 and 0 <= c <= d < 63:
                return a << c, b << d
            case "lt" | "le" | "eq" | "ne":
                known = self._compared(t)
                return None if known is None else (int(known), int(known))
        return None

    def _compared(self, t: T.Binary) -> bool | None:
        """A decided comparison of integers, or of bools, of which False is less."""
        if t.x.dtype == "bool" or t.y.dtype == "bool":
            (a, b), (c, d) = self.memo[t.x], self.memo[t.y]
            low, high = c - b, d - a
        else:
            low, high = self.span(self.affine(t.y).plus(self.affine(t.x), -1))
        match t.op:
            case "lt" | "le":
                least = 1 if t.op == "lt" else 0
                return True if low >= least else False if high < least else None
            case _:
                equal = True if low == high == 0 else False if low > 0 or high < 0 else None
                return equal if equal is None or t.op == "eq" else not equal

    def decide(self, pred: Term) -> bool | None:
        """Whether a bool term is true everywhere (True), nowhere (False), or neither is proved (None)."""
        low, high = self.of(pred)
        return bool(low) if low == high else None

    def counter(self, start: Term, stop: Term, step: int) -> Interval:
        """The values of a loop's counter; the first where the loop may not run."""
        (low, first), (_, high) = self.of(start), self.of(stop)
        last = high - 1 if low < first else low + (high - 1 - low) // step * step
        return low, max(low, last)

    def span(self, form: Affine) -> Interval:
        """The interval of an affine form."""
        low = high = form.constant
        for atom, c in form.coefficients.items():
            a, b = self.of(atom)
            low, high = low + min(c * a, c * b), high + max(c * a, c * b)
        return low, high

    def affine(self, t: Term) -> Affine:
        """The affine form of an integer term; a subterm that may wrap or is not affine is an atom."""
        if t not in self.forms:
            for s in postorder(t):
                if s not in self.forms and is_integer(s.dtype):
                    self.forms[s] = self._form(s)
        return self.forms[t]

    def _form(self, t: Term) -> Affine:
        match t:
            case T.Const():
                return Affine({}, int(t.value))
            case T.Unary("neg", x) if self._exact(t):
                return self.forms[x].scaled(-1)
            case T.Round(_, _, x) if self._exact(t):
                return self.forms[x]
            case T.Binary("add", x, y) if self._exact(t):
                return self.forms[x].plus(self.forms[y])
            case T.Binary("mul", x, T.Const() as c) | T.Binary("mul", T.Const() as c, x) if self._exact(t):
                return self.forms[x].scaled(int(c.value))
        return Affine({t: 1}, 0)

    def _exact(self, t: Term) -> bool:
        """Whether the node's integer arithmetic cannot wrap."""
        if t.dtype == "bool" or any(is_float(k.dtype) or k.dtype in ("any", "bool") for k in t.terms):
            return False
        self.of(t)
        found = self._node(t)
        return found is not None and inside(found, type_range(t.dtype))


Run = tuple[int, int]
"""(step, divisor): base + step * e for e = 0, 1, ..., the base a multiple of the divisor (0: the base is 0)."""


def run_along(t: Term, axis: str, width: int) -> Run | None:
    """The run of `t` at coordinate width*u + e of `axis` for 0 <= e < width; None where it is no run."""

    def leaf(s: Term) -> Run | None:
        return (1, width) if s is T.Index(axis) else None if axis in s.free else (0, 1)

    return run(t, leaf, width)


def divisor(t: Term, known: Mapping[Term, int]) -> int:
    """A number that divides every value of an integer term, given those of leaves; 0 where the value is 0."""
    found = run(t, lambda leaf: (0, known.get(leaf, 1)), 1)
    return 1 if found is None else found[1]


def run(root: Term, leaf: Callable[[Term], Run | None], width: int) -> Run | None:
    """The run of a term for 0 <= e < width; `leaf` gives those of the leaves, None for one that moves otherwise."""
    memo: dict[Term, Run | None] = {}
    for t in postorder(root):
        memo[t] = _run_node(t, leaf, width, memo)
    return memo[root]


def _run_node(
    t: Term, leaf: Callable[[Term], Run | None], width: int, memo: Mapping[Term, Run | None]
) -> Run | None:
    match t:
        case T.Const() if is_integer(t.type):
            return 0, abs(int(t.value))
        case T.Unary("neg", x) if (inner := memo[x]) is not None:
            return -inner[0], inner[1]
        case T.Round(_, _, x) if is_integer(x.dtype):
            return memo[x]
        case T.Binary("add" | "mul" | "floordiv" | "truncdiv" | "mod" | "fmod" as op, x, y):
            left, right = memo[x], memo[y]
            if left is not None and right is not None:
                return _run_of(op, left, right, width, t)
    if not t.terms:
        return leaf(t)
    steady = all((moves := memo[k]) is not None and moves[0] == 0 for k in t.terms)
    return (0, 1) if steady else None


def _run_of(op: str, left: Run, right: Run, width: int, t: T.Binary) -> Run | None:
    (la, ga), (lb, gb) = left, right
    if op == "add":
        return la + lb, math.gcd(ga, gb)
    if op == "mul":
        for (step, multiple), factor in ((left, t.y), (right, t.x)):
            if isinstance(factor, T.Const):
                return step * int(factor.value), multiple * abs(int(factor.value))
        return (0, ga * gb) if la == lb == 0 else None
    if not isinstance(t.y, T.Const) or t.y.value <= 0:
        return (0, 1) if la == lb == 0 else None
    m = int(t.y.value)
    common = math.gcd(ga, m)
    if la and not (la > 0 and la * (width - 1) < common):
        return None
    if op in ("mod", "fmod"):
        return la, common
    return 0, ga // m if ga % m == 0 else 1
