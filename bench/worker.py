"""One case in one process: build the contenders, hold them to float64, then time them interleaved."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from bench.cases import Case, baseline
from bench.peers import contenders
from eggtile.measure import Row, build_and_gate, time_calls
from eggtile.provenance import taken_on
from eggtile.timing import copies_for

SEEDS_CHECKED = 2


@contextmanager
def turn(lock: Path | None, alone: bool) -> Iterator[None]:
    """Hold the card: shared while kernels only have to run, `alone` while they are timed."""
    if lock is None:
        yield
        return
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def measure(case: Case, names: Sequence[str], tiny: bool, lock: Path | None, commit: str, process: int) -> Row:
    """The row of one process: every contender's errors and times, cold and hot, and all they were taken on."""
    built = case.built(tiny)
    torch.backends.cuda.matmul.allow_tf32 = case.tf32
    fn, first = case.program(tiny, "cuda")
    with turn(lock, alone=False):
        checked = [case.inputs(built, "cuda", k) for k in range(SEEDS_CHECKED)]
        calls, found = build_and_gate(fn, checked, contenders(case, names))
        del checked
    with turn(lock, alone=True):
        more = range(1, copies_for(sum(t.nbytes for t in first)))
        copies = [first, *(case.inputs(built, "cuda", k) for k in more)]
        times, clocks = time_calls(calls, copies)
    return {
        "case": case.name,
        "dtype": case.dtype,
        "dims": {**case.full, **(case.tiny if tiny else {})},
        "tiny": tiny,
        "process": process,
        "flops": built.flops,
        "bytes": case.bytes_moved(built),
        "copies": len(copies),
        "reference_us": None if tiny else baseline().get(case.name, {}).get("reference_us"),
        "contenders": {name: {**row, **times.get(name, {})} for name, row in found.items()},
        "clocks": clocks,
        **taken_on(),
        "commit": commit,
    }
