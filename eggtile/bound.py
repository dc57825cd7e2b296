"""A program with numbers in the places of some arguments, which are constants of it, as `torch.compile` has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from eggtile.plan import RequestError

Arguments = Sequence[object]


class Bound(torch.nn.Module):
    """A program of the tensors alone, among whose arguments a number stands where `numbers` has one."""

    def __init__(self, fn: Callable[..., Any], numbers: Arguments) -> None:
        super().__init__()
        self.fn, self.numbers = fn, numbers

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        return self.fn(*(next(rest) if n is None else n for n in self.numbers))


def bound(
    fn: Callable[..., Any], arguments: Arguments | torch.Tensor
) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The program of the tensors among arguments, and these; what is neither tensor nor number is refused."""
    if isinstance(arguments, torch.Tensor):
        raise RequestError("the inputs are one tensor; eggtile takes a list of tensors and numbers")
    for k, a in enumerate(arguments):
        if not isinstance(a, torch.Tensor | int | float):
            raise RequestError(f"argument {k} is a {type(a).__name__}; eggtile takes tensors and numbers")
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    if len(tensors) == len(arguments):
        return fn, tensors
    return Bound(fn, tuple(None if isinstance(a, torch.Tensor) else a for a in arguments)), tensors
