"""One case in this process: build the contenders, hold them to float64, then time them interleaved."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import torch

from bench.cases import baseline, case
from bench.peers import contenders
from bench.workers import Question
from eggtile.measure import Row, build_and_gate, time_calls
from eggtile.optimized import Optimized
from eggtile.provenance import taken_on
from eggtile.timing import copies_for
from eggtile.turn import turn

SEEDS_CHECKED = 2
YARDSTICKS = {"copy": lambda *inputs: inputs[0].clone()}
"""What is timed beside the contenders, and computes something else."""


def scheduled(call: object) -> Row:
    """The schedule lines of a program of ours, and how many are the fall-back."""
    if not isinstance(call, Optimized):
        return {}
    kernels = call.kernels
    return {"schedules": [str(k.schedule) for k in kernels], "fallbacks": sum(k.fallback for k in kernels)}


def measure(q: Question) -> Row:
    """The row of one process: every contender's errors and times, and all they were taken on.

    `q` names the `case`, who is timed `against` whom, the `modes` (cold, hot), the `rounds` and the `lock` of the card.
    """
    item, tiny, lock = case(q["case"]), q["tiny"], Path(q["lock"])
    built = item.built(tiny)
    torch.backends.cuda.matmul.allow_tf32 = item.tf32
    shared = partial(turn, lock, False)
    with shared():
        fn, first = item.program(tiny, "cuda")
        checked = [item.inputs(built, "cuda", k) for k in range(SEEDS_CHECKED)]
    known = contenders(item, [n for n in q["against"] if n not in YARDSTICKS])
    calls, found = build_and_gate(fn, checked, known, running=shared)
    calls |= {n: call for n, call in YARDSTICKS.items() if n in q["against"]}
    del checked
    with shared():
        more = range(1, copies_for(sum(t.nbytes for t in first)))
        copies = [first, *(item.inputs(built, "cuda", k) for k in more)]
        torch.cuda.synchronize()
    with turn(lock, alone=True):
        times, clocks = time_calls(calls, copies, q["rounds"], q["modes"])
    row = {
        "case": item.name,
        "dtype": item.dtype,
        "dims": {**item.full, **(item.tiny if tiny else {})},
        "tiny": tiny,
        "process": q["process"],
        "flops": built.flops,
        "bytes": item.bytes_moved(built),
        "copies": len(copies),
        "reference_us": None if tiny else baseline().get(item.name, {}).get("reference_us"),
        "contenders": {
            n: {**found.get(n, {}), **scheduled(calls.get(n)), **times.get(n, {})} for n in (found | times)
        },
        "clocks": clocks,
        **taken_on(),
        "commit": q["commit"],
    }
    del calls, copies, first, fn
    gc.collect()
    torch.cuda.empty_cache()
    return row
