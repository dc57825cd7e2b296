"""What a program gives its caller: results, the caller's own tensors, views of them, and constants, in a structure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Layout:
    """Shape and strides over a tensor's memory; `offset` counts elements from the tensor's first."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class Output:
    """One tensor that the caller gets: a result or an input of that name, itself or in another layout."""

    name: str
    layout: Layout | None = None


@dataclass(frozen=True)
class Returns:
    """The structure that a program returns: its tensors in order, and by position the leaves that are none."""

    outputs: tuple[Output, ...] = ()
    tree: pytree.TreeSpec | None = None
    fixed: Mapping[int, object] | None = None

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The structure with these tensors."""
        if self.tree is None:
            return tuple(tensors)
        made, fixed = iter(tensors), self.fixed or {}
        leaves = [fixed[k] if k in fixed else next(made) for k in range(self.tree.num_leaves)]
        return pytree.tree_unflatten(leaves, self.tree)
