"""The cheapest cover class by class is the one that the integer program finds."""

from __future__ import annotations

import math
import random

import pytest

from extract import cover
from extract.candidates import Candidate
from extract.cost import Cost
from extract.cover import CoverProblem
from extract.source import ExtractError

COST = Cost(0.0, 0, 0, {}, 0, 0, 1, 0.0, 0.0, 0.0, ())


class Kernel(Candidate):
    """A candidate of which only what it makes is given."""

    @property
    def outs(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset(map(int, self.kind.split()))


def problem(seed: int) -> CoverProblem:
    """Kernels of one to three classes, which read classes of higher numbers."""
    draw = random.Random(seed)
    count = draw.randint(4, 10)
    found = []
    for _ in range(draw.randint(15, 60)):
        outs = sorted(draw.sample(range(count), draw.choice((1, 1, 2, 3))))
        below = range(outs[-1] + 1, count + 2)
        inputs = frozenset(draw.sample(below, min(len(below), draw.randint(0, 3))))
        found.append(Kernel((), inputs, draw.uniform(1.0, 9.0), COST, " ".join(map(str, outs))))
    return CoverProblem(found, sorted({0, draw.randrange(count)}), frozenset({count, count + 1}))


@pytest.mark.parametrize("seed", range(60))
def test_both_searches_find_the_same_cover(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        by_class = problem(seed).best(math.inf)
    except ExtractError:
        return
    monkeypatch.setattr(cover.Frontier, "best", lambda *_: None)
    by_program = problem(seed).best(math.inf)
    assert (by_class.us, by_class.gap) == (pytest.approx(by_program.us), by_program.gap)
    made = [o for i in by_class.picks for o in problem(seed).candidates[i].outs]
    assert by_class.gap or len(made) == len(set(made)), "only the greedy cover makes a class twice"
