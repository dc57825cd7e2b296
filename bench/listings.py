"""How long the schedule space of a kernel takes to list, in a process that has listed others but not this one."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F

from bench.cases import CASES
from bench.cases.spec import DTYPES
from bench.stacks import Seconds
from eggtile.pipeline import Options, capture_and_lower, choose_forms, space_of
from extract.key import canonical

FAMILIES = r"(pw|rr|tr|rope)[.]"
LONG, SHORT = (4, 131072), (8, 333)


def _layer_norm_gradient(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    d = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
    gw, d = g * w, d * r
    return r * (gw - gw.mean(-1, keepdim=True) - d * (gw * d).mean(-1, keepdim=True))


Program = tuple[Callable[..., object], tuple[tuple[int, ...], ...], torch.dtype]
PROGRAMS: Mapping[str, Program] = {
    "var_mean, 4 long rows": (lambda x: torch.var_mean(x, -1), (LONG,), torch.float32),
    "layer_norm, one long row": (lambda x: F.layer_norm(x, x.shape[-1:]), ((1, 131072),), torch.bfloat16),
    "layer_norm with weights, odd": (
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), ((3, 40000), (40000,), (40000,)), torch.float16
    ),
    "kl_div, short odd rows": (
        lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1)), (SHORT, SHORT), torch.float32
    ),
    "kl_div of rows": (
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="none").sum(-1),
        ((64, 128256), (64, 128256)), torch.float32,
    ),
    "entropy": (lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1), ((32, 32000),), torch.float32),
    "softmax-weighted mean": (lambda x, v: (x.softmax(-1) * v).sum(-1), ((32, 32000),) * 2, torch.float32),
    "standard values times a maximum": (
        lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True) * x.abs().amax(-1, keepdim=True),
        ((64, 50257),), torch.float32,
    ),
    "group_norm, silu": (lambda x: F.silu(F.group_norm(x, 32)), ((1, 320, 64, 64),), torch.float32),
    "softmax of columns": (lambda x: x.softmax(0), ((8192, 512),), torch.float32),
    "std_mean of channels": (lambda x: torch.std_mean(x, (0, 2, 3)), ((16, 64, 56, 56),), torch.float32),
    "layer_norm gradient": (_layer_norm_gradient, ((8, 50000), (8, 50000), (50000,)), torch.float32),
    "masked softmax": (
        lambda x, s: torch.where(s > 0, x * s, -torch.inf).softmax(-1), ((2, 8, 512, 4096), (512, 4096)), torch.float32
    ),
    "cumulative softmax": (lambda x: x.softmax(-1).cumsum(-1), (LONG,), torch.float32),
    "attention": (F.scaled_dot_product_attention, ((1, 8, 512, 64),) * 3, torch.float32),
}  # fmt: skip
"""Programs beside the suite's whose spaces are slow to list: long rows that may be split, odd extents, many states."""


def listings() -> Iterator[tuple[str, float]]:
    """By program the seconds that the slowest of its kernels takes."""
    for item in (c for c in CASES if re.match(FAMILIES, c.name)):
        built = item.built()
        inputs = [torch.empty(t.shape, dtype=DTYPES[t.dtype or item.dtype], device="meta") for t in built.inputs]
        yield item.name, slowest(built.fn, inputs)
    for name, (fn, sizes, dtype) in PROGRAMS.items():
        yield name, slowest(fn, [torch.empty(s, dtype=dtype, device="meta") for s in sizes])


def slowest(fn: Callable[..., object], inputs: list[torch.Tensor]) -> float:
    """The longest that the space of one of the program's kernels takes, in seconds by the clock."""
    compiled = choose_forms(capture_and_lower(fn, inputs, "program", Options()))
    known = [canonical(k, r.chosen) for r in compiled.regions for k in r.chosen.kernels]
    gc.freeze()  # as the command line does
    seconds = [0.0]
    for kernel in known:
        start = time.perf_counter()
        space_of(kernel, compiled.options.machine())
        seconds.append(time.perf_counter() - start)
    return max(seconds)


def listing_times(runs: int) -> Iterator[tuple[str, Seconds, dict[str, float]]]:
    """Each run in a process of its own."""
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=True)
        for name, seconds in json.loads(done.stdout).items():
            found[name].append(seconds)
    for name, samples in found.items():
        yield f"listing {name}", {"list": samples}, {}


if __name__ == "__main__":
    json.dump(dict(listings()), sys.stdout)
