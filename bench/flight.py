"""Many cases, each in worker processes with a time limit, all well inside one limit; rows are appended as they come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from rich.progress import Progress

from bench.cases import Case
from eggtile.provenance import ROOT
from eggtile.tables import progress

ALONE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Many processes at a time: none of them starts a pool of compiler processes of its own."""


@dataclass(frozen=True)
class Flight:
    """What to measure and how long it may take. `limit_s` bounds the whole flight, `case_s` one process."""

    names: Sequence[str]
    rows: Path
    commit: str
    limit_s: float
    case_s: float = 120.0
    processes: int = 5
    jobs: int = 4
    tiny: bool = False


def fly(cases: Sequence[Case], flight: Flight) -> list[str]:
    """Run process 0 of every case, then process 1, and so on; gives the (case, process) pairs that have no time left."""
    deadline = time.monotonic() + flight.limit_s
    flight.rows.parent.mkdir(parents=True, exist_ok=True)
    work = [(c, k) for k in range(flight.processes) for c in cases]
    skipped: list[str] = []
    writing = Lock()
    with tempfile.TemporaryDirectory() as folder, progress() as bar:
        task = bar.add_task("measuring", total=len(work))

        def one(item: tuple[Case, int]) -> None:
            case, process = item
            left = deadline - time.monotonic()
            if left < min(15.0, flight.case_s):
                skipped.append(f"{case.name} #{process}")
            else:
                row = run_worker(case, process, flight, min(flight.case_s, left), Path(folder) / "card.lock")
                with writing, flight.rows.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                _say(bar, row)
            bar.advance(task)

        with ThreadPoolExecutor(flight.jobs) as pool:
            list(pool.map(one, work))
    return skipped


def run_worker(case: Case, process: int, flight: Flight, seconds: float, lock: Path) -> dict[str, object]:
    """The worker's row, or a row that says how it ended."""
    command = [sys.executable, "-m", "bench", "one", case.name, "--against", ",".join(flight.names)]
    command += ["--process", str(process), "--commit", flight.commit, "--lock", str(lock)]
    command += ["--tiny"] if flight.tiny else []
    command += ["--report-after", str(0.9 * seconds)]
    failed: dict[str, object] = {"case": case.name, "process": process, "commit": flight.commit}
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, env=os.environ | ALONE
        )
    except subprocess.TimeoutExpired as stopped:
        said = stopped.stderr.decode(errors="replace") if isinstance(stopped.stderr, bytes) else ""
        return {**failed, "error": f"stopped after {seconds:.0f} s: {said.strip()[-600:]}"}
    if done.returncode:
        return {**failed, "error": f"exit {done.returncode}: {done.stderr.strip()[-600:]}"}
    row: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return row


def _say(bar: Progress, row: dict[str, object]) -> None:
    if "error" in row:
        bar.console.print(f"{row['case']}: {row['error']}", markup=False)
