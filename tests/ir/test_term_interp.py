"""Terms in numpy mean what the term classes say."""

from __future__ import annotations

import numpy as np
import pytest

from ir import term as T
from ir.dtype import Array, rounded
from ir.loop_interp import evaluate
from ir.node import IRError
from ir.text import Scope, parse_term

AXES = {"i": 3, "j": 5, "k": 4, "e": 0}
RNG = np.random.default_rng(0)
BUFFERS: dict[str, Array] = {
    "x": RNG.standard_normal((3, 5)).astype(np.float32),
    "y": RNG.standard_normal((5, 4)).astype(np.float32),
    "h": RNG.standard_normal((3, 5)).astype(np.float16),
    "n": RNG.integers(-9, 9, (3, 5)),
    "p": np.array([4, -2, 11]),
    "void": np.zeros((0, 2), np.float32),
}
TYPES = {"x": "f32", "y": "f32", "h": "f16", "n": "i64", "p": "i64", "void": "f32"}
X, Y, N = (BUFFERS[n].astype(np.float64) for n in ("x", "y", "n"))


def value(text: str, *order: str, exact: bool = True, **buffers: Array) -> Array:
    term = parse_term(text, Scope(TYPES, AXES))
    return evaluate(term, AXES, {**BUFFERS, **buffers}, order, exact)


@pytest.mark.parametrize(
    ("text", "order", "want"),
    [
        ("x[i, j] + f32(1.0)", ("i", "j"), X + 1),
        ("x[i, j] + f32(1.0)", ("j", "i"), (X + 1).T),
        ("x[i, 1]", ("i", "k"), np.repeat(X[:, 1:2], 4, 1)),
        ("x[i, j + 3]", ("i", "j"), X[:, [3, 4, 4, 4, 4]]),
        ("x[p[i], 0]", ("i",), X[[2, 0, 2], 0]),
        ("void[i, 0]", ("i",), np.zeros(3)),
        ("add[j](x[i, j])", ("i",), X.sum(1)),
        ("add[i, j](x[i, j] * y[j, k])", ("k",), (X @ Y).sum(0)),
        ("add[i, j, k](x[i, j] * y[j, 0])", (), 4 * (X @ Y[:, 0]).sum()),
        ("mul[j](x[i, j])", ("i",), X.prod(1)),
        ("max[i](x[i, j])", ("j",), X.max(0)),
        ("min[i, j](n[i, j])", (), N.min()),
        ("or_[j](x[i, j] < f32(-1.0))", ("i",), (X < -1).any(1)),
        ("and_[j](x[i, j] < f32(1.0))", ("i",), (X < 1).all(1)),
        ("add[k](x[i, 0])", ("i",), 4 * X[:, 0]),
        ("argmax[j](x[i, j])", ("i",), X.argmax(1)),
        ("argmin[i](x[i, j])", ("j",), X.argmin(0)),
        ("add[e](x[0, e])", (), 0.0),
        ("max[e](x[0, e])", (), -np.inf),
        ("mul[e](x[e, e])", (), 1.0),
        ("max[e](n[0, e])", (), np.iinfo(np.int64).min),
        ("scan.add[j](x[i, j])", ("i", "j"), X.cumsum(1)),
        ("scan.max[j](x[i, j])", ("i", "j"), np.maximum.accumulate(X, 1)),
        ("scan.add[k](x[i, 0])", ("i", "k"), X[:, :1] * [1, 2, 3, 4]),
        ("at(x[i, j], j=4 - j)", ("i", "j"), X[:, ::-1]),
        ("at(add[j](x[i, j]), i=i // 2)", ("i",), X.sum(1)[[0, 0, 1]]),
        ("at(x[i, j] * x[i, 0], i=p[i])", ("i", "j"), (X * X[:, :1])[[2, 0, 2]]),
        ("at(f32(2.0), i=p[i])", ("i",), 2 * np.ones(3)),
        ("extent(j)", (), 5),
        ("x[i, j] if j < 2 else identity.add", ("i", "j"), np.where(np.arange(5) < 2, X, 0)),
        ("max(identity.max, x[i, j])", ("i", "j"), X),
        ("add[j](x[i, j] if j < i else identity.add)", ("i",), [0, X[1, 0], X[2, :2].sum()]),
        ("max(n[i, j], identity.max)", ("i", "j"), N),
    ],
)
def test_a_term_has_the_value_that_numpy_gives(text: str, order: tuple[str, ...], want: Array) -> None:
    np.testing.assert_allclose(value(text, *order).astype(np.float64), want, rtol=1e-12)


ROW_STATE = (
    "stream[j](m=carry(max, f32, [i], max(old.m, x[i, j])), "
    "s=carry(add, f32, [i], mulz(old.s, exp(old.m - max(old.m, x[i, j]))) + exp(x[i, j] - max(old.m, x[i, j])))).s"
)


