"""The gate lets right kernels pass, whole or sampled, and stops those that are a little wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from codegen import cpu
from eggtile.gate import GUARD_BYTES, Run, gate
from eggtile.pipeline import CompiledKernel, compile_program
from eggtile.trials import CASES, WORK, Trial, only_written, storage, trials
from ir.dtype import Array, storage_type
from ir.kernel import KernelProgram

F = torch.nn.functional
HALF, BF16 = torch.float16, torch.bfloat16


def emulated(kernel: KernelProgram, text: str) -> Run:
    program = cpu.Program([(kernel, text)])

    def run(images: list[Array], starts: list[int]) -> None:
        memory = [
            i[s:-GUARD_BYTES].view(storage_type(b.dtype))
            for i, s, b in zip(images, starts, kernel.buffers, strict=True)
        ]
        program.run(0, memory, filled=[True] * len(memory))

    return run


def prepared(k: CompiledKernel, work: int = WORK) -> list[tuple[Trial, list[Array]]]:
    kernel, axes = k.canonical.kernel, k.canonical.axes
    made = trials(kernel, k.kernel.buffers, axes, True, work)
    return [(t, storage(t.case, k.kernel.buffers, only_written(kernel), max(axes.values()))) for t in made]


PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "rows": (lambda x, w: F.rms_norm(x, (256,), w), (torch.randn(1, 8, 256), torch.randn(256))),
    "exponentials": (lambda x: F.softmax(x, -1), (torch.randn(8, 256).to(BF16),)),
    "product": (lambda x, w: x @ w, (torch.randn(32, 64).to(HALF), torch.randn(64, 16).to(HALF))),
    "gather": (lambda x, i: x[i], (torch.randn(32, 64), torch.zeros(7, dtype=torch.int64))),
    "scatter": (
        lambda x, i, u: x.index_add(0, i, u),
        (torch.randn(32, 8), torch.zeros(70, dtype=torch.int64), torch.randn(70, 8)),
    ),
    "prefixes": (lambda x: torch.cumsum(x, -1), (torch.randn(4, 64),)),
    "transposed": (lambda x: (x.T * 2).contiguous(), (torch.randn(17, 33),)),
    "masked": (lambda m, x: x.masked_fill(m, 0.5), (torch.rand(9, 40) < 0.5, torch.randn(9, 40))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_kernels_pass(name: str) -> None:
    fn, inputs = PROGRAMS[name]
    for k in compile_program(fn, inputs, name).kernels:
        run = emulated(k.kernel, k.text)
        for work in (WORK, 4000):
            given = prepared(k, work)
            verdict = gate(run, k.kernel.buffers, given)
            assert verdict.status == "ok", verdict.reason
            assert verdict.error <= verdict.bound
        if name in ("rows", "product"):
            assert not given[0][0].whole


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("rows", "1.1920929e-07f", "1.1920929e-05f"),
        ("rows", "256.0f", "256.1f"),
        ("masked", "0.5f", "0.501f"),
    ],
)
def test_a_small_change_of_the_text_is_found(name: str, old: str, new: str) -> None:
    fn, inputs = PROGRAMS[name]
    (k,) = compile_program(fn, inputs, name).kernels
    assert old in k.text
    verdict = gate(emulated(k.kernel, k.text.replace(old, new, 1)), k.kernel.buffers, prepared(k))
    assert verdict.status == "wrong"


@pytest.mark.parametrize(("mask", "status"), [(0xFFFFFFFF, "ok"), (0xFFFFE000, "wrong")])
def test_a_product_of_operands_that_lose_bits_is_outside_the_bound_of_a_full_one(mask: int, status: str) -> None:
    """19 bits of each operand, as on the tensor cores, do not make an f32 product."""
    (k,) = compile_program(lambda x, w: x @ w, (torch.randn(32, 512), torch.randn(512, 16)), "full").kernels
    shape = {b.shape: n for n, b in enumerate(k.kernel.buffers)}

    def run(images: list[Array], starts: list[int]) -> None:
        memory = [i[s:-GUARD_BYTES].view(np.float32) for i, s in zip(images, starts, strict=True)]
        x, w = ((memory[shape[s]].view(np.uint32) & np.uint32(mask)).reshape(s) for s in ((32, 512), (512, 16)))
        with np.errstate(all="ignore"):
            memory[shape[32, 16]][:] = (x.view(np.float32) @ w.view(np.float32)).ravel()

    verdict = gate(run, k.kernel.buffers, prepared(k))
    assert verdict.status == status, verdict.reason


def test_cases_differ_and_are_the_same_each_time() -> None:
    fn, inputs = PROGRAMS["rows"]
    (k,) = compile_program(fn, inputs, "rows").kernels
    fresh = only_written(k.canonical.kernel)
    drawn = {c: [storage(c, k.kernel.buffers, fresh, 256) for _ in range(2)] for c in CASES}
    for first, second in drawn.values():
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
    assert len({first[1].tobytes() for first, _ in drawn.values()}) == len(CASES)
