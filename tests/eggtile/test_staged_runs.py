"""Kernels whose loads go through shared memory run as emitted text on the CPU, in two thread orders, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from codegen.compile import compile_text
from eggtile.check import check_compiled
from eggtile.pipeline import Compiled, Options, RequestError, compile_program
from eggtile.views import show_level


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), w)


def centred(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64
ROWS = "WORK=t64 TILE=x1:256/v4"
PROGRAMS = {
    "rows": (softmax, [normal(3, 2048)], ROWS, "shared async/d2 async/d4 bulk/d3 shared+async/d3 shared+bulk"),
    "rows of 4095": (softmax, [normal(2, 4095)], "WORK=t256 TILE=x1:512", "shared async/d3 shared+async/d2"),
    "rows of 4097": (softmax, [normal(2, 4097)], "WORK=t256 TILE=x1:256", "shared async/d3 shared+async/d2"),
    "rows that end within a tile": (softmax, [normal(3, 1100)], ROWS, "shared async/d3 bulk/d2 shared+bulk"),
    "fewer steps than slots": (softmax, [normal(3, 300)], "WORK=t32 TILE=x1:128/v4", "async/d9 bulk/d9 shared+async/d9"),
    "several rows a block": (
        softmax, [normal(7, 520)], "WORK=t64 TILE=x0:4,x1:64/v4", "shared async/d3 bulk/d3 shared+async/d2 shared+bulk"
    ),
    "folds within a warp": (
        softmax, [normal(9, 512)], "WORK=t128 TILE=x0:4,x1:128/v4 REDUCE=lanes", "shared async/d3 bulk/d3 shared+bulk"
    ),
    "bf16": (softmax, [normal(3, 2048, dtype=BF16)], "WORK=t32 TILE=x1:256/v8", "shared async/d3 bulk/d3 shared+bulk"),
    "f16 in pairs": (softmax, [normal(3, 1026, dtype=F16)], "WORK=t32 TILE=x1:128/v2", "shared async/d3"),
    "bf16 of odd length": (softmax, [normal(3, 1027, dtype=BF16)], "WORK=t32 TILE=x1:128", "shared"),
    "f64": (softmax, [normal(3, 600, dtype=F64)], "WORK=t32 TILE=x1:64/v2", "shared async/d3 bulk/d3 shared+async/d3"),
    "a weight": (scaled, [normal(3, 2048), normal(2048)], ROWS, "shared async/d3 bulk/d3 shared+async/d3 shared+bulk"),
    "a weight in several rows": (
        scaled, [normal(5, 512), normal(512)], "WORK=t64 TILE=x0:2,x1:128/v4", "shared async/d3 bulk/d3"
    ),
    "a mean, a spread and two weights": (
        centred, [normal(3, 2048), normal(2048), normal(1, 2048)[0]], ROWS, "shared async/d3 bulk/d3 shared+bulk"
    ),
    "one sweep": (lambda x: x.sum(-1), [normal(3, 2048)], ROWS, "async/d3 bulk/d3"),
    "columns": (lambda x: x / x.sum(0), [normal(256, 96).abs()], "WORK=t64 TILE=x0:16,x1:32/v4", "shared async/d3"),
    "pieces": (
        lambda x: torch.logsumexp(x, -1), [normal(2, 8192)], "WORK=t64 TILE=x1:256/v4 REDUCE=split4", "async/d3 bulk/d3"
    ),
}  # fmt: skip
CASES = [(name, stage) for name, (*_, stages) in PROGRAMS.items() for stage in stages.split()]


def compiled(name: str, stage: str) -> Compiled:
    fn, inputs, line, _ = PROGRAMS[name]
    return compile_program(fn, inputs, "staged", Options(schedule=f"{line} STAGE={stage}"))


@pytest.mark.parametrize(("name", "stage"), CASES)
def test_staged_rows_are_right_in_two_thread_orders(name: str, stage: str) -> None:
    fn, inputs, _, _ = PROGRAMS[name]
    found = compiled(name, stage)
    verdict = check_compiled(found, fn, inputs)
    assert verdict.ok, verdict


def test_the_kernel_level_shows_rings_waits_and_releases() -> None:
    text = show_level(compiled("rows", "async/d4"), "kernel")
    assert all(
        f"\n{word}" in text.replace("  ", "") for word in ("ring f32", "copy ", "commit", "wait 3", "release ")
    )
    text = show_level(compiled("rows", "bulk/d3"), "kernel")
    assert all(word in text for word in ("bulk ring f32", "bulk copy", "wait full", "wait empty", "release "))


@pytest.mark.parametrize("stage", ["async/d3", "bulk/d3", "shared+bulk"])
def test_staged_rows_compile(stage: str) -> None:
    for kernel in compiled("a weight", stage).kernels:
        for launch in kernel.launches:
            assert compile_text(launch.text, "sm_90a").spill_bytes == 0


def test_what_cannot_be_staged_is_a_request_that_is_refused() -> None:
    for stage, why in (("bulk/d3", "no load of a swept axis can be staged"), ("async", "is none of")):
        with pytest.raises(RequestError, match=f"{why}.*; near are"):
            compiled("rows of 4095", stage)
