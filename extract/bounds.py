"""Whether exponents stay in range as the kernels of a cover spell them.

The e-graph knows x <= m of classes, whose terms differ by roundings that exp magnifies where x and m are huge: with
s = fl(x * 1e14), s - fl(max x) * 1e14 may be as large as an ulp of s. The bound holds for terms where it follows from
them by steps that are monotone in floating point too; these are the laws of order of the e-graph's analysis. A sum
that two kernels compute may be added up in two orders, so that it bounds no maximum of the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from extract.rewrite import rebuilt, with_children
from extract.source import class_read
from ir import term as T
from ir.node import postorder
from ir.term import Term

HERE = -1  # the kernel whose exponents are looked at
ORDERLESS = ("max", "min")
POSITIVE = ("exp", "exp2", "rsqrt", "sigmoid")


class Bounds:
    """Order between the terms of one cover.

    `made` are its values by class, which are read back through their buffers, each with the number of its kernel.
    """

    def __init__(self, made: Mapping[int, tuple[int, Term]]) -> None:
        self.made = made
        self.inlined: dict[tuple[Term, int], Term] = {}
        self.updates: dict[str, set[T.Carry]] = defaultdict(set)
        self._known: dict[tuple[Term, Term], bool] = {}

    def hold(self, terms: Iterable[Term], exponents: Iterable[Term]) -> bool:
        """Whether all `exponents`, which stand in `terms`, stay in range."""
        roots = [self._whole(t) for t in terms]
        for t in postorder(*roots):
            if isinstance(t, T.Carry):
                self.updates[t.name].add(t)
        return all(self.safe(self._whole(e)) for e in exponents)

    def _whole(self, root: Term, kernel: int = HERE) -> Term:
        """The term with what other kernels make in place of their buffers; a sum of another kernel is its own value."""

        def leaf(t: Term, kids: Sequence[Term]) -> Term:
            if isinstance(t, T.Load) and all(isinstance(i, T.Index) for i in t.index):
                number, made = self.made.get(class_read(t.buffer), (HERE, t))
                if made is not t and made.free == t.free:
                    return self._whole(made, number)
            if kernel != HERE and isinstance(t, T.Fold | T.Scan) and t.monoid not in ORDERLESS:
                return T.Var(f"{t.digest} of {kernel}", t.dtype, tuple(sorted(t.free)))
            return with_children(t, kids)

        if (root, kernel) not in self.inlined:
            (self.inlined[root, kernel],) = rebuilt([root], leaf)
        return self.inlined[root, kernel]

    def safe(self, d: Term) -> bool:
        """Whether exp(d) does not overflow: d <= 0, or bounded, or a difference of guarded maxima."""
        match d:
            case T.Unary("tanh" | "sigmoid"):
                return True
            case T.Binary("mul", x, y):
                return any(positive(c) and self.safe(z) for c, z in ((x, y), (y, x)))
            case T.Binary("add" | "addz", x, y):
                for a, b in ((x, y), (y, x)):
                    if isinstance(b, T.Unary) and b.op == "neg" and (m := guarded(a)) and (n := guarded(b.x)):
                        return self.le(m, n)
        return self.nonpositive(d)

    def nonpositive(self, d: Term) -> bool:
        """Whether d <= 0."""
        match d:
            case T.Round(_, _, x):
                return self.nonpositive(x)
            case T.Select(_, x, y):
                return self.nonpositive(x) and self.nonpositive(y)
            case T.Const():
                return not d.value > 0
            case T.Binary("mul", x, y):
                return any(positive(c) and self.nonpositive(z) for c, z in ((x, y), (y, x)))
            case T.Binary("add" | "addz", x, y):
                for a, b in ((x, y), (y, x)):
                    if isinstance(b, T.Unary) and b.op == "neg" and self.le(a, b.x):
                        return True
                return self.nonpositive(x) and self.nonpositive(y)
        return False

    def le(self, x: Term, m: Term) -> bool:
        """Whether x <= m wherever both are computed as they stand (or NaN)."""
        if x is m or (isinstance(x, T.Const) and x.value == -math.inf):
            return True
        if (x, m) not in self._known:
            self._known[x, m] = False  # on a circle nothing is known
            self._known[x, m] = self._below(x, m) or self._above(x, m) or self._alike(x, m)
        return self._known[x, m]

    def _below(self, x: Term, m: Term) -> bool:
        """What m is at least as large as."""
        match m:
            case T.Fold(_, "max", f):
                return self.le(x, f)
            case T.Binary("max", a, b):
                return self.le(x, a) or self.le(x, b)
            case T.Stream(_, carries, result):
                last = next(c for c in carries if c.name == result)
                return last.monoid == "max" and self.le(x, last.update)
        n = guarded(m)
        return n is not None and self.le(x, n)

    def _above(self, x: Term, m: Term) -> bool:
        """What x is made of; a state that only grows was never above its next value."""
        match x:
            case T.Binary("max", a, b) | T.Select(_, a, b):
                return self.le(a, m) and self.le(b, m)
            case T.State(name):
                steps = self.updates.get(name, set())
                return bool(steps) and all(c.monoid == "max" and self.le(c.update, m) for c in steps)
        return False

    def _alike(self, x: Term, m: Term) -> bool:
        """One monotone operator on both sides."""
        match x, m:
            case T.Round(d, _, a), T.Round(e, _, b):
                return d == e and self.le(a, b)
            case T.Binary("add" | "addz", _, _), T.Binary("add" | "addz", _, _):
                return any(c is d and self.le(a, b) for c, a in _orders(x) for d, b in _orders(m))
        products = ((a, b) for c, a in _factored(x) for d, b in _factored(m) if c is d and positive(c))
        return any(self.le(a, b) for a, b in products)


def _factored(t: Term) -> tuple[tuple[Term, Term], ...]:
    """(c, r) with t = c * r, bit for bit."""
    match t:
        case T.Binary("mul", _, _):
            return _orders(t)
        case T.Unary("neg", T.Binary("mul", _, _) as product):
            return tuple((c, T.unary("neg", r)) for c, r in _orders(product))
    return ()


def _orders(t: T.Binary) -> tuple[tuple[Term, Term], tuple[Term, Term]]:
    return (t.x, t.y), (t.y, t.x)


def guarded(g: Term) -> Term | None:
    """m, where g is m, or 0 if m is infinite."""
    match g:
        case T.Select(T.Binary("eq", a, b), T.Const() as zero, m) if zero.value == 0:
            for tested, limit in ((a, b), (b, a)):
                magnitude = isinstance(tested, T.Unary) and tested.op == "abs" and tested.x is m
                if isinstance(limit, T.Const) and math.isinf(limit.value) and (tested is m or magnitude):
                    return m
    return None


def positive(t: Term) -> bool:
    """Whether t is above 0, or 0 where it underflows."""
    match t:
        case T.Const():
            return t.value > 0
        case T.Extent():
            return True
        case T.Unary(op, x):
            return op in POSITIVE or (op == "recip" and positive(x))
        case T.Binary("mul" | "add", x, y):
            return positive(x) and positive(y)
        case T.Fold(_, "add", x) | T.Round(_, _, x):
            return positive(x)
    return False
