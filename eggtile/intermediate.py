"""What forms write to memory between their kernels, and how forms differ in it that no law tells apart."""

from __future__ import annotations

from collections.abc import Mapping

from eggtile.abridged import line_of
from egraph.prefixes import over
from ir.loop import Form
from ir.node import postorder
from ir.term import Load, Term
from ir.text import show_term

Value = tuple[tuple[Term, ...], Term]
"""The index at which a value is stored, and the value over the program's own inputs."""
SHOWN = 40  # written nodes of a value


def intermediates(form: Form) -> Mapping[Value, str]:
    """The values that kernels of a form write for later ones, with the names of their buffers."""
    scratch = {b.name for b in form.buffers if b.role == "scratch"}
    known: dict[tuple[str, tuple[Term, ...]], Term] = {}
    names: dict[Value, str] = {}
    for s in (s for k in form.kernels for s in k.stores if s.buffer in scratch):
        known[s.buffer, s.index] = value = _read(s.value, known)
        names[s.index, value] = s.buffer
    return names


def _read(value: Term, known: Mapping[tuple[str, tuple[Term, ...]], Term]) -> Term:
    """A value with known ones in place of their loads; a load at another index than theirs stays."""
    made: dict[Term, Term] = {}
    for t in postorder(value):
        stored = known.get((t.buffer, t.index)) if isinstance(t, Load) else None
        made[t] = stored or (over(t, [made[k] for k in t.terms]) if t.terms else t)
    return made[value]


def difference(a: str, left: Form, b: str, right: Form) -> str:
    """How two forms differ to which the same steps lead, as a sentence."""
    if left is right:
        return f"{a} and {b} are the same form"
    sides = (a, intermediates(left), b, intermediates(right)), (b, intermediates(right), a, intermediates(left))
    facts = []
    for one, own, other, others in sides:
        only = [
            f"{name}[{', '.join(map(show_term, v[0]))}] = {line_of(v[1], SHOWN)}"
            for v, name in own.items()
            if v not in others
        ]
        if only:
            facts.append(
                f"form {one} writes {' and '.join(only)} to memory, which form {other} computes where it is used"
            )
    what = "; ".join(facts) or "they write the same values to memory, and compute them in other kernels or loops"
    return f"no law tells the forms apart, as the same steps lead to both: {what}"
