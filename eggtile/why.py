"""Why one form of a program equals another: the steps of their derivations in which they differ, as data."""

from __future__ import annotations

from typing import Any

from eggtile.explore import form_signature
from eggtile.pipeline import Region, RequestError
from egraph.derive import Step, derivation, shown
from egraph.laws import LAWS
from egraph.prefixes import over
from egraph.trace import Explained
from extract.lineage import Reasons
from ir.loop import Form
from ir.node import postorder
from ir.term import Term, Var
from ir.text import show_term

LARGE = 6  # nodes of a written value that gets a name where steps are shown


def chain(region: Region, a: str, b: str) -> dict[str, Any]:
    """The steps from one form to another: those of A that B does not need are undone, those of B alone are made."""
    left, right = form_of(region, a), form_of(region, b)
    first, second = steps_of(region, left), steps_of(region, right)
    known = {(s.law, s.before, s.after) for s in first}
    kept = {(s.law, s.before, s.after) for s in second}
    undone = [s for s in reversed(first) if (s.law, s.before, s.after) not in kept]
    made = [s for s in second if (s.law, s.before, s.after) not in known]
    written = frozenset(t for r in region.program.results for t in postorder(r.value))
    names = Names(written)
    steps = [step_row(s, names, undo=True) for s in undone] + [step_row(s, names, undo=False) for s in made]
    ends = [{"form": n, "signature": form_signature(f), "laws": list(f.laws)} for n, f in ((a, left), (b, right))]
    return {
        "from": ends[0],
        "to": ends[1],
        "shared_steps": len(second) - len(made),
        "where": names.lines,
        "steps": steps,
    }


def form_of(region: Region, name: str) -> Form:
    """The form with a number; `default` is the one as written."""
    if name == "default":
        return region.default
    if not name.isdigit() or int(name) > len(region.forms):
        raise RequestError(f"there is no form {name}; forms are 0 to {len(region.forms)}, or default")
    return [*region.forms, region.default][int(name)]


def steps_of(region: Region, form: Form) -> list[Step]:
    """The derivation of a form from the program as written."""
    graph = region.graph
    assert isinstance(graph, Explained), "explore saturates with explain"
    reasons: Reasons = form.details.get("reasons", ())  # type: ignore[assignment]
    return derivation(graph, graph.trace.matches(reasons)[0])


class Names:
    """Names for the larger values of the program as written, so that a step shows what is new in it."""

    def __init__(self, written: frozenset[Term]) -> None:
        self.written = written
        self.known: dict[Term, Term] = {}
        self.lines: list[str] = []

    def text(self, t: Term) -> str:
        """A term whose operands are named where they are large."""
        return show_term(self._over(shown(t)))

    def _over(self, t: Term) -> Term:
        return over(t, [self._named(k) for k in t.terms])

    def _named(self, t: Term) -> Term:
        if t not in self.written or sum(1 for _ in postorder(t)) < LARGE:
            return self._over(t)
        if t not in self.known:
            text = show_term(self._over(t))
            self.known[t] = Var(f"v{len(self.known)}", t.dtype, tuple(sorted(t.free)))
            self.lines.append(f"{show_term(self.known[t])} = {text}")
        return self.known[t]


def step_row(s: Step, names: Names, undo: bool) -> dict[str, Any]:
    """A step as data; an undone one goes from right to left."""
    before, after = (s.after, s.before) if undo else (s.before, s.after)
    return {
        "law": s.law,
        "class": LAWS[s.law].class_,
        "undo": undo,
        "place": s.place,
        "before": names.text(before),
        "after": names.text(after),
        "replayed": s.replayed,
        "error": s.error,
    }


def confirmed(s: dict[str, Any]) -> str:
    """How a step was confirmed."""
    if s["replayed"]:
        return "replayed by matching the law"
    return "not checked" if s["error"] is None else f"checked by numbers, relative difference {s['error']:.1e}"
