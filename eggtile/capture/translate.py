"""An exported graph as Tensor IR: every node through the rule of its overload, or as a call to eager PyTorch."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from eggtile.capture import (
    composites,
    operators_activation,
    operators_contract,
    operators_create,
    operators_index,
    operators_join,
    operators_loss,
    operators_pointwise,
    operators_reduce,
    operators_select,
    operators_shape,
)
from eggtile.capture.build import extent_value
from eggtile.capture.calls import Calls, Place, laid_out, substituted
from eggtile.capture.export import HARMLESS_WRITES, Exported, identifiers
from eggtile.capture.table import TABLE, Site
from eggtile.capture.types import CaptureError, OneCall, Spec, Unsupported, renamed, spec_of
from ir.node import IRError
from ir.tensor import Input, Result, Tensor, TensorProgram

RULES = (
    composites,
    operators_activation,
    operators_contract,
    operators_create,
    operators_index,
    operators_join,
    operators_loss,
    operators_pointwise,
    operators_reduce,
    operators_select,
    operators_shape,
)
"""The modules whose rules fill the table."""

_CHECKS = ("aten._assert_", "aten.sym_", "aten._functional_assert", "aten._set_grad_enabled")


class Translator:
    """Values of the graph by node, the calls, and the notes of one program."""

    def __init__(self, exported: Exported) -> None:
        self.exported, self.calls = exported, Calls()
        self.notes: dict[str, None] = {}
        self.values: dict[torch.fx.Node, Any] = {}

    def program(self, name: str) -> TensorProgram:
        """The whole graph; raises `CaptureError` where a value has no type in Tensor IR, `OneCall` where it nests."""
        by_node = {leaf.node: self.input(leaf.name, leaf.tensor, leaf.node) for leaf in self.exported.leaves}
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = by_node[node.name]
            elif node.op == "call_function":
                self.values[node] = self.value(node)
            elif node.op == "get_attr":
                raise OneCall(f"{next(iter(node.users)).target} takes programs as operands")
            elif node.op != "output":
                raise CaptureError(f"the graph holds a {node.op} ({node.target}), which is not supported")
        inputs = tuple(by_node[leaf.node] for leaf in self.exported.leaves)
        return TensorProgram(name, inputs, self.results(inputs), tuple(self.notes), self.exported.symbols)

    def input(self, name: str, tensor: torch.Tensor, node: str) -> Input:
        """The input of a leaf, with the traced extents (which may be symbolic) and the real offset."""
        traced = next(n for n in self.exported.graph.nodes if n.name == node).meta["val"]
        spec = self.spec(traced)
        return Input(name, spec.dtype, spec.shape, spec.strides, int(tensor.storage_offset()))

    def spec(self, value: torch.Tensor) -> Spec:
        """The type of a traced tensor, with the caller's names for symbols; raises where it is something else."""
        if not isinstance(value, torch.Tensor):
            raise CaptureError(f"an operand is a {type(value).__name__}, not a tensor")
        return renamed(spec_of(value), self.exported.rename)

    def results(self, inputs: tuple[Input, ...]) -> tuple[Result, ...]:
        """Outputs in order, then the new values of mutated inputs."""
        tensors = [n for n in self.exported.outputs if isinstance(n, torch.fx.Node)]
        wanted = ["y"] if len(tensors) == 1 else [f"y{k}" for k in range(len(tensors))]
        taken = [x.name for x in inputs]
        names = identifiers([*taken, *wanted, *(f"{name}_new" for name, _ in self.exported.writes)])[len(taken) :]
        made = [
            Result(name, self.values[n], self.spec(n.meta["val"]).strides)
            for name, n in zip(names, tensors, strict=False)
        ]
        by_name = {n.name: v for n, v in self.values.items()}
        strides = {x.name: x.strides for x in inputs}
        for name, (written, node) in zip(names[len(tensors) :], self.exported.writes, strict=True):
            made.append(Result(name, by_name[node], strides[written], written))
        return tuple(made)

    # ---- one node

    def value(self, node: torch.fx.Node) -> Any:
        """The value of a call: a tensor, a tuple of tensors, or None where it has no tensor."""
        target, meta = str(node.target), node.meta.get("val")
        if node.target is operator.getitem:
            return self.values[node.args[0]][node.args[1]]  # type: ignore[index]
        if meta is None or target.startswith(_CHECKS):
            return None
        if isinstance(meta, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
            return None
        if isinstance(meta, tuple | list) and None in [v if v is None else 0 for v in meta]:
            raise OneCall(
                f"{node.args[0] if 'auto_functionalized' in target else target} has a result that is no tensor"
            )
        outs = tuple(self.spec(v) for v in (meta if isinstance(meta, tuple | list) else (meta,)))
        if target in HARMLESS_WRITES:
            return self.values[node.args[0]]  # type: ignore[index]
        made = self.ruled(node, target, outs)
        return made if isinstance(meta, tuple | list) else made[0]

    def ruled(self, node: torch.fx.Node, target: str, outs: tuple[Spec, ...]) -> tuple[Tensor, ...]:
        """The results by the rule of the overload, or as a call."""
        site = Site(target.removeprefix("aten."), outs)
        rule = TABLE.get(site.target) if target.startswith("aten.") else None
        if rule is None:
            return self.called(node, target, outs, "no rule states it")
        try:
            made = rule(site, *self.arguments(node.args), **self.arguments(node.kwargs))
        except Unsupported as reason:
            return self.called(node, target, outs, str(reason))
        except IRError as error:
            raise CaptureError(f"{target}: {error}") from error
        results = made if isinstance(made, tuple) else (made,)
        for spec, t in zip(outs, results, strict=True):
            if (t.dtype, t.shape) != (spec.dtype, spec.shape):
                raise CaptureError(
                    f"{target}: the rule gives {t.dtype}{list(t.shape)}, PyTorch gives {spec.dtype}{list(spec.shape)}"
                )
        return results

    def arguments(self, value: Any) -> Any:
        """An argument structure with Tensor IR for the nodes; symbolic numbers are 0-d tensors."""
        match value:
            case torch.fx.Node():
                found = self.values[value]
                return self.symbolic(value) if found is None else found
            case tuple() | list():
                return type(value)(self.arguments(v) for v in value)
            case dict():
                return {k: self.arguments(v) for k, v in value.items()}
        return value

    def symbolic(self, node: torch.fx.Node) -> Any:
        """The value of a node that computes an extent."""
        number = node.meta.get("val")
        if isinstance(number, torch.SymInt):
            text = _in_names(str(number.node.expr), self.exported.rename)
            return int(text) if text.lstrip("-").isdigit() else extent_value((text,), "i64")
        if isinstance(number, torch.SymFloat):
            raise CaptureError(f"the number {number} depends on a symbolic extent and is not an integer")
        return number

    # ---- calls

    def called(self, node: torch.fx.Node, target: str, outs: tuple[Spec, ...], why: str) -> tuple[Tensor, ...]:
        """The results of a call to eager PyTorch, with a note."""
        operands: list[Tensor] = []
        traced = [n for n in node.all_input_nodes if isinstance(self.values[n], Tensor)]
        layouts = {self.values[n]: self.spec(n.meta["val"]) for n in traced}
        args, kwargs = self.placed(node.args, operands), self.placed(node.kwargs, operands)
        shown = [_text(a) for a in args] + [f"{k}={_text(v)}" for k, v in kwargs.items()]
        function: Callable[..., Any] = node.target  # type: ignore[assignment]
        random = torch.Tag.nondeterministic_seeded in getattr(function, "tags", ())

        def run(tensors: Sequence[torch.Tensor]) -> Any:
            laid = [laid_out(t, layouts[x]) for t, x in zip(tensors, operands, strict=True)]
            return function(*substituted(args, laid), **substituted(kwargs, laid))

        self.notes[f"{target} becomes a call to eager PyTorch: {why}"] = None
        return self.calls.add(target, operands, ", ".join(shown), outs, run, pure=not random)

    def placed(self, value: Any, operands: list[Tensor]) -> Any:
        """An argument structure with places for the operands, which are collected."""
        match value:
            case torch.fx.Node():
                t = self.values[value]
                if not isinstance(t, Tensor):
                    raise CaptureError(f"a call to eager PyTorch takes {value.meta.get('val')}, which is symbolic")
                if t not in operands:
                    operands.append(t)
                return Place(operands.index(t))
            case tuple() | list():
                return type(value)(self.placed(v, operands) for v in value)
            case dict():
                return {k: self.placed(v, operands) for k, v in value.items()}
        return value


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return repr(value)


def _in_names(text: str, rename: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda m: rename.get(m.group(), m.group()), text)
