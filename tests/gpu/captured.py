"""Programs that PyTorch captured in a CUDA graph, and calls under way, outlive what the caller drops.

Run as `python -m tests.gpu.captured`; prints one line a case and exits with the number of failures.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch

import eggtile
from bench.cases import case
from codegen import gpu

CASES = ("rr.rmsnorm_4096x2048", "rr.logsumexp_16x128256", "pw.bias_gelu_res_16x4096")
Program = tuple[Callable[..., Any], list[torch.Tensor]]


def with_constant() -> Program:
    """A program that multiplies by a tensor of its own."""
    scale = torch.randn(4096, device="cuda")
    return (lambda x: torch.tanh(x) * scale), [torch.randn(64, 4096, device="cuda")]


PROGRAMS: dict[str, Callable[[], Program]] = {n: lambda n=n: case(n).program(False, "cuda") for n in CASES}  # type: ignore[misc]
PROGRAMS["with a constant"] = with_constant


def captured(made: Callable[[], Program]) -> str:
    """A graph that PyTorch captured, replayed when the program and its modules are gone."""
    fn, inputs = made()
    fast = eggtile.optimize(fn, inputs)
    want = fast(*inputs).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fast(*inputs)
    fresh = [t.clone() for t in inputs]
    late = fast(*fresh)
    del fast, fresh, fn
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.full((1 << 12,), float("nan"), device="cuda") for _ in range(64)]
    if not torch.equal(late, want):
        return "a call differs once its inputs and its program were dropped"
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    del others
    return "" if torch.equal(out, want) else "a captured graph differs once its program was dropped"


def main() -> int:
    """Check every case; the number of failures."""
    usable, why = gpu.available()
    if not usable:
        print(why)
        return 1
    failures = 0
    for name, made in PROGRAMS.items():
        wrong = captured(made)
        failures += bool(wrong)
        print(f"{'fail' if wrong else 'ok':4} {name}{': ' + wrong if wrong else ''}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
