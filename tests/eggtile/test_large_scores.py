"""Chains of products around an exponential are right however large the scores, whoever adds up the sums anew."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bench.shrunk import shrunk
from eggtile.pipeline import Options, capture_and_lower
from egraph.saturate import saturate
from extract.forms import default_form, forms
from ir.dtype import rounded
from ir.loop import LoopProgram
from ir.loop_interp import run_form, run_loop
from ir.machine import H200
from tests.two_orders import all_forms, in_two_orders

Sizes = tuple[int, int, int, int]
LARGE: Sizes = (32, 2048, 128, 128)  # where a kernel that adds up the scores anew may be the cheapest
SMALL: Sizes = (2, 24, 40, 8)


def normalised(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).softmax(-1) @ v


def divided_last(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT
    shares = torch.exp(scores - scores.amax(-1, True))
    return shares @ v / shares.sum(-1, True)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


PROGRAMS: dict[str, Callable[..., torch.Tensor]] = {
    "a softmax between two products": normalised,
    "exponentials that are divided last": divided_last,
    "attention": F.scaled_dot_product_attention,
    "attention to earlier positions": causal,
}


def lowered(fn: Callable[..., torch.Tensor], dtype: torch.dtype, sizes: Sizes) -> LoopProgram:
    b, n, d, e = sizes
    inputs = [torch.empty(1, b, n, width, dtype=dtype, device="meta") for width in (d, d, e)]
    (step,) = capture_and_lower(fn, inputs, "p", Options()).lowered.steps
    assert isinstance(step, LoopProgram)
    return step


DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_form_as_written_costs_about_what_the_best_without_reassociation_does(name: str, dtype: str) -> None:
    program = lowered(PROGRAMS[name], DTYPES[dtype], LARGE)
    best = forms(saturate(program, "strict"), H200, k=12)[0]
    assert default_form(program, H200).cost_us < 1.15 * best.cost_us


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_form_is_right_at_large_scores(name: str, dtype: str) -> None:
    large, small = (lowered(PROGRAMS[name], DTYPES[dtype], sizes) for sizes in (LARGE, SMALL))
    rng = np.random.default_rng(0)
    drawn = {b.name: rng.standard_normal(b.shape) for b in small.buffers if b.role == "input"}
    *scored, last = drawn
    (result,) = (b.name for b in small.buffers if b.role == "output")
    for form in all_forms(large):
        for size, turn in ((1e2, 1), (1e6, 0), (1e6, 1)):
            given = {n: rounded(drawn[n] * size, dtype) for n in scored} | {last: rounded(drawn[last], dtype)}
            want = run_loop(small, given, exact=True)[result]
            with np.errstate(all="ignore"):
                got = run_form(in_two_orders(shrunk(form, large, small), turn), given, exact=False)[result]
            error = np.max(np.abs(got.astype(np.float64) - want)) / np.max(np.abs(want))
            assert error < {"f32": 1e-5, "bf16": 1e-2}[dtype], (form.name, size, turn)
