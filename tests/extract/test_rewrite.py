"""Substitution of axes in terms: no capture, states moved along, numbers unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from extract.rewrite import Substitution
from ir import term as T
from ir.loop_interp import evaluate
from ir.text import Scope, parse_term

AXES = {"i": 4, "j": 4, "k": 3, "t": 4}
BOUND = {"j_1": 4}
"""An axis that earlier substitutions made: its name is free to use wherever it captures nothing."""
SHAPES = {"x": ("i", "j"), "y": ("i", "k")}
STREAM = (
    "stream[j](d=carry(add, f32, [i], mulz(old.d, exp(old.m - max(old.m, x[i, j]))) + exp(x[i, j] - "
    "max(old.m, x[i, j]))), m=carry(max, f32, [i], max(old.m, x[i, j]))).d"
)
SCOPE = Scope({"x": "f32", "y": "f32", "n": "i64"}, {**AXES, **BOUND})


def value(t: T.Term, extents: dict[str, int], order: tuple[str, ...]) -> np.ndarray:  # type: ignore[type-arg]
    rng = np.random.default_rng(0)
    buffers = {n: rng.standard_normal([AXES[a] for a in dims]) for n, dims in SHAPES.items()}
    buffers["n"] = np.asarray([2, 0, 3, 1])
    return evaluate(t, extents, buffers, order, True)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("exp(x[i, j]) + y[i, k]", "t"),
        ("add[j](x[i, j] * x[i, j])", "j"),
        ("add[j](x[i, j]) * x[i, k]", "k"),
        ("add[j](x[i, j])", "3 - t"),
        ("max[j](x[n[i], j])", "n[t]"),
        ("scan.add[j](x[i, j])", "t"),
        (STREAM, "j"),
        (STREAM, "n[t]"),
        (STREAM, "3 - i"),
        ("add[j](x[i, j] / " + STREAM + ")", "j"),
        ("add[j](x[i, j] * add[j_1](x[j_1, j] * x[i, j_1]))", "j"),
        ("add[j](x[i, j] + add[j_1](x[j_1, i] * add[j](x[j_1, j])))", "j"),
    ],
)
def test_substitution_equals_reading_at_the_index(text: str, index: str) -> None:
    t, at = parse_term(text, SCOPE), parse_term(index, SCOPE)
    substitute = Substitution(AXES)
    moved = substitute(t, "i", at)
    assert moved is not None
    order = tuple(sorted(moved.free))
    want = value(T.At("i", at, t), {**AXES, **BOUND}, order)
    np.testing.assert_allclose(value(moved, {**BOUND, **substitute.extents}, order), want, rtol=1e-12)
    assert substitute.extents.items() >= AXES.items()


def test_a_scan_moves_along_its_axis_by_name_only() -> None:
    substitute = Substitution(AXES)
    scan = parse_term("scan.add[j](x[i, j])", SCOPE)
    moved = substitute(scan, "j", T.Index("t"))
    assert moved is parse_term("scan.add[t](x[i, t])", SCOPE)
    assert substitute(scan, "j", parse_term("3 - t", SCOPE)) is None
    assert substitute(scan, "i", T.Index("j")) is None
