"""Programs that once went wrong: their emitted text is right now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from eggtile.check import check_on_cpu
from eggtile.pipeline import LISTED, Options, Region, RequestError, capture_and_lower, choose_forms, compile_program
from eggtile.planning import plan_of
from eggtile.runtime import execution_for
from extract.signature import form_signature


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def outputs(fn: Callable[..., object], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the emitted text gives on the CPU."""
    plan = plan_of(compile_program(fn, inputs))
    return execution_for(plan, torch.device("cpu")).outputs_and_inputs(inputs)[: -len(inputs)]


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
    verdict = check_on_cpu(module(2, 3), [rand(4, 2, 2)])
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


def test_a_fold_over_no_positions_is_what_eager_gives() -> None:
    cases: list[tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = [
        (lambda s, v: s.softmax(-1) @ v, [rand(4, 0), rand(0, 3)]),
        (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, [rand(5, 8), rand(0, 8), rand(0, 3)]),
        (lambda x, v: x.softmax(-1).sum(-1, True) + v, [rand(4, 0), rand(4, 3)]),
        (lambda x: x.sum(0), [rand(0, 3)]),
        (lambda x: x.prod(0), [rand(0, 3)]),
    ]
    for fn, inputs in cases:
        verdict = check_on_cpu(fn, inputs)
        assert verdict.ok, verdict.reason
    (empty,) = outputs(cases[3][0], cases[3][1])
    assert not empty.signbit().any()


def test_a_kernel_may_read_nothing() -> None:
    x = rand(4, 6)
    cases: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: torch.ones_like(x).sum(1),
        lambda x: x / torch.ones_like(x).sum(1, keepdim=True),
        lambda x: torch.zeros_like(x) @ torch.zeros_like(x).t(),
        lambda x: torch.zeros_like(x).softmax(1),
        lambda x: nn.functional.layer_norm(torch.zeros_like(x), (6,)),
    ]
    for fn in cases:
        verdict = check_on_cpu(fn, [x])
        assert verdict.ok, verdict.reason


def test_false_is_less_than_true() -> None:
    b, c = torch.tensor([True, False, True]), torch.tensor([True, True, False])
    verdict = check_on_cpu(lambda b, c: (b < c, b >= c, torch.where(b > c, b, c), (b & ~b) <= c, b == c), [b, c])
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_extrema_order_zeros_as_the_machine_does(dtype: torch.dtype) -> None:
    x = torch.tensor([-0.0, 0.0, float("nan")], dtype=dtype)
    y = torch.tensor([0.0, -0.0, 0.0], dtype=dtype)
    fns = (lambda x, y: x.relu(), lambda x, y: x.clamp(max=0), torch.maximum, torch.minimum)
    negative = [[0, 0], [1, 0], [0, 0], [1, 1]]  # as eager PyTorch on a GPU, where -0.0 < 0.0
    for fn, signs in zip(fns, negative, strict=True):
        (got,) = outputs(fn, [x, y])
        assert got[:2].signbit().int().tolist() == signs
        assert got[2].isnan()


def test_every_form_that_is_listed_can_be_asked_for_by_its_number() -> None:
    def listed(form: int | None, k: int | None) -> Region:
        options = Options(k=k, form=form)
        return choose_forms(capture_and_lower(lambda x: x.softmax(-1), [rand(8, 33)], "p", options)).regions[0]

    for k in (3, None):
        region = listed(0, k)
        assert len(region.forms) == k or k is None
        for n in {1, len(region.listed) - 1}:
            assert form_signature(listed(n, k).chosen) == form_signature(region.listed[n])
        with pytest.raises(RequestError, match="there is no form"):
            listed(len(region.listed), k)
    assert len(listed(0, None).forms) == len(listed(None, LISTED).forms)
