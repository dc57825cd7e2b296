"""Decoder layers in a row as one program: how its e-graph and the seconds to choose its kernels grow."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import ParamSpec, TypeVar

import torch
from torch import nn

from bench.cases.layers import DecoderLayer
from bench.decoder import MODELS, Logits
from eggtile.capture import Captured, capture
from eggtile.pipeline import Options
from egraph.saturate import saturate
from extract.forms import default_form, forms
from ir.loop import LoopProgram
from ir.lower import lower

P = ParamSpec("P")
V = TypeVar("V")
Seconds = dict[str, list[float]]
TOKENS = 128


class Stack(nn.Module):
    """Decoder layers in a row, the rotary tables shared."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(2048, 5632, 32, 4, 64, False) for _ in range(count)])

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


def stacked(count: int) -> Captured:
    """Layers of our own writing over a prompt; nothing has values."""
    with torch.device("meta"):
        stack = Stack(count).half()
        shapes = ((1, TOKENS, 2048), (1, 1, TOKENS, 64), (1, 1, TOKENS, 64))
        inputs = [torch.empty(s, dtype=torch.float16) for s in shapes]
    return capture(stack, inputs, f"layers{count}")


def tinyllama() -> Captured:
    """The TinyLlama of transformers with all of its 22 layers, from token ids to logits; nothing has values."""
    ids = torch.empty((1, TOKENS), dtype=torch.int64, device="meta")
    return capture(Logits(MODELS["TinyLlama"].causal(22)), [ids], "tinyllama22")


STACKS: Mapping[str, Callable[[], Captured]] = {
    "layers1": lambda: stacked(1),
    "layers8": lambda: stacked(8),
    "layers32": lambda: stacked(32),
    "tinyllama22": tinyllama,
}


def layer_times(runs: int) -> Iterator[tuple[str, Seconds, dict[str, float]]]:
    """Per stack the seconds of every stage, by the clock and of the processor, and sizes of what comes out."""
    for name, captured in STACKS.items():
        program, found = captured().computed, defaultdict[str, list[float]](list)
        sizes: dict[str, float] = {}
        machine = Options().machine()
        gc.freeze()  # as the command line does
        for _ in range(runs):
            steps = _timed(found, "lower", lower, program).steps
            (step,) = (s for s in steps if isinstance(s, LoopProgram))
            graph = _timed(found, "saturate", saturate, step)
            (form,) = _timed(found, "extract", forms, graph, machine)
            _timed(found, "as written", default_form, step, machine)
            sizes = {"nodes": graph.nodes, "classes": len(graph.classes), "kernels": len(form.kernels)}
        yield f"compile {name}", dict(found), sizes


def _timed(found: Seconds, stage: str, work: Callable[P, V], *given: P.args, **named: P.kwargs) -> V:
    wall, cpu = time.perf_counter(), time.process_time()
    value = work(*given, **named)
    found[stage].append(time.perf_counter() - wall)
    found[f"{stage}, processor"].append(time.process_time() - cpu)
    return value