def test_a_stream_carries_its_states_step_by_step() -> None:
    want = np.exp(X - X.max(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(value(ROW_STATE, "i"), want, rtol=1e-12)
    np.testing.assert_allclose(value(ROW_STATE, "i", exact=False), want, rtol=1e-5)


def test_a_fold_over_the_streamed_axis_is_whole_inside_a_step() -> None:
    text = "stream[j](s=carry(add, f32, [i], old.s + x[i, j] * max[j](x[i, j]))).s"
    np.testing.assert_allclose(value(text, "i"), X.sum(1) * X.max(1), rtol=1e-12)


def test_streams_nest() -> None:
    inner = "stream[j](t=carry(add, f32, [k], old.t + x[i, j] * y[j, k])).t"
    outer = f"stream[i](s=carry(max, f32, [k], max(old.s, {inner}))).s"
    np.testing.assert_allclose(value(outer, "k"), (X @ Y).max(0), rtol=1e-12)


def test_a_stream_without_steps_is_the_identity() -> None:
    assert value("stream[e](s=carry(min, f32, [], min(old.s, x[0, e]))).s") == np.inf


def test_a_substitution_above_a_stream_and_within_one() -> None:
    whole = "at(stream[j](s=carry(add, f32, [i], old.s + x[i, j])).s, i=2 - i)"
    np.testing.assert_allclose(value(whole, "i"), X.sum(1)[::-1], rtol=1e-12)
    within = "stream[j](s=carry(add, f32, [i], old.s + at(x[i, j], j=j // 2))).s"
    np.testing.assert_allclose(value(within, "i"), X[:, [0, 0, 1, 1, 2]].sum(1), rtol=1e-12)


def test_arg_folds_prefer_nan_then_the_first_position() -> None:
    x = np.array([[1, 3, 3, 0, 3], [1, np.nan, 3, np.nan, 3], [-np.inf] * 5], np.float32)
    assert list(value("argmax[j](x[i, j])", "i", x=x)) == [1, 1, 0]
    assert list(value("argmin[j](x[i, j])", "i", x=x)) == [3, 1, 0]
    assert value("scan.argmax[j](x[i, j])", "i", "j", x=x).tolist() == [[0, 1, 1, 1, 1], [0, 1, 1, 1, 1], [0] * 5]


def test_nan_wins_a_maximum_and_is_hidden_by_select() -> None:
    x = np.full((3, 5), np.nan, np.float32)
    x[:, 0] = 1
    assert np.isnan(value("max[j](x[i, j])", "i", x=x)).all()
    assert (value("max[j](x[i, j] if j < 1 else identity.max)", "i", x=x) == 1).all()
    assert (value("add[j](x[i, j] if j < 1 else identity.add)", "i", x=x) == 1).all()


def test_quotients_and_differences_round_once() -> None:
    x = RNG.standard_normal((3, 5)).astype(np.float32)
    one = np.float32(1)
    assert ((x / np.float32(3)) != (x * (one / np.float32(3)))).any()
    np.testing.assert_array_equal(
        value("x[i, j] / f32(3.0)", "i", "j", exact=False, x=x), x / np.float32(3), strict=True
    )
    np.testing.assert_array_equal(value("x[i, j] - x[i, 0]", "i", "j", exact=False, x=x), x - x[:, :1], strict=True)


def test_arithmetic_happens_in_the_compute_type_and_round_loses_bits() -> None:
    h = BUFFERS["h"]
    wide = value("h[i, j] * h[i, j]", "i", "j", exact=False)
    np.testing.assert_array_equal(wide, h.astype(np.float32) ** 2, strict=True)
    narrow = value("f16.op(h[i, j] * h[i, j])", "i", "j", exact=False)
    np.testing.assert_array_equal(narrow, (h.astype(np.float32) ** 2).astype(np.float16), strict=True)
    np.testing.assert_array_equal(
        value("bf16.cast(x[i, j])", "i", "j", exact=False), rounded(BUFFERS["x"], "bf16"), strict=True
    )
    assert value("max(h[i, j], -h[i, j])", "i", "j", exact=False).dtype == np.float16
    np.testing.assert_array_equal(value("bf16.cast(x[i, j])", "i", "j"), X)
    np.testing.assert_array_equal(value("i64.cast(x[i, j])", "i", "j"), np.trunc(X))


def test_a_prefix_has_no_value_and_unknown_names_are_told() -> None:
    with pytest.raises(IRError, match="Prefix"):
        value("new[j](add[j](x[i, j]))", "i", "j")
    with pytest.raises(IRError, match="not all in"):
        value("x[i, j]", "i")
    with pytest.raises(IRError, match="no such buffer"):
        evaluate(T.Load("w", "f32", ()), {}, {}, (), True)
    with pytest.raises(IRError, match="has no extent"):
        evaluate(T.Index("q"), {}, {}, ("q",), True)


def test_tile_values_stand_for_arrays_over_their_axes() -> None:
    v = RNG.standard_normal((5, 3))
    term = T.binary("mul", T.Var("v", "f64", ("j", "i")), T.Load("x", "f32", (T.Index("i"), T.Index("j"))))
    np.testing.assert_allclose(evaluate(term, AXES, BUFFERS, ("i", "j"), True, {"v": v}), v.T * X)


def test_deep_terms_need_no_recursion_and_wide_ones_no_product_space() -> None:
    deep: T.Term = T.Load("x", "f32", (T.Index("i"), T.number(0)))
    for k in range(6000):
        deep = T.binary("add", deep, T.const(k % 3 - 1.0, "f32"))
    np.testing.assert_allclose(evaluate(deep, AXES, BUFFERS, ("i",), True), X[:, 0], rtol=1e-9)
    big = {"a": np.ones((400, 400), np.float32), "b": np.ones((400, 400), np.float32)}
    i, j, k = (T.Index(n) for n in "ijk")
    product = T.fold("k", "add", T.binary("mul", T.Load("a", "f32", (i, k)), T.Load("b", "f32", (k, j))))
    extents = dict.fromkeys("ijk", 400)
    assert (evaluate(product, extents, big, ("i", "j"), False) == 400).all()
