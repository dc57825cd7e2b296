"""A tensor's term read at other coordinates: written into loads where that costs nothing, an `At` where work is shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum

from ir import term as T
from ir.affine import compared, normal


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
        case T.Binary("lt" | "le" as op, x, y) if x.dtype == y.dtype == "i64":
            return compared(op, kids[0], kids[1], extents)
        case T.Binary("and", _, _) if isinstance(kids[0], T.Const) and kids[0].type == "bool":
            return kids[1] if kids[0].value else kids[0]
        case T.Binary("and", _, _) if isinstance(kids[1], T.Const) and kids[1].type == "bool":
            return kids[0] if kids[1].value else kids[1]
        case T.Binary(op, _, _):
            return T.binary(op, *kids)
        case T.Select():
            return T.select(*kids)
        case T.Round(type_, origin, _):
            return T.round_to(type_, origin, *kids)
    assert not kids, f"{type(t).__name__} is not pointwise"
    return t


class Kind(IntEnum):
    """What a term holds; the greatest of its parts counts."""

    LIGHT = 0
    """Loads and arithmetic: written out at the new coordinates."""
    MOVED = 1
    """Besides, folds and scans below an `At`: the moves are composed."""
    WORK = 2
    """A fold or a scan in place: an `At` above it lets extraction share or recompute it."""


class Binder:
    """Reads terms at other coordinates; `extents` are those of the axes, `fresh` makes another axis like the named one."""

    def __init__(self, extents: Mapping[str, int], fresh: Callable[[str], str]) -> None:
        self.extents, self.fresh = extents, fresh
        self._kinds: dict[T.Term, Kind] = {}

    def kind(self, root: T.Term) -> Kind:
        """What reading the term at other coordinates means."""
        stack = [root]
        while stack:
            t = stack[-1]
            missing = [k for k in t.terms if k not in self._kinds]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            below = max((self._kinds[k] for k in t.terms), default=Kind.LIGHT)
            if isinstance(t, T.At):
                below = Kind.MOVED
            self._kinds[t] = Kind.WORK if isinstance(t, T.Fold | T.Scan) else below
        return self._kinds[root]

    def bind(self, x: T.Term, index: Mapping[str, T.Term]) -> T.Term:
        """x with every axis bound to its index term, all at once."""
        pending = {a: i for a, i in index.items() if a in x.free and not (isinstance(i, T.Index) and i.axis == a)}
        if not pending:
            return x
        match self.kind(x):
            case Kind.LIGHT:
                return substitute(x, {T.Index(a): i for a, i in pending.items()}, self.extents)
            case Kind.MOVED:
                return self._moved_again(x, pending)
        return self._nested(x, pending)

    def _moved_again(self, x: T.Term, index: Mapping[str, T.Term]) -> T.Term:
        """x, whose work stands below `At`s, at other coordinates: the moves become one."""
        leaves: dict[T.Term, T.Term] = {T.Index(a): i for a, i in index.items()}
        for move in _moves(x):
            inner = self.bind(move.index, index)
            rest = {a: i for a, i in index.items() if a != move.axis}
            leaves[move] = self.bind(move.x, {**rest, move.axis: inner})
        return substitute(x, leaves, self.extents)

    def _nested(self, x: T.Term, index: Mapping[str, T.Term]) -> T.Term:
        """One `At` for each axis, in an order in which no index names an axis that an outer one binds."""
        pending = dict(index)
        while pending:
            ready = next((a for a, i in pending.items() if not i.free & (pending.keys() - {a})), None)
            if ready is None:  # a cycle such as a swap: one axis takes a name of its own first
                axis = min(pending)
                other = self.fresh(axis)
                pending[other] = pending.pop(axis)
                x = T.At(axis, T.Index(other), x)
            else:
                x = T.At(ready, pending.pop(ready), x)
        return x


def _moves(root: T.Term) -> list[T.At]:
    """The outermost `At`s below a term."""
    found: dict[T.Term, None] = {}
    stack = [root]
    seen = {root}
    while stack:
        t = stack.pop()
        if isinstance(t, T.At):
            found[t] = None
        else:
            fresh = [k for k in t.terms if k not in seen]
            seen.update(fresh)
            stack.extend(fresh)
    return [t for t in found if isinstance(t, T.At)]
