"""Every case at tiny sizes through the whole pipeline, its emitted text run on the CPU and held to float64."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, Queue
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


def serve() -> None:
    """Verdicts on the cases named line by line on standard input, each as a line of JSON; the worker's side."""
    for line in sys.stdin:
        name = line.strip()
        try:
            answer = check_one(name)
        except Exception as error:  # a case that fails is an answer; the worker goes on with the next
            answer = {"ok": False, "reason": f"{type(error).__name__}: {str(error).strip()[:300]}", "notes": []}
        print(json.dumps({"max_rel_err": None, "eager_rel_err": None, **answer}), flush=True)


class Worker:
    """A process that checks one case after another; it is replaced when it dies or takes too long."""

    command = (sys.executable, "-m", "bench", "check-cases")

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def check(self, item: Case, seconds: float) -> Outcome:
        """The verdict on a case, or how its process ended."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(item.name + "\n")
        self.process.stdin.flush()
        ready = select.select([self.process.stdout], [], [], seconds)[0]
        line = self.process.stdout.readline() if ready else ""
        if not line:
            how = f"its process ended with {self.process.wait()}" if ready else f"stopped after {seconds:.0f} s"
            self.close()
            return Outcome(item.name, False, None, None, how)
        v = json.loads(line)
        reason = v["reason"] or "; ".join(v["notes"])
        return Outcome(item.name, v["ok"], v["max_rel_err"], v["eager_rel_err"], reason)

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def check(cases: Sequence[Case], jobs: int, seconds: float) -> list[Outcome]:
    """All verdicts, in the order of the cases, from `jobs` worker processes."""
    waiting: Queue[tuple[int, Case]] = Queue()
    for item in enumerate(cases):
        waiting.put(item)
    found: dict[int, Outcome] = {}
    with progress() as bar, ThreadPoolExecutor(jobs) as pool:
        task = bar.add_task("checking", total=len(cases))

        def work() -> None:
            worker = Worker()
            while True:
                try:
                    k, item = waiting.get_nowait()
                except Empty:
                    return worker.close()
                found[k] = worker.check(item, seconds)
                bar.advance(task)

        list(pool.map(lambda _: work(), range(jobs)))
    return [found[k] for k in range(len(cases))]


def part(cases: Sequence[Case], n: int, of: int = 4) -> list[Case]:
    """Every `of`-th case, starting at `n`: a quarter of the suite that differs by `n`."""
    return [c for k, c in enumerate(cases) if k % of == n % of]
