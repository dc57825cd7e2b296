"""Graphs of dynamo without what matters to gradients alone: bodies of checkpoints and functions stand in their place."""

from __future__ import annotations

import operator

import torch


def inline_bodies(graph: torch.fx.GraphModule) -> None:
    """Put the forward bodies of checkpoints and autograd functions where they are called, and `detach` for `.data`."""
    for node in list(graph.graph.nodes):
        if node.target is torch._C._autograd._get_data_attr:  # type: ignore[attr-defined]
            node.target = torch.Tensor.detach
        elif node.op == "call_function" and node.target in _BODIES:
            _inline(graph, node, _BODIES[node.target])
    graph.recompile()


_BODIES = {
    torch.ops.higher_order.tag_activation_checkpoint: 1,
    torch.ops.higher_order.autograd_function_apply: 2,
}
"""How many graphs stand before the operands; the first of them is run."""


def _inline(graph: torch.fx.GraphModule, node: torch.fx.Node, count: int) -> None:
    named = node.args[:count]
    body = getattr(graph, str(named[0].target))  # type: ignore[union-attr]
    inline_bodies(body)
    if body.graph.find_nodes(op="get_attr") or any(u.target is not operator.getitem for u in node.users):
        return
    inputs = body.graph.find_nodes(op="placeholder")
    with graph.graph.inserting_before(node):
        made = graph.graph.graph_copy(body.graph, dict(zip(inputs, node.args[count:], strict=True)))  # type: ignore[arg-type]
    results = made if count == 1 else made[0]  # type: ignore[index]
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index, arg-type]
        graph.graph.erase_node(user)
    for old in (node, *named):
        if not old.users:  # type: ignore[union-attr]
            graph.graph.erase_node(old)  # type: ignore[arg-type]
