"""The model against measured times: which lines, what the rows say, and that a fit finds what made the times."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from bench.cases import case
from bench.model import FIRST, FITTED, HELD_OUT, LINES, Scheduled, correlation, fit, judged, loss, sample, scheduled
from eggtile.measure import Row
from ir.machine import H200


@cache
def subject() -> Scheduled:
    return scheduled(case("emmy.rmsnorm_1x32x2048"))


def timed(own: Scheduled) -> Row:
    """A row whose times are the model's."""
    lines = sample(own)
    return judged({"us": dict(zip(map(str, lines), own.us(lines), strict=True)), "refused": {}}, own)


def test_no_case_is_both_fitted_and_held_out():
    assert not {*FITTED} & {*HELD_OUT}
    assert len(FITTED) >= 6 and len(HELD_OUT) >= 6


def test_the_sample_holds_the_first_lines_and_a_spread():
    own = subject()
    lines = sample(own)
    assert lines[:FIRST] == list(own.space(64).lines[:FIRST])
    assert 20 <= len(set(lines)) <= LINES
    first, *_, last = own.us(lines)
    assert last > 2 * first


def test_a_row_says_how_the_model_ranks_its_lines():
    row = timed(subject())
    assert row["spearman"] == pytest.approx(1.0)
    backwards = {x: -us for x, us in row["us"].items()}
    assert correlation(row["us"], backwards) == pytest.approx(-1.0)


def test_a_fit_comes_nearer_to_times_that_other_weights_made():
    rates = replace(H200.rates, step_us=1.5, instruction_us=0.003)
    own = subject()
    made = [(timed(own.under(rates)), own)]
    assert loss(made, rates) < 1e-9
    assert loss(made, fit(made, H200.rates, 120)) < 0.8 * loss(made, H200.rates)
