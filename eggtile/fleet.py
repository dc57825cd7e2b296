"""The programs of a suite tuned in processes side by side into one store; the card's lock lets one time at a time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from eggtile.tables import progress
from eggtile.tuning import Report

EGGTILE = (sys.executable, "-m", "eggtile")
LAST_S = 60.0  # that a process may take beyond the budget, for what it has begun


@dataclass(frozen=True)
class Fleet:
    """Programs by name, of a module with cases; `options` are those of `eggtile tune`, `budget_s` is for all of it."""

    suite: str
    names: Sequence[str]
    store: str
    options: Sequence[str]
    jobs: int
    budget_s: float
    eggtile: Sequence[str] = EGGTILE


def fly(fleet: Fleet) -> list[Report]:
    """Tune every program in a process of its own; what fails is told and has no report."""
    start = time.monotonic()
    with progress() as bar:
        task = bar.add_task("tuning", total=len(fleet.names))

        def one(name: str) -> Report | None:
            left = fleet.budget_s - (time.monotonic() - start)
            said = tuned(fleet, name, left) if left > 0 else "no time is left"
            if isinstance(said, str):
                bar.console.print(f"{name}: {said}", markup=False)
            bar.advance(task)
            return None if isinstance(said, str) else said

        with ThreadPoolExecutor(fleet.jobs) as pool:
            return [r for r in pool.map(one, fleet.names) if r is not None]


def tuned(fleet: Fleet, name: str, budget_s: float) -> Report | str:
    """The report of one program, or why there is none."""
    command = [*fleet.eggtile, "tune", fleet.suite, "--select", f"^{re.escape(name)}$", "--json"]
    command += ["--evidence", fleet.store, "--budget", f"{budget_s:.0f}", *fleet.options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=budget_s + LAST_S)
    except subprocess.TimeoutExpired:
        return "stopped, as it goes on past the budget"
    try:
        (row,) = json.loads(done.stdout.splitlines()[-1])["programs"]
    except (IndexError, ValueError):
        return f"exit {done.returncode}: {done.stderr.strip()[-600:]}"
    return Report.of(row)
