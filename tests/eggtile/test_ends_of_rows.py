"""Extrema of 16-bit values where a layout has places past the end of a row, and loads leave there what others want."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from eggtile.check import check_compiled
from eggtile.pipeline import Options, compile_program


def below(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Values far from what lies behind a row."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 7 + 3).to(dtype)


PROGRAMS: dict[str, tuple[Callable[..., object], torch.Tensor, str | None]] = {
    "both extrema of columns": (lambda x: (x.amax(0), x.amin(0)), below(1004, 6), None),
    "a sum and a maximum": (lambda x: (x.sum(0), x.amax(0)), below(1004, 6), None),
    "negated columns": (lambda x: (-x).amax(0), below(1004, 6), None),
    "rows of an odd base": (lambda x: (-x[:, 1:]).amax(-1), below(3, 1005), None),
    "every second": (lambda x: (-x[:, ::2]).amax(-1), below(3, 2008), None),
    "a pinned row": (lambda x: (-x).amax(-1), below(3, 1004), "WORK=t128 TILE=x1:1004"),
    "a row over blocks": (lambda x: (-x).amax(-1), below(3, 1004, dtype=torch.float16), "WORK=t64+c2 TILE=x1:1004"),
    "rounded from f32": (lambda x: (-x).bfloat16().amax(-1), below(3, 1004, dtype=torch.float32), "WORK=t128 TILE=x1:1004"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_behind_a_row_is_folded(name: str) -> None:
    fn, x, line = PROGRAMS[name]
    verdict = check_compiled(compile_program(fn, [x], "p", Options(schedule=line)), fn, [x])
    assert verdict.ok, verdict.reason
