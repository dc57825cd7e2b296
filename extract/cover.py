"""The cheapest set of candidates that makes the roots, and the cheapest with each of them: integer programs for HiGHS."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from extract.candidates import Candidate
from extract.frontier import Frontier
from extract.source import ExtractError

TIE = 1e-6  # ties go to the earlier candidate
SHORTEST_S = 0.1  # the solver gets this much even where no time is left
Row = tuple[dict[int, float], float, float]


@dataclass(frozen=True)
class Cover:
    """Candidates in an order in which each is made before it is read. `gap` is the proved relative distance to the best."""

    picks: tuple[int, ...]
    us: float
    gap: float


@dataclass(frozen=True)
class Solved:
    """What the solver found: the candidates, none where it found no cover, and a bound on what any cover costs."""

    on: Sequence[int]
    bound: float


class CoverProblem:
    """Rows of the integer program over the candidates of one region; `given` classes exist already."""

    def __init__(self, candidates: Sequence[Candidate], roots: Sequence[int], given: frozenset[int]) -> None:
        self.candidates, self.roots, self.given = candidates, sorted(set(roots)), given
        self.makers: dict[int, list[int]] = defaultdict(list)
        for i, c in enumerate(candidates):
            for o in sorted(c.outs):
                self.makers[o].append(i)
        for r in self.roots:
            if not self.makers[r]:
                raise ExtractError(f"class {r} is a result, but none of {len(candidates)} candidates makes it")

    @cached_property
    def rows(self) -> list[Row]:
        """A class is made once, a root for certain; and who makes o by reading x needs x.

        The latter is summed over the makers of o, which is far tighter than a row a candidate.
        """
        rows: list[Row] = []
        for o in sorted(self.makers):
            wanted = 1.0 if o in self.roots else 0.0
            rows.append((dict.fromkeys(self.makers[o], 1.0), wanted, 1.0))
        for o in sorted(self.makers):
            read = {x for i in self.makers[o] for x in self.candidates[i].inputs}
            for x in sorted(read - self.given):
                row = dict.fromkeys(self.makers.get(x, ()), 1.0)
                for i in self.makers[o]:
                    if x in self.candidates[i].inputs:
                        row[i] = row.get(i, 0.0) - 1.0
                rows.append((row, 0.0, np.inf))
        return rows

    def best(self, deadline: float, most: float = math.inf) -> Cover:
        """The cheapest cover, one of which costs `most`; where the solver runs out of time, the better of what it has
        and the greedy one.
        """
        greedy = self.greedy()
        known = min(most, math.inf if greedy is None else greedy.us)
        most = known * (1 + TIE) + TIE * len(self.makers)
        on = self._by_class(most)
        if on is not None:
            order = self._order(on)
            assert order is not None, "readers come first"
            return Cover(order, sum(self.candidates[i].us for i in order), 0.0)
        us = dict(enumerate(c.us for c in self.candidates))
        bound = [(us, 0.0, most)] if math.isfinite(most) else []
        cover = self._cover(self._solve(deadline, rows=[*self.rows, *bound]), greedy)
        if cover is None:
            raise ExtractError(
                f"no acyclic set of {len(self.candidates)} candidates makes the {len(self.roots)} results"
            )
        return cover

    @cached_property
    def prices(self) -> list[float]:
        """What the candidates cost, the earlier of equals a little less."""
        return [c.us + TIE * i / len(self.candidates) for i, c in enumerate(self.candidates)]

    def _by_class(self, most: float) -> list[int] | None:
        """The candidates of the cheapest cover, class by class; None where that takes too long, or classes are circular."""
        try:
            frontier = Frontier(self.candidates, self.prices, self.given)
        except CycleError:
            return None
        return frontier.best(self.roots, most)

    def _cover(self, solved: Solved, other: Cover | None) -> Cover | None:
        """The better of two covers, with its distance to the bound; None where there is none."""
        on = self._used(solved.on)
        order = self._order(on) if on else None
        found = [] if order is None else [(sum(self.candidates[i].us for i in on), order)]
        found += [] if other is None else [(other.us, other.picks)]
        if not found:
            return None
        us, picks = min(found)
        gap = 1 - solved.bound / us if us else 0.0
        return Cover(picks, us, gap if gap > TIE else 0.0)

    def others(self, deadline: float) -> Iterator[Cover]:
        """For every candidate the cheapest cover that uses it, makers of roots first, until the time is up."""
        rows = [r for r in self.rows if np.isfinite(r[1])]
        wanted = set(self.roots)
        for i in sorted(range(len(self.candidates)), key=lambda i: not self.candidates[i].outs & wanted):
            if time.thread_time() > deadline:
                return
            cover = self._cover(self._solve(deadline, rows=[*rows, ({i: 1.0}, 1.0, 1.0)]), None)
            if cover is not None and i in cover.picks:
                yield cover

    def _used(self, on: Sequence[int]) -> list[int]:
        """The candidates that the roots need."""
        maker = {o: i for i in on for o in self.candidates[i].outs}
        used: set[int] = set()
        stack = list(self.roots)
        while stack:
            i = maker.get(stack.pop())
            if i is not None and i not in used:
                used.add(i)
                stack += self.candidates[i].inputs
        return sorted(used)

    def _solve(self, deadline: float, rows: Sequence[Row]) -> Solved:
        """The cheapest choice that the rows allow, or the best until the deadline."""
        n = len(self.candidates)
        values = [v for terms, _, _ in rows for v in terms.values()]
        columns = [i for terms, _, _ in rows for i in terms]
        starts = np.cumsum([0, *(len(terms) for terms, _, _ in rows)])
        matrix = csr_array((values, columns, starts), shape=(len(rows), n))
        low, high = [r[1] for r in rows], [r[2] for r in rows]
        result = milp(
            np.array(self.prices),
            constraints=LinearConstraint(matrix, low, high),
            integrality=np.ones(n),
            bounds=Bounds(0, 1),
            options={
                "time_limit": max(SHORTEST_S, deadline - time.thread_time()),
                "mip_rel_gap": 0,
                "presolve": False,
            },
        )
        bound = result.mip_dual_bound
        on = [] if result.x is None else [i for i in range(n) if result.x[i] > 0.5]
        return Solved(on, 0.0 if bound is None or not math.isfinite(bound) else max(0.0, float(bound) - TIE))

    def _order(self, on: Sequence[int]) -> tuple[int, ...] | None:
        """The candidates in dependency order; None where some wait on each other."""
        have, todo, out = set(self.given), list(on), list[int]()
        while todo:
            ready = next((i for i in todo if self.candidates[i].inputs <= have), None)
            if ready is None:
                return None
            out.append(ready)
            have |= self.candidates[ready].outs
            todo.remove(ready)
        return tuple(out)

    def greedy(self) -> Cover | None:
        """A cover by the cheapest way to each class on its own, of unknown distance to the best; None where they wait
        on each other.
        """
        best: dict[int, tuple[float, int]] = {}
        changed = True
        while changed:
            changed = False
            for i, c in enumerate(self.candidates):
                if all(x in best or x in self.given for x in c.inputs):
                    us = c.us + sum(best[x][0] for x in c.inputs if x not in self.given)
                    for o in c.outs:
                        if o not in best or us < best[o][0] - 1e-9:
                            best[o], changed = (us, i), True
        missing = [r for r in self.roots if r not in best]
        if missing:
            raise ExtractError(f"class {missing[0]} is a result, but no acyclic set of candidates makes it")
        on: set[int] = set()
        stack = list(self.roots)
        while stack:
            x = stack.pop()
            if x not in self.given and best[x][1] not in on:
                on.add(best[x][1])
                stack += self.candidates[best[x][1]].inputs
        order = self._order(sorted(on))
        return None if order is None else Cover(order, sum(self.candidates[i].us for i in on), 1.0)
