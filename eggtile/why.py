"""Why one form of a program equals another: the steps of their derivations in which they differ, as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eggtile.abridged import depth_within, short_text
from eggtile.deadline import UNLIMITED, Deadline, left_out
from eggtile.echo import cut
from eggtile.intermediate import difference
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

BY_DEFINITION = "by definition"
LARGE = 6  # nodes of a written value that gets a name where steps are shown


def chains(regions: Sequence[Region], a: str, b: str, deadline: Deadline = UNLIMITED) -> list[dict[str, Any]]:
    """The steps from form A to form B in every region that has both; a number that no region has is refused."""
    most = max((len(r.listed) for r in regions), default=0)
    for name in (a, b):
        if name != "default" and name not in map(str, range(most)):
            raise RequestError(f"there is no form {cut(name)}; forms are 0 to {most - 1}, or default")
    every = ((r, form_of(r, a), form_of(r, b)) for r in regions)
    ends = [(r, left, right) for r, left, right in every if left is not None and right is not None]
    return [
        chain(r, a, b, left, right, deadline.share(1 / (len(ends) - n))) for n, (r, left, right) in enumerate(ends)
    ]


def form_of(region: Region, name: str) -> Form | None:
    """The form with a number, where the region has it; `default` is the one as written."""
    if name == "default":
        return region.default
    return region.listed[int(name)] if int(name) < len(region.listed) else None


def chain(region: Region, a: str, b: str, left: Form, right: Form, deadline: Deadline) -> dict[str, Any]:
    """The steps from one form to another: those of A that B does not need are undone, those of B alone are made.

    Where the deadline comes before all matches were replayed, `left_out` says so. Where there are no steps, `difference`
    says how the forms differ; it is null elsewhere.
    """
    found, users, _ = derived(region, (left, right), deadline)
    undone = [s for s, used in zip(reversed(found.steps), reversed(users), strict=True) if used == {0}]
    made = [s for s, used in zip(found.steps, users, strict=True) if used == {1}]
    names = Names(written(region))
    steps = [step_row(s, names, undo=True) for s in undone] + [step_row(s, names) for s in made]
    ends = [{"form": n, "signature": form_signature(f), "laws": list(f.laws)} for n, f in ((a, left), (b, right))]
    alike = not (steps or found.cut or found.left)
    return {
        "from": ends[0],
        "to": ends[1],
        "shared_steps": users.count({0, 1}),
        "not_replayed": 0 if found.cut else len(found.left),
        "left_out": [left_out("steps", deadline.why())] if found.cut else [],
        "where": names.lines,
        "steps": steps,
        "difference": difference(a, left, b, right) if alike else None,
    }


def derived(
    region: Region, forms: Sequence[Form], deadline: Deadline
) -> tuple[Derivation, list[set[int]], list[int]]:
    """The derivation of forms, the first ones first, from the program as written.

    For each step the forms, by position, that need it; and the forms of which steps are missing.
    """
    graph = region.graph
    assert isinstance(graph, Explained), "explore saturates with explain"
    needs = [[] if deadline.spent else graph.trace.matches(reasons(f))[0] for f in forms]
    users: dict[int, set[int]] = {}
    for n, matches in enumerate(needs):
        for m in matches:
            users.setdefault(id(m), set()).add(n)
    found = derivation(graph, (m for matches in needs for m in matches), deadline=deadline.at)
    missed = {n for n, f in enumerate(forms) if reasons(f) and not needs[n]} if deadline.spent else set[int]()
    found = replace(found, cut=found.cut or bool(missed))
    short = missed.union(*(users[id(m)] for m in found.left))
    for m in found.helpers:
        users[id(m)] = set(range(len(forms)))
    return found, [set[int]().union(*(users[id(m)] for m in s.matches)) for s in found.steps], sorted(short)


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
        t = shown(t)
        return short_text(over(t, [self._named(k) for k in t.terms]))

    def short(self, t: Term) -> str:
        """The name of a large term, or its text."""
        return short_text(self._named(shown(t)))

    def _named(self, root: Term) -> Term:
        """The term with names in it."""
        stack = [root]
        while stack:
            t = stack[-1]
            missing = [] if t in self.known else [k for k in reversed(t.terms) if k not in self.known]
            stack += missing
            if not missing:
                stack.pop()
                if t not in self.known:
                    self.known[t] = self._name(t)
        return self.known[root]

    def _name(self, t: Term) -> Term:
        """A term over operands with names; its own name where it is large, which is said in `lines`."""
        made = over(t, [self.known[k] for k in t.terms])
        if t not in self.written or depth_within(t, LARGE - 1) is None:
            return made
        name = Var(f"${len(self.lines)}", t.dtype, tuple(sorted(t.free)))
        self.lines.append(f"{show_term(name)} = {short_text(made)}")
        return name


def step_row(s: Step, names: Names, undo: bool = False) -> dict[str, Any]:
    """A step as data; an undone one goes from right to left. `sides` are the law's own, with what its variables are."""
    turn = -1 if undo else 1
    before, after = (s.before, s.after)[::turn]
    return {
        "law": s.law or BY_DEFINITION,
        "class": LAWS[s.law].class_ if s.law else "exact",
        "undo": undo,
        "place": s.place,
        "before": names.text(before),
        "after": names.text(after),
        "given": [sentence(g, names) for g in s.given],
        "sides": [short_text(t) for t in s.sides[::turn]],
        "variables": {v: names.short(t) for v, t in s.bound.items() if isinstance(t, Term)},
        "error": s.error if s.error is None or math.isfinite(s.error) else None,
        "holds": s.holds,
    }


def sentence(g: Given, names: Names) -> str:
    """What a law needs, as text."""
    return g.sentence.format(*map(names.short, g.terms))
