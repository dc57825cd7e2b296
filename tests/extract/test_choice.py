"""A form costs what the cover does that it is made of, and it is one cover that is the best for any number of forms."""

from __future__ import annotations

import math

import pytest

from egraph.saturate import saturate
from extract.forms import Region, forms
from extract.items import Scope
from extract.key import form_key
from extract.regions import cuts
from extract.source import Source
from ir.loop import LoopProgram
from ir.lower import lower
from ir.machine import H200
from tests.random_programs import random_program
from tests.streamed_programs import case


def random_step(seed: int) -> LoopProgram:
    (step,) = lower(random_program(seed, size=14)[0]).steps
    assert isinstance(step, LoopProgram)
    return step


def assert_one_best(p: LoopProgram) -> None:
    graph = saturate(p)
    found = {k: forms(graph, H200, k=k) for k in (1, 2, 5, 12)}
    assert len({(form_key(fs[0]), fs[0].cost_us) for fs in found.values()}) == 1
    assert found[12][0].cost_us <= min(f.cost_us for f in found[12]) + 1e-5
    source = Source(graph)
    regions = [Region(Scope(source, c.roots, c.given), H200, None, math.inf) for c in cuts(source)]
    assert found[1][0].cost_us == pytest.approx(sum(r.best[0].us for r in regions))


@pytest.mark.parametrize("seed", range(12))
def test_a_program_of_chains_has_one_best_form(seed: int) -> None:
    assert_one_best(case(seed).program)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_program_has_one_best_form(seed: int) -> None:
    assert_one_best(random_step(seed))
