"""Sums over shifted values become one sweep that is as right as two, at every step and for large values."""

from __future__ import annotations

import numpy as np
import pytest

from egraph.saturate import saturate
from extract.merging import steps
from ir import term as T
from ir.dtype import DTYPES, numpy_type
from ir.loop_interp import evaluate
from ir.node import postorder
from tests.egraph.picking import Pick
from tests.egraph.test_streams import agrees
from tests.egraph.written import inputs, program

MEAN = "mu := add[j](X[i, j]) / f32.op(extent(j))"
SQUARES = "add[j]((X[i, j] - mu) * (X[i, j] - mu))"
SOFT = "m := max[j](X[i, j])\np := exp(X[i, j] - m)\nD := add[j](p)"
STANDARD = f"{MEAN}\nr := rsqrt({SQUARES} / f32.op(extent(j)) + f32(0.001))"
CASES = {
    "variance": (f"{MEAN}\n{SQUARES} / f32.op(extent(j))", 2),
    "variance with a weight": (f"{MEAN}\nadd[j](G[j] * ((X[i, j] - mu) * (X[i, j] - mu)))", 2),
    "covariance": (
        f"{MEAN}\nnu := add[j](Y[i, j]) / f32.op(extent(j))\nadd[j]((X[i, j] - mu) * (Y[i, j] - nu))",
        2,
    ),
    "standard values times a matrix": (f"{STANDARD}\nadd[j]((X[i, j] - mu) * r * G[j] * W[j, e])", 3),
    "with a bias": (f"{STANDARD}\nadd[j](((X[i, j] - mu) * r * G[j] + B[j]) * W[j, e])", 3),
    "entropy": (f"{SOFT}\n-add[j](p / D * (X[i, j] - m - log(D)))", 3),
    "mean distance to a maximum": ("m := max[j](X[i, j])\nadd[j](X[i, j] - m)", 2),
}


@pytest.mark.parametrize("name", CASES)
def test_a_sum_over_shifted_values_takes_one_sweep(name: str) -> None:
    text, before = CASES[name]
    p = program(text)
    assert Pick(saturate(p, phases=()), "j").sweeps == before
    assert Pick(saturate(p, "strict"), "j").sweeps == before
    pick = Pick(saturate(p), "j")
    assert pick.sweeps == 1
    for seed, scale in ((0, 1.0), (1, 30.0)):
        agrees(p, pick, inputs(p, seed, scale))
    streams = {t for t in postorder(*pick.terms()) if isinstance(t, T.Stream)}
    assert streams and all(steps(t) is not None for t in streams)


def test_a_shift_that_may_be_infinite_at_some_step_is_not_streamed() -> None:
    p = program("s := add[j](X[i, j])\nadd[j](X[i, j] - log(s))")
    assert Pick(saturate(p), "j").sweeps == 2


@pytest.mark.parametrize("numerics", ["default", "fast"])
@pytest.mark.parametrize(("dtype", "offset"), [("f32", 0.0), ("f32", 1e4), ("f64", 1e8)])
def test_a_variance_of_large_values_is_right_in_one_sweep(dtype: str, offset: float, numerics: str) -> None:
    """As two passes: what is left is the error of the mean, squared, which grows with the root of the count."""
    p = program(CASES["variance"][0].replace("f32", dtype), {"i": 3, "j": 400}, {"X": dtype})
    x = (np.random.default_rng(0).standard_normal((3, 400)) + offset).astype(numpy_type(dtype))
    wide = x.astype(np.longdouble)
    exact = ((wide - wide.mean(-1, keepdims=True)) ** 2).mean(-1)
    (streamed,) = Pick(saturate(p, numerics), "j").terms()
    got = evaluate(streamed, p.axes, {"X": x}, ("i",), exact=False)
    error = float(np.max(np.abs(got - exact) / exact))
    unit = DTYPES[dtype].unit_roundoff
    assert error < 400 * unit + (20 * unit * offset) ** 2
