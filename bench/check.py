"""Every case at tiny sizes through the whole pipeline, its emitted text run on the CPU and held to float64."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bench.cases import Case, case
from eggtile.check import check_on_cpu
from eggtile.provenance import ROOT
from eggtile.tables import progress


@dataclass(frozen=True)
class Outcome:
    """What became of one case: its verdict, or in `reason` how its process ended."""

    name: str
    ok: bool
    max_rel_err: float | None
    eager_rel_err: float | None
    reason: str


def check_one(name: str) -> dict[str, Any]:
    """The verdict on one case in this process."""
    fn, inputs = case(name).program(tiny=True)
    return check_on_cpu(fn, inputs, name.replace(".", "_")).json()


def in_process(item: Case, seconds: float) -> Outcome:
    """The verdict on one case in a process of its own, which ends after `seconds`."""
    command = [sys.executable, "-m", "bench", "check-one", item.name]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return Outcome(item.name, False, None, None, f"stopped after {seconds:.0f} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return Outcome(item.name, False, None, None, lines[-1])
    v = json.loads(done.stdout.splitlines()[-1])
    reason = v["reason"] or "; ".join(v["notes"])
    return Outcome(item.name, v["ok"], v["max_rel_err"], v["eager_rel_err"], reason)


def check(cases: Sequence[Case], jobs: int, seconds: float) -> list[Outcome]:
    """All verdicts, in the order of the cases."""
    with progress() as bar, ThreadPoolExecutor(jobs) as pool:
        task = bar.add_task("checking", total=len(cases))

        def one(item: Case) -> Outcome:
            outcome = in_process(item, seconds)
            bar.advance(task)
            return outcome

        return list(pool.map(one, cases))


def part(cases: Sequence[Case], n: int, of: int = 4) -> list[Case]:
    """Every `of`-th case, starting at `n`: a quarter of the suite that differs by `n`."""
    return [c for k, c in enumerate(cases) if k % of == n % of]
