"""Inputs that share memory: values do not tell, but a program that writes one of them changes the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

import torch

from eggtile.reference import private_copy


def apart(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors with copies for those that share memory with an earlier one."""
    out: list[torch.Tensor] = []
    for t in tensors:
        is_shared = any(_meet(t, other) for other in out)
        out.append(private_copy(t) if is_shared else t)
    return out


def shared(tensors: Mapping[str, torch.Tensor], written: Collection[str]) -> str | None:
    """Why the program cannot write what it writes: one of `written` shares memory with another of the tensors."""
    for a, b in combinations(tensors, 2):
        if (a in written or b in written) and _meet(tensors[a], tensors[b]):
            writes, other = (a, b) if a in written else (b, a)
            return f"the program writes {writes}, which shares memory with {other}: that is not supported"
    return None


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the stretches of memory from first to last element overlap."""
    if a.device != b.device or not a.numel() or not b.numel():
        return False
    return a.data_ptr() < _end(b) and b.data_ptr() < _end(a)


def _end(t: torch.Tensor) -> int:
    last = sum((e - 1) * s for e, s in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr() + (last + 1) * t.element_size()
