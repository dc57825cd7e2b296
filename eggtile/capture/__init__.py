"""Capture: a PyTorch function or module as a Tensor IR program, traced and never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from eggtile.capture.calls import Execute
from eggtile.capture.export import Dynamic, Exported, export
from eggtile.capture.origins import Origin
from eggtile.capture.symbols import bind
from eggtile.capture.translate import Translator
from eggtile.capture.types import CaptureError, OneCall
from eggtile.capture.whole import Whole, obstacle, whole
from eggtile.returns import Output, Returns
from ir.tensor import TensorProgram

__all__ = ["CaptureError", "Captured", "bind", "capture", "in_one_call"]


@dataclass(frozen=True)
class Captured:
    """A captured program with what is needed to run it.

    `tensors[k]` is the value of program.inputs[k]; `calls` executes the program's `Call` nodes by key, from operand
    tensors (as arguments) to result tensors; `returns` is what the caller gets; `graph_text` shows the exported graph.
    `eager` runs a program that is one call, on the tensors of its inputs.
    """

    program: TensorProgram
    tensors: tuple[torch.Tensor | None, ...]
    calls: Mapping[int, Execute] = field(default_factory=dict)
    returns: Returns = field(default_factory=Returns)
    graph_text: str = ""
    eager: Callable[[Sequence[torch.Tensor]], Any] | None = None

    @property
    def computed(self) -> TensorProgram:
        """The program without the results that its caller gets as another tensor."""
        given = {o.name for o in self.returns.outputs}
        results = tuple(r for r in self.program.results if r.writes is not None or r.name in given)
        return replace(self.program, results=results)


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
    except OneCall as reason:
        return in_one_call(fn, inputs, name, str(reason))
    if why := obstacle(exported):
        return _one_call(whole(fn, inputs, name, exported, why), graph_text(exported))
    nodes = [n for n in exported.outputs if isinstance(n, torch.fx.Node)]
    if not all(isinstance(n.meta["val"], torch.Tensor) for n in nodes):
        raise CaptureError(f"{name} returns a number that depends on an extent")
    translator = Translator(exported)
    try:
        program = translator.program(name)
    except OneCall as reason:
        return _one_call(whole(fn, inputs, name, exported, str(reason)), graph_text(exported))
    if exported.attributes:
        note = f"what the program writes to attributes is left out: {', '.join(exported.attributes)}"
        program = replace(program, notes=(*program.notes, note))
    if not program.results:
        raise CaptureError(f"{name} returns no tensor")
    tensors = tuple(leaf.tensor for leaf in exported.leaves)
    captured = Captured(
        program, tensors, translator.calls.executors, _returns(program, exported), graph_text(exported)
    )
    if captured.computed.results:
        return captured
    note = "every output is an input or a view of one, so nothing is computed"
    return replace(captured, program=replace(program, notes=(*program.notes, note)))


def in_one_call(fn: Callable[..., Any], inputs: Sequence[torch.Tensor], name: str, why: str) -> Captured:
    """The program as one call to eager PyTorch, run once on copies of its inputs for the types of its results."""
    return _one_call(whole(fn, inputs, name, None, why))


def _one_call(made: Whole, text: str = "") -> Captured:
    return Captured(made.program, made.tensors, made.calls, made.returns, text, made.eager)


def graph_text(exported: Exported) -> str:
    """The exported graph, a line a node."""
    return "\n".join(str(n.format_node()) for n in exported.graph.nodes)


def _returns(program: TensorProgram, exported: Exported) -> Returns:
    """What the caller gets: results, but for those that are inputs, views of inputs, or a tensor that comes before."""
    users = [leaf.name for leaf in exported.leaves if leaf.user]
    held = {leaf.target: leaf.name for leaf in exported.leaves}
    outputs: list[Output] = []
    own = [r.name for r in program.results if r.writes is None]
    for result, origin in zip(own, exported.origins, strict=True):
        match origin:
            case Origin(repeats=int(k)):
                outputs.append(outputs[k])
            case Origin(place=int(k), layout=layout):
                outputs.append(Output(users[k], layout))
            case Origin(place=str(target), layout=layout) if target in held:
                outputs.append(Output(held[target], layout))
            case _:
                outputs.append(Output(result))
    fixed = {k: v for k, v in enumerate(exported.outputs) if not isinstance(v, torch.fx.Node)}
    return Returns(tuple(outputs), exported.spec, fixed)
