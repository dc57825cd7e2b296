"""A tensor's term read at other coordinates: written into loads where that costs nothing, an `At` where work is shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ir import term as T
from ir.affine import normal


def substitute(root: T.Term, mapping: Mapping[T.Term, T.Term], extents: Mapping[str, int]) -> T.Term:
    """The root with leaves replaced, all at once; load indices are put in normal form. No binder stands above a leaf."""
    touched = frozenset[str]().union(*(k.free for k in mapping))
    prune = not any(isinstance(k, T.Var) for k in mapping)
    memo: dict[T.Term, T.Term] = dict(mapping)
    stack = [root]
    while stack:
        t = stack[-1]
        if prune and t not in memo and not t.free & touched:
            memo[t] = t
        missing = [k for k in t.terms if k not in memo] if t not in memo else []
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if t not in memo:
            memo[t] = _rebuilt(t, [memo[k] for k in t.terms], extents)
    return memo[root]


def _rebuilt(t: T.Term, kids: list[T.Term], extents: Mapping[str, int]) -> T.Term:
    match t:
        case T.Load(buffer, type_, _):
            return T.Load(buffer, type_, tuple(normal(k, extents) if k.dtype == "i64" else k for k in kids))
        case T.Unary(op, _):
            return T.unary(op, *kids)
        case T.Binary(op, _, _):
            return T.binary(op, *kids)
        case T.Select():
            return T.select(*kids)
        case T.Round(type_, origin, _):
            return T.round_to(type_, origin, *kids)
    assert not kids, f"{type(t).__name__} is not pointwise"
    return t


class Binder:
    """Reads terms at other coordinates; `extents` are those of the axes, `fresh` makes another axis like the named one."""

    def __init__(self, extents: Mapping[str, int], fresh: Callable[[str], str]) -> None:
        self.extents, self.fresh = extents, fresh
        self._works: dict[T.Term, bool] = {}

    def works(self, root: T.Term) -> bool:
        """Whether the term holds a fold or a scan, whose result is worth sharing."""
        stack = [root]
        while stack:
            t = stack[-1]
            missing = [k for k in t.terms if k not in self._works]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            self._works[t] = isinstance(t, T.Fold | T.Scan | T.At) or any(self._works[k] for k in t.terms)
        return self._works[root]

    def bind(self, x: T.Term, index: Mapping[str, T.Term]) -> T.Term:
        """x with every axis bound to its index term, all at once."""
        pending = {a: i for a, i in index.items() if a in x.free and not (isinstance(i, T.Index) and i.axis == a)}
        if not pending:
            return x
        if not self.works(x):
            return substitute(x, {T.Index(a): i for a, i in pending.items()}, self.extents)
        while pending:
            ready = next((a for a, i in pending.items() if not i.free & (pending.keys() - {a})), None)
            if ready is None:  # a cycle such as a swap: one axis takes a name of its own first
                axis = min(pending)
                other = self.fresh(axis)
                pending[other] = pending.pop(axis)
                x = at(axis, T.Index(other), x)
            else:
                x = at(ready, pending.pop(ready), x)
        return x


def at(axis: str, index: T.Term, x: T.Term) -> T.Term:
    """At, where it says anything; a renaming of a renamed axis is one renaming."""
    if axis not in x.free or (isinstance(index, T.Index) and index.axis == axis):
        return x
    if isinstance(x, T.At) and isinstance(x.index, T.Index) and x.index.axis == axis and axis not in x.x.free:
        return at(x.axis, index, x.x)
    return T.At(axis, index, x)
