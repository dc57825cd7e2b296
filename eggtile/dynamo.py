"""The backend of `torch.compile`: every graph that it hands over is optimised at its first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from eggtile.optimized import Optimized, optimize
from eggtile.plan import RequestError


class Bound(torch.nn.Module):
    """A graph with numbers in the places of some arguments."""

    def __init__(self, graph: torch.nn.Module, numbers: Sequence[object]) -> None:
        super().__init__()
        self.graph, self.numbers = graph, numbers

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        return self.graph(*(next(rest) if n is None else n for n in self.numbers))


class Graph:
    """A graph as a callable, specialised to the numbers among its arguments and, below, to its tensors."""

    def __init__(self, graph: torch.nn.Module, options: Mapping[str, Any]) -> None:
        self.graph, self.options = graph, options
        self._made: dict[tuple[object, ...], Optimized] = {}

    def __call__(self, *args: object) -> Any:
        """What the graph returns."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise RequestError("eggtile computes no gradients; call the compiled program under torch.no_grad()")
        for a in args:
            if not isinstance(a, torch.Tensor | int | float):
                raise RequestError(f"the graph takes a {type(a).__name__}; eggtile takes tensors and numbers")
        numbers = tuple(None if isinstance(a, torch.Tensor) else a for a in args)
        if numbers not in self._made:
            bound = self.graph if len(tensors) == len(args) else Bound(self.graph, numbers)
            self._made[numbers] = optimize(bound, tensors, name="graph", **self.options)
        return self._made[numbers](*tensors)


def backend(
    graph: torch.fx.GraphModule, inputs: Sequence[object], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """`torch.compile(m, backend="eggtile")`; options are those of `optimize`."""
    return Graph(graph, options or {})
