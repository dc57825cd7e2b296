"""What a program is called with: tensors, and all else among its arguments, which is constant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.utils import _pytree as pytree

from eggtile.echo import cut, echoed
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
    if all(isinstance(a, torch.Tensor) for a in arguments):
        return fn, tensors
    return Bound(fn, leaves, tree), tensors


class _Tensor:
    """A tensor where a structure is shown."""

    def __repr__(self) -> str:
        return "tensor"


@dataclass(frozen=True)
class Takes:
    """What a saved program is called with.

    That is its parameters, the structure of their arguments, and by position in it the constants; then how many
    parameters can be given by place, and what those that need not be given stand for.
    """

    parameters: tuple[str, ...]
    tree: pytree.TreeSpec
    fixed: Mapping[int, object]
    positional: int
    defaults: Mapping[str, object]

    @cached_property
    def places(self) -> tuple[str, ...]:
        """What the tensors are called: the parameter, and where in it they stand."""
        shape = pytree.tree_unflatten([0] * self.tree.num_leaves, self.tree)
        parts = (
            (p, pytree.tree_flatten_with_path(part)[0]) for p, part in zip(self.parameters, shape, strict=True)
        )
        names = (p + pytree.keystr(path) for p, leaves in parts for path, _ in leaves)
        return tuple(name for n, name in enumerate(names) if n not in self.fixed)

    def tensors(self, given: Sequence[object], named: Mapping[str, object]) -> list[Any]:
        """What a call gives in the tensors' places; all else of it must be what the program was saved with."""
        arguments = self._in_order(given, named)
        try:
            leaves = self.tree.flatten_up_to(arguments)
        except ValueError:
            shape = pytree.tree_unflatten(
                [self.fixed.get(n, _Tensor()) for n in range(self.tree.num_leaves)], self.tree
            )
            got = pytree.tree_map_only(torch.Tensor, lambda _: _Tensor(), arguments)
            raise RequestError(f"the program takes {shape}, not {cut(repr(got))}") from None
        for n, value in self.fixed.items():
            if type(leaves[n]) is not type(value) or repr(leaves[n]) != repr(value):
                got = "a tensor" if isinstance(leaves[n], torch.Tensor) else echoed(leaves[n])
                raise RequestError(f"the program was saved for {value!r} where {got} is given")
        return [leaf for n, leaf in enumerate(leaves) if n not in self.fixed]

    def _in_order(self, given: Sequence[object], named: Mapping[str, object]) -> tuple[object, ...]:
        """The arguments in order, with those that are given by name and those that need not be given."""
        rest = self.parameters[len(given) :]
        if odd := [name for name in named if name not in rest]:
            none = f"is no input; inputs are {', '.join(self.parameters)}"
            raise RequestError(f"{cut(odd[0])} {'is given twice' if odd[0] in self.parameters else none}")
        if len(given) > self.positional:
            raise RequestError(f"the program takes {self.positional} inputs, not {len(given)}")
        known = {**self.defaults, **named}
        if missing := [name for name in rest if name not in known]:
            raise RequestError(f"{missing[0]} is not given")
        return (*given, *(known[name] for name in rest))


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
