"""Programs whose graphs hold others, read `data` or have no tensor are captured, or run in eager PyTorch with a note."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import eggtile
from eggtile.pipeline import compile_program

X = torch.linspace(-1, 1, 24).reshape(3, 8)
optimize = partial(eggtile.optimize, evidence="none")


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x * 3, x + 1

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 3


@torch.library.custom_op("eggtile_wrapped::increment", mutates_args=("x",))
def increment(x: torch.Tensor) -> None:
    x.add_(1)


def incremented(x: torch.Tensor) -> Any:
    increment(x)
    return x * 2


INNER, kept = nn.Linear(8, 4), partial(checkpoint, use_reentrant=False)
WRAPPED: dict[str, tuple[Callable[[torch.Tensor], Any], str | None]] = {
    "data": (lambda x: x.data * 2 + INNER.weight.data[0], None),
    "checkpoint": (lambda x: kept(lambda y: kept(torch.sin, y) * 2, x), None),
    "autograd function": (lambda x: Triple.apply(x * INNER.weight[0]), None),
    "cond": (lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), "cond takes programs as operands"),
    "no result": (incremented, "eggtile_wrapped.increment.default has a result that is no tensor"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRAPPED)
def test_bodies_that_pytorch_wraps_are_captured_or_run_in_eager(what: str) -> None:
    program, why = WRAPPED[what]
    fast, ours, eager = optimize(program, [X]), X.clone(), X.clone()
    torch.testing.assert_close(fast(ours), pytree.tree_map(torch.Tensor.detach, program(eager)))
    assert torch.equal(ours, eager)
    notes = [n.rpartition(": ")[2] for n in fast.compiled.captured.program.notes]
    assert notes == ([why] if why else [])
    assert why or not compile_program(program, [X]).captured.program.notes


def test_a_program_without_tensors_runs_in_eager_and_not_before() -> None:
    seen: list[int] = []
    for program, made in ((lambda x: seen.append(1), None), (lambda x: seen.append(1) or x.shape[0] * 2, 6)):
        seen.clear()
        fast = optimize(program, [X])
        assert not seen and fast(X) == made and len(seen) == 1
        assert "it computes no tensor" in fast.report()["notes"][0] and not fast.forms


def test_a_parameter_may_bear_any_name() -> None:
    def program(
        x: torch.Tensor, signs: float = 1, self: float = 1, fn: float = 1, given: float = 1
    ) -> torch.Tensor:
        return x * signs * self * fn * given

    fast = optimize(program, [X])
    for name in ("signs", "self", "fn", "given"):
        assert torch.equal(fast(X, **{name: 2.0}), X * 2)
