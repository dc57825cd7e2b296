"""Prefix semantics spelled out: a value cut at a step is an ordinary term, whose folds select the positions they keep."""

from __future__ import annotations

from ir import term as T
from ir.node import postorder
from ir.term import Term


def spelled_out(root: Term, extents: dict[str, int]) -> Term:
    """The term without `Prefix`; the axes that folds over prefixes run along are added to `extents`."""
    memo: dict[Term, Term] = {}
    for t in postorder(root):
        kids = [memo[k] for k in t.terms]
        if not isinstance(t, T.Prefix):
            memo[t] = over(t, kids)
            continue
        new, old = _cut(kids[0], t.axis, "le", extents), _cut(kids[0], t.axis, "lt", extents)
        match t.which:
            case "new" | "old":
                memo[t] = new if t.which == "new" else old
            case "ratio":
                memo[t] = T.Binary("mul", new, T.Unary("recip", old))
            case "delta":
                memo[t] = T.Binary("add", new, T.Unary("neg", old))
    return memo[root]


def over(t: Term, kids: list[Term]) -> Term:
    """A node like `t` over other operands, nothing simplified."""
    match t:
        case T.Load(buffer, dtype, _):
            return T.Load(buffer, dtype, tuple(kids))
        case T.Unary(op, _) | T.Binary(op, _, _):
            return type(t)(op, *kids)
        case T.Select():
            return T.Select(*kids)
        case T.Round(dtype, origin, _):
            return T.Round(dtype, origin, kids[0])
        case T.Fold(axes, monoid, _):
            return T.Fold(axes, monoid, kids[0])
        case T.Scan(axis, monoid, _):
            return T.Scan(axis, monoid, kids[0])
        case T.At(axis, _, _):
            return T.At(axis, kids[0], kids[1])
        case T.Prefix(which, axis, _):
            return T.Prefix(which, axis, kids[0])
    return t


def _cut(t: Term, axis: str, keeps: str, extents: dict[str, int]) -> Term:
    """The term with folds over the axis cut to the positions before its step (`keeps` lt), or up to and with it (le)."""
    match t:
        case T.Fold(axes, monoid, x) if axis in axes:
            own = f"{axis}_{len(extents)}"
            extents[own] = extents[axis]
            body = _cut(_renamed(x, axis, own), axis, keeps, extents)
            kept = T.Select(T.Binary(keeps, T.Index(own), T.Index(axis)), body, T.Identity(monoid))
            return T.Fold(tuple(sorted(own if a == axis else a for a in axes)), monoid, kept)
        case T.Extent(a) if a == axis:
            return T.Index(axis) if keeps == "lt" else T.binary("add", T.Index(axis), T.number(1))
        case T.At(a, index, x):
            return T.At(a, _cut(index, axis, keeps, extents), x)
        case T.Scan(a, _, _) if a == axis:
            return t
    return over(t, [_cut(k, axis, keeps, extents) for k in t.terms])


def _renamed(t: Term, axis: str, name: str) -> Term:
    """The term with the free axis renamed; the new name stands nowhere in it."""
    if axis not in t.free:
        return t
    match t:
        case T.Index():
            return T.Index(name)
        case T.At(a, index, x) if a == axis:
            return T.At(a, _renamed(index, axis, name), x)
        case T.Scan(a, _, _) if a == axis:
            return T.At(axis, T.Index(name), t)
    return over(t, [_renamed(k, axis, name) for k in t.terms])
