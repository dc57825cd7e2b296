"""The terms of a part before they are tiled: extents bound, states told apart, folds nested, and where a term may stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from extract.rewrite import Names, Substitution, rebuilt, with_children
from ir import term as T
from ir.loop import Store
from ir.node import IRError, postorder
from ir.term import Term
from ir.tile import TileAxis


class Placing:
    """The stores of a part in the form that tiling reads; `axes` grows where a sweep needs an axis of its own."""

    def __init__(self, stores: Sequence[Store], axes: Sequence[TileAxis]) -> None:
        self.axes = {a.name: a for a in axes}
        self.substitute = Substitution({a.name: a.extent for a in axes})
        self.stream_of: dict[str, T.Stream] = {}
        self.states: dict[tuple[Term, ...], dict[str, str]] = {}
        self.needed: dict[Term, frozenset[str]] = {}
        self.uses: Counter[Term] = Counter()
        self.counted: set[Term] = set()
        terms = rebuilt([t for s in stores for t in (s.value, *s.index)], self._normal)
        self.stores = []
        for s in stores:
            value, *index = (terms.pop(0) for _ in range(1 + len(s.index)))
            self.stores.append(replace(s, value=self._once(s, value), index=tuple(index)))
        self._register([t for s in self.stores for t in terms_of(s)])

    def _normal(self, t: Term, kids: Sequence[Term]) -> Term:
        match t:
            case T.Stream(axis, carries, result):
                names = self.states.setdefault(
                    (T.Index(axis), *kids), {c.name: f"{c.name}_{len(self.states)}" for c in carries}
                )
                fresh = rebuilt(Names(states=names).terms(kids), self._nested)
                return T.Stream(axis, tuple(c for c in fresh if isinstance(c, T.Carry)), names[result])
        return self._nested(t, kids)

    def _nested(self, t: Term, kids: Sequence[Term]) -> Term:
        """The node, a fold as folds inside one another that each sweep at most one streamed axis."""
        if not isinstance(t, T.Fold):
            return with_children(t, kids)
        streams = [a for a in self.axes if a in t.axes and self.streamed(a)]
        inner = set(t.axes) - set(streams[:-1])
        out: Term = T.Fold(tuple(sorted(inner)), t.monoid, kids[0])
        for a in reversed(streams[:-1]):
            out = T.Fold((a,), t.monoid, out)
        return out

    def _once(self, s: Store, value: Term) -> Term:
        """The value of a combined store, counted once along the grid axes that the store does not have."""
        if s.monoid is None:
            return value
        for a in self.axes.values():
            if a.role == "grid" and a.name not in s.axes and a.extent > 1:
                first = T.Binary("eq", T.Index(a.name), T.number(0))
                value = T.Select(first, value, T.Identity(s.monoid))
        return value

    def _register(self, roots: Iterable[Term]) -> None:
        """Count the uses of new terms, and note the stream of each state."""
        roots = tuple(roots)
        self.uses.update(roots)
        for t in postorder(*roots):
            if isinstance(t, T.Stream):
                self.stream_of.update({c.name: t for c in t.carries})
            if t not in self.counted:
                self.counted.add(t)
                self.uses.update(t.terms)

    def streamed(self, axis: str) -> bool:
        """Whether the axis is swept tile by tile."""
        return self.axes[axis].role == "stream"

    def needs(self, root: Term) -> frozenset[str]:
        """The streamed axes that must be bound where the term is computed."""
        if root not in self.needed:
            for t in postorder(root):
                if t not in self.needed:
                    self.needed[t] = self._needs(t, [self.needed[k] for k in t.terms])
        return self.needed[root]

    def _needs(self, t: Term, kids: Sequence[frozenset[str]]) -> frozenset[str]:
        out = frozenset[str]().union(*kids)
        match t:
            case T.Index(axis) | T.Scan(axis, _, _):
                return out | {axis} if self.streamed(axis) else out
            case T.State(name, _, _):
                stream = self.stream_of[name]
                return frozenset(a for a in stream.free | {stream.axis} if self.streamed(a))
            case T.Fold(axes, _, _):
                return out - set(axes)
            case T.Stream(axis, _, _):
                return out - {axis}
        return out

    def sweep(self, t: Term) -> str | None:
        """The streamed axis over which the node itself loops."""
        match t:
            case T.Fold(axes, _, _):
                return next((a for a in axes if self.streamed(a)), None)
            case T.Stream(axis, _, _) if self.streamed(axis):
                return axis
        return None

    def bindable(self, t: Term, bound: frozenset[str], innermost: str | None) -> Term:
        """The term itself, or an equal one whose sweep is over an axis that no loop around it binds.

        A scan along an axis that is not the innermost loop's becomes a fold over the positions up to its own.
        """
        if isinstance(t, T.Scan) and self.streamed(t.axis) and t.axis != innermost:
            fresh, x = self._fresh(t, t.axis, bound)
            before = T.Binary("le", T.Index(fresh), T.Index(t.axis))
            made: Term = T.Fold((fresh,), t.monoid, T.Select(before, x, T.Identity(t.monoid)))
        elif (axis := self.sweep(t)) is None or axis not in bound:
            return t
        elif isinstance(t, T.Fold):
            fresh, x = self._fresh(t, axis, bound)
            made = T.Fold(tuple(sorted({*t.axes, fresh} - {axis})), t.monoid, x)
        else:
            raise IRError(f"a stream over {axis} depends on a position of {axis}")
        made = rebuilt([made], self._nested)[0]
        self._register([made])
        return made

    def _fresh(self, t: Term, axis: str, bound: frozenset[str]) -> tuple[str, Term]:
        """An axis like `axis`, and the operand of `t` along it."""
        fresh = self.substitute.fresh(axis, bound | t.free)
        x = self.substitute(t.terms[0], axis, T.Index(fresh))
        if x is None:
            raise IRError(f"a scan or a state along {axis} stands in a sweep over {axis}")
        for name in self.substitute.extents:
            if name not in self.axes:
                self.axes[name] = replace(self.axes[name.rsplit("_", 1)[0]], name=name)
        return fresh, x


def terms_of(s: Store) -> tuple[Term, ...]:
    """The terms that a store evaluates."""
    return (s.value, *s.index)


def is_coordinate(t: Term) -> bool:
    """Whether the value follows from constants and coordinates alone."""
    return all(isinstance(k, T.Const | T.Index | T.Unary | T.Binary | T.Select | T.Round) for k in postorder(t))
