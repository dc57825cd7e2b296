"""Forms of written and random tensor programs compute what their loop programs say, and are well made."""

from __future__ import annotations

import numpy as np
import pytest

from egraph.saturate import saturate
from extract.forms import default_form, forms
from extract.key import canonical
from ir.loop import LoopProgram
from ir.loop_interp import run_form, run_loop
from ir.lower import lower
from ir.machine import H200
from ir.tensor import TensorProgram
from ir.verify import verify_form
from tests.extract.test_forms import SLOW
from tests.programs import POSITIONS, WRITTEN
from tests.random_programs import random_program
from tests.words import Inputs, random_inputs


def assert_forms_are_right(p: TensorProgram, inputs: Inputs, k: int, slow: bool) -> None:
    (step,) = lower(p).steps
    assert isinstance(step, LoopProgram)
    machine = SLOW if slow else H200
    with np.errstate(all="ignore"):
        want = run_loop(step, inputs, True)
        for f in (default_form(step, machine), *forms(saturate(step), machine, k=k)):
            verify_form(f)
            got = run_form(f, inputs, True)
            for name, w in want.items():
                np.testing.assert_allclose(got[name], w, rtol=1e-8, atol=1e-8, err_msg=f"{p.name} {f.name} {name}")
            for kernel in f.kernels:
                canonical(kernel, f)


@pytest.mark.parametrize("name", WRITTEN)
def test_forms_of_a_written_program_are_right(name: str) -> None:
    p = WRITTEN[name]()
    assert_forms_are_right(p, random_inputs(p, 0, POSITIONS), 1, True)


@pytest.mark.parametrize("seed", range(24))
def test_forms_of_a_random_program_are_right(seed: int) -> None:
    p, inputs = random_program(seed + 100, size=12, empty=seed % 5 == 0)
    assert_forms_are_right(p, inputs, 2, seed % 2 == 0)
