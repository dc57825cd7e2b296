"""Roundings left out inside a kernel bring it closer to exact arithmetic, and stay where they must."""

from __future__ import annotations

import numpy as np

from egraph.saturate import saturate
from extract.forms import forms
from ir import term as T
from ir.dtype import rounded
from ir.loop import Form
from ir.loop_interp import run_form, run_loop
from ir.machine import H200
from ir.node import postorder
from tests.extract.programs import Inputs, program, values

X: Inputs = {"x": ("bf16", ("i", "c")), "w": ("bf16", ("c", "e")), "h": ("f16", ("i", "c"))}
AXES = {"i": 8, "c": 32, "e": 4}


def rounds(f: Form) -> list[str]:
    terms = postorder(*(s.value for k in f.kernels for s in k.stores))
    return sorted(f"{t.type}.{t.origin}" for t in terms if isinstance(t, T.Round))


def both(value: str, index: tuple[str, ...] = ("i", "c")) -> tuple[Form, Form, float, float]:
    """The form with all roundings and the form without, and the error of each against float64."""
    p = program(AXES, X, [("o", index, value)])
    graph = saturate(p)
    (whole,), (less,) = forms(graph, H200), forms(graph, H200, drop_rounds=True)
    inputs = {n: rounded(v, X[n][0]) for n, v in values(p).items()}
    exact = run_loop(p, inputs, True)["o"]
    errors = [float(np.abs(run_form(f, inputs, False)["o"] - exact).max()) for f in (whole, less)]
    return whole, less, errors[0], errors[1]


def test_a_rounding_between_operators_is_left_out() -> None:
    whole, less, before, after = both("bf16.op(exp(bf16.op(x[i, c] * x[i, c])) - bf16.op(x[i, c] + f32(1.0)))")
    assert rounds(whole) == ["bf16.op"] * 3
    assert rounds(less) == ["bf16.op"]
    assert after < before


def test_casts_and_narrow_ranges_stay() -> None:
    _, less, _, _ = both("bf16.op(exp(bf16.cast(x[i, c] * x[i, c])))")
    assert rounds(less) == ["bf16.cast", "bf16.op"]
    _, less, _, _ = both("f16.op(exp(f16.op(h[i, c] * h[i, c])))")
    assert rounds(less) == ["f16.op", "f16.op"]


def test_a_factor_of_a_contraction_stays_narrow() -> None:
    _, less, _, _ = both("bf16.op(add[c](bf16.op(exp(x[i, c])) * w[c, e]))", ("i", "e"))
    assert rounds(less) == ["bf16.op", "bf16.op"]


def test_a_product_that_overflows_when_it_is_rounded_does_so_in_every_form() -> None:
    p = program(AXES, {"h": X["h"]}, [("o", ("i",), "add[c](f16.op(h[i, c] * f32(300.0)))")])
    h = np.full((8, 32), 250.0)
    for form in forms(saturate(p), H200, k=12):
        assert np.isinf(run_form(form, {"h": h}, False)["o"]).all(), form.name


def test_a_rounded_share_of_a_sum_streams_in_half_precision_too() -> None:
    exponential = "exp(h[i, c] - max[c](h[i, c]))"
    p = program(AXES, X, [("o", ("i", "e"), f"add[c](f16.op({exponential} / add[c]({exponential})) * w[c, e])")])
    assert forms(saturate(p), H200)[0].details["sweeps"] == {"c": 1}
