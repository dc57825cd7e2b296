"""What a run of a compiled program needs: plain data, without the program's capture, its e-graphs and its forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from codegen.resources import declared_shared_bytes
from eggtile.returns import Returns
from ir.kernel import KernelProgram, Shared
from ir.loop import Buffer
from ir.steps import CallStep


class RequestError(Exception):
    """A request that cannot be met as asked; the message is one sentence."""


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch: the kernel without its statements, its text, and the buffers that are its arguments, by name."""

    kernel: KernelProgram
    text: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Work:
    """Launches in order, without eager calls: `scratch` is made for them, `filled` names what they may read at first."""

    launches: tuple[PlannedLaunch, ...]
    scratch: tuple[Buffer, ...]
    filled: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A program as its caller's `inputs`, its own `constants`, the buffers `made` at every call, and steps over them.

    `writes` names the inputs and constants that the steps change. `calls` executes the eager calls by key; `eager` runs
    a program that is one call, on inputs and constants in order. `binaries` has the cubins of texts, where they are made.
    """

    name: str
    target: str
    inputs: tuple[Buffer, ...]
    constants: Mapping[str, torch.Tensor]
    made: tuple[Buffer, ...]
    steps: tuple[Work | CallStep, ...]
    returns: Returns
    writes: tuple[str, ...] = ()
    calls: Mapping[int, Callable[..., tuple[torch.Tensor, ...]]] = field(default_factory=dict)
    eager: Callable[[Sequence[torch.Tensor]], Any] | None = None
    binaries: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def kernels(self) -> dict[str, KernelProgram]:
        """The distinct kernels by their text."""
        works = [s for s in self.steps if isinstance(s, Work)]
        return {launch.text: launch.kernel for w in works for launch in w.launches}


def head(kernel: KernelProgram) -> KernelProgram:
    """The kernel as its launch sees it: in place of its statements stands the shared memory that all of them declare."""
    size = declared_shared_bytes(kernel)
    return replace(kernel, body=(Shared("smem", "u8", size),) if size else ())
