"""A lowered program: loop programs and eager calls in order, with the buffers that join them."""

from __future__ import annotations

from dataclasses import dataclass

from ir.loop import Buffer, LoopProgram


@dataclass(frozen=True)
class CallStep:
    """An eager PyTorch call on buffers: `arguments` has `{k}` for operand k; `results` are (result index, buffer name)."""

    target: str
    arguments: str
    key: int
    operands: tuple[str, ...]
    results: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Lowered:
    """Steps in order. `buffers` are all of the program's: inputs, outputs, and scratch for values that cross a step.

    A loop program sees a scratch buffer as its output where it makes it, and as an input where it reads it.
    """

    steps: tuple[LoopProgram | CallStep, ...]
    buffers: tuple[Buffer, ...]
    notes: tuple[str, ...] = ()
