"""Kernels that store to what they load run as emitted text on the CPU, where threads do not divide their tiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from eggtile.check import check_compiled
from eggtile.pipeline import Options, compile_program


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def centred(x: torch.Tensor) -> torch.Tensor:
    return x.sub_(x.mean(-1, keepdim=True))


PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, str]] = {
    "a row": (shifted, normal(300), "WORK=t96 TILE=x0:128"),
    "vectors": (shifted, normal(1024), "WORK=t96 TILE=x0:512/v4"),
    "rows and columns": (shifted, normal(20, 70), "WORK=t160 TILE=x0:8,x1:16"),
    "rows that are folded": (centred, normal(9, 33), "WORK=t160 TILE=x0:8,x1:16"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_block_loads_nothing_that_another_stores(name: str) -> None:
    fn, x, line = PROGRAMS[name]
    compiled = compile_program(fn, [x], "in_place", Options(schedule=line))
    verdict = check_compiled(compiled, fn, [x])
    assert verdict.ok, verdict
