"""Tensor programs in numpy mean what the node classes say."""

from __future__ import annotations

import numpy as np
import pytest

from ir import tensor as X
from ir.dtype import Array, rounded
from ir.node import IRError
from ir.tensor_interp import run_tensor
from tests import programs as P
from tests import words as W

RNG = np.random.default_rng(1)


def value(t: X.Tensor, exact: bool = True, **inputs: Array) -> Array:
    return run_tensor(W.program("p", t), inputs, exact)["y0"]


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def test_attention_equals_the_formula() -> None:
    p = P.grouped_attention()
    a = {n: v.astype(np.float64) for n, v in W.random_inputs(p, 0).items()}
    rows, heads, groups, width = 6, 4, 2, 8

    def split(w: Array, n: int) -> Array:
        return (a["x"][0] @ w.T).reshape(rows, n, width).transpose(1, 0, 2)

    def turned(t: Array) -> Array:
        half = np.concatenate([-t[..., width // 2 :], t[..., : width // 2]], -1)
        return t * a["cos"][0, 0] + half * a["sin"][0, 0]

    q, k, v = turned(split(a["wq"], heads)), turned(split(a["wk"], groups)), split(a["wv"], groups)
    k, v = np.repeat(k, heads // groups, 0), np.repeat(v, heads // groups, 0)
    s = np.where(np.tri(rows, dtype=bool), q @ k.transpose(0, 2, 1) * np.float32(8**-0.5), -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    mixed = (e / e.sum(-1, keepdims=True)) @ v
    want = a["x"] + (mixed.transpose(1, 0, 2).reshape(rows, -1) @ a["wo"].T)[None]
    np.testing.assert_allclose(run_tensor(p, a, exact=True)["y0"], want, rtol=1e-12)


def test_row_norms_equal_the_formulas() -> None:
    p = P.layer_norm()
    a = W.random_inputs(p, 0)
    x = a["x"].astype(np.float64)
    centred = x - x.mean(1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(1, keepdims=True) + np.float32(1e-5)) * a["w"] + a["b"]
    np.testing.assert_allclose(run_tensor(p, a, exact=True)["y0"], want, rtol=1e-12)
    p = P.root_mean_square()
    a = W.random_inputs(p, 0)
    x = a["x"]
    scale = np.float32(1) / np.sqrt((x * x).mean(2, keepdims=True) + np.float32(1e-6))
    got = run_tensor(p, a)["y0"]
    np.testing.assert_allclose(got, rounded(rounded(x * scale, "bf16") * a["w"], "bf16"), rtol=2**-7)
    np.testing.assert_array_equal(got, rounded(got, "bf16"))


def test_views_move_elements_as_numpy_does() -> None:
    x = floats(4, 6)
    t = W.given("x", (4, 6))
    for got, want in (
        (W.permute(t, 1, 0), x.T),
        (W.reshape(t, 3, 8), x.reshape(3, 8)),
        (W.shifted(t, 1, 1, 6, 2), x[:, 1:6:2]),
        (W.flip(t, 0), x[::-1]),
        (W.pad(t, 1, 2, 1, 7.0), np.pad(x, ((0, 0), (2, 1)), constant_values=7)),
        (W.expand(t, 2, 4, 6), np.broadcast_to(x, (2, 4, 6))),
        (W.cat(t, t, 0), np.concatenate([x, x])),
    ):
        np.testing.assert_array_equal(value(got, x=x), want)


def test_gathers_and_scatters_move_elements_as_numpy_does() -> None:
    p = P.scattered()
    a = W.random_inputs(p, 3, P.POSITIONS)
    got = run_tensor(p, a, exact=True)
    total = a["base"].astype(np.float64)
    np.add.at(total, a["rows"], a["updates"])
    np.testing.assert_allclose(got["y0"], total)
    largest = a["base"].astype(np.float64)
    last = a["base"].astype(np.float64)
    work = a["updates"].astype(np.float64) * a["updates"].astype(np.float64).sum(1, keepdims=True)
    for r in range(6):
        last[a["rows"][r]] = work[r]
        for c in range(3):
            if a["whole"][r, c] < 4:
                largest[a["whole"][r, c], c] = max(largest[a["whole"][r, c], c], a["updates"][r, c])
    np.testing.assert_allclose(got["y1"], largest)
    np.testing.assert_allclose(got["y2"], last)
    p = P.gathered()
    a = W.random_inputs(p, 3, P.POSITIONS)
    np.testing.assert_array_equal(run_tensor(p, a)["y0"], a["table"][a["rows"]])


def test_sums_are_wider_than_their_operands_and_extremes_are_not() -> None:
    x = np.full(4096, 0.1, np.float16)
    t = W.given("x", (4096,), "f16")
    assert abs(value(W.reduce("add", t, 0), exact=False, x=x) - 4096 * float(np.float16(0.1))) < 1e-3
    assert value(W.reduce("max", t, 0), exact=False, x=x).dtype == np.float16


def test_exactness_keeps_bits_but_not_casts_to_integers() -> None:
    t = W.given("x", (3,))
    x = np.array([1 / 3, 2.7, -1.2])
    np.testing.assert_array_equal(value(W.to("bf16", t, "cast"), x=x), x)
    np.testing.assert_array_equal(value(W.to("i64", t, "cast"), x=x), [0, 2, -1])
    np.testing.assert_array_equal(value(W.to("bool", t, "cast"), x=x), [True, True, True])
    assert value(W.to("bf16", t, "cast"), exact=False, x=x)[0] == np.float32(0.333984375)


def test_folds_of_nothing_give_the_identity() -> None:
    got = run_tensor(P.empty(), {"x": np.zeros((0, 4)), "y": np.zeros((3, 0))})
    np.testing.assert_array_equal(got["y0"], np.zeros(4))
    np.testing.assert_array_equal(got["y1"], np.full(4, -np.inf))
    np.testing.assert_array_equal(got["y2"], np.zeros((3, 4)))
    assert got["y3"].shape == (0, 4)
    np.testing.assert_array_equal(got["y4"], np.full((2, 4), 2.0))


def test_what_is_missing_or_misshapen_is_told() -> None:
    p = P.softmax()
    with pytest.raises(IRError, match="no value is given for input x"):
        run_tensor(p, {})
    with pytest.raises(IRError, match="has shape"):
        run_tensor(p, {"x": np.zeros((2, 2))})
    with pytest.raises(IRError, match=r"call aten\.sort\.default"):
        run_tensor(P.with_call(), W.random_inputs(P.with_call(), 0))
    with pytest.raises(IRError, match="symbolic"):
        run_tensor(X.TensorProgram("p", (), (X.Result("y", X.Full("f32", 0, ("s0",)), (1,)),)), {})


def test_inputs_are_left_alone() -> None:
    p = P.replaced()
    a = W.random_inputs(p, 0)
    before = a["cache"].copy()
    got = run_tensor(p, a)
    np.testing.assert_array_equal(a["cache"], before)
    np.testing.assert_array_equal(got["y0"][2], a["row"][0])
    assert got["y0"] is not a["cache"]


def test_out_of_range_gathers_are_clamped() -> None:
    x, at = floats(4), np.array([-3, 9, 2])
    t = W.view(W.given("x", (4,)), (3,), [W.source(0, 1)], sources=(W.given("at", (3,), "i64"),))
    np.testing.assert_array_equal(value(t, x=x, at=at), x[[0, 3, 2]])
