"""Terms rebuilt: children exchanged, axes, buffers and states renamed, an axis substituted without capture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from extract.facts import mentioned, swept
from ir import term as T
from ir.node import IRError, postorder
from ir.term import Term


def with_children(t: Term, kids: Sequence[Term]) -> Term:
    """A node like `t` over other children, through the normalising constructors."""
    match t:
        case T.Load(buffer, dtype, _):
            return T.Load(buffer, dtype, tuple(kids))
        case T.Unary(op, _):
            return T.unary(op, kids[0])
        case T.Binary(op, _, _):
            return T.binary(op, kids[0], kids[1])
        case T.Select(_, _, _):
            return T.select(kids[0], kids[1], kids[2])
        case T.Round(dtype, origin, _):
            return T.round_to(dtype, origin, kids[0])
        case T.Fold(axes, monoid, _):
            return T.fold(axes, monoid, kids[0])
        case T.Scan(axis, monoid, _):
            return T.Scan(axis, monoid, kids[0])
        case T.Carry(name, monoid, _):
            return T.Carry(name, monoid, kids[0])
        case T.Stream(axis, _, result):
            return T.Stream(axis, tuple(k for k in kids if isinstance(k, T.Carry)), result)
        case T.At(axis, _, _):
            return T.At(axis, kids[0], kids[1])
    if kids:
        raise IRError(f"{type(t).__name__} has no children to exchange")
    return t


def rebuilt(roots: Sequence[Term], leaf: Callable[[Term, Sequence[Term]], Term]) -> list[Term]:
    """Every root with `leaf(node, new children)` in place of each node, children first."""
    memo: dict[Term, Term] = {}
    for t in postorder(*roots):
        memo[t] = leaf(t, [memo[k] for k in t.terms])
    return [memo[r] for r in roots]


@dataclass(frozen=True)
class Names:
    """New names of axes, buffers and states; a name that is absent stays."""

    axes: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)

    def node(self, t: Term, kids: Sequence[Term]) -> Term:
        """The node over renamed children, with its own names renamed."""
        axis, state = self.axes.get, self.states.get
        match t:
            case T.Index(a):
                return T.Index(axis(a, a))
            case T.Extent(a):
                return T.Extent(axis(a, a))
            case T.Load(buffer, dtype, _):
                return T.Load(self.buffers.get(buffer, buffer), dtype, tuple(kids))
            case T.Fold(axes, monoid, _):
                return T.fold(tuple(axis(a, a) for a in axes), monoid, kids[0])
            case T.Scan(a, monoid, _):
                return T.Scan(axis(a, a), monoid, kids[0])
            case T.At(a, _, _):
                return T.At(axis(a, a), kids[0], kids[1])
            case T.State(name, dtype, axes):
                return T.State(state(name, name), dtype, tuple(sorted(axis(a, a) for a in axes)))
            case T.Carry(name, monoid, _):
                return T.Carry(state(name, name), monoid, kids[0])
            case T.Stream(a, _, result):
                carries = sorted((k for k in kids if isinstance(k, T.Carry)), key=lambda c: c.name)
                return T.Stream(axis(a, a), tuple(carries), state(result, result))
        return with_children(t, kids)

    def terms(self, roots: Sequence[Term]) -> list[Term]:
        """The roots with every name exchanged; the maps must not make two different names equal."""
        return rebuilt(roots, self.node)


Key = tuple[Term, str, Term]


class Substitution:
    """Replaces free axes by index terms; bound axes that would capture get fresh names, whose extents it records."""

    def __init__(self, extents: Mapping[str, int]) -> None:
        self.extents = dict(extents)
        self.known = frozenset(extents)

    def __call__(self, t: Term, axis: str, index: Term) -> Term | None:
        """`t` at axis = index, or None where a scan or an open state along `axis` forbids it."""
        return self._go(t, axis, index, frozenset(), {})

    def _go(
        self, t: Term, axis: str, index: Term, bound: frozenset[str], memo: dict[Key, Term | None]
    ) -> Term | None:
        if axis not in t.free or (isinstance(index, T.Index) and index.axis == axis):
            return t
        key = (t, axis, index)
        if key not in memo:
            memo[key] = self._node(t, axis, index, bound, memo)
        return memo[key]

    def _node(
        self, t: Term, axis: str, index: Term, bound: frozenset[str], memo: dict[Key, Term | None]
    ) -> Term | None:
        match t:
            case T.Index(_):
                return index
            case T.State(name, dtype, axes):
                if name not in bound:
                    return None
                moved = (set(axes) - {axis}) | index.free
                return T.State(_moved(name, axis, index), dtype, tuple(sorted(moved)))
            case T.Scan(along, monoid, x) if along == axis or along in index.free:
                if along != axis or not isinstance(index, T.Index) or index.axis in x.free:
                    return None
                inner = self._go(x, axis, index, bound, memo)
                return None if inner is None else T.Scan(index.axis, monoid, inner)
        clash = sorted(set(swept(t)) & index.free)
        if clash:
            fresh = {a: self.fresh(a, index.free | t.free | binders_around(t, a)) for a in clash}
            t = Names(axes=fresh).terms([t])[0]
        if isinstance(t, T.Stream):
            bound |= {c.name for c in t.carries}
        kids = [self._go(k, axis, index, bound, memo) for k in t.terms]
        known = [k for k in kids if k is not None]
        if len(known) < len(kids):
            return None
        match t:
            case T.Carry(name, monoid, _):
                return T.Carry(_moved(name, axis, index), monoid, known[0])
            case T.Stream(along, _, result):
                carries = tuple(k for k in known if isinstance(k, T.Carry))
                names = {old.name: new.name for old, new in zip(t.carries, carries, strict=True)}
                return T.Stream(along, carries, names[result])
        return with_children(t, known)

    def fresh(self, axis: str, taken: frozenset[str]) -> str:
        """A name for another axis of the same extent; the same one whenever it is free to use."""
        n = 1
        while f"{axis}_{n}" in self.known or f"{axis}_{n}" in taken:
            n += 1
        self.extents[f"{axis}_{n}"] = self.extents[axis]
        return f"{axis}_{n}"


def binders_around(t: Term, axis: str) -> frozenset[str]:
    """Axes that loops of the term bind around a mention of `axis`, which it may not be renamed to."""
    loops = (k for k in postorder(t) if swept(k) and axis in mentioned(k))
    return frozenset[str]().union(*map(swept, loops))


def _moved(state: str, axis: str, index: Term) -> str:
    """The name of a state at axis = index: a stream and its moved copy may stand in one kernel."""
    return f"{state}_{axis}_{index.digest[:4]}"
