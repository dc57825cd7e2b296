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
from ir.tensor import Tensor, TensorProgram

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
    text = graph_text(exported)
    if why := obstacle(exported):
        program, tensors, calls, _ = whole(fn, inputs, name, exported, why)
        return Captured(program, tensors, calls, _rebuilder(exported, [True] * len(program.results)), text)
    translator = Translator(exported)
    program = translator.program(name)
    if not program.results:
        raise CaptureError(f"{name} returns no tensor")
    are_tensors = [isinstance(translator.values.get(n), Tensor) for n in exported.outputs if _is_node(n)]
    tensors = tuple(leaf.tensor for leaf in exported.leaves)
    return Captured(program, tensors, translator.calls.executors, _rebuilder(exported, are_tensors), text)


def graph_text(exported: Exported) -> str:
    """The exported graph, a line a node."""
    return "\n".join(str(n.format_node()) for n in exported.graph.nodes)


def _is_node(value: object) -> bool:
    return isinstance(value, torch.fx.Node)


def _rebuilder(exported: Exported, are_tensors: Sequence[bool]) -> Callable[[Sequence[torch.Tensor]], Any]:
    """Results and the constants among the outputs, in the structure that the program returns."""

    def rebuild(results: Sequence[torch.Tensor]) -> Any:
        made, kinds = iter(results), iter(are_tensors)
        leaves = [v if not _is_node(v) or not next(kinds) else next(made) for v in exported.outputs]
        return pytree.tree_unflatten(leaves, exported.spec)

    return rebuild
