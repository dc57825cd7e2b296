"""Chains of folds over one axis become one sweep, and compute what was written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from egraph.saturate import saturate
from ir.dtype import Array
from ir.loop import LoopProgram
from ir.loop_interp import evaluate
from tests.egraph.picking import Pick
from tests.egraph.written import AXES, inputs, program

SCORES = "s := add[d](Q[i, d] * K[j, d])"
SOFT = "m := max[j](s)\np := exp(s - m)\nD := add[j](p)"
CASES: dict[str, tuple[str, str, int, int]] = {
    "softmax": (f"{SCORES}\n{SOFT}\np / D", "j", 2, 1),
    "logsumexp": (f"{SCORES}\n{SOFT}\nm + log(D)", "j", 2, 1),
    "attention": (f"{SCORES}\n{SOFT}\nadd[j](p / D * V[j, e])", "j", 3, 1),
    "attention, causal": (
        f"q := add[d](Q[i, d] * K[j, d])\ns := q if j <= i else f32(-inf)\n{SOFT}\nadd[j](p / D * V[j, e])", "j", 3, 1,
    ),
    "attention, scaled with a mask added": (
        f"s := add[d](Q[i, d] * K[j, d]) * f32(0.3) + M[i, j]\n{SOFT}\nadd[j](p / D * V[j, e])", "j", 3, 1,
    ),
    "attention, softcapped": (
        f"s := tanh(add[d](Q[i, d] * K[j, d]) * f32(0.2)) * f32(5.0)\n{SOFT}\nadd[j](p / D * V[j, e])", "j", 3, 1,
    ),
    "attention with a sink": (
        "s := add[d](Q[i, d] * K[j, d])\nm := max(max[j](s), S[()])\np := exp(s - m)\n"
        "D := add[j](p) + exp(S[()] - m)\nadd[j](p / D * V[j, e])", "j", 3, 1,
    ),
    "attention with a temperature after the shift": (
        "s := add[d](Q[i, d] * K[j, d])\nm := max[j](s)\np := exp((s - m) * f32(0.7))\nD := add[j](p)\n"
        "add[j](p / D * V[j, e])", "j", 3, 1,
    ),
    "cross-entropy": (f"s := X[i, j]\n{SOFT}\n(m + log(D)) - X[i, Y[i]]", "j", 2, 1),
    "normalised rows times a matrix": (
        "ms := add[j](X[i, j] * X[i, j]) / f32(6.0)\nadd[j](X[i, j] * rsqrt(ms + f32(0.01)) * G[j] * W[j, e])", "j", 2, 1,
    ),
    "softmax over two axes": (
        "m := max[c, j](X[i, c, j])\np := exp(X[i, c, j] - m)\nD := add[c, j](p)\nadd[c, j](p / D * V[c, j, e])", "j", 3, 1,
    ),
    "tiled attention": (
        "s := add[d](Q[i, d] * K[j, h, d])\nm := max[j](max[h](s))\np := exp(s - m)\nD := add[j](add[h](p))\n"
        "add[j](add[h](p / D * V[j, h, e]))", "j", 3, 1,
    ),
    "a maximum of centred values": ("mu := add[j](X[i, j]) / f32(6.0)\nmax[j](X[i, j] - mu)", "j", 2, 1),
    "tanh of a shift": ("m := max[j](X[i, j])\nadd[j](tanh(X[i, j] - m))", "j", 2, 2),
    "relu of a shift": ("m := max[j](X[i, j])\nadd[j](max(X[i, j] - m + f32(1.0), f32(0.0)))", "j", 2, 2),
    "exp of a square": ("m := max[j](X[i, j])\nt := X[i, j] - m\nadd[j](exp(-(t * t)))", "j", 2, 2),
    "exp of a product": ("m := max[j](X[i, j])\nadd[j](exp(X[i, j] * m))", "j", 2, 2),
}  # fmt: skip


def agrees(p: LoopProgram, pick: Pick, values: dict[str, Array], tolerance: float = 1e-9) -> None:
    for r, t in zip(p.results, pick.terms(), strict=True):
        order = tuple(sorted(r.value.free))
        with np.errstate(all="ignore"):
            want = evaluate(r.value, p.axes, values, order, exact=True)
            got = evaluate(t, p.axes, values, order, exact=True)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_sweeps_are_found_and_compute_what_was_written(name: str) -> None:
    text, axis, before, after = CASES[name]
    p = program(text, dtypes={"Y": "i64"})
    assert Pick(saturate(p, phases=()), axis).sweeps == before
    pick = Pick(saturate(p), axis)
    assert pick.sweeps == after
    for seed, scale in ((0, 1.0), (1, 30.0)):
        agrees(p, pick, inputs(p, seed, scale))
    if "exp of" not in name:
        assert pick.unsafe == 0


def test_strict_numerics_stream_nothing() -> None:
    p = program(CASES["attention"][0])
    assert Pick(saturate(p, "strict"), "j").sweeps == 3
