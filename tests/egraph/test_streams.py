"""Chains of folds over one axis become one sweep, and compute what was written."""

from __future__ import annotations

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
    "logsumexp, guarded": (
        "m := max[j](X[i, j])\ng := f32(0.0) if abs(m) == f32(inf) else m\nlog(add[j](exp(X[i, j] - g))) + g", "j", 2, 1,
    ),
    "attention, guarded": (
        "s := add[d](Q[i, d] * K[j, d]) if i <= j else f32(-inf)\nm := max[j](s)\n"
        "p := exp(s - (f32(0.0) if m == f32(-inf) else m))\nD := add[j](p)\n"
        "f32(0.0) if D == f32(0.0) else add[j](p * V[j, e]) / D", "j", 2, 1,
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


ROUNDED = f"{SCORES}\n{SOFT}\nbf16.op(add[j](bf16.op(p) * V[j, e]) / D)"
ROUNDED_TEXTS = {
    "unnormalised weights rounded": ROUNDED,
    "weights cast after division": f"{SCORES}\n{SOFT}\nbf16.op(add[j](bf16.cast(p / D) * V[j, e]))",
    "scores rounded": f"s := bf16.op(add[d](Q[i, d] * K[j, d]))\n{SOFT}\nbf16.op(add[j](bf16.op(p / D) * V[j, e]))",
}
HALF = {"Q": "bf16", "K": "bf16", "V": "bf16"}


@pytest.mark.parametrize("name", ROUNDED_TEXTS)
def test_roundings_move_out_of_the_way_by_default_and_not_when_strict(name: str) -> None:
    p = program(ROUNDED_TEXTS[name], dtypes=HALF)
    assert Pick(saturate(p, "strict"), "j").sweeps == (2 if name == "unnormalised weights rounded" else 3)
    pick = Pick(saturate(p), "j")
    assert pick.sweeps == 1
    values = inputs(p)
    agrees(p, pick, values)
    for r, t in zip(p.results, pick.terms(), strict=True):
        order = tuple(sorted(r.value.free))
        rounded = evaluate(t, p.axes, values, order, exact=False)
        exact = evaluate(r.value, p.axes, values, order, exact=True)
        assert np.max(np.abs(rounded - exact)) < 0.02


def test_without_the_streamed_rounding_law_rounded_weights_need_their_maximum_first() -> None:
    p = program(ROUNDED_TEXTS["weights cast after division"], dtypes=HALF)
    assert Pick(saturate(p, without=["rounding_passes_streamed_factor"]), "j").sweeps == 2


@pytest.mark.parametrize("row", ["start", "all", "top", "none"])
def test_guarded_sums_of_exponentials_are_right_at_infinities(row: str) -> None:
    p = program(CASES["logsumexp, guarded"][0])
    pick = Pick(saturate(p), "j")
    values = inputs(p)
    values["X"][1] = {
        "start": [-np.inf] * 3 + [1, -900, 2],
        "all": -np.inf,
        "top": [1, np.inf, 2, 3, 4, 5],
        "none": 800,
    }[row]
    agrees(p, pick, values)


@pytest.mark.parametrize("live", [0, 1, 4, 5])
def test_a_row_that_is_masked_at_its_start_and_live_later_is_right(live: int) -> None:
    p = program(
        f"q := add[d](Q[i, d] * K[j, d])\ns := q if P[i, j] else f32(-inf)\n{SOFT}\nadd[j](p / D * V[j, e])",
        dtypes={"P": "bool"},
    )
    pick = Pick(saturate(p), "j")
    assert pick.sweeps == 1
    values = inputs(p)
    values["P"] = np.arange(AXES["j"]) >= np.array([live, live, 0])[: AXES["i"], None]
    agrees(p, pick, values)


def test_a_row_that_is_masked_everywhere_gives_what_was_written() -> None:
    plain = "add[j](p / D * V[j, e])"
    guarded = "add[j](p / D * V[j, e]) if f32(-inf) < m else f32(0.0)"
    for result in (plain, guarded):
        p = program(
            f"q := add[d](Q[i, d] * K[j, d])\ns := q if P[i, j] else f32(-inf)\n{SOFT}\n{result}",
            dtypes={"P": "bool"},
        )
        pick = Pick(saturate(p), "j")
        assert pick.sweeps == 1
        values = inputs(p)
        values["P"] = np.array([[False] * 6, [True] * 6, [False, True] * 3])
        agrees(p, pick, values)
        (value,) = (evaluate(t, p.axes, values, ("e", "i"), exact=True) for t in pick.terms())
        assert np.isnan(value[:, 0]).all() if result == plain else (value[:, 0] == 0).all()


def test_two_chains_over_one_axis_stream_one_after_the_other() -> None:
    first = f"{SCORES}\n{SOFT}\ny := add[j](p / D * V[j, e])\n"
    second = (
        "q2 := add[e](y * A[e, d])\nk2 := add[d](K[j, d] * B[d, e])\ns2 := add[d](q2 * C[j, d])\nm2 := max[j](s2)\n"
        "p2 := exp(s2 - m2)\nD2 := add[j](p2)\nadd[j](p2 / D2 * V[j, f])"
    )
    p = program(first + second)
    assert Pick(saturate(p, phases=()), "j").sweeps == 6
    pick = Pick(saturate(p), "j")
    assert pick.sweeps == 2
    agrees(p, pick, inputs(p))
