"""Processes that answer one question a line; one that dies or takes too long costs its question alone and is replaced."""

from __future__ import annotations

import faulthandler
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

Question = Mapping[str, Any]
Answer = dict[str, Any]
"""JSON values; `error` says how the question ended where it has no other answer."""

ROOT = Path(__file__).parents[1]
TOLD = 600  # characters of a process' last words


class Worker:
    """A process that runs `serve`; it is started when it is first asked."""

    def __init__(self, kind: str, environment: Mapping[str, str] | None = None) -> None:
        self.command: Sequence[str] = (sys.executable, "-m", "bench", "work", kind)
        self.environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[str] | None = None

    def ask(self, question: Question, seconds: float) -> Answer:
        """The answer, or how the process ended."""
        if self.process is None:
            self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  closed with the process
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env=self.environment, stdin=pipe, stdout=pipe, stderr=self.errors, text=True
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({**question, "limit_s": seconds}) + "\n")
        self.process.stdin.flush()
        ready = select.select([self.process.stdout], [], [], seconds)[0]
        line = self.process.stdout.readline() if ready else ""
        if line:
            answer: Answer = json.loads(line)
            return answer
        how = f"its process ended with {self.process.wait()}" if ready else f"stopped after {seconds:.0f} s"
        self.errors.seek(0)
        said = self.errors.read().strip()[-TOLD:]
        self.close()
        return {"error": f"{how}: {said}" if said else how}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.errors.close()
            self.process = None


def answers(
    lanes: Sequence[Iterator[Question]],
    made: Callable[[], Worker],
    seconds: Callable[[], float],
) -> Iterator[tuple[Question, Answer]]:
    """Questions with their answers as they come, a worker a lane; lanes may be one iterator, which they then share.

    A question has `seconds()` when it is asked; where that is nothing, it is answered with `no time left`.
    """
    found: SimpleQueue[tuple[Question, Answer] | None] = SimpleQueue()

    def work(lane: Iterator[Question]) -> None:
        worker = made()
        try:
            for question in lane:
                left = seconds()
                found.put((question, worker.ask(question, left) if left > 0 else {"error": "no time left"}))
        finally:
            worker.close()
            found.put(None)

    with ThreadPoolExecutor(len(lanes)) as pool:
        working = [pool.submit(work, lane) for lane in lanes]
        open_lanes = len(lanes)
        while open_lanes:
            if (next_one := found.get()) is None:
                open_lanes -= 1
            else:
                yield next_one
        for w in working:
            w.result()


def serve(answer: Callable[[Question], Answer]) -> None:
    """The worker's side: answer every line of standard input; what libraries print goes to standard error.

    An exception is an answer; near the end of its time a question says on standard error where it stands.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        faulthandler.dump_traceback_later(0.9 * question["limit_s"])
        try:
            found = answer(question)
        except Exception as error:  # a question that fails is an answer; the worker goes on with the next
            found = {"error": f"{type(error).__name__}: {str(error).strip()[:TOLD]}"}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(found), file=replies, flush=True)
