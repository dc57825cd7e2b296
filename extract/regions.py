"""A large program is cut where everything passes: at values that dominate all that is computed for them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from extract.facts import swept
from extract.source import Source
from extract.work import SPECIAL, bytes_of
from ir import term as T
from ir.dtype import is_float
from ir.node import postorder
from ir.term import Term

SMALL = 100  # terms of a program that is one region
LEAST, MOST = 20, 110  # terms of a region of a good size
LARGEST = 600  # terms among which a border is sought


@dataclass(frozen=True)
class Cut:
    """A region: the classes that it makes for others and the classes that earlier regions made."""

    roots: frozenset[int]
    given: frozenset[int]


def cuts(source: Source) -> list[Cut]:
    """The regions of a program in order; one where it is small."""
    graph = source.graph
    results = [s.value for s in graph.program.results]
    everything = list(postorder(*results))
    if len(everything) <= SMALL:
        return [Cut(frozenset(graph.roots), frozenset())]
    main = max(results, key=lambda t: (sum(1 for _ in postorder(t)), t.digest))
    ends = dict.fromkeys((*_borders(source, main), main))
    regions = [set(below([t], ends)) for t in ends]
    made: list[set[Term]] = [{t} for t in ends]
    for t in results:
        first = next((k for k, region in enumerate(regions) if t in region), len(ends) - 1)
        made[first].add(t)
    prelude = _share(made, ends)
    out: list[Cut] = []
    given: frozenset[int] = frozenset()
    for terms in ([prelude] if prelude else []) + made:
        roots = frozenset(graph.class_of[t] for t in terms) - given
        if roots:
            out.append(Cut(roots, given))
            given |= roots
    return out


def _borders(source: Source, main: Term) -> list[Term]:
    """Values that all terms below them serve alone: per stretch of the program the smallest of a good distance."""
    axes = source.graph.program.axes

    def stored_bytes(t: Term) -> int:
        return math.prod(axes[a] for a in t.free) * bytes_of(t.dtype)

    order = list(postorder(main))
    readers: dict[Term, set[Term]] = defaultdict(set)
    folded: set[Term] = set()
    for t in order:
        for k in t.terms:
            readers[k].add(t)
        if swept(t) or any(k in folded for k in t.terms):
            folded.add(t)
    borders: dict[Term, None] = {}
    best: tuple[tuple[bool, int], int] | None = None
    start = at = 0
    while at < len(order) - 1:
        t = order[at]
        if len(readers[t]) < 2 and at - start <= 2 * MOST:
            at += 1
            continue
        own = below([t], borders, LARGEST) if _storable(t) else []
        fits = LEAST <= len(own) <= LARGEST and _alone(t, own, borders, readers, folded, stored_bytes)
        rank = len(readers[t]) < 2, stored_bytes(t)
        if fits and best is not None and len(own) > (2 * MOST if best[0][0] else MOST):
            start = at = best[1]  # what lies between is looked at again from the new border
            borders[order[at]] = None
            best = None
        elif fits and (best is None or rank < best[0]):
            best = rank, at
        at += 1
    if best is not None and len(below([main], borders)) > MOST:
        borders[order[best[1]]] = None
    return list(borders)


def _alone(
    t: Term,
    own: Sequence[Term],
    borders: Container[Term],
    readers: Mapping[Term, set[Term]],
    folded: set[Term],
    stored_bytes: Callable[[Term], int],
) -> bool:
    """Whether what is computed for `t` serves nothing else, but for inputs and maps of them that are small beside it."""
    inside = set(own)
    for k in own:
        if k is t or (k in borders and k is not t) or (not k.terms and not isinstance(k, T.Load)):
            continue
        if readers[k] <= inside or not is_float(k.dtype):
            continue
        if k in folded or 4 * stored_bytes(k) > stored_bytes(t):
            return False
    return not any(readers[k] - inside for k in own if k in borders)


def _storable(t: Term) -> bool:
    return is_float(t.dtype) and bool(t.free) and not isinstance(t, T.Load | T.Const)


def below(roots: Sequence[Term], ends: Container[Term], most: float = math.inf) -> list[Term]:
    """Terms from which the roots are computed, children first, down to inputs and ends; a root is never an end.

    The search stops soon after `most` terms.
    """
    out: list[Term] = []
    seen: set[Term] = set()
    stack: list[Term | None] = [*reversed(roots)]
    path: list[Term] = []  # each None on the stack ends the children of the last of these
    while stack and len(out) <= most:
        t = stack.pop()
        if t is None:
            out.append(path.pop())
        elif t not in seen:
            seen.add(t)
            if t.terms and (t not in ends or t in roots):
                path.append(t)
                stack.append(None)
                stack += t.terms[::-1]
            else:
                out.append(t)
    return out


def _share(made: list[set[Term]], ends: Mapping[Term, None]) -> set[Term]:
    """Dear values that several regions read are made once: added to the first of these, or returned as a prelude."""
    regions = [below(sorted(terms, key=lambda t: t.digest), ends) for terms in made]
    count = Counter(t for region in regions for t in region)
    shared = {t for t, n in count.items() if n > 1} - ends.keys()
    dear: dict[Term, bool] = {}
    for t in postorder(*ends):
        own = isinstance(t, T.Fold | T.Scan) or (isinstance(t, T.Unary) and t.op in SPECIAL)
        dear[t] = own or (t not in ends and any(dear[k] for k in t.terms))
    outermost = {
        k for region in regions for t in region if t not in shared for k in t.terms if k in shared and dear.get(k)
    }
    prelude: set[Term] = set()
    for t in outermost:
        if _storable(t):
            rests = any(e in ends for e in below([t], ends))
            first = next(k for k, region in enumerate(regions) if t in region)
            (made[first] if rests else prelude).add(t)
    return prelude
