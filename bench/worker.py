"""One case in one process: build the contenders, hold them to float64, then time them interleaved."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bench import machine, protocol
from bench.cases import Case, baseline
from bench.cases.spec import Built, Function
from bench.peers import contenders
from eggtile.check import judge
from eggtile.reference import flat_tensors, private_copy, run_eager, run_in_float64

Row = dict[str, Any]
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


def run_on_copies(fn: Function, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs, then the inputs as the call leaves them."""
    private = [private_copy(t) for t in inputs]
    with torch.no_grad():
        outputs = flat_tensors(fn(*private))
    torch.cuda.synchronize()
    return [*outputs, *private]


def gate(call: Function, fn: Function, sets: Sequence[Sequence[torch.Tensor]]) -> Row:
    """The contender's worst error over the input sets, against float64, beside eager's."""
    verdicts = [judge("cuda", run_on_copies(call, x), run_eager(fn, x), run_in_float64(fn, x)) for x in sets]
    worst = max(verdicts, key=lambda v: (not v.ok, v.max_rel_err))
    return {k: v for k, v in worst.json().items() if k in ("ok", "max_rel_err", "eager_rel_err", "reason")}


def input_sets(case: Case, built: Built) -> list[list[torch.Tensor]]:
    """Enough copies of the inputs, each with values of its own, that a rotation over them is cold."""
    first = case.inputs(built, "cuda")
    count = protocol.copies_for(sum(t.nbytes for t in first))
    return [first, *(case.inputs(built, "cuda", k) for k in range(1, count))]


def measure(case: Case, names: Sequence[str], tiny: bool, lock: Path | None, commit: str, process: int) -> Row:
    """The row of one process: every contender's errors and times, cold and hot, and all they were taken on."""
    built = case.built(tiny)
    torch.backends.cuda.matmul.allow_tf32 = case.tf32
    fn, inputs = case.program(tiny, "cuda")
    calls: dict[str, Function] = {}
    found: dict[str, Row] = {}
    with turn(lock, alone=False):
        checked = [case.inputs(built, "cuda", k) for k in range(SEEDS_CHECKED)]
        for name, contender in contenders(case, names).items():
            start = time.perf_counter()
            try:
                calls[name] = contender.build(fn, inputs)
                run_on_copies(calls[name], inputs)
                found[name] = {"first_call_s": time.perf_counter() - start, **gate(calls[name], fn, checked)}
            except Exception as error:  # a contender that fails is a result: it is recorded, the others go on
                calls.pop(name, None)
                found[name] = {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}
        del checked
    before = machine.query(*machine.CLOCKS)
    with turn(lock, alone=True), ThreadPoolExecutor(1) as aside:
        sets = input_sets(case, built)
        for mode, copies in (("cold", sets), ("hot", sets[:1])):
            replays = {name: protocol.prepare(call, copies) for name, call in calls.items()}
            during = aside.submit(machine.query, *machine.CLOCKS)
            samples = protocol.interleave(replays)
            for name, replay in replays.items():
                found[name][mode] = protocol.summary(replay, samples[name])
            torch.cuda.empty_cache()
    return {
        "case": case.name,
        "dtype": case.dtype,
        "dims": {**case.full, **(case.tiny if tiny else {})},
        "tiny": tiny,
        "process": process,
        "flops": built.flops,
        "bytes": case.bytes_moved(built),
        "copies": len(sets),
        "reference_us": None if tiny else baseline().get(case.name, {}).get("reference_us"),
        "contenders": found,
        "machine": machine.machine_name(),
        "clocks": {"before": before, "during": during.result()},
        "versions": machine.versions(),
        "commit": commit,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
