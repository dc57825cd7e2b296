"""How long the project itself takes: its command line as a whole process, and its compiler in a running one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from bench.cases import case
from bench.listings import listing_times
from bench.stacks import Seconds, layer_times
from codegen.compile import compile_text
from eggtile.pipeline import compile_program
from eggtile.provenance import taken_on

Row = dict[str, Any]
Found = tuple[str, Seconds, dict[str, float]]
"""A case, the seconds of its stages, and sizes that go with them."""
HALF = "dtype=torch.float16"
COMMANDS = {
    "rmsnorm": "nn.RMSNorm(2048)(torch.randn(1, 32, 2048))",
    "linear": f"nn.Linear(4096, 4096, bias=False).half()(torch.randn(4096, 4096, {HALF}))",
    "attention": f"F.scaled_dot_product_attention(*(torch.randn(1, 32, 2048, 128, {HALF}) for _ in range(3)))",
}
PROGRAMS = {
    "row": "rr.rmsnorm_4096x2048",
    "attention": "at.hand_causal_32x2048x128",
    "decoder": "layer.tinyllama_prefill2048",
}
BEFORE_OURS = ("imports", "program", "capture")
STAGE = re.compile(r"^\s*(\w+)\s+([\d.]+) ms$", re.MULTILINE)


def command_times(runs: int) -> Iterator[Found]:
    """`eggtile compile ... -o FILE.cubin` as a whole process without caches, and its stages behind imports and capture."""
    for name, code in COMMANDS.items():
        found: dict[str, list[float]] = {"process": [], "ours": []}
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as empty:
                command = [
                    sys.executable,
                    "-m",
                    "eggtile",
                    "compile",
                    "-c",
                    code,
                    "-o",
                    f"{empty}/x.cubin",
                    "--times",
                ]
                start = time.perf_counter()
                done = subprocess.run(
                    command, capture_output=True, text=True, check=True, env={**os.environ, "XDG_CACHE_HOME": empty}
                )
                found["process"].append(time.perf_counter() - start)
            stages = STAGE.findall(done.stderr)
            found["ours"].append(sum(float(ms) for stage, ms in stages if stage not in BEFORE_OURS) / 1e3)
        yield f"command {name}", found, {}


def _to_cubin(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> float:
    start = time.perf_counter()
    compiled = compile_program(fn, inputs)
    compile_text(compiled.text, compiled.options.target)
    return time.perf_counter() - start


def compile_times(runs: int) -> Iterator[Found]:
    """Capture to cubin in this process, after another program has brought the imports in."""
    _to_cubin(lambda x: x + 1, [torch.randn(8)])
    for name, of in PROGRAMS.items():
        fn, inputs = case(of).program()
        yield f"compile {name}", {"cubin": [_to_cubin(fn, inputs) for _ in range(runs)]}, {}


KINDS = {"command": command_times, "compile": compile_times, "layers": layer_times, "listings": listing_times}


def measure_seconds(kind: str, runs: int, commit: str) -> Iterator[Row]:
    """Rows of one kind."""
    for name, found, sizes in KINDS[kind](runs):
        more = {"sizes": sizes} if sizes else {}
        yield {"case": name, "seconds": found, **more, **taken_on(), "commit": commit}
