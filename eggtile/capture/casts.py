"""The casts of autocast as operators of a graph: a trace records what is called, not what autocast makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
from torch._guards import detect_fake_mode
from torch.utils import _pytree as pytree

from eggtile.autocast import DEVICES, state, under, written_out
from eggtile.capture.table import TABLE
from eggtile.capture.types import OneCall

Operator: TypeAlias = "torch._ops.OpOverload[..., Any]"
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
AUTOCAST = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}


def cast_explicitly(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with the casts that autocast makes, at hand or where the program asks for it, as operators.

    An operator that autocast leaves alone, but not the operators of which it consists, is replaced by these. A program
    that has such a one and states of autocast of its own is not split, nor is one whose casts are not found so.
    """
    nodes = list(_nodes(program))
    scoped = any(n.target is torch.ops.higher_order.wrap_with_autocast for n in nodes)
    if state() == written_out() and not scoped:
        return program
    keys = [AUTOCAST[d] for d, dtype in zip(DEVICES, state().casts, strict=True) if dtype is not None]
    table = {op: partial(_parts, op, keys) for op in map(_casting, nodes) if op is not None}
    if table and scoped:
        raise OneCall(f"autocast casts within {next(iter(table))}")
    made: torch.export.ExportedProgram = program.run_decompositions(table)
    if _results(made) != _results(program):
        raise OneCall("autocast casts within an operator of it")
    return made


def _results(program: torch.export.ExportedProgram) -> list[torch.dtype]:
    (output,) = program.graph.find_nodes(op="output")
    return _types([n.meta["val"] for n in output.all_input_nodes])


def _nodes(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def _casting(node: torch.fx.Node) -> Operator | None:
    """The composite of a node, if it may cast inside: it has no rule, or its result another type where autocast is off."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or not op.has_kernel_for_dispatch_key(COMPOSITE):
        return None
    args, keywords = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    devices = {t.device.type for t in pytree.tree_leaves((args, keywords)) if isinstance(t, torch.Tensor)}
    mode = detect_fake_mode((args, keywords))
    if mode is None or any(op.has_kernel_for_dispatch_key(AUTOCAST[d]) for d in devices if d in AUTOCAST):
        return None
    if str(op).removeprefix("aten.") not in TABLE:
        return op
    try:
        with mode, under(written_out()):
            made = op(*args, **keywords)
    except RuntimeError:  # operands that are alike only as autocast casts them
        return op
    return op if _types(made) != _types(node.meta["val"]) else None


def _types(value: object) -> list[torch.dtype]:
    return [t.dtype for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def _parts(op: Operator, keys: Iterable[torch._C.DispatchKey], *args: Any, **keywords: Any) -> Any:
    """The operators of which a composite consists, with these keys of autocast, which dispatch is past as it is called."""
    put, past = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for own in map(torch._C.DispatchKeySet, keys):
        put, past = put | own, past - own
    with torch._C._ForceDispatchKeyGuard(put, past):
        return op._op_dk(COMPOSITE, *args, **keywords)
