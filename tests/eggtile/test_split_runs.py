"""Kernels whose sweeps are in pieces run as emitted text on the CPU, in two thread orders, on poisoned scratch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from eggtile.check import check_compiled
from eggtile.pipeline import Options, RequestError, compile_program
from eggtile.views import show_level

INF = math.inf


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def emptied(rows: int, columns: int) -> torch.Tensor:
    """Rows of which whole pieces are -inf."""
    x = normal(rows, columns)
    x[0, : columns // 2], x[1, columns // 3 :] = -INF, -INF
    return x


TIES = torch.arange(3 * 501).reshape(3, 501) % 7 // 3 * 1.0
LOGSUM, BEST = (lambda x: torch.logsumexp(x, -1)), (lambda x: x.argmax(-1))
PROGRAMS = {
    "logsumexp": (LOGSUM, [normal(3, 12501)], "WORK=t64 REDUCE=split5"),
    "logsumexp in bf16": (LOGSUM, [normal(3, 20480, dtype=torch.bfloat16)], "WORK=t32 TILE=x1:64/v8 REDUCE=split4"),
    "logsumexp of emptied rows": (LOGSUM, [emptied(3, 12501)], "WORK=t64 TILE=x1:32 REDUCE=lanes+split7"),
    "the first of ties": (BEST, [TIES], "WORK=t32 TILE=x1:128 REDUCE=split4"),
    "the largest": (lambda x: x.amax(-1), [normal(2, 300, dtype=torch.float16)], "WORK=t32 REDUCE=split3"),
    "a mean in f16": (lambda x: x.mean(-1), [normal(2, 300, dtype=torch.float16)], "WORK=t32 REDUCE=split3"),
    "a mean in f64": (lambda x: x.mean(-1), [normal(2, 300, dtype=torch.float64)], "WORK=t32 REDUCE=split3"),
    "a whole sum": (lambda x: x.sum(), [normal(40, 50).abs()], "WORK=t64 TILE=x1:16 REDUCE=split6"),
    "column sums": (lambda x: x.sum(0), [normal(130, 6)], "WORK=t32 TILE=x0:8 REDUCE=serial+split8"),
    "one row": (LOGSUM, [normal(1, 9001)], "WORK=t32 REDUCE=split2"),
    "no rows": (LOGSUM, [normal(0, 12129)], "WORK=t32 REDUCE=split2"),
}


CLUSTERED = {
    "logsumexp": (LOGSUM, [normal(3, 1024)], "WORK=t64+c4 TILE=x1:256/v4,x1p:4 REDUCE=split4"),
    "logsumexp in bf16": (
        LOGSUM, [normal(3, 2004 * 8, dtype=torch.bfloat16)], "WORK=t128+c8 TILE=x1:2004/v4,x1p:8 REDUCE=split8"
    ),
    "logsumexp of emptied rows": (LOGSUM, [emptied(3, 1200)], "WORK=t32+c8 TILE=x1:150/v2,x1p:8 REDUCE=split8"),
    "the first of ties": (BEST, [TIES[:, :500]], "WORK=t32+c4 TILE=x1:125,x1p:4 REDUCE=split4"),
    "rows that are written": (
        lambda x: torch.softmax(x, -1), [normal(5, 512)], "WORK=t64+c2 TILE=x0:2,x1:256/v4,x1p:2 REDUCE=split2"
    ),
    "a mean and a spread": (
        lambda x: F.layer_norm(x, (512,)), [normal(4, 512)], "WORK=t64+c2 TILE=x1:256/v4,x1p:2 REDUCE=split2"
    ),
    "short steps": (LOGSUM, [normal(3, 1024)], "WORK=t32+c4 TILE=x1:32,x1p:4 REDUCE=split4"),
    "warps": (LOGSUM, [normal(3, 1024)], "WORK=t64+c4 TILE=x1:128/v4,x1p:8 REDUCE=lanes+split8"),
    "warps in bf16, the last with less": (
        LOGSUM, [normal(3, 8024, dtype=torch.bfloat16)], "WORK=t128+c8 TILE=x1:256/v8,x1p:32 REDUCE=lanes+split32"
    ),
    "warps of emptied rows": (LOGSUM, [emptied(3, 1100)], "WORK=t64+c4 TILE=x1:192/v4,x1p:8 REDUCE=lanes+split8"),
    "warps that step": (LOGSUM, [normal(3, 4099)], "WORK=t64+c2 TILE=x1:64,x1p:4 REDUCE=lanes+split4"),
    "many warps": (LOGSUM, [normal(2, 65000)], "WORK=t512+c4 TILE=x1:1024/v4,x1p:64 REDUCE=lanes+split64"),
    "rows that warps write": (
        lambda x: torch.softmax(x, -1), [normal(5, 512)], "WORK=t64+c2 TILE=x1:128/v4,x1p:4 REDUCE=lanes+split4"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLUSTERED)
def test_pieces_in_the_blocks_of_a_cluster_are_right(name: str) -> None:
    fn, inputs, line = CLUSTERED[name]
    compiled = compile_program(fn, inputs, "program", Options(schedule=line))
    (kernel,) = compiled.kernels
    assert len(kernel.launches) == 1
    verdict = check_compiled(compiled, fn, inputs)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(
    ("pieces", "barriers"),
    [("x1:65536/v4", 1), ("x1:8192/v4,x1p:8 REDUCE=split8", 0), ("x1:256/v4,x1p:256 REDUCE=lanes+split256", 0)],
)
def test_blocks_of_a_cluster_that_have_pieces_are_gathered_once(pieces: str, barriers: int) -> None:
    line = f"WORK=t1024+c8 TILE={pieces}"
    compiled = compile_program(LOGSUM, [normal(3, 65536)], "program", Options(schedule=line))
    text = show_level(compiled, "cuda")
    assert text.count("  cluster_barrier();") == barriers and text.count("  cluster_gather();") == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_launches_together_are_right(name: str) -> None:
    fn, inputs, line = PROGRAMS[name]
    compiled = compile_program(fn, inputs, "program", Options(schedule=line))
    (kernel,) = compiled.kernels
    assert len(kernel.launches) >= 2
    verdict = check_compiled(compiled, fn, inputs)
    assert verdict.ok, verdict.reason


def test_the_default_splits_a_long_row() -> None:
    fn, inputs = LOGSUM, [normal(2, 40000)]
    compiled = compile_program(fn, inputs)
    assert "split" in str(compiled.kernels[0].schedule)
    assert check_compiled(compiled, fn, inputs).ok


def test_a_row_that_is_written_is_read_again_after_the_merge() -> None:
    fn, inputs = (lambda x: x - torch.logsumexp(x, -1, keepdim=True)), [normal(2, 12300)]
    compiled = compile_program(fn, inputs, "program", Options(schedule="WORK=t32 REDUCE=split4"))
    assert len(compiled.kernels[-1].launches) == 2
    assert check_compiled(compiled, fn, inputs).ok


def test_blocks_share_few_rows_against_many_keys() -> None:
    q, k, v = normal(1, 2, 1, 16), normal(1, 2, 4096, 16), normal(1, 2, 4096, 16)
    compiled = compile_program(F.scaled_dot_product_attention, [q, k, v])
    assert any("split" in str(k.schedule) or "+c" in str(k.schedule) for k in compiled.kernels)
    assert check_compiled(compiled, F.scaled_dot_product_attention, [q, k, v]).ok


def test_every_launch_is_printed() -> None:
    compiled = compile_program(LOGSUM, [normal(3, 12501)], "program", Options(schedule="WORK=t64 REDUCE=split5"))
    assert show_level(compiled, "tile").count("tile kernel_") == 2
    for level in ("kernel", "cuda"):
        assert all(name in show_level(compiled, level) for name in ("kernel_0", "kernel_1"))


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(RequestError, match="no axis that can be split"):
        compile_program(lambda x: x + 1, [normal(3, 4)], "program", Options(schedule="WORK=t32 REDUCE=split2"))
