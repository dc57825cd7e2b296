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
CASES = {
    "a norm scaled by its maximum": (
        "m := max[j](abs(X[i, j]))\nm * sqrt(add[j](X[i, j] / m * (X[i, j] / m)))", 2, 2,
    ),
    "one norm of all": ("m := max[i, j](abs(X[i, j]))\nm * sqrt(add[i, j](X[i, j] / m * (X[i, j] / m)))", 2, 2),
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
MAGNITUDES = {"f32": (1e25, 1e-25, 1e36), "bf16": (1e25, 1e-25), "f16": (1e4, 1e-4)}
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
