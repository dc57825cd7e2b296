"""Writes through views whose elements share memory, which PyTorch's functional form of a program gets only nearly right.

For a write to `a.expand(...)` it adds the sum of all differences to `a`: inexact, and NaN where a difference is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


def overlapping_write(graph: torch.fx.Graph) -> str | None:
    """The first operator that writes through such a view, in a graph in which writes stand as the program makes them."""
    for node in graph.nodes:
        for written in _written(node):
            if any(_overlaps(v.meta["val"].shape, v.meta["val"].stride()) for v in _views(written)):
                return str(node.target).removeprefix("aten.").partition(".")[0]
    return None


def _written(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    schema = getattr(node.target, "_schema", None)
    for a, given in zip(schema.arguments if schema is not None else (), node.args, strict=False):
        if a.alias_info is not None and a.alias_info.is_write and isinstance(given, torch.fx.Node):
            yield given


def _views(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The node and the nodes of whose memory it is a view."""
    while isinstance(node.meta.get("val"), torch.Tensor):
        yield node
        source = node.args[0] if node.args else None
        if not isinstance(source, torch.fx.Node) or not _same_memory(node, source):
            break
        node = source


def _same_memory(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    return bool(x.untyped_storage()._cdata == y.untyped_storage()._cdata)


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements may share memory; extents that are symbols are taken to fit."""
    if any(s == 0 and e != 1 for e, s in zip(shape, strides, strict=True) if isinstance(s, int)):
        return True
    if not all(isinstance(n, int) for n in (*shape, *strides)) or 0 in shape:
        return False
    reach = 0
    for s, e in sorted((s, e) for e, s in zip(shape, strides, strict=True) if e > 1):
        if s <= reach:
            return True
        reach += (e - 1) * s
    return False
