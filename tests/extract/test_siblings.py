"""Kernels that are laid side by side in one launch."""

from __future__ import annotations

from egraph.saturate import saturate
from extract.forms import forms
from ir.machine import H200
from tests.extract.programs import error, program


def test_maps_of_different_extents_that_read_one_table_are_parts_of_one_kernel() -> None:
    inputs = {"q": ("f32", ("h", "c")), "k": ("f32", ("g", "c")), "t": ("f32", ("c",))}
    outs = [("a", ("h", "c"), "q[h, c] * t[c]"), ("b", ("g", "c"), "k[g, c] * t[c]")]
    p = program({"h": 6, "g": 2, "c": 10}, inputs, outs)
    (f,) = forms(saturate(p), H200, k=1)
    assert error(f, p) < 1e-9
    assert [len(k.parts) for k in f.kernels] == [2]
