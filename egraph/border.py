"""Which folds are kept whole: a value that no streamed axis runs through is a constant of every stream around it.

Under prefix semantics a fold over j is cut to a prefix wherever it stands. A fold that does not depend on j but holds
completed folds over j (a projection of what an earlier chain over j made) should not be cut by a later chain over j:
recomputing it at each step is never wanted, and the two chains would otherwise be one. Its readers see it through the
constructor `Whole`, which hides its folds over those axes; no factoring looks through it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir import term as T

Axes = frozenset[str]
NONE: Axes = frozenset()


def kept_whole(terms: Sequence[T.Term]) -> tuple[dict[T.Term, Axes], dict[T.Term, Axes]]:
    """Of terms in postorder: the folds that are kept whole, each with the axes over which it is; and the axes over which
    each term holds folds, as its readers see it.
    """
    around: dict[T.Term, Axes] = {}
    for t in reversed(terms):
        own = around.get(t, NONE)
        if isinstance(t, T.Fold):
            own |= frozenset(t.axes)
        for k in t.terms:
            around[k] = T.union((around.get(k, NONE), own))
    folded: dict[T.Term, Axes] = {}
    whole: dict[T.Term, Axes] = {}
    for t in terms:
        inside = T.union(folded[k] for k in t.terms)
        match t:
            case T.Fold(axes, _, x):
                inside |= frozenset(axes)
                hidden = (inside - x.free) & around.get(t, NONE)
                if hidden:
                    whole[t] = hidden
                    inside -= hidden
            case T.Extent(axis):
                inside = frozenset((axis,))
            case T.At():
                inside = NONE
        folded[t] = inside
    return whole, folded
