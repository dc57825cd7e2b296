"""Calls to eager PyTorch: what no node of Tensor IR says, with what is needed to execute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from eggtile.capture.types import Spec
from ir.tensor import Call, Tensor

Execute = Callable[..., tuple[torch.Tensor, ...]]


@dataclass
class Calls:
    """The calls of a program: by key, a function from operand tensors to result tensors."""

    executors: dict[int, Execute] = field(default_factory=dict)
    _keys: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def add(
        self,
        target: str,
        operands: Sequence[Tensor],
        arguments: str,
        outs: Sequence[Spec],
        run: Callable[[Sequence[torch.Tensor]], Any],
        pure: bool,
    ) -> tuple[Tensor, ...]:
        """One Call node a result; equal pure calls share their key."""
        identity = (target, tuple(operands), arguments)
        key = self._keys.get(identity, len(self.executors)) if pure else len(self.executors)
        if key == len(self.executors):
            self.executors[key] = _executor(run, tuple(outs))
            self._keys[identity] = key
        return tuple(
            Call(target, tuple(operands), arguments, k, s.dtype, s.shape, s.strides, key)
            for k, s in enumerate(outs)
        )


def _executor(run: Callable[[Sequence[torch.Tensor]], Any], outs: tuple[Spec, ...]) -> Execute:
    """`run` with its tensors alone, in the strides that tracing promised."""

    def execute(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            made = run(operands)
            tensors = [t for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
            return tuple(laid_out(t, s) for t, s in zip(tensors, outs, strict=True))

    return execute


def laid_out(t: torch.Tensor, spec: Spec) -> torch.Tensor:
    """t in the strides of the type: operators that look at them, and callers, get what tracing saw."""
    strides = spec.strides
    if any(isinstance(s, str) for s in strides) or t.stride() == strides or 0 in strides or t.numel() == 0:
        return t
    out = torch.empty_strided(t.shape, [int(s) for s in strides], dtype=t.dtype, device=t.device)
    return out.copy_(t)


def substituted(value: object, operands: Sequence[torch.Tensor]) -> Any:
    """An argument structure with operand tensors for their `Place`s."""
    match value:
        case Place(k):
            return operands[k]
        case list() | tuple():
            return type(value)(substituted(v, operands) for v in value)
        case dict():
            return {k: substituted(v, operands) for k, v in value.items()}
    return value


@dataclass(frozen=True)
class Place:
    """Where operand k stands in the arguments of a call."""

    index: int

    def __repr__(self) -> str:
        return f"{{{self.index}}}"
