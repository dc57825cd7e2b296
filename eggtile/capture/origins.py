"""Which tensors that a program returns are its inputs, views of them, or one tensor twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind, TensorArgument

from eggtile.returns import Layout

_GIVES_ITSELF = ("aten.to.", "aten.type_as.", "aten.contiguous.", "aten.dropout.", "aten.resolve_")
"""Operators that give their operand where they have nothing to do."""


@dataclass(frozen=True)
class Origin:
    """Where a returned tensor comes from: the input at a position, a parameter or constant, or an earlier output."""

    place: int | str | None
    layout: Layout | None = None
    repeats: int | None = None


def origins(graph: torch.fx.Graph, signature: ExportGraphSignature) -> tuple[Origin, ...]:
    """The origin of every returned tensor of a graph in which writes and views stand as the program makes them."""
    nodes = {n.name: n for n in graph.nodes}
    owners = _owners(nodes, signature)
    found: list[Origin] = []
    seen: list[torch.fx.Node] = []
    for spec in signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT or not isinstance(spec.arg, TensorArgument):
            continue
        node = itself(nodes[spec.arg.name])
        owner = owners.get(_storage(node))
        if node in seen:
            found.append(Origin(None, repeats=seen.index(node)))
        elif owner is None:
            found.append(Origin(None))
        elif owner[1] is node:
            found.append(Origin(owner[0]))
        else:
            found.append(_view(node, *owner))
        seen.append(node)
    return tuple(found)


def itself(node: torch.fx.Node) -> torch.fx.Node:
    """The node that made the tensor object which this node gives: the operand where an operator gives its operand."""
    while node.op == "call_function":
        source = node.kwargs.get("out", node.args[0] if node.args else None)
        if not isinstance(source, torch.fx.Node):
            break
        schema = getattr(node.target, "_schema", None)
        returned = schema.returns[0].alias_info if schema is not None and schema.returns else None
        same = _storage(node) == _storage(source)
        gives = (returned is not None and returned.is_write) or str(node.target).startswith(_GIVES_ITSELF)
        if not (same and gives):
            break
        node = source
    return node


def _owners(
    nodes: Mapping[str, torch.fx.Node], signature: ExportGraphSignature
) -> dict[int | None, tuple[int | str, torch.fx.Node]]:
    """By storage: the input that has it, as its position among the caller's or as its name in the module."""
    owners: dict[int | None, tuple[int | str, torch.fx.Node]] = {}
    count = 0
    for spec in signature.input_specs:
        mine = spec.kind is InputKind.USER_INPUT
        node = nodes.get(spec.arg.name)
        if node is not None and _storage(node) is not None:
            owners.setdefault(_storage(node), (count if mine else str(spec.target), node))
        count += mine
    return owners


def _storage(node: torch.fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _view(node: torch.fx.Node, place: int | str, owner: torch.fx.Node) -> Origin:
    """A view of an input, where it has the input's type and its extents are numbers."""
    value, base = node.meta["val"], owner.meta["val"]
    numbers = (*value.shape, *value.stride(), value.storage_offset(), base.storage_offset())
    if value.dtype != base.dtype or not all(isinstance(n, int) for n in numbers):
        return Origin(None)
    offset = value.storage_offset() - base.storage_offset()
    return Origin(place, Layout(tuple(value.shape), tuple(value.stride()), offset))
