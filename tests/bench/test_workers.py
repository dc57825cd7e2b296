"""Worker processes: what is asked, what comes back, and what an end of a process costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.cases import case
from bench.flight import Flight, fly
from bench.workers import Worker, answers

PLAYED = """
import sys, time
for line in sys.stdin:
    if {hangs!r} in line: time.sleep(60)
    if {crashes!r} in line: print("a last word", file=sys.stderr); sys.exit(7)
    print({answer!r}, flush=True)
"""
SERVED = """
from bench.workers import serve
def answer(q):
    print("a library speaks")
    return {"twice": 2 * q["n"]}
serve(answer)
"""


class Scripted(Worker):
    """A worker that gives one answer to everything, but for questions that hold a word."""

    def __init__(self, answer: str, hangs: str = "no word", crashes: str = "no word") -> None:
        super().__init__("check")
        self.command = (sys.executable, "-c", PLAYED.format(answer=answer, hangs=hangs, crashes=crashes))


def test_lanes_that_share_their_questions_ask_each_once():
    questions = iter([{"n": n} for n in range(20)])
    found = [q["n"] for q, _ in answers([questions] * 3, lambda: Scripted("{}"), lambda: 5.0)]
    assert sorted(found) == list(range(20))


def test_without_time_nothing_is_asked():
    found = list(answers([iter([{"n": 1}])], lambda: Scripted("{}"), lambda: 0.0))
    assert found == [({"n": 1}, {"error": "no time left"})]


def test_what_libraries_print_is_no_answer_and_an_exception_is_one():
    asked = "".join(json.dumps({"n": n, "limit_s": 60}) + "\n" for n in (3, None))
    done = subprocess.run([sys.executable, "-c", SERVED], input=asked, capture_output=True, text=True, check=True)
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == {"twice": 6}
    assert second["error"].startswith("TypeError")
    assert done.stderr.count("a library speaks") == 2


def test_every_case_has_a_row_a_process_and_a_lost_one_says_why(tmp_path: Path):
    row = json.dumps({"case": "x", "time": "t"})
    flight = Flight(["eager"], tmp_path / "rows.jsonl", "c1", 30.0, 2.0, processes=2, jobs=2)
    fly([case("mm.sq1024"), case("mm.sq4096_tf32")], flight, lambda: Scripted(row, crashes="tf32"))
    rows = [json.loads(line) for line in flight.rows.read_text().splitlines()]
    lost = sorted((r["case"], r["process"]) for r in rows if "error" in r)
    assert len(rows) == 4
    assert lost == [("mm.sq4096_tf32", 0), ("mm.sq4096_tf32", 1)]
    assert all(r["error"] == "its process ended with 7: a last word" for r in rows if "error" in r)
