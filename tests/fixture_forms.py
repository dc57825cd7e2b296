"""The programs that others got wrong, in all forms at all numerics; run as a module, a table of what is wrong.

By default every form of every variation runs in the loop interpreter. With --emitted a covering array of variations
runs as text on the CPU in two thread orders, or twice as cubins --on cuda, with --large those whose indices pass 2**31.
A variation has its own limit of time.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from bench.cases.fixtures import FIXTURES, Fixture
from bench.workers import Answer, Question, Worker, answers, serve
from eggtile.check import check_compiled
from eggtile.pipeline import Options, compile_kernels
from eggtile.reference import FLOATS
from tests.covering import covering
from tests.form_runs import FOR_STRICT, LAYOUTS, UNUSUAL, VALUES, Forms, laid, typed
from tests.further_programs import FURTHER

K = 12
NUMERICS = ("strict", "default", "fast")
DTYPES = {"own": None, "f16": torch.float16, "bf16": torch.bfloat16}
EXTENTS = (1, 7, 32, 129, 1000, 8193)
ALL_VALUES = 64  # longer axes see the reported values alone: a stream is interpreted step by step
LONGEST = 8193
REPORTED = tuple(f.name for f in FIXTURES if not f.large)
PROGRAMS: Mapping[str, Fixture] = {f.name: f for f in (*FIXTURES, *FURTHER)}


def inputs_of(question: Question, values: str = "reported") -> list[torch.Tensor]:
    program = PROGRAMS[str(question["program"])]
    made = typed(program.make(int(question["extent"] or program.extent)), DTYPES[str(question["dtype"])])
    return laid(VALUES[values](made), str(question["layout"]))


def possible(row: Mapping[str, Any]) -> bool:
    """Whether eager PyTorch runs the variation, and it differs from others."""
    name = row.get("program")
    if name is None:
        return True
    return row.get("extent") != PROGRAMS[name].extent and _runs(
        name, row.get("dtype", "own"), row.get("layout", "")
    )


@cache
def _runs(name: str, dtype: str, layout: str) -> bool:
    inputs = PROGRAMS[name].make(7)
    if dtype != "own" and not any(t.dtype in FLOATS for t in inputs):
        return False
    try:
        PROGRAMS[name].fn(*laid(inputs, layout or "contiguous"))
    except RuntimeError:  # a write to elements that share memory
        return False
    return True


def variations(programs: Sequence[str]) -> Iterator[Question]:
    """As reported in every dtype, and every extent, at all numerics; narrow dtypes at some extents, and other layouts."""
    for name in programs:
        rows = [(0, d, "contiguous", n) for d in DTYPES for n in NUMERICS]
        rows += [(e, "own", "contiguous", n) for e in EXTENTS for n in NUMERICS]
        rows += [(e, d, "contiguous", n) for e in (7, 129) for d in DTYPES for n in NUMERICS]
        rows += [(7, "own", layout, "default") for layout in LAYOUTS]
        for extent, dtype, layout, numerics in dict.fromkeys(rows):
            row = {"program": name, "extent": extent, "dtype": dtype, "layout": layout, "numerics": numerics}
            if (extent or PROGRAMS[name].extent) <= LONGEST and possible(row):
                yield row


def emitted(programs: Sequence[str], seed: int) -> list[Question]:
    """Variations and form numbers in which every two choices meet, but for a program's with all extents and numbers."""
    factors = {
        "program": programs,
        "extent": (0, *EXTENTS),
        "dtype": tuple(DTYPES),
        "layout": tuple(LAYOUTS),
        "numerics": NUMERICS,
        "form": range(K + 1),
    }
    return list(covering(factors, possible, (("program", "form"), ("program", "extent")), seed))


def large() -> list[Question]:
    """The programs that take gigabytes, as reported."""
    row = {"extent": 0, "dtype": "own", "layout": "contiguous", "numerics": "default", "form": 0}
    return [{"program": f.name, **row} for f in FIXTURES if f.large]


def interpret(question: Question) -> Answer:
    """All forms of a variation on all values: how many forms, and which are wrong."""
    inputs = inputs_of(question)
    options = Options(k=K, numerics=str(question["numerics"]))
    forms = Forms.of(PROGRAMS[str(question["program"])].fn, inputs, options)
    long = max((e for t in inputs for e in t.shape), default=0) > ALL_VALUES
    wrong, unlike = [], []
    kinds = [v for v in VALUES if v not in FOR_STRICT or question["numerics"] == "strict"]
    for values in ("reported",) if long else kinds:
        for number, why in forms.wrong(inputs_of(question, values), values):
            as_written = number == forms.count - 1 and values in UNUSUAL
            (unlike if as_written else wrong).append([values, number, why])
    return {"forms": forms.count, "wrong": wrong, "unlike": unlike}


def emulate(question: Question) -> Answer:
    """The text of one form of a variation."""
    program, inputs = PROGRAMS[str(question["program"])], inputs_of(question)
    forms = Forms.of(program.fn, inputs, Options(k=K, numerics=str(question["numerics"])))
    number = int(question["form"]) % forms.count
    for region in forms.compiled.regions:
        region.chosen = region.listed[min(number, len(region.listed) - 1)]
    verdict = check_compiled(compile_kernels(forms.compiled), program.fn, inputs, question["on"], forms.slack())
    return {"forms": 1, "wrong": [] if verdict.ok else [["reported", number, verdict.reason]], "unlike": []}


KINDS = {"interpret": interpret, "emulate": emulate}


class FormWorker(Worker):
    """A process of this module."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.command = (sys.executable, "-m", __name__ if __name__ != "__main__" else "tests.fixture_forms", kind)


def part(questions: Sequence[Question], text: str, seed: int) -> list[Question]:
    """A seeded part: n/of."""
    n, of = map(int, text.split("/"))
    mixed = list(questions)
    random.Random(seed).shuffle(mixed)
    return mixed[n - 1 :: of]


def main() -> int:
    """Print what is wrong and how much was run; 0 where nothing is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emitted", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--on", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1")
    parser.add_argument(
        "--programs", nargs="*", default=REPORTED, help="names, or further for those of this project"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300)
    given = parser.parse_args()
    kind = "emulate" if given.emitted or given.large else "interpret"
    named = [f.name for f in FURTHER] if list(given.programs) == ["further"] else given.programs
    found = large() if given.large else emitted(named, given.seed) if given.emitted else list(variations(named))
    asked = iter([{**q, "on": given.on} for q in part(found, given.part, given.seed)])
    combinations = wrong = unlike = lost = variants = 0
    for question, answer in answers([asked] * given.jobs, lambda: FormWorker(kind), lambda: given.seconds):
        variants += 1
        name = " ".join(str(v) for v in question.values())
        if "error" in answer:
            lost += 1
            print(f"lost  {name}: {answer['error']}", flush=True)
            continue
        combinations += answer["forms"]
        wrong += len({n for _, n, _ in answer["wrong"]})
        unlike += len({n for _, n, _ in answer["unlike"]})
        for values, number, why in answer["wrong"]:
            print(f"wrong {name}, {values} values, form {number}: {why}", flush=True)
        for values, _, why in answer["unlike"]:
            print(f"      {name}, {values} values: as written it is not eager's: {why}", flush=True)
    print(
        f"{combinations} combinations of {variants} variations, {wrong} wrong, {lost} lost; "
        f"{unlike} variations whose program as written is not eager's on values that are huge or not finite"
    )
    return int(wrong + lost > 0)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in KINDS:
        serve(KINDS[sys.argv[1]])
    else:
        sys.exit(main())
