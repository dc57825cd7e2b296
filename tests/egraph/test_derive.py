"""Derivations are proofs: each step an instance of its law on what was shown before, the last ones the form itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egraph.derive import NUMBER, RANGED, Derivation, Given, derivation, difference
from egraph.prefixes import spelled_out
from egraph.saturate import saturate
from egraph.trace import Explained
from extract.forms import forms
from extract.lineage import Reasons
from ir import term as T
from ir.loop import LoopProgram
from ir.machine import H200
from ir.node import postorder
from tests.egraph.proof import Congruence, gaps, is_instance
from tests.egraph.test_streams import CASES as STREAMED
from tests.egraph.test_translation import CASES as SHIFTED
from tests.egraph.written import program as written
from tests.extract.programs import program
from tests.extract.test_laws_of_forms import PROGRAMS

MASKED = "s := X[i, j] if P[i, j] else f32(-inf)\np := exp(s - max[j](s))\nadd[j](p / add[j](p) * V[j, e])"
CASES: dict[str, tuple[LoopProgram, str]] = {
    **PROGRAMS,
    **{
        name: (written(STREAMED[name][0]), "default")
        for name in (
            "attention with a temperature after the shift",
            "attention, guarded",
            "softmax over two axes",
            "normalised rows times a matrix",
        )
    },
    **{name: (written(SHIFTED[name][0]), "default") for name in ("covariance", "with a bias")},
    "a factor of 1 in a sum": (written("add[j](X[i, j] * f32(1.0) * Y[i] * f32(1.0))"), "default"),
    "a row whose first keys may be masked": (written(MASKED, dtypes={"P": "bool"}), "default"),
    "two chains, cut between them": (
        written(
            "s := X[i, j]\nm := max[j](s)\np := exp(s - m)\no := bf16.op(add[j](p * V[j, e]) / add[j](p))\n"
            "r := bf16.cast(o * rsqrt(add[e](o * o) / f32(4.0) + f32(0.01)))\nadd[e](r * W[e, f])"
        ),
        "default",
    ),
    "two chains": (
        written(
            "s := X[i, j]\nm := max[j](s)\np := exp(s - m)\no := add[j](p * V[j, e]) / add[j](p)\n"
            "t := add[e](o * W[j, e])\nn := max[j](t)\nq := exp(t - n)\nadd[j](q * U[j, f]) / add[j](q)"
        ),
        "default",
    ),
}


def derived(graph: Explained, reasons: object) -> tuple[Derivation, Reasons]:
    assert isinstance(reasons, tuple)
    return derivation(graph, graph.trace.matches(reasons)[0]), reasons


@pytest.mark.parametrize("name", CASES)
def test_the_steps_to_every_form_prove_it_by_the_laws_that_it_names(name: str) -> None:
    p, numerics = CASES[name]
    graph = saturate(p, numerics, explain=True)
    assert isinstance(graph, Explained)
    for f in forms(graph, H200, k=3):
        found, reasons = derived(graph, f.details["reasons"])
        assert gaps(graph, found, reasons) == []
        assert all(s.holds for s in found.steps), [s for s in found.steps if not s.holds]
        assert {s.law for s in found.steps if s.law} == set(f.laws)


def test_a_chain_with_a_step_left_out_or_changed_is_no_proof() -> None:
    p, numerics = PROGRAMS["a masked chain"]
    graph = saturate(p, numerics, explain=True)
    assert isinstance(graph, Explained)
    found, reasons = derived(graph, forms(graph, H200)[0].details["reasons"])
    for n, s in enumerate(found.steps):
        rest = found.steps[:n] + found.steps[n + 1 :]
        if not Congruence().equal(s.before, s.after):  # what the checker takes for granted
            assert gaps(graph, Derivation(rest, ()), reasons), s.law
        wrong = replace(s, after=T.Unary("neg", s.after))
        assert not is_instance(wrong)
        assert gaps(graph, Derivation((*found.steps[:n], wrong, *found.steps[n + 1 :]), ()), reasons)


def test_steps_between_prefixes_say_where_they_are_no_numbers() -> None:
    graph = saturate(CASES["a row whose first keys may be masked"][0], explain=True)
    assert isinstance(graph, Explained)
    found, _ = derived(graph, forms(graph, H200)[0].details["reasons"])
    partial = [s for s in found.steps if any(g.sentence == NUMBER for g in s.given)]
    assert partial and all(any(isinstance(t, T.Prefix) for t in postorder(s.before, s.after)) for s in partial)


def rows() -> tuple[LoopProgram, T.Term, T.Term]:
    p = program({"i": 3, "j": 5}, {"x": ("f32", ("i", "j"))}, [("o", ("i",), "max[j](x[i, j])")])
    (most,) = (t for t in postorder(p.results[0].value) if isinstance(t, T.Fold))
    return p, most, most.x


def test_a_prefix_is_the_fold_up_to_its_step() -> None:
    p, most, x = rows()
    new, old = (T.Prefix(which, "j", most) for which in ("new", "old"))
    assert difference(p, new, T.Binary("max", old, x), 0) == (0.0, ())
    assert difference(p, new, T.Scan("j", "max", x), 0) == (0.0, ())
    assert difference(p, new, most, 0)[0] != 0.0
    assert not any(isinstance(t, T.Prefix) for t in postorder(spelled_out(new, {"i": 3, "j": 5})))


@pytest.mark.parametrize(("shift", "compared"), [(10.0, True), (1000.0, False)])
def test_terms_that_leave_the_range_of_floats_are_not_compared(shift: float, compared: bool) -> None:
    p, _, x = rows()
    up, down = T.const(shift, "f32"), T.const(-shift, "f32")
    lifted = T.binary("add", x, up)
    split = T.binary("mul", T.unary("exp", lifted), T.unary("exp", down))
    error, only = difference(p, T.unary("exp", T.binary("add", lifted, down)), split, 0)
    assert only == (() if compared else (Given(RANGED, ()),))
    assert error is not None and error < 1e-12 if compared else error is None
