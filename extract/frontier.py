"""The cheapest cover found class by class: readers before what they read, the best way to every set that is still needed.

Of a region's classes few are needed and not made at one time, so that few such sets are met, where the integer program's
relaxation is far from its best. What costs more than a known cover, by a bound on what is still to be made, is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from graphlib import TopologicalSorter
from operator import itemgetter
from typing import Any, NamedTuple

from extract.candidates import Candidate
from extract.work import bits

MOST_STEPS = 200_000
"""Choices of a candidate that are looked at; where more are needed, the integer program is quicker."""
BEAM = 30
"""Sets of classes of which the first search goes on, for a cover that bounds the second one well."""


class _Way(NamedTuple):
    """A candidate: its price, the places of the classes that it makes and reads as bits, and its number."""

    us: float
    outs: int
    inputs: int
    number: int


Trail = tuple[int, Any] | None
"""The candidates chosen so far: the last one, and those before it."""
State = tuple[int, int]
"""Classes that are needed and not made, and those made that a candidate for a later class would make again, as bits."""

Layer = dict[State, tuple[float, Trail]]


class Frontier:
    """Candidates by the place of what they make in an order in which readers come first.

    Raises `CycleError` where there is none.
    """

    def __init__(self, candidates: Sequence[Candidate], prices: Sequence[float], given: frozenset[int]) -> None:
        reads: dict[int, set[int]] = defaultdict(set)
        for c in candidates:
            for o in c.outs:
                reads[o] |= c.inputs - given
        order = [*TopologicalSorter({o: sorted(reads[o]) for o in sorted(reads)}).static_order()]
        self.place = {o: n for n, o in enumerate(reversed(order))}
        self.ways: list[list[_Way]] = [[] for _ in order]
        for n, c in enumerate(candidates):
            way = _Way(prices[n], self._set(c.outs), self._set(c.inputs - given), n)
            for o in c.outs:
                self.ways[self.place[o]].append(way)
        self.again = [0] * (len(order) + 1)
        self.whole, self.share = [math.inf] * len(order), [math.inf] * len(order)
        self._least: dict[int, float] = {}
        for n in reversed(range(len(order))):
            self._bound(n)

    def _set(self, classes: Iterable[int]) -> int:
        return sum(1 << self.place[c] for c in classes)

    def _bound(self, n: int) -> None:
        """What it costs at least to have a class: all that is below it, and its share of the candidate that makes it."""
        self.again[n] = self.again[n + 1]
        for w in self.ways[n]:
            self.whole[n] = min(self.whole[n], w.us + max((self.whole[k] for k in bits(w.inputs)), default=0.0))
            self.share[n] = min(self.share[n], w.us / w.outs.bit_count())
            if w.outs.bit_count() > 1:
                self.again[n] |= w.outs

    def least(self, needed: int) -> float:
        """What the classes cost at least."""
        if needed not in self._least:
            places = [*bits(needed)]
            whole = max((self.whole[k] for k in places), default=0.0)
            self._least[needed] = max(whole, sum(self.share[k] for k in places))
        return self._least[needed]

    def best(self, roots: Iterable[int], most: float) -> list[int] | None:
        """The numbers of the cheapest candidates that make the roots, where one cover costs `most`.

        None where too many sets of classes are met, or no cover costs that little.
        """
        start = self._set(roots)
        near = self._searched(start, most, BEAM)
        found = self._searched(start, most if near is None else near[0])
        return None if found is None else sorted(_numbers(found[1]))

    def _searched(self, roots: int, most: float, width: int | None = None) -> tuple[float, Trail] | None:
        """The cheapest cover for at most `most`; with `width` after each class the best so many sets alone go on."""
        layer: Layer = {(roots, 0): (0.0, None)}
        steps = 0
        for n, ways in enumerate(self.ways):
            if width is not None and len(layer) > width:
                best = sorted(layer, key=lambda s: (layer[s][0] + self.least(s[0]), s))[:width]
                layer = {s: layer[s] for s in best}
            again, later = self.again[n + 1], Layer()
            for (needed, made), (us, trail) in layer.items():
                if not needed >> n & 1:
                    _put(later, (needed, made & again), us, trail)
                    continue
                steps += len(ways)
                for way_us, outs, inputs, number in ways:
                    total = us + way_us
                    if total > most or outs & made:
                        continue
                    have = made | outs
                    left = (needed | inputs) & ~have
                    if total + self.least(left) <= most:
                        _put(later, (left, have & again), total, (number, trail))
            if steps > MOST_STEPS:
                return None
            layer = later
        return min(layer.values(), key=itemgetter(0), default=None)


def _put(layer: Layer, state: State, us: float, trail: Trail) -> None:
    """Keep the cheapest way to a state, the first of equals."""
    if state not in layer or us < layer[state][0]:
        layer[state] = us, trail


def _numbers(trail: Trail) -> Iterator[int]:
    while trail is not None:
        number, trail = trail
        yield number
