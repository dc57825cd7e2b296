"""Every case at tiny sizes through the whole pipeline, its emitted text run on the CPU and held to float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.cases import Case, case
from bench.workers import Answer, Question, Worker, answers
from eggtile.check import check_on_cpu
from eggtile.tables import progress


@dataclass(frozen=True)
class Outcome:
    """What became of one case: its verdict, or in `reason` how its process ended."""

    name: str
    ok: bool
    max_rel_err: float | None
    eager_rel_err: float | None
    reason: str


def check_one(question: Question) -> Answer:
    """The verdict on one case in this process."""
    fn, inputs = case(question["case"]).program(tiny=True)
    return check_on_cpu(fn, inputs, question["case"].replace(".", "_")).json()


def outcome(name: str, answer: Answer) -> Outcome:
    """The outcome that a worker's answer tells of."""
    if "error" in answer:
        return Outcome(name, False, None, None, answer["error"])
    reason = answer["reason"] or "; ".join(answer["notes"])
    return Outcome(name, answer["ok"], answer["max_rel_err"], answer["eager_rel_err"], reason)


def check(
    cases: Sequence[Case], jobs: int, seconds: float, made: Callable[[], Worker] = lambda: Worker("check")
) -> list[Outcome]:
    """All verdicts, in the order of the cases, from `jobs` worker processes."""
    questions = iter([{"case": c.name} for c in cases])
    found: dict[str, Outcome] = {}
    with progress() as bar:
        task = bar.add_task("checking", total=len(cases))
        for question, answer in answers([questions] * jobs, made, lambda: seconds):
            found[question["case"]] = outcome(question["case"], answer)
            bar.advance(task)
    return [found[c.name] for c in cases]


def part(cases: Sequence[Case], n: int, of: int = 4) -> list[Case]:
    """Every `of`-th case, starting at `n`: a quarter of the suite that differs by `n`."""
    return [c for k, c in enumerate(cases) if k % of == n % of]
