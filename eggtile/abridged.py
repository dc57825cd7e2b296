"""Terms as text for people. Shared values are written out, so a term of few nodes may be long: what is deep is left out."""

from __future__ import annotations

from collections import Counter

from egraph.prefixes import over
from ir.term import Term, Var
from ir.text import show_term

MOST_NODES = 400
"""Written nodes of a term that is shown whole."""


def short_text(t: Term, most: int = MOST_NODES) -> str:
    """The text of a term, with dots for what lies deeper than `most` written nodes reach."""
    depth = depth_within(t, most)
    return show_term(t if depth is None else _cut(t, depth))


def line_of(t: Term, most: int) -> str:
    """The short text in one line."""
    return "; ".join(short_text(t, most).splitlines())


def depth_within(t: Term, most: int) -> int | None:
    """How deep a term may be written with at most so many nodes; None where that is all of it."""
    level, total, depth = Counter([t]), 1, 0
    while level:
        below: Counter[Term] = Counter()
        for x, n in level.items():
            for k in x.terms:
                below[k] += n
        total += below.total()
        if total > most:
            return depth
        level, depth = below, depth + 1
    return None


def _cut(t: Term, depth: int) -> Term:
    if depth:
        return over(t, [_cut(k, depth - 1) for k in t.terms])
    return Var("...", t.dtype, tuple(sorted(t.free))) if t.terms else t
