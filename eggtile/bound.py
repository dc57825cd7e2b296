"""What a program is called with: tensors, and all else among its arguments, which is constant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.utils import _pytree as pytree

from eggtile.plan import RequestError

Arguments = Sequence[object]
_TENSOR = object()


class Bound(torch.nn.Module):
    """A program of the tensors among its arguments alone; all other leaves of their structure are constants of it."""

    def __init__(self, fn: Callable[..., Any], leaves: Iterable[object], tree: pytree.TreeSpec) -> None:
        super().__init__()
        self.fn, self.tree = fn, tree
        self.leaves = tuple(_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        return self.fn(*pytree.tree_unflatten([next(rest) if x is _TENSOR else x for x in self.leaves], self.tree))


def bound(fn: Callable[..., Any], arguments: Arguments) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The program of the tensors among arguments, and these."""
    leaves, tree = pytree.tree_flatten(tuple(arguments))
    tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
    if len(tensors) == len(arguments) == len(leaves):
        return fn, tensors
    return Bound(fn, leaves, tree), tensors


def refuse_gradients(arguments: Iterable[object]) -> None:
    """Refuse arguments that require gradients while PyTorch records them."""
    if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in arguments):
        raise RequestError(
            "an input requires gradients, and eggtile computes no gradients; call the program under torch.no_grad()"
        )


def refuse_transforms(arguments: Iterable[object]) -> None:
    """Refuse a call whose tensors stand for others, as within a transform or a tracer, or are no single tensors."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise RequestError("the call is within a transform of torch.func; eggtile runs on plain tensors alone")
    if torch.autograd.forward_ad._current_level >= 0:
        raise RequestError("the call is within a level of forward derivatives, and eggtile computes none")
    if is_fx_symbolic_tracing() or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack():
        raise RequestError("the call is within a tracer or a dispatch mode; eggtile runs on plain tensors alone")
    if any(isinstance(t, torch.Tensor) and t.is_nested for t in arguments):
        raise RequestError("an input is a nested tensor; eggtile runs on plain tensors alone")
