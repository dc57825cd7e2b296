"""The table from ATen overload to the rule that states it in Tensor IR, and what a rule knows of its call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from eggtile.capture.build import Shape
from eggtile.capture.types import Spec
from ir.dtype import DType
from ir.tensor import Tensor

Value = Tensor | tuple[Tensor, ...]
Rule = Callable[..., Value]
R = TypeVar("R", bound=Callable[..., Value])

TABLE: dict[str, Rule] = {}
"""Overload name without `aten.` (add.Tensor) to its rule: rule(site, *args, **kwargs), with the overload's arguments."""


@dataclass(frozen=True)
class Site:
    """A call of an operator in the exported graph: the types PyTorch gives its results."""

    target: str
    outs: tuple[Spec, ...]

    @property
    def dtype(self) -> DType:
        """The dtype of the first result."""
        return self.outs[0].dtype

    @property
    def shape(self) -> Shape:
        """The shape of the first result."""
        return self.outs[0].shape


def lowers(*overloads: str) -> Callable[[R], R]:
    """Register a rule for overloads (`name` stands for name.default)."""

    def register(rule: R) -> R:
        for overload in overloads:
            TABLE[overload if "." in overload else f"{overload}.default"] = rule
        return rule

    return register


Ignored = Any
"""Arguments that say nothing about values: device, layout, memory format, pinned memory."""
