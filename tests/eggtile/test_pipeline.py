"""Programs go the whole way: from PyTorch to emitted text that is right against float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from bench.cases import CASES, Case
from codegen.compile import compile_text
from eggtile.api import optimize
from eggtile.check import check_on_cpu
from eggtile.pipeline import Options, compile_program
from extract.cost import kernel_cost, sweeps
from ir.machine import H200

PART = sorted(CASES, key=lambda c: c.seed(7))[:10]
"""A seeded part of the suite; `python -m bench check` runs all of it."""


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + mask, -1) @ v


def standardised(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * w + b


PROGRAMS = {
    "a module with a parameter": (torch.nn.RMSNorm(2048), [normal(1, 32, 2048)]),
    "a small product": (torch.matmul, [normal(4, 3), normal(3, 2)]),
    "a product with prologue and epilogue": (
        lambda x, bias, w: torch.relu(torch.matmul(x + bias, w)),
        [normal(16, 64), normal(64), normal(64, 16)],
    ),
    "two dependent folds by hand": (standardised, [normal(33, 100), normal(100), normal(100, seed=1)]),
    "softmax": (lambda x: torch.softmax(x, -1), [normal(8, 300)]),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), [normal(8, 300)]),
    "attention by hand": (
        by_hand,
        [*(normal(2, 4, 48, 16, seed=s) for s in range(3)), torch.full((48, 48), -math.inf).triu(1)],
    ),
    "grouped heads in bf16": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        [normal(1, h, 40, 16, dtype=torch.bfloat16, seed=h) for h in (8, 2, 2)],
    ),
    "a mutated input": (lambda x: x[1:].copy_(x[:-1].clone()), [normal(9, 5)]),
    "an accumulated input": (lambda w, g: w.add_(g, alpha=-0.1), [normal(7), normal(7, seed=1)]),
    "integers that wrap": (lambda x: (x + x).to(torch.int16), [torch.tensor([128, 3], dtype=torch.uint8)]),
    "a transposed, sliced, expanded input": (
        lambda x, b: x.t()[:, ::2] + b,
        [normal(8, 6), normal(1, 4).expand(6, 4)],
    ),
    "no elements": (lambda x: torch.softmax(x, -1) + x.sum(), [torch.empty(0, 4)]),
    "a scalar": (lambda x: x.exp().sum() * 2, [normal(5, 5)]),
    "a call in between": (lambda x: torch.linalg.inv(x @ x.T + 5 * torch.eye(4)) * 2, [normal(4, 4)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_emitted_text_is_right_on_the_cpu_in_two_thread_orders(name: str) -> None:
    fn, inputs = PROGRAMS[name]
    verdict = check_on_cpu(fn, inputs, "program")
    assert verdict.ok, verdict


@pytest.mark.parametrize("case", PART, ids=lambda c: c.name)
def test_a_part_of_the_suite_is_right_at_tiny_sizes(case: Case) -> None:
    fn, inputs = case.program(tiny=True)
    verdict = check_on_cpu(fn, inputs, case.name)
    assert verdict.ok, verdict


def test_every_form_of_a_program_runs_right() -> None:
    inputs = [*(normal(1, 2, 24, 8, seed=s) for s in range(3)), torch.zeros(24, 24)]
    count = len(compile_program(by_hand, inputs, options=Options(k=6)).regions[0].forms)
    assert count >= 4
    for form in range(count):
        verdict = check_on_cpu(by_hand, inputs, options=Options(k=6, form=form))
        assert verdict.ok, (form, verdict)


def test_operand_order_does_not_change_the_text() -> None:
    x, y = normal(8, 8), normal(8, 8, seed=1)
    texts = {compile_program(f, [x, y]).text for f in (lambda x, y: x + x + y, lambda x, y: y + (x + x))}
    assert len(texts) == 1


def test_exact_algebra_goes_and_inexact_algebra_stays() -> None:
    text = compile_program(lambda x: torch.exp(torch.log(x)) * 1 + 0, [normal(8).abs()]).text
    assert "expf(logf(" in text
    assert "+" not in text.split("{", 1)[1].replace("block * ", "").split("expf")[1]


def test_a_chain_of_products_takes_the_cheap_association() -> None:
    compiled = compile_program(lambda a, b, c: (a @ b) @ c, [normal(512, 4), normal(4, 512), normal(512, 4)])
    form = compiled.regions[0].chosen
    multiplies = sum(kernel_cost(k, form, H200).flops for k in form.kernels) // 2
    assert multiplies == 16_384


def test_streaming_takes_one_sweep_where_the_program_takes_three() -> None:
    inputs = [*(normal(1, 2, 64, 16, seed=s) for s in range(3)), torch.zeros(64, 64)]
    region = compile_program(by_hand, inputs, options=Options(k=12)).regions[0]

    def most(form: object) -> int:
        return max(sum(sweeps(k).get(a, 0) for k in form.kernels) for a in form.axes)  # type: ignore[attr-defined]

    assert most(region.default) == 3
    assert min(map(most, region.forms)) == 1


def test_an_optimised_function_is_called_like_the_program_and_respecialises() -> None:
    optimized = optimize(lambda x, y: {"sum": x + y, "product": x * y}, [normal(3, 4), normal(3, 4, seed=1)])
    for shape in ((3, 4), (2, 5)):
        x, y = normal(*shape), normal(*shape, seed=1)
        out = optimized(x, y)
        assert torch.equal(out["sum"], x + y)
        assert torch.equal(out["product"], x * y)
    assert optimized.report()["forms"]


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (lambda x: (x.std(), x.mean(), x.amax(), x.argmax()), (2000003,)),
        (lambda x: x / x.norm(dim=0), (4000, 515)),
        (lambda x: x.argmax(-1), (1024, 50000)),
        (lambda x: (x.sum(0), x.amax(0), x.argmin(0)), (5000, 5000)),
    ],
)
def test_what_a_loop_carries_stays_in_registers(fn: Callable[..., object], shape: tuple[int, ...]) -> None:
    compiled = compile_program(fn, [torch.empty(shape, device="meta")])
    assert all(compile_text(launch.text, "sm_90a").spill_bytes == 0 for launch in compiled.launches)


def test_what_a_loop_only_loads_leaves_memory_as_many_threads_as_it_needs() -> None:
    compiled = compile_program(lambda x: x.sum(0), [torch.empty(20000, 1536, device="meta")])
    (launch,) = compiled.launches
    assert f"__launch_bounds__({launch.kernel.block_threads}, {1024 // launch.kernel.block_threads})" in launch.text
