"""Exponents that the e-graph calls safe stay in range as every form spells them, however large the values are."""

from __future__ import annotations

import numpy as np
import pytest

from egraph.saturate import saturate
from extract.bounds import Bounds
from extract.forms import forms
from ir import term as T
from ir.dtype import rounded
from ir.loop_interp import run_form
from ir.machine import H200
from ir.text import Scope, parse_term
from tests.extract.programs import Inputs, program, values

AXES = {"i": 3, "j": 6, "d": 4}
SCORES: dict[str, tuple[Inputs, str]] = {
    "a rounding moved past a factor": ({"x": ("bf16", ("i", "j"))}, "bf16.op(x[i, j] * f32(1e14))"),
    "factors in another order": (
        {"x": ("f32", ("i", "j")), "y": ("f32", ("j",))},
        "x[i, j] * f32(1e7) * y[j] * f32(1e7)",
    ),
    "a factor of a contraction": (
        {"q": ("f32", ("i", "d")), "k": ("f32", ("j", "d")), "b": ("f32", ("i",))},
        "add[d](q[i, d] * exp(b[i]) * k[j, d]) * f32(1e10)",
    ),
}


@pytest.mark.parametrize("name", SCORES)
def test_shares_of_huge_scores_add_to_one_in_every_form(name: str) -> None:
    inputs, score = SCORES[name]
    p = program(
        AXES,
        inputs,
        [("o", ("i",), f"add[j](exp({score} - max[j]({score})) / add[j](exp({score} - max[j]({score}))))")],
    )
    given = {n: rounded(v, inputs[n][0]) for n, v in values(p).items()}
    for form in forms(saturate(p), H200, k=12):
        np.testing.assert_allclose(run_form(form, given, False)["o"], 1.0, rtol=1e-6, err_msg=form.name)


TRUE = (
    "x[i, j] - max[j](x[i, j])", "tanh(x[i, j])", "-max[j](x[i, j]) + x[i, j]", "(x[i, j] - max[j](x[i, j])) * f32(0.5)",
    "bf16.op(x[i, j]) - max[j](bf16.op(x[i, j]))", "x[i, j] * exp(b[i]) - exp(b[i]) * max[j](x[i, j])",
    "-(x[i, j] * exp(b[i])) - exp(b[i]) * max[j](-x[i, j])", "x[i, j] - max(b[i], max[j](x[i, j]))",
)  # fmt: skip
FALSE = (
    "x[i, j] - b[i]", "x[i, j]", "x[i, j] * b[i] - b[i] * max[j](x[i, j])", "x[i, j] - max[j](y[i, j])",
    "bf16.op(x[i, j] * exp(b[i])) - exp(b[i]) * max[j](x[i, j])", "x[i, j] - bf16.op(max[j](x[i, j]))",
    "(x[i, j] - max[j](x[i, j])) * f32(-0.5)", "x[i, j] * exp(b[i]) * f32(3.0) - exp(b[i]) * f32(3.0) * max[j](x[i, j])",
)  # fmt: skip


def term(text: str) -> T.Term:
    return parse_term(text, Scope({"x": "f32", "y": "f32", "b": "f32"}, AXES))


def test_bounds_follow_by_monotone_steps_alone() -> None:
    for text, holds in (*((t, True) for t in TRUE), *((t, False) for t in FALSE)):
        assert Bounds({}).hold([term(text)], [term(text)]) == holds, text


def test_a_bound_holds_through_a_buffer() -> None:
    read = T.Load("%7", "f32", (T.Index("i"),))
    exponent = T.binary("add", term("x[i, j]"), T.unary("neg", read))
    for made, holds in (("max[j](x[i, j])", True), ("b[i]", False)):
        assert Bounds({7: (0, term(made))}).hold([exponent], [exponent]) == holds


def test_a_sum_that_two_kernels_compute_is_not_bounded_by_the_others_maximum() -> None:
    score = "add[d](x[i, d] * y[j, d])"
    largest, read = T.Load("%7", "f32", (T.Index("i"),)), T.Load("%8", "f32", (T.Index("i"), T.Index("j")))
    made = {7: (0, term(f"max[j]({score})")), 8: (0, term(score))}
    for x, holds in ((term(score), False), (read, True)):
        exponent = T.binary("add", x, T.unary("neg", largest))
        assert Bounds(made).hold([exponent], [exponent]) == holds
    made[8] = (1, term(score))
    exponent = T.binary("add", read, T.unary("neg", largest))
    assert not Bounds(made).hold([exponent], [exponent])
