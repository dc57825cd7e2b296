"""Values of any magnitude: where a program is right in its own types, so is each of its forms, in finite values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from egraph.saturate import saturate
from extract.forms import forms
from ir.dtype import DTYPES, Array, rounded
from ir.loop import Form, LoopProgram
from ir.loop_interp import run_form, run_loop
from ir.machine import H200
from tests.egraph.picking import Pick
from tests.egraph.written import inputs, program

UNITS = "u := X[i, j] * recip(sqrt(add[j](X[i, j] * X[i, j])))"
MEAN_SQUARE = "r := rsqrt(add[j](X[i, j] * X[i, j]) / f32.op(extent(j)) + f32(1e-6))"
SHARES = "p := exp(X[i, j] - max[j](X[i, j]))"
UNIT = "v{n} * recip(sqrt(add[{axis}](v{n} * v{n})))"
POWERS = "\n".join(
    (
        "v0 := X[i, f]",
        *(
            f"v{n} := add[{a}]({UNIT.format(n=n - 1, axis=a)} * W[{a}, {b}])"
            for n, a, b in ((1, "f", "e"), (2, "e", "f"), (3, "f", "e"), (4, "e", "f"))
        ),
        UNIT.format(n=4, axis="f"),
    )
)
CASES = {
    "a norm scaled by its maximum": (
        "m := max[j](abs(X[i, j]))\nm * sqrt(add[j](X[i, j] / m * (X[i, j] / m)))", 2, 2,
    ),
    "one norm of all": ("m := max[i, j](abs(X[i, j]))\nm * sqrt(add[i, j](X[i, j] / m * (X[i, j] / m)))", 2, 2),
    "rows between their extrema summed": (
        "m := min[j](X[i, j])\nadd[j]((X[i, j] - m) / (max[j](X[i, j]) - m))", 2, 1,
    ),
    "a power iteration": (POWERS, 0, 0),
    "squares of unit rows": (f"{UNITS}\nadd[j](u * u)", 2, 2),
    "cosines": (
        f"{UNITS}\nadd[j](u * (Y[i, j] * recip(sqrt(add[j](Y[i, j] * Y[i, j])))))", 2, 2,
    ),
    "rows by their maximum times a matrix": ("m := max[j](abs(X[i, j]))\nadd[j](X[i, j] / m * W[j, e])", 2, 2),
    "rows by their sum times a matrix": ("s := add[j](abs(X[i, j]))\nadd[j](X[i, j] / s * W[j, e])", 2, 2),
    "rows by their maximum summed": ("m := max[j](abs(X[i, j]))\nadd[j](X[i, j] / m)", 2, 1),
    "a tiny factor squared": ("t := X[i, j] * f32(1e-20)\nadd[j](t * t)", 1, 1),
    "unit rows times a matrix": (f"{UNITS}\nadd[j](u * W[j, e])", 2, 1),
    "rows by their mean square times a matrix": (f"{MEAN_SQUARE}\nadd[j](X[i, j] * r * G[j] * W[j, e])", 2, 1),
    "shares times a matrix": (f"{SHARES}\nadd[j](p / add[j](p) * W[j, e])", 3, 1),
    "shares of rows summed with their rows": (f"{SHARES}\nadd[j](p / add[j](p) * X[i, j])", 3, 1),
}  # fmt: skip
MAGNITUDES = {"f32": (1e7, 1e25, 1e-25, 1e36), "bf16": (1e25, 1e-25), "f16": (1e4, 1e-4)}
NARROW = ("a norm scaled by its maximum", "rows by their mean square times a matrix", "shares times a matrix")


def rounded_between(text: str, dtype: str) -> str:
    """The program with each line's value rounded to the type."""
    return "\n".join(f"{a}{b}{dtype}.op({c})" for a, b, c in (x.rpartition(" := ") for x in text.splitlines()))


def error(got: Array, exact: Array) -> float:
    return float(np.max(np.abs(got - exact)) / np.max(np.abs(exact)))


def worse(p: LoopProgram, found: list[Form], values: Mapping[str, Array], dtype: str) -> list[str]:
    """The forms that are not as right as the program, where that is right."""
    with np.errstate(all="ignore"):
        exact, own = (run_loop(p, values, e)["out0"] for e in (True, False))
        if not np.isfinite(own).all() or error(own, exact) > 0.5:
            return []
        allowed = 2 * error(own, exact) + 4 * DTYPES[dtype].unit_roundoff
        return [f.name for f in found if not error(run_form(f, values, False)["out0"], exact) <= allowed]


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n in CASES for d in MAGNITUDES if d == "f32" or n in NARROW]
)
def test_forms_stay_in_range_where_the_program_does(name: str, dtype: str) -> None:
    text, _, after = CASES[name]
    if dtype != "f32":
        text = rounded_between(text, dtype)
    p = program(text, dtypes=dict.fromkeys("XYWG", dtype))
    graph = saturate(p)
    if dtype == "f32":
        assert Pick(graph, "j").sweeps == after
    found = forms(graph, H200, k=12)
    for scale in MAGNITUDES[dtype]:
        for scaled in ("X", "XYW"):
            values = {n: rounded(v * (scale if n in scaled else 1.0), dtype) for n, v in inputs(p).items()}
            assert worse(p, found, values, dtype) == [], (scale, scaled)


def test_range_is_kept_up_to_the_number_of_terms_and_no_further() -> None:
    """The mean of values of half the range is in range, and the sum of them under weights up to 1 is not."""
    p = program(f"{SHARES}\nadd[j](p / add[j](p) * Y[i, j])")
    found = forms(saturate(p), H200, k=12)
    for terms, right in ((p.axes["j"], True), (1, False)):
        values = {"X": np.zeros((3, 6)), "Y": np.full((3, 6), float(np.finfo(np.float32).max) / 2 / terms)}
        assert (worse(p, found, values, "f32") == []) == right


def test_the_norm_of_a_product_is_the_root_of_squares() -> None:
    """Where rows cancel, what rounding leaves may be below 0 as a product of three, but not as a square."""
    p = program("y := add[c](X[i, c] * W[c, e])\nsqrt(add[e](y * y))")
    rng = np.random.default_rng(0)
    rows, column = rng.standard_normal((3, 5)), rng.standard_normal((1, 4))
    values = {"X": rows - rows.mean(-1, keepdims=True), "W": np.repeat(column, 5, 0)}
    values = {n: rounded(v, "f32") for n, v in values.items()}
    for f in forms(saturate(p), H200, k=12):
        assert np.isfinite(run_form(f, values, False)["out0"]).all(), f.name


@pytest.mark.parametrize(("numerics", "right"), [("strict", True), ("default", False)])
def test_a_scale_is_taken_to_be_of_ordinary_magnitude_but_by_strict_numerics(numerics: str, right: bool) -> None:
    p = program("add[j](X[i, j] * G[i] * W[j, e])")
    found = forms(saturate(p, numerics=numerics), H200, k=12)
    values = {n: v * (1e-20 if n == "G" else 1e20) for n, v in inputs(p).items()}
    assert (worse(p, found, values, "f32") == []) == right
