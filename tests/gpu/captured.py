"""Programs that PyTorch captured in a CUDA graph, and calls under way, outlive what the caller drops.

Run as `python -m tests.gpu.captured`; prints one line a case and exits with the number of failures.
"""

from __future__ import annotations

import gc
import sys

import torch

import eggtile
from bench.cases import case
from codegen import gpu

CASES = ("rr.rmsnorm_4096x2048", "rr.logsumexp_16x128256", "pw.bias_gelu_res_16x4096")


def captured(name: str) -> str:
    """A graph that PyTorch captured, replayed when the program and its modules are gone."""
    item = case(name)
    fn, inputs = item.program(False, "cuda")
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
    if not torch.equal(late, want):
        return "a call differs once its inputs and its program were dropped"
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    return "" if torch.equal(out, want) else "a captured graph differs once its program was dropped"


def main() -> int:
    """Check every case; the number of failures."""
    usable, why = gpu.available()
    if not usable:
        print(why)
        return 1
    failures = 0
    for name in CASES:
        wrong = captured(name)
        failures += bool(wrong)
        print(f"{'fail' if wrong else 'ok':4} {name}{': ' + wrong if wrong else ''}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
