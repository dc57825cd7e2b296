"""The backend of `torch.compile`: every graph that it hands over is optimised at its first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from inspect import signature
from typing import Any

import torch

from eggtile.bound import refuse_gradients
from eggtile.optimized import Optimized, optimize
from eggtile.plan import RequestError

OPTIONS = tuple(name for name in signature(optimize).parameters if name not in ("fn", "inputs", "name"))


class Graph:
    """A graph as a callable, optimised for the arguments of its first call."""

    def __init__(self, graph: torch.nn.Module, options: Mapping[str, Any]) -> None:
        self.graph, self.options = graph, options
        self._made: Optimized | None = None

    def __call__(self, *args: object) -> Any:
        """What the graph returns."""
        refuse_gradients(args)
        if self._made is None:
            self._made = optimize(self.graph, args, name="graph", **self.options)
        return self._made(*args)


def backend(
    graph: torch.fx.GraphModule, inputs: Sequence[object], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """`torch.compile(m, backend="eggtile")`; options are those of `optimize`."""
    for name in options or ():
        if name not in OPTIONS:
            near = "".join(f"did you mean {x}? " for x in get_close_matches(name, OPTIONS, 1))
            raise RequestError(f"no option is named {name}; {near}options are {', '.join(OPTIONS)}")
    return Graph(graph, options or {})
