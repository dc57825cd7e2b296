"""Programs of which some form was wrong: every form's emitted text is right, the one as written among them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from eggtile.check import check_compiled
from eggtile.pipeline import Options, capture_and_lower, choose_forms, compile_kernels

TRIES = 12
KEPT = torch.rand(7, 13, generator=torch.Generator().manual_seed(1)) > 0.3
KEPT[2] = False


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def farthest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.masked_fill(~KEPT, -math.inf)
    return (z - z.amax(-1, True) + y).amax(-1)


def scaled(x: torch.Tensor) -> torch.Tensor:
    least = x.amin(-1, True)
    return (x - least) / (x.amax(-1, True) - least)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "the maximum of a row that is masked everywhere": (farthest, [rand(7, 13), rand(7, 13)]),
    "the largest logarithm of probabilities of large logits": (
        lambda x: torch.log_softmax(x, -1).amax(-1), [rand(5, 13) + 1e4],
    ),
    "attention without keys": (F.scaled_dot_product_attention, [rand(2, 7, 4), rand(2, 0, 4), rand(2, 0, 5)]),
    "values of a large mean, normalised twice": (
        lambda x: F.layer_norm(F.layer_norm(x, (1000,)), (1000,)), [rand(5, 1000) + 1e4],
    ),
    "products with a large mean, normalised": (
        lambda x, v: F.layer_norm(torch.softmax(x, -1) @ v, (5,)), [rand(6, 19), rand(19, 5) + 1e4],
    ),
    "the spread over two axes": (lambda x: x.var((0, 2)), [rand(8, 4, 9)]),
    "groups normalised": (lambda x: F.group_norm(x, 2).sum(1), [rand(2, 4, 9)]),
    "a maximum times an inverse root of -0.0": (
        lambda x, s: (x * s.rsqrt()).amax(-1), [rand(5, 13), torch.tensor([[0.0], [-0.0], [1.0], [2.0], [3.0]])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_form_is_right(name: str) -> None:
    every_form_is_right(*PROGRAMS[name], "default")


def test_a_quotient_of_strict_numerics_is_nowhere_a_product_with_a_stored_reciprocal() -> None:
    every_form_is_right(scaled, [rand(5, 13) * 1e-40], "strict")


def every_form_is_right(fn: Callable[..., Any], inputs: list[torch.Tensor], numerics: str) -> None:
    compiled = choose_forms(capture_and_lower(fn, inputs, "p", Options(k=TRIES, numerics=numerics)))
    for number in range(max(len(r.listed) for r in compiled.regions)):
        for region in compiled.regions:
            region.chosen = region.listed[min(number, len(region.listed) - 1)]
        verdict = check_compiled(compile_kernels(compiled), fn, inputs)
        assert verdict.ok, (number, verdict.reason)
