"""Autocast, and what else of PyTorch's own state decides the types of a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class State:
    """By device the dtype that autocast casts to, None where it is off; and the dtype of what is given none."""

    casts: tuple[torch.dtype | None, ...]
    default: torch.dtype


def state() -> State:
    """The state at hand: a program that is captured under another may have other types."""
    casts = (torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in DEVICES)
    return State(tuple(casts), torch.get_default_dtype())


@contextmanager
def under(given: State) -> Iterator[None]:
    """Within, the state is the given one."""
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        for device, dtype in zip(DEVICES, given.casts, strict=True):
            if dtype is not None or torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, dtype, enabled=dtype is not None))
        if given.default != before:
            stack.callback(torch.set_default_dtype, before)
            torch.set_default_dtype(given.default)
        yield


def written_out() -> State:
    """The state at hand without autocast, in which operators whose casts are written out are what they say."""
    return State((None,) * len(DEVICES), torch.get_default_dtype())
