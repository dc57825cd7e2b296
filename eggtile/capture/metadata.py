"""Writes to a tensor's shape or strides: inputs keep theirs, so a program that changes an input's is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from eggtile.capture.origins import itself
from eggtile.capture.types import CaptureError


def _changes(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None) if name.endswith("_") and name != "detach_" else None
    return packet is not None and any(torch.Tag.inplace_view in getattr(packet, o).tags for o in packet.overloads())


CHANGERS = frozenset(n for n in dir(torch.Tensor) if not n.startswith("_") and _changes(n))
"""Methods that change the shape or strides of a tensor in place."""
_READS_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


class Watched(TorchFunctionMode):
    """Collects the names of the changers that a program calls, and gives `detach()` for `data`, which traces lose."""

    def __init__(self) -> None:
        super().__init__()
        self.called: dict[str, None] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if (name := getattr(func, "__name__", "")) in CHANGERS:
            self.called[name] = None
        if func == _READS_DATA:
            return args[0].detach()
        return func(*args, **(kwargs or {}))


def refusal(names: Iterable[str]) -> CaptureError:
    """The sentence for a program that changes an input by these."""
    return CaptureError(
        f"{', '.join(names)} changes the shape or strides of an input in place: that is not supported"
    )


def check_inputs_keep_theirs(graph: torch.fx.Graph) -> None:
    """Refuse a graph that changes the shape or strides of an input."""
    for node in graph.nodes:
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        if node.op == "call_function" and name in CHANGERS and _is_input(node.args[0]):
            raise refusal([name])


def _is_input(argument: object) -> bool:
    return isinstance(argument, torch.fx.Node) and itself(argument).op == "placeholder"
