"""Why one form of a program equals another: the steps of their derivations in which they differ, as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from eggtile.pipeline import Region, RequestError
from egraph.derive import Derivation, Given, Step, derivation, shown
from egraph.laws import LAWS
from egraph.prefixes import over
from egraph.trace import Explained
from extract.lineage import Reasons
from extract.signature import form_signature
from ir.loop import Form
from ir.node import postorder
from ir.term import Term, Var
from ir.text import show_term

LARGE = 6  # nodes of a written value that gets a name where steps are shown


def chains(regions: Sequence[Region], a: str, b: str) -> list[dict[str, Any]]:
    """The steps from form A to form B in every region that has both; a number that no region has is refused."""
    most = max((len(r.listed) for r in regions), default=0)
    for name in (a, b):
        if name != "default" and not (name.isdigit() and int(name) < most):
            raise RequestError(f"there is no form {name}; forms are 0 to {most - 1}, or default")
    ends = ((r, form_of(r, a), form_of(r, b)) for r in regions)
    return [chain(r, a, b, left, right) for r, left, right in ends if left is not None and right is not None]


def form_of(region: Region, name: str) -> Form | None:
    """The form with a number, where the region has it; `default` is the one as written."""
    if name == "default":
        return region.default
    return region.listed[int(name)] if int(name) < len(region.listed) else None


def chain(region: Region, a: str, b: str, left: Form, right: Form) -> dict[str, Any]:
    """The steps from one form to another: those of A that B does not need are undone, those of B alone are made."""
    found, users = derived(region, (left, right))
    undone = [s for s, used in zip(reversed(found.steps), reversed(users), strict=True) if used == {0}]
    made = [s for s, used in zip(found.steps, users, strict=True) if used == {1}]
    names = Names(written(region))
    steps = [step_row(s, names, undo=True) for s in undone] + [step_row(s, names) for s in made]
    ends = [{"form": n, "signature": form_signature(f), "laws": list(f.laws)} for n, f in ((a, left), (b, right))]
    return {
        "from": ends[0],
        "to": ends[1],
        "shared_steps": users.count({0, 1}),
        "not_replayed": len(found.left),
        "where": names.lines,
        "steps": steps,
    }


def derived(region: Region, forms: Sequence[Form]) -> tuple[Derivation, list[set[int]]]:
    """The derivation of forms from the program as written, and for each step the forms, by position, that need it."""
    graph = region.graph
    assert isinstance(graph, Explained), "explore saturates with explain"
    needs = [graph.trace.matches(reasons(f))[0] for f in forms]
    users: dict[int, set[int]] = {}
    for n, matches in enumerate(needs):
        for m in matches:
            users.setdefault(id(m), set()).add(n)
    found = derivation(graph, (m for matches in needs for m in matches))
    for m in found.helpers:
        users[id(m)] = set(range(len(forms)))
    return found, [set[int]().union(*(users[id(m)] for m in s.matches)) for s in found.steps]


def reasons(form: Form) -> Reasons:
    """Why a form equals the program; nothing for the one as written."""
    found: Reasons = form.details.get("reasons", ())  # type: ignore[assignment]
    return found


def written(region: Region) -> frozenset[Term]:
    """The values of the program as written."""
    return frozenset(t for r in region.program.results for t in postorder(r.value))


class Names:
    """Names for the larger values of the program as written, `$0` on, so that a step shows what is new in it."""

    def __init__(self, written: frozenset[Term]) -> None:
        self.written = written
        self.known: dict[Term, Term] = {}
        self.lines: list[str] = []

    def text(self, t: Term) -> str:
        """A term whose operands are named where they are large."""
        return show_term(self._over(shown(t)))

    def short(self, t: Term) -> str:
        """The name of a large term, or its text."""
        return show_term(self._named(shown(t)))

    def _over(self, t: Term) -> Term:
        return over(t, [self._named(k) for k in t.terms])

    def _named(self, t: Term) -> Term:
        if t not in self.written or sum(1 for _ in postorder(t)) < LARGE:
            return self._over(t)
        if t not in self.known:
            text = show_term(self._over(t))
            self.known[t] = Var(f"${len(self.known)}", t.dtype, tuple(sorted(t.free)))
            self.lines.append(f"{show_term(self.known[t])} = {text}")
        return self.known[t]


def step_row(s: Step, names: Names, undo: bool = False) -> dict[str, Any]:
    """A step as data; an undone one goes from right to left. `sides` are the law's own, with what its variables are."""
    turn = -1 if undo else 1
    before, after = (s.before, s.after)[::turn]
    return {
        "law": s.law or "by definition",
        "class": LAWS[s.law].class_ if s.law else "exact",
        "undo": undo,
        "place": s.place,
        "before": names.text(before),
        "after": names.text(after),
        "given": [sentence(g, names) for g in s.given],
        "sides": [show_term(t) for t in s.sides[::turn]],
        "variables": {v: names.short(t) for v, t in s.bound.items() if isinstance(t, Term)},
        "error": s.error if s.error is None or math.isfinite(s.error) else None,
        "holds": s.holds,
    }


def sentence(g: Given, names: Names) -> str:
    """What a law needs, as text."""
    return g.sentence.format(*map(names.short, g.terms))
