"""A program whose control flow or extents depend on data, as one call to eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eggtile.capture.calls import Calls, Execute
from eggtile.capture.export import Exported, identifiers, is_unbacked, parameter_names
from eggtile.capture.location import innermost
from eggtile.capture.types import TORCH_DTYPES, CaptureError, Spec, first_sentence, spec_of
from eggtile.returns import Output, Returns
from ir.tensor import Input, Result, TensorProgram


@dataclass(frozen=True)
class Whole:
    """The program, the values of its inputs, its one call, what it returns, and the call on the caller's tensors."""

    program: TensorProgram
    tensors: tuple[torch.Tensor, ...]
    calls: dict[int, Execute]
    returns: Returns
    eager: Callable[[Sequence[torch.Tensor]], Any]


def obstacle(exported: Exported) -> str | None:
    """Why the program cannot be split: an extent that is known only when it runs, or a dtype that Tensor IR lacks."""
    for node in exported.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if not isinstance(value, torch.Tensor):
                if _unbacked(value):
                    return "a number or an extent of it depends on data"
            elif any(map(_unbacked, value.shape)):
                return "an extent of it depends on data"
            elif value.dtype not in TORCH_DTYPES.values():
                return f"it holds tensors of {value.dtype}"
    return None


def _unbacked(e: Any) -> bool:
    return hasattr(e, "node") and any(map(is_unbacked, e.node.expr.free_symbols))


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
        with torch.no_grad():
            if module is None:
                return fn(*operands)
            values = dict(zip(held, operands[len(inputs) :], strict=True))
            return torch.func.functional_call(module, values, tuple(operands[: len(inputs)]))

    outs, tree, fixed = _observed(run, tensors) if exported is None else _traced(exported)
    calls = Calls()
    values = calls.add(name, nodes, ", ".join(f"{{{k}}}" for k in range(len(nodes))), outs, run, pure=True)
    wanted = ["y"] if len(outs) == 1 else [f"y{k}" for k in range(len(outs))]
    unique = identifiers([*names, *wanted])[len(names) :]
    results = tuple(Result(n, v, s.strides) for n, v, s in zip(unique, values, outs, strict=True))
    note = f"the whole program becomes a call to eager PyTorch: {why}"
    program = TensorProgram(name, nodes, results, (note,))
    return Whole(program, tensors, calls.executors, Returns(tuple(map(Output, unique)), tree, fixed), run)


def _input(name: str, t: torch.Tensor) -> Input:
    spec = spec_of(t)
    return Input(name, spec.dtype, spec.shape, spec.strides, spec.offset)


Described = tuple[list[Spec], pytree.TreeSpec, dict[int, object]]


def _traced(exported: Exported) -> Described:
    """Types of the tensors that the program returns, the structure, and the leaves that are no tensors."""
    leaves = [n.meta["val"] if isinstance(n, torch.fx.Node) else n for n in exported.outputs]
    return _described(leaves, exported.spec)


def _observed(run: Callable[[Sequence[torch.Tensor]], Any], tensors: Sequence[torch.Tensor]) -> Described:
    try:
        made, tree = pytree.tree_flatten(run([t.detach().clone() for t in tensors]))
    except Exception as error:  # whatever the user's own program raises
        text = f"{type(error).__name__}: {first_sentence(str(error))}{innermost(error)}"
        raise CaptureError(f"the program cannot run: {text}") from error
    return _described(made, tree)


def _described(leaves: Sequence[object], tree: pytree.TreeSpec) -> Described:
    specs = [spec_of(t) for t in leaves if isinstance(t, torch.Tensor)]
    return specs, tree, {k: v for k, v in enumerate(leaves) if not isinstance(v, torch.Tensor)}
