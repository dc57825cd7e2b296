"""The fewest sweeps over one axis by the streaming laws, read off a program's terms without an e-graph.

A fold is available after sweep n where what its body folds over the axis is there before it, or where all of that
is carried along in the same sweep by the laws of streams. They are stated anew here, on flat products and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache

from ir import term as T
from ir.node import postorder
from ir.term import Term

Test = Callable[[Term], bool]


class Sweeps:
    """When the folds of a program are available, in sweeps over `axis`."""

    def __init__(self, axis: str) -> None:
        self.axis = axis
        self.ready = cache(self._ready)
        self.carried = cache(self._carried)

    def fewest(self, roots: list[Term]) -> int:
        """The least number of sweeps after which all folds over the axis in the roots are available."""
        return next(n for n in range(20) if all(self.there(r, n) for r in roots))

    def folds(self, t: Term) -> list[T.Fold]:
        """The folds over the axis inside that no other such fold contains."""
        if isinstance(t, T.Fold) and self.axis in t.axes:
            return [t]
        return list(dict.fromkeys(f for k in t.terms for f in self.folds(k)))

    def there(self, t: Term, n: int) -> bool:
        """Whether all folds inside are available after sweep n."""
        return all(self.ready(f, n) for f in self.folds(t))

    def kept(self, t: Term) -> bool:
        """Whether all folds inside can be carried by one sweep."""
        return all(map(self.carried, self.folds(t)))

    def _ready(self, fold: T.Fold, n: int) -> bool:
        return n > 0 and any(
            all(
                self._available(fold.monoid, b, lambda t: self.there(t, n), lambda t: self.there(t, n - 1))
                for b in bodies
            )
            for bodies in self._bodies(fold)
        )

    def _carried(self, fold: T.Fold) -> bool:
        return any(
            all(self._available(fold.monoid, b, self.kept, lambda t: not self.folds(t)) for b in bodies)
            for bodies in self._bodies(fold)
        )

    def _bodies(self, fold: T.Fold) -> Iterator[list[Term]]:
        """Addends of the body whose folds together are the fold: one, or two where a sum splits."""
        yield [fold.x]
        if fold.monoid != "add":
            return
        factors = list(_factors(fold.x))
        for k, f in enumerate(factors):
            if isinstance(f, T.Binary) and f.op == "add":
                parts = [f.x, f.y]
                held = [p for p in parts if self.folds(p)]
                if len(held) == 1 and all(self.axis in p.free for p in parts):
                    yield [_product([*factors[:k], p, *factors[k + 1 :]]) for p in parts]

    def _available(self, monoid: str, body: Term, after: Test, before: Test) -> bool:
        """Whether what leaves the fold is there after the sweep, and what stays before it or by a law of streams."""
        outer, inner = self._parted(monoid, body)
        return all(map(after, outer)) and (all(map(before, inner)) or (monoid == "add" and self._streams(inner)))

    def _parted(self, monoid: str, body: Term) -> tuple[list[Term], list[Term]]:
        """What leaves the fold - factors of a sum; positive factors, then addends of a maximum - and what stays."""
        outer, inner = self._by_axis(_factors(body))
        leaves = _in_range(outer, inner)
        if monoid == "add":
            return (outer, inner) if leaves else ([], [body])
        if not outer or not leaves or not all(map(_positive, outer)):
            return self._by_axis(self._addends(body))
        addends, rest = self._by_axis(self._addends(_product(inner)))
        return [*outer, *addends], rest

    def _by_axis(self, terms: Iterable[Term]) -> tuple[list[Term], list[Term]]:
        listed = list(terms)
        return [t for t in listed if self.axis not in t.free], [t for t in listed if self.axis in t.free]

    def _streams(self, factors: list[Term]) -> bool:
        """A product with completed folds streams if they stand in powers, or in at most two shifts."""
        held = [f for f in factors if self.folds(f)]
        shifts = [f for f in held if self._shifted(f)]
        powers = [f for f in held if self._power(f)]
        if len(shifts) + len(powers) < len(held) or not all(map(self.kept, held)):
            return False
        return len(shifts) <= 1 or (len(shifts) == 2 and not powers)

    def _shifted(self, f: Term) -> bool:
        rows, varying = self._by_axis(self._addends(f))
        return bool(rows) and not any(map(self.folds, varying)) and all(map(_tame, rows))

    def _power(self, f: Term) -> bool:
        """An exponential whose exponent is no more than 0 at every step, since only a maximum is taken off."""
        if not (isinstance(f, T.Unary) and f.op == "exp" and _below(f.x)):
            return False
        rows, varying = self._by_axis(self._addends(f.x))
        return not any(map(self.folds, varying)) and all(not self.folds(r) or _is_maximum(r) for r in rows)

    def _addends(self, t: Term) -> Iterator[Term]:
        """The addends of a sum, looking through signs and constant factors."""
        match t:
            case T.Binary("add", x, y):
                yield from self._addends(x)
                yield from self._addends(y)
            case T.Unary("neg", x):
                yield from self._addends(x)
            case T.Binary("mul", x, y) if (self.axis in x.free) != (self.axis in y.free):
                factor, rest = (y, x) if self.axis in x.free else (x, y)
                inside = list(self._addends(rest))
                yield from [t] if inside == [rest] else (T.Binary("mul", factor, a) for a in inside)
            case _:
                yield t


def _factors(t: Term) -> Iterator[Term]:
    match t:
        case T.Binary("mul", x, y):
            yield from _factors(x)
            yield from _factors(y)
        case T.Unary("neg", x):
            yield from _factors(x)
        case _:
            yield t


def _product(factors: list[Term]) -> Term:
    out = factors[0]
    for f in factors[1:]:
        out = T.Binary("mul", out, f)
    return out


def _in_range(outer: list[Term], inner: list[Term]) -> bool:
    """Whether a product of `inner` is in range wherever that with `outer` is, so that the latter may leave a fold."""
    wild = [f for f in outer if not _mild(f)]
    if len(wild) > 1:
        return False
    return all(map(_rooted, wild)) or sum(not _bounded(f) for f in inner) <= 1


def _mild(t: Term) -> bool:
    """Whether a value divides by no fold; a constant is moderate."""
    match t:
        case T.Const():
            return 2.0**-24 <= abs(float(t.value)) <= 2.0**24
        case T.Unary("recip" | "rsqrt", x):
            return _mild(x) and not any(isinstance(k, T.Fold) for k in postorder(x))
        case T.Load() | T.Fold():
            return True
    return all(map(_mild, t.terms))


def _rooted(t: Term) -> bool:
    return isinstance(t, T.Unary) and (t.op in ("sqrt", "rsqrt") or (t.op == "recip" and _rooted(t.x)))


def _bounded(t: Term) -> bool:
    """Whether a value is at most 1 in size."""
    match t:
        case T.Const():
            return abs(float(t.value)) <= 1
        case T.Unary("exp", x):
            return _below(x)
    return isinstance(t, T.Unary) and t.op in ("tanh", "sigmoid")


def _positive(t: Term) -> bool:
    match t:
        case T.Const():
            return float(t.value) > 0
        case T.Unary("exp" | "rsqrt" | "sigmoid"):
            return True
        case T.Unary("recip", x):
            return _positive(x)
        case T.Binary("mul" | "add", x, y):
            return _positive(x) and _positive(y)
        case T.Fold(_, "add", x):
            return _positive(x)
    return False


def _below(t: Term) -> bool:
    """Whether a value is never positive, because a maximum over it is taken off."""
    match t:
        case T.Binary("mul", x, y):
            return (_positive(x) and _below(y)) or (_positive(y) and _below(x))
        case T.Binary("add", x, y):
            pairs = ((x, y), (y, x))
            return any(isinstance(m, T.Unary) and m.op == "neg" and _bounds(m.x, v) for v, m in pairs)
    return False


def _bounds(m: Term, x: Term) -> bool:
    match m:
        case T.Fold(_, "max", body):
            return body is x
        case T.Binary("max", a, b):
            return _bounds(a, x) or _bounds(b, x)
        case T.Select(_, T.Const(), inner):
            return _bounds(inner, x)
    return False


def _is_maximum(t: Term) -> bool:
    """Whether a value is a maximum of values without folds, or such a value times a positive factor or guarded."""
    match t:
        case T.Fold(_, "max", body):
            return not any(
                (isinstance(k, T.Fold) and k.monoid != "add") or isinstance(k, T.Extent) for k in postorder(body)
            )
        case T.Binary("max", x, y):
            return _is_maximum(x) or _is_maximum(y)
        case T.Binary("mul", x, y):
            return (_positive(x) and _is_maximum(y)) or (_positive(y) and _is_maximum(x))
        case T.Select(_, T.Const(), x):
            return _is_maximum(x)
    return False


def _tame(t: Term) -> bool:
    """Whether a value is finite on every prefix where its operands are."""
    match t:
        case T.Unary("log" | "recip" | "rsqrt", x):
            return _positive(x) or not any(isinstance(k, T.Fold) for k in postorder(x))
    return all(map(_tame, t.terms))


def fold_count(roots: list[Term], axis: str) -> int:
    """Sweeps over the axis as the program is written: the deepest nest of folds."""
    depth: dict[Term, int] = {}
    for t in postorder(*roots):
        own = isinstance(t, T.Fold) and axis in t.axes
        depth[t] = own + max((depth[k] for k in t.terms), default=0)
    return max(depth[r] for r in roots)
