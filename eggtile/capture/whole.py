"""A program whose control flow or extents depend on data, as one call to eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eggtile.capture.calls import Calls, Execute
from eggtile.capture.export import Exported, identifiers, parameter_names
from eggtile.capture.types import TORCH_DTYPES, CaptureError, Spec, spec_of
from ir.tensor import Input, Result, TensorProgram

Whole = tuple[TensorProgram, tuple[torch.Tensor, ...], dict[int, Execute], Any]


def obstacle(exported: Exported) -> str | None:
    """Why the program cannot be split: an extent that is known only when it runs, or a dtype that Tensor IR lacks."""
    for node in exported.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if not isinstance(value, torch.Tensor):
                if _unbacked(value):
                    return "an extent of it depends on data"
            elif any(map(_unbacked, value.shape)):
                return "an extent of it depends on data"
            elif value.dtype not in TORCH_DTYPES.values():
                return f"it holds tensors of {value.dtype}"
    return None


def _unbacked(e: Any) -> bool:
    return hasattr(e, "node") and any(str(s).startswith(("u", "zu", "zuf")) for s in e.node.expr.free_symbols)


def whole(
    fn: Callable[..., Any], inputs: Sequence[torch.Tensor], name: str, exported: Exported | None, why: str
) -> Whole:
    """The program as one call; without a trace its result types come from one run on copies of the inputs."""
    module = fn if isinstance(fn, torch.nn.Module) else None
    held = dict(module.named_parameters()) | dict(module.named_buffers()) if module else {}
    tensors = (*inputs, *held.values())
    names = identifiers([*parameter_names(fn, len(inputs)), *held])
    nodes = tuple(_input(n, t) for n, t in zip(names, tensors, strict=True))

    def run(operands: Sequence[torch.Tensor]) -> Any:
        if module is None:
            return fn(*operands)
        values = dict(zip(held, operands[len(inputs) :], strict=True))
        return torch.func.functional_call(module, values, tuple(operands[: len(inputs)]))

    if exported is None:
        outs, tree = _observed(run, tensors, name)
    else:
        if exported.writes:
            raise CaptureError(f"{name} mutates {exported.writes[0][0]}, and {why}: that is not supported")
        outs, tree = (
            [spec_of(n.meta["val"]) for n in exported.outputs if isinstance(n, torch.fx.Node)],
            exported.spec,
        )
    calls = Calls()
    values = calls.add(name, nodes, ", ".join(f"{{{k}}}" for k in range(len(nodes))), outs, run, pure=True)
    wanted = ["y"] if len(outs) == 1 else [f"y{k}" for k in range(len(outs))]
    unique = identifiers([*names, *wanted])[len(names) :]
    results = tuple(Result(n, v, s.strides) for n, v, s in zip(unique, values, outs, strict=True))
    note = f"the whole program becomes a call to eager PyTorch: {why}"
    return TensorProgram(name, nodes, results, (note,)), tensors, calls.executors, tree


def _input(name: str, t: torch.Tensor) -> Input:
    spec = spec_of(t)
    return Input(name, spec.dtype, spec.shape, spec.strides, spec.offset)


def _observed(
    run: Callable[[Sequence[torch.Tensor]], Any], tensors: Sequence[torch.Tensor], name: str
) -> tuple[list[Spec], Any]:
    copies = [t.detach().clone() for t in tensors]
    versions = [t._version for t in copies]
    with torch.no_grad():
        made, tree = pytree.tree_flatten(run(copies))
    if versions != [t._version for t in copies]:
        raise CaptureError(
            f"{name} mutates its inputs under control flow that depends on data: that is not supported"
        )
    if not all(isinstance(t, torch.Tensor) for t in made):
        raise CaptureError(f"{name} returns values that are no tensors, and its control flow depends on data")
    return [spec_of(t) for t in made], tree
