"""Index terms in normal form: integer sums with // and % by constants, simplified where ranges allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ir import term as T


@dataclass(frozen=True)
class Affine:
    """`const` plus the sum of coefficient * term; the terms are axes, or opaque integers (loaded values, // and %)."""

    terms: tuple[tuple[T.Term, int], ...]
    const: int = 0

    def term(self) -> T.Term:
        """As a term: large coefficients first, the constant last."""
        out: T.Term | None = None
        for t, c in sorted(self.terms, key=lambda tc: (-abs(tc[1]), T.order_key(tc[0]))):
            part = T.unary("neg", t) if c == -1 else T.binary("mul", t, T.number(c))
            out = part if out is None else T.binary("add", out, part)
        return T.number(self.const) if out is None else T.binary("add", out, T.number(self.const))


def normal(root: T.Term, extents: Mapping[str, int]) -> T.Term:
    """An i64 index term in normal form; `extents` gives the axes whose range is known."""
    return affine(root, extents).term()


def affine(root: T.Term, extents: Mapping[str, int]) -> Affine:
    """An i64 index term as a sum; operators other than +, -, *, // and % by constants stay opaque."""
    memo: dict[T.Term, Affine] = {}
    stack = [root]
    while stack:
        t = stack[-1]
        parts = _parts(t)
        missing = [p for p in parts if p not in memo]
        if missing:
            stack.extend(missing)
        else:
            memo[stack.pop()] = _node(t, [memo[p] for p in parts], extents)
    return memo[root]


def _parts(t: T.Term) -> tuple[T.Term, ...]:
    match t:
        case T.Unary("neg", _) | T.Binary("add" | "mul", _, _):
            return t.terms
        case T.Binary("floordiv" | "mod", x, T.Const() as y) if int(y.value) > 0:
            return (x,)
    return ()


def _node(t: T.Term, parts: list[Affine], extents: Mapping[str, int]) -> Affine:
    match t:
        case T.Const():
            return Affine((), int(t.value))
        case T.Index(axis) if extents.get(axis) == 1:
            return Affine(())
        case T.Unary("neg", _):
            return _sum((parts[0], -1))
        case T.Binary("add", _, _):
            return _sum((parts[0], 1), (parts[1], 1))
        case T.Binary("mul", _, _) if not parts[0].terms or not parts[1].terms:
            x, y = parts if not parts[1].terms else parts[::-1]
            return _sum((x, y.const))
        case T.Binary("mul", _, _):
            return _opaque(T.binary("mul", parts[0].term(), parts[1].term()))
        case T.Binary("floordiv" | "mod" as op, _, T.Const() as y) if parts:
            return divided(op, parts[0], int(y.value), extents)
    return _opaque(t)


def _opaque(t: T.Term) -> Affine:
    return Affine(((t, 1),))


def _sum(*scaled: tuple[Affine, int]) -> Affine:
    """The sum of scaled parts, where r // n * n + r % n becomes r again."""
    total: dict[T.Term, int] = {}
    const = 0
    for part, scale in scaled:
        const += scale * part.const
        for t, c in part.terms:
            total[t] = total.get(t, 0) + scale * c
    total = {t: c for t, c in total.items() if c}
    for t, c in total.items():
        if isinstance(t, T.Binary) and t.op == "mod" and isinstance(t.y, T.Const):
            high = T.binary("floordiv", t.x, t.y)
            if total.get(high) == c * int(t.y.value):
                rest = Affine(tuple((k, v) for k, v in total.items() if k not in (t, high)), const)
                return _sum((rest, 1), (_flat(t.x), c))
    return Affine(tuple(total.items()), const)


def _flat(t: T.Term) -> Affine:
    """A term that `Affine.term` has made, as a sum again."""
    return affine(t, {}) if isinstance(t, T.Binary) and t.op in ("add", "mul") else _opaque(t)


def divided(op: str, x: Affine, by: int, extents: Mapping[str, int]) -> Affine:
    """x // by or x % by (`op` floordiv or mod): multiples of `by` leave, and what ranges show to be small leaves too."""
    whole = Affine(tuple((t, c // by) for t, c in x.terms if c % by == 0), x.const // by)
    rest = Affine(tuple((t, c) for t, c in x.terms if c % by), x.const % by)
    if _within(rest, by, extents):
        return whole if op == "floordiv" else rest
    for g in sorted({abs(c) for _, c in rest.terms if by % c == 0 and abs(c) > 1}, reverse=True):
        high = Affine(tuple((t, c // g) for t, c in rest.terms if c % g == 0), rest.const // g)
        low = Affine(tuple((t, c) for t, c in rest.terms if c % g), rest.const % g)
        if _within(low, g, extents):
            inner = divided(op, high, by // g, extents)
            return _sum((whole, 1), (inner, 1)) if op == "floordiv" else _sum((inner, g), (low, 1))
    left = _opaque(T.binary(op, rest.term(), T.number(by)))
    return _sum((whole, 1), (left, 1)) if op == "floordiv" else left


def _within(x: Affine, stop: int, extents: Mapping[str, int]) -> bool:
    """Whether 0 <= x < stop is sure."""
    found = bounds(x, extents)
    return found is not None and found[0] >= 0 and found[1] < stop


def bounds(x: Affine, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """The least and the greatest value that ranges allow, or None where a term has no known range."""
    low = high = x.const
    for t, c in x.terms:
        span = _span(t, extents)
        if span is None:
            return None
        low, high = low + min(c * e for e in span), high + max(c * e for e in span)
    return low, high


def compared(op: str, x: T.Term, y: T.Term, extents: Mapping[str, int]) -> T.Term:
    """x < y or x <= y (`op` lt or le), decided where ranges allow."""
    over = bounds(_sum((affine(y, extents), 1), (affine(x, extents), -1)), extents)
    least = 1 if op == "lt" else 0
    if over is not None and (over[0] >= least or over[1] < least):
        return T.const(over[0] >= least, "bool")
    return T.binary(op, x, y)


def _span(t: T.Term, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """The least and the greatest value of a term, or None where they are unknown."""
    match t:
        case T.Index(axis) if axis in extents:
            return 0, max(extents[axis] - 1, 0)
        case T.Binary("mod", _, T.Const() as y) if int(y.value) > 0:
            return 0, int(y.value) - 1
        case T.Binary("floordiv", T.Index(axis), T.Const() as y) if axis in extents and int(y.value) > 0:
            return 0, max(extents[axis] - 1, 0) // int(y.value)
    return None
