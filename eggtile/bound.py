"""What a program is called with: tensors, numbers that are constants of it, and arguments that are given by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
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


def placed(fn: Callable[..., Any], arguments: Arguments, named: Mapping[str, object]) -> Arguments:
    """The arguments in order, those that are given by name in the places that the program has for them."""
    if not named:
        return arguments
    given = ", ".join(named)
    try:
        own = signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except (TypeError, ValueError):
        raise RequestError(
            f"{given} is given by name, and the program names no arguments; give it in order"
        ) from None
    try:
        found = own.bind(*arguments, **named)
    except TypeError as e:
        raise RequestError(f"the program cannot be called so: {e}") from None
    last = max(n for n, name in enumerate(own.parameters) if name in found.arguments)
    found.apply_defaults()
    rows = list(own.parameters.values())[: last + 1]
    if any(p.kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD) for p in rows):
        raise RequestError(
            f"{given} is given by name, and the program takes it by name alone; eggtile takes it in order"
        )
    values = (
        found.arguments[p.name] if p.kind is Parameter.VAR_POSITIONAL else (found.arguments[p.name],) for p in rows
    )
    return tuple(v for several in values for v in several)


def refuse_gradients(arguments: Arguments) -> None:
    """Refuse arguments that require gradients while PyTorch records them."""
    if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in arguments):
        raise RequestError(
            "an input requires gradients, and eggtile computes no gradients; call the program under torch.no_grad()"
        )
