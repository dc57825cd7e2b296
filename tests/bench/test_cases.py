"""The suite: its cases are what they say, and every set of inputs can be made again."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from bench.cases import CASES, EXTRAS, baseline, case, select
from bench.cases.fixtures import FIXTURES, Fixture
from bench.cases.spec import DTYPES, Case

EVERY = (*CASES, *EXTRAS)


def results_of(item: Case) -> tuple[torch.Tensor, ...]:
    fn, inputs = item.program(tiny=True)
    with torch.no_grad():
        out = fn(*inputs)
    return out if isinstance(out, tuple) else (out,)


def test_the_suite_has_seventy_cases_and_every_name_is_its_own():
    assert len(CASES) == 70
    assert len({c.name for c in EVERY}) == len(EVERY)


def test_every_case_of_the_suite_has_a_recorded_baseline():
    assert {c.name for c in CASES} == set(baseline())


@pytest.mark.parametrize("item", EVERY, ids=lambda c: c.name)
def test_a_tiny_case_gives_the_outputs_it_declares(item: Case):
    declared = [(t.shape, DTYPES[t.dtype or item.dtype]) for t in item.built(tiny=True).outputs]
    assert [(tuple(t.shape), t.dtype) for t in results_of(item)] == declared


def test_flops_and_bytes_at_full_size_are_those_of_the_baseline():
    for item in CASES:
        built, recorded = item.built(), baseline()[item.name]
        assert math.isclose(built.flops, float(str(recorded["flops"]))), item.name
        assert math.isclose(item.bytes_moved(built), float(str(recorded["bytes"]))), item.name


def test_inputs_come_again_from_their_seed_and_differ_between_copies():
    item = case("rr.rmsnorm_4096x2048")
    built = item.built(tiny=True)
    first, again, other = (item.inputs(built, "cpu", copy) for copy in (0, 0, 1))
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))


def test_a_causal_mask_leaves_the_keys_up_to_the_query():
    mask = case("at.hand_causal_32x2048x128").program(tiny=True)[1][3]
    kept = mask[0, 0] == 0
    assert torch.equal(kept, torch.ones_like(kept).tril())
    window = case("at.window1024_32x4096x128").program(tiny=True)[1][3][0, 0] == 0
    assert window.sum(1).tolist() == [1, 2, 3] + [4] * 13


def test_selection_takes_a_pattern_and_puts_the_core_first():
    found = select(r"^rr\.")
    assert {c.family for c in found} == {"rr"}
    assert [c.prio for c in found] == sorted(c.prio for c in found)


@pytest.mark.parametrize("fixture", [f for f in FIXTURES if not f.large], ids=lambda f: f.name)
def test_eager_gives_a_fixtures_right_values(fixture: Fixture):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = fixture.fn(*fixture.inputs())
    got = out if isinstance(out, tuple) else (out,)
    assert all(isinstance(t, torch.Tensor) for t in got)
    for y, right in zip(got, fixture.right or got, strict=True):
        torch.testing.assert_close(y, right, rtol=0, atol=0, equal_nan=True)
