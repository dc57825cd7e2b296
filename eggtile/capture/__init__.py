"""Capture: a PyTorch function or module as a Tensor IR program, traced and never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eggtile.capture.calls import Execute
from eggtile.capture.export import DataDependent, Dynamic, Exported, export
from eggtile.capture.symbols import bind
from eggtile.capture.translate import Translator
from eggtile.capture.types import CaptureError
from eggtile.capture.whole import obstacle, whole
from ir.tensor import TensorProgram

__all__ = ["CaptureError", "Captured", "bind", "capture"]


@dataclass(frozen=True)
class Captured:
    """A captured program with what is needed to run it.

    `tensors[k]` is the value of program.inputs[k]; `calls` executes the program's `Call` nodes by key, from operand
    tensors (as arguments) to result tensors; `rebuild` puts result tensors (those without writes) into the structure
    that the function returns; `graph_text` shows the exported graph.
    """

    program: TensorProgram
    tensors: tuple[torch.Tensor | None, ...]
    calls: Mapping[int, Execute] = field(default_factory=dict)
    rebuild: Callable[[Sequence[torch.Tensor]], Any] = tuple
    graph_text: str = ""


def capture(
    fn: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    name: str = "program",
    dynamic: Dynamic | None = None,
) -> Captured:
    """The program that `fn` (a function or module) computes on tensors like `inputs`.

    `dynamic` names symbolic extents: {input name: {dimension: symbol}}. Raises `CaptureError` with one sentence.
    """
    try:
        exported = export(fn, inputs, dynamic)
    except DataDependent as reason:
        program, tensors, calls, tree = whole(fn, inputs, name, None, str(reason))
        return Captured(program, tensors, calls, lambda results: pytree.tree_unflatten(list(results), tree))
    nodes = [n for n in exported.outputs if isinstance(n, torch.fx.Node)]
    if not all(isinstance(n.meta["val"], torch.Tensor) for n in nodes):
        raise CaptureError(f"{name} returns a number that depends on an extent")
    if why := obstacle(exported):
        program, tensors, calls, _ = whole(fn, inputs, name, exported, why)
    else:
        translator = Translator(exported)
        program, calls = translator.program(name), translator.calls.executors
        tensors = tuple(leaf.tensor for leaf in exported.leaves)
    if not program.results:
        raise CaptureError(f"{name} returns no tensor")
    return Captured(program, tensors, calls, _rebuilder(exported), graph_text(exported))


def graph_text(exported: Exported) -> str:
    """The exported graph, a line a node."""
    return "\n".join(str(n.format_node()) for n in exported.graph.nodes)


def _rebuilder(exported: Exported) -> Callable[[Sequence[torch.Tensor]], Any]:
    """Results and the constants among the outputs, in the structure that the program returns."""

    def rebuild(results: Sequence[torch.Tensor]) -> Any:
        made = iter(results)
        leaves = [next(made) if isinstance(v, torch.fx.Node) else v for v in exported.outputs]
        return pytree.tree_unflatten(leaves, exported.spec)

    return rebuild
