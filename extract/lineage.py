"""Which nodes of the graph a chosen cover is made of: every fragment remembers the node or the sweep that it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from egraph.graph import EGraph, ENode
from egraph.history import Key
from egraph.trace import WRITTEN, Explained, Pick, laws_of
from ir.loop import Form
from ir.term import Term

Place = tuple[int, Term]
Reasons = tuple[tuple[Key, Pick], ...]
"""Picks that a form makes, each in place of a written node."""


@dataclass
class Lineage:
    """For a term of a class: the node with the terms of its operands, or the axis of a sweep with its states' updates."""

    graph: EGraph
    built: dict[Place, tuple[ENode, tuple[Term, ...]]] = field(default_factory=dict)
    swept: dict[Place, tuple[str, Mapping[int, Term]]] = field(default_factory=dict)

    def node(self, c: int, t: Term, n: ENode, kids: Sequence[Term]) -> None:
        """Remember that node `n` over `kids` gives `t`; of several such nodes one that was written."""
        if isinstance(self.graph, Explained) and (
            (c, t) not in self.built or self.graph.origin.get((c, n)) == WRITTEN
        ):
            self.built[c, t] = n, tuple(kids)

    def sweep(self, c: int, t: Term, axis: str, updates: Mapping[int, Term]) -> None:
        """Remember that `t` is a sweep with these updates."""
        if isinstance(self.graph, Explained):
            self.swept.setdefault((c, t), (axis, updates))

    def _below(self, place: Place) -> list[Place]:
        """The terms of operands or of updates, with their classes."""
        if place in self.built:
            n, kids = self.built[place]
            return list(zip(n.children, kids, strict=False))
        if place in self.swept:
            axis, updates = self.swept[place]
            return [(self.graph.new[axis, x], u) for x, u in updates.items()]
        return []

    def picks(self, made: Mapping[int, Term]) -> dict[int, Pick]:
        """The picks of classes by the terms that kernels store; a class that is read back is the one stored."""

        def stored(p: Place) -> Place:
            return p if p in self.built or p in self.swept else (p[0], made.get(p[0], p[1]))

        done: dict[Place, Pick] = {}
        open_: set[Place] = set()
        stack = list(made.items())
        while stack:
            place = stack[-1]
            below = list(map(stored, self._below(place)))
            missing = [p for p in below if p not in done and p not in open_ and p != place]
            if missing and place not in open_:
                open_.add(place)
                stack += missing
                continue
            stack.pop()
            if place not in done:
                done[place] = self._pick(place, [done.get(p, Pick(p[0], None)) for p in below])
        return {c: done[c, t] for c, t in made.items()}

    def _pick(self, place: Place, kids: Sequence[Pick]) -> Pick:
        if place in self.built:
            return Pick(place[0], self.built[place][0], tuple(kids))
        if place in self.swept:
            axis, updates = self.swept[place]
            return Pick(place[0], None, (), axis, tuple(zip(updates, kids, strict=True)))
        return Pick(place[0], None)


def named(form: Form, graph: EGraph, reasons: Reasons) -> Form:
    """The form with the laws that its picks rest on, where the graph has a history."""
    if not isinstance(graph, Explained):
        return form
    matches, whole = graph.trace.matches(reasons)
    return replace(form, laws=laws_of(matches), details={**form.details, "reasons": reasons, "traced": whole})
