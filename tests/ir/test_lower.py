"""A lowered program computes what the tensor program says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings

from ir.dtype import Array
from ir.loop import LoopProgram
from ir.loop_interp import run_loop, run_lowered
from ir.loop_text import parse_loop, show_loop
from ir.lower import CallStep, lower
from ir.tensor import TensorProgram
from ir.tensor_interp import run_tensor
from ir.tensor_text import parse_tensor, show_tensor
from ir.verify import verify_loop, verify_tensor
from tests.programs import CALLS, POSITIONS, WRITTEN, decoder_layers, with_call
from tests.random_programs import Case, programs, random_program
from tests.words import Inputs, random_inputs

TOLERANCE = {True: 1e-12, False: 2e-3}


def single(p: TensorProgram) -> LoopProgram:
    """The one region of a program without calls."""
    (step,) = lower(p).steps
    assert isinstance(step, LoopProgram)
    return step


def assert_same(got: Array, want: Array, exact: bool, what: str) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
    tolerance = TOLERANCE[exact]
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance, err_msg=what
    )


def assert_lowers_right(p: TensorProgram, inputs: Inputs) -> None:
    verify_tensor(p)
    loop = single(p)
    verify_loop(loop)
    before = {n: v.copy() for n, v in inputs.items()}
    for exact in (True, False):
        want, got = run_tensor(p, inputs, exact), run_loop(loop, inputs, exact)
        for r in p.results:
            assert_same(got[r.writes or r.name], want[r.name], exact, f"{p.name} {r.name} exact={exact}")
    for n, v in inputs.items():
        np.testing.assert_array_equal(v, before[n])


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_program_lowers_to_what_it_means(name: str) -> None:
    p = WRITTEN[name]()
    for seed in range(3):
        assert_lowers_right(p, random_inputs(p, seed, POSITIONS))


def test_decoder_layers_lower_to_what_they_mean() -> None:
    p = decoder_layers(2)
    assert_lowers_right(p, random_inputs(p, 0))


@pytest.mark.parametrize("name", ["positions_of_extremes", "scanned", "softmax", "scattered"])
def test_nan_and_infinities_travel_alike(name: str) -> None:
    p = WRITTEN[name]()
    inputs = random_inputs(p, 0, POSITIONS)
    for n in ("x", "updates"):
        if n in inputs:
            inputs[n][1, 2], inputs[n][2, 0], inputs[n][3, 1] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        assert_lowers_right(p, inputs)


@pytest.mark.parametrize("seed", range(150))
def test_a_random_program_lowers_to_what_it_means(seed: int) -> None:
    p, inputs = random_program(seed, size=12, empty=seed % 5 == 0)
    assert_lowers_right(p, inputs)


@forall(programs())
@settings(max_examples=40, deadline=None)
def test_any_program_lowers_to_what_it_means(case: Case) -> None:
    assert_lowers_right(*case)


@pytest.mark.parametrize("name", WRITTEN)
def test_both_levels_print_and_parse_back(name: str) -> None:
    p = WRITTEN[name]()
    assert parse_tensor(show_tensor(p)) == p
    loop = single(p)
    assert parse_loop(show_loop(loop)) == loop


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_print_and_parse_back(seed: int) -> None:
    p, _ = random_program(seed, size=12)
    assert parse_tensor(show_tensor(p)) == p
    loop = single(p)
    assert parse_loop(show_loop(loop)) == loop


def test_calls_cut_a_program_into_regions() -> None:
    p = with_call()
    verify_tensor(p)
    assert parse_tensor(show_tensor(p)) == p
    lowered = lower(p)
    assert [type(s) for s in lowered.steps] == [LoopProgram, CallStep, LoopProgram, CallStep, LoopProgram]
    for step in lowered.steps:
        if isinstance(step, LoopProgram):
            verify_loop(step)
    inputs = random_inputs(p, 0)
    for exact in (True, False):
        want = run_tensor(p, inputs, exact, CALLS)
        got = run_lowered(lowered, inputs, exact, CALLS)
        for r in p.results:
            assert_same(got[r.writes or r.name], want[r.name], exact, r.name)


def test_only_work_and_operands_of_calls_cross_a_region() -> None:
    lowered = lower(with_call())
    calls = [s for s in lowered.steps if isinstance(s, CallStep)]
    scratch = {b.name for b in lowered.buffers if b.role == "scratch"}
    made = {n for c in calls for _, n in c.results}
    assert len(scratch - made) == 2  # the operand of the first call, which later regions read, and of the second
    assert {n for c in calls for n in c.operands} == scratch - made
