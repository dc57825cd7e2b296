"""The laws that a form names are enough to find it again."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from egraph.graph import Budget
from egraph.laws import laws
from egraph.saturate import saturate
from egraph.trace import WRITTEN
from extract.cost import Cost
from extract.forms import default_form, forms
from ir.loop import Form, LoopProgram
from ir.machine import H200
from tests.extract.programs import error, program
from tests.extract.test_forms import chain, exponentials

CHAIN = {"q": ("f32", ("i", "d")), "k": ("f32", ("j", "d")), "v": ("f32", ("j", "e"))}
SCORES = "s = add[d](q[i, d] * k[j, d]) if j <= i else f32(-inf)\np = exp(s - max[j](s))"
VECTORS = dict.fromkeys("xyz", ("f32", ("i",)))
PROGRAMS: dict[str, tuple[LoopProgram, str]] = {
    "normalised exponentials": (exponentials(6, 10), "default"),
    "a masked chain": (
        program({"i": 6, "j": 6, "d": 3, "e": 4}, CHAIN, [("o", ("i", "e"), "add[j](p / add[j](p) * v[j, e])")], SCORES),
        "default",
    ),
    "a rounded chain": (chain(b=2, i=6, j=10, d=3, e=4), "default"),
    "three matrices": (
        program(
            {"i": 512, "k": 4, "j": 512, "l": 4},
            {"a": ("f32", ("i", "k")), "b": ("f32", ("k", "j")), "c": ("f32", ("j", "l"))},
            [("o", ("i", "l"), "add[j](add[k](a[i, k] * b[k, j]) * c[j, l])")],
        ),
        "default",
    ),
    "a common factor": (program({"i": 4}, VECTORS, [("o", ("i",), "x[i] * y[i] + x[i] * z[i]")]), "default"),
    "an undone logarithm": (
        program({"i": 4}, VECTORS, [("o", ("i",), "exp(log(exp(x[i]))) * f32(1.0) + f32(0.0)")]),
        "fast",
    ),
}  # fmt: skip


def shape(f: Form) -> tuple[object, ...]:
    """Loops, contractions, states and work of each kernel."""
    costs: dict[str, Cost] = f.details["kernels"]  # type: ignore[assignment]
    return tuple(sorted((c.shape, c.flops, c.bytes) for c in costs.values()))


def best(p: LoopProgram, numerics: str, without: Collection[str]) -> tuple[object, ...]:
    (f,) = forms(saturate(p, numerics, without), H200)
    return shape(f)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_laws_of_the_best_form_are_enough(name: str) -> None:
    p, numerics = PROGRAMS[name]
    (f,) = forms(saturate(p, numerics, explain=True), H200)
    assert f.details["traced"]
    everything = {x.name for x in laws(numerics)}
    assert best(p, numerics, everything - set(f.laws)) == shape(f)


def test_every_form_is_traced_and_a_form_as_written_names_no_law() -> None:
    p, _ = PROGRAMS["a masked chain"]
    found = forms(saturate(p, explain=True), H200, k=6)
    assert all(f.details["traced"] for f in found)
    assert {len(f.laws) for f in found} > {0}
    assert default_form(p, H200).laws == ()
    assert forms(saturate(p), H200)[0].laws == ()


def test_a_dropped_rounding_is_a_choice_that_the_form_states() -> None:
    inputs = {"x": ("bf16", ("i",)), "y": ("bf16", ("i",))}
    p = program({"i": 8}, inputs, [("o", ("i",), "bf16.op(bf16.op(x[i] * y[i]) + y[i])")])
    graph = saturate(p, explain=True)
    assert forms(graph, H200, drop_rounds=True)[0].details["dropped_rounds"] == 1
    assert "dropped_rounds" not in forms(graph, H200)[0].details


def test_nodes_name_the_law_that_made_them_and_classes_the_laws_that_joined_them() -> None:
    p, _ = PROGRAMS["an undone logarithm"]
    graph = saturate(p, "fast", explain=True)
    assert set(graph.origin) == {(c, n) for c, nodes in graph.classes.items() for n in nodes}
    assert set(graph.joins[graph.roots[0]]) >= {"factor_one_vanishes", "addend_zero_vanishes"}
    assert set(graph.origin.values()) == {WRITTEN}
    plain = saturate(p, "fast")
    assert plain.classes == graph.classes and not plain.origin


@pytest.mark.parametrize(
    ("budget", "stop"),
    [
        (Budget(nodes=1), "nodes"),
        (Budget(seconds=0.0), "seconds"),
        (Budget(iterations=1), "iterations"),
        (Budget(), "saturated"),
    ],
)
def test_a_budget_that_is_spent_says_so_and_the_best_so_far_is_returned(budget: Budget, stop: str) -> None:
    p = chain(b=2, i=6, j=10, d=3, e=4)
    graph = saturate(p, budget=budget, explain=True)
    assert graph.report.stop == stop
    (f,) = forms(graph, H200)
    assert error(f, p) < 1e-9 and f.details["traced"]
