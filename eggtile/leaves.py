"""The tensors of nested values."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


def flat_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a nested value, in order."""
    return [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def holds_tensors(value: Any) -> bool:
    """Whether it is a tensor or a structure of nothing but tensors."""
    leaves = pytree.tree_leaves(value)
    return bool(leaves) and all(isinstance(t, torch.Tensor) for t in leaves)
