"""Programs that once went wrong: their emitted text is right now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from eggtile.check import check_on_cpu
from eggtile.pipeline import Options


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("form", [None, 0, 3])
def test_a_chain_of_products_with_one_weight(form: int | None) -> None:
    inputs = [torch.randn(2, 2, generator=torch.Generator().manual_seed(n)) for n in range(5)]
    verdict = check_on_cpu(
        lambda a, b, c, w, u: c @ u + (b @ u + a @ u @ w) @ w, inputs, options=Options(k=4, form=form)
    )
    assert verdict.max_rel_err < 1e-6


@pytest.mark.parametrize("module", [nn.GRU, nn.LSTM])
def test_a_recurrent_network_of_length_four(module: Callable[[int, int], nn.Module]) -> None:
    torch.manual_seed(0)
    verdict = check_on_cpu(module(5, 6), [rand(4, 3, 5)])
    assert verdict.ok, verdict.reason


def test_a_value_compared_with_its_own_copies_is_computed_once() -> None:
    q, k = rand(2, 4, 5, 16), rand(2, 4, 11, 16)

    def largest(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        s = q @ k.mT
        return (s == s.sort(-1).values[..., -1:]).sum(-1)

    def kept(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        s = q @ k.mT
        return s.masked_fill(s < s.topk(3, -1).values[..., -1:], float("-inf")).softmax(-1)

    for fn in (
        largest,
        kept,
        lambda q, k: ((q @ k.mT).softmax(-1) == (q @ k.mT).softmax(-1).amax(-1, True)).sum(-1),
    ):
        verdict = check_on_cpu(fn, [q, k])
        assert verdict.ok, verdict.reason
