"""A form that was chosen at large sizes runs at small ones."""

from __future__ import annotations

import pytest

from bench.shrunk import constants, shrunk
from egraph.saturate import saturate
from extract.forms import forms
from ir.loop import LoopProgram
from ir.machine import H200
from ir.node import IRError
from tests.extract.programs import Inputs, error, program

INPUTS: Inputs = {"q": ("bf16", ("b", "i", "d")), "k": ("bf16", ("b", "j", "d")), "v": ("bf16", ("b", "j", "e"))}


def chain(scale: float, past: int, op: str = "exp", **axes: int) -> LoopProgram:
    """Two products around a normalised exponential, later positions left out; constants go with the extents."""
    lets = f"s = add[d](q[b, i, d] * k[b, j, d]) * f32({scale}) if j <= i + {past} else f32(-inf)\np = {op}(s - max[j](s))"
    value = "bf16.op(add[j](bf16.op(p / add[j](p)) * v[b, j, e]))"
    return program(axes, INPUTS, [("o", ("b", "i", "e"), value)], lets)


LARGE = chain(0.125, 1024, b=64, i=1024, j=2048, d=64, e=64)
SMALL = chain(0.5, 6, b=2, i=4, j=10, d=4, e=4)


def test_a_form_of_a_large_program_runs_at_the_sizes_of_a_small_one() -> None:
    (form,) = forms(saturate(LARGE), H200)
    made = shrunk(form, LARGE, SMALL)
    assert [len(k.stores) for k in made.kernels] == [len(k.stores) for k in form.kernels]
    assert error(made, SMALL) < 1e-9


def test_programs_that_differ_by_more_are_refused() -> None:
    with pytest.raises(IRError, match="the programs differ"):
        constants(LARGE, chain(0.5, 6, "exp2", b=2, i=4, j=10, d=4, e=4))
