"""However little time there is, a form comes back, and it says what was cut short."""

from __future__ import annotations

import pytest

from egraph.graph import Budget
from egraph.saturate import saturate
from extract import cover, frontier
from extract.forms import forms
from ir.machine import H200
from tests.extract.programs import error
from tests.extract.test_forms import chain, layers


@pytest.mark.parametrize("budget_s", [0.0, 0.001, 0.1])
def test_a_form_comes_back_from_any_budget_of_seconds(budget_s: float) -> None:
    p = layers(2)
    (f,) = forms(saturate(p), H200, budget_s=budget_s)
    assert error(f, p) < 1e-9
    assert f.details["stop"]
    assert "candidates" not in f.details["stop"] or f.details["gap"] is None


@pytest.mark.parametrize("budget", [Budget(nodes=1), Budget(iterations=0), Budget(seconds=0.0), Budget(nodes=40)])
def test_a_form_comes_back_from_any_budget_of_the_graph(budget: Budget) -> None:
    p = chain(b=2, i=6, j=10, d=3, e=4)
    graph = saturate(p, budget=budget)
    assert graph.report.stop in ("nodes", "iterations", "seconds")
    assert error(forms(graph, H200)[0], p) < 1e-9


def test_the_gap_is_not_known_where_candidates_are_cut_short() -> None:
    p = layers(2)
    (f,) = forms(saturate(p), H200, budget_s=0.0)
    assert (f.details["gap"], "candidates" in f.details["stop"]) == (None, True)
    (f,) = forms(saturate(p), H200)
    assert (f.details["gap"], f.details["stop"]) == (0.0, ())


def test_a_cover_that_is_not_proved_has_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    p = layers(1)
    (best,) = forms(saturate(p), H200)
    assert (best.details["gap"], best.details["stop"]) == (0.0, ())
    monkeypatch.setattr(frontier, "MOST_STEPS", 0)
    monkeypatch.setattr(cover, "SHORTEST_S", 1e-4)
    in_time = cover.CoverProblem._solve
    monkeypatch.setattr(cover.CoverProblem, "_solve", lambda self, _, **given: in_time(self, 0.0, **given))
    (f,) = forms(saturate(p), H200)
    assert f.details["stop"] == ("solver",)
    assert 0 < float(str(f.details["gap"])) <= 1
    assert best.cost_us <= f.cost_us
    assert error(f, p) < 1e-9
