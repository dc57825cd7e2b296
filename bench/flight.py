"""Many cases in a few worker processes, all well inside one limit; rows are appended as they come."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cases import Case
from bench.workers import Worker, answers
from eggtile.tables import progress
from eggtile.turn import card_lock

ALONE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Many processes at a time: none of them starts a pool of compiler processes of its own."""
LEAST_S = 10.0  # in which a case can be hoped to end


@dataclass(frozen=True)
class Flight:
    """What to measure and how long it may take: `limit_s` bounds the whole flight, `case_s` one case in one process.

    Every case runs in `processes` processes, each of which takes one case after another. `jobs` is how many run side by
    side; only one times at a time. Where there are more jobs than processes, several share the cases of one. Flights at
    the same time share the file `lock`, which whoever times holds.
    """

    names: Sequence[str]
    rows: Path
    commit: str
    limit_s: float
    case_s: float = 120.0
    processes: int = 5
    jobs: int = 5
    tiny: bool = False
    modes: Sequence[str] = ("cold", "hot")
    rounds: int = 15
    lock: Path | None = None


def measuring() -> Worker:
    """A worker that measures cases."""
    return Worker("measure", ALONE)


def fly(cases: Sequence[Case], flight: Flight, made: Callable[[], Worker] = measuring) -> list[str]:
    """Measure all cases; gives the (case, process) pairs that have no row, with the reason."""
    deadline = time.monotonic() + flight.limit_s

    def left() -> float:
        seconds = min(flight.case_s, deadline - time.monotonic())
        return seconds if seconds >= min(LEAST_S, flight.case_s) else 0.0

    flight.rows.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory() as folder, progress() as bar, flight.rows.open("a") as out:
        asked = {"against": flight.names, "tiny": flight.tiny, "modes": flight.modes, "rounds": flight.rounds}
        asked |= {"commit": flight.commit, "lock": str(flight.lock or card_lock() or Path(folder) / "card.lock")}
        lanes = []
        for k in range(flight.processes):
            questions = iter([{**asked, "case": c.name, "process": k} for c in cases])
            lanes += [questions] * max(1, flight.jobs // flight.processes)
        task = bar.add_task("measuring", total=len(cases) * flight.processes)
        for question, row in answers(lanes, made, left):
            if "error" in row:
                row |= {key: question[key] for key in ("case", "process", "commit")}
                failed.append(f"{row['case']} #{row['process']}: {row['error']}")
            out.write(json.dumps(row) + "\n")
            out.flush()
            bar.advance(task)
    return failed
