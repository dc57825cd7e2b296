"""Folds that others got wrong, and rows with values that are not finite: every form, schedule and text is right."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import numpy as np
import pytest
import torch

from bench.workers import Question
from eggtile.check import check_on_cpu
from eggtile.pipeline import Options, capture_and_lower, choose_forms
from ir.loop_interp import run_form, run_loop
from tests.fixture_forms import REPORTED, emitted, emulate, interpret, part, variations

F = torch.nn.functional
SEED = 7
FORMS = [q for q in variations(REPORTED) if (q["extent"], q["dtype"], q["layout"]) == (7, "own", "contiguous")]
TEXTS = [q for q in emitted(REPORTED, SEED) if q["extent"] <= 129]
"""`python -m tests.fixture_forms` runs other extents and types too."""


def name_of(question: Question) -> str:
    return " ".join(str(v) for v in question.values())


@pytest.mark.parametrize("question", part(FORMS, "1/10", SEED), ids=name_of)
def test_every_form_of_a_reported_program_is_right(question: Question) -> None:
    assert interpret(question)["wrong"] == []


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("question", part(TEXTS, "1/10", SEED), ids=name_of)
def test_the_text_of_a_form_of_a_reported_program_is_right(question: Question) -> None:
    assert emulate({**question, "on": "cpu"})["wrong"] == []


def assert_forms_right(fn: Callable[..., object], inputs: list[torch.Tensor], k: int) -> None:
    compiled = choose_forms(capture_and_lower(fn, inputs, "p", Options(k=k)))
    names = [x.name for x in compiled.captured.program.inputs]
    given = {n: t.numpy() for n, t in zip(names, inputs, strict=True)}
    (region,) = compiled.regions
    with np.errstate(all="ignore"):
        want = run_loop(region.program, given, exact=True)
        for form in region.forms:
            got = run_form(form, given, exact=True)
            for name, right in want.items():
                np.testing.assert_allclose(got[name], right, rtol=1e-9, atol=1e-12, err_msg=form.name)


ROWS = torch.randn((8, 40), generator=torch.Generator().manual_seed(3))
ROWS[0, :20], ROWS[1], ROWS[2, 37:], ROWS[3, 0] = -inf, -inf, -inf, -inf
ROWS[4, 25], ROWS[5, 3], ROWS[6, 39] = inf, nan, nan

SPECIAL: dict[str, Callable[[torch.Tensor], object]] = {
    "shares": lambda x: torch.softmax(x, -1),
    "their logarithms": lambda x: torch.log_softmax(x, -1),
    "the logarithm of a sum": lambda x: torch.logsumexp(x, -1),
    "a weighted sum": lambda x: torch.softmax(x, -1) @ torch.arange(160.0).reshape(40, 4),
    "a variance": lambda x: x.var(-1),
    "standard values": lambda x: F.layer_norm(x, (40,)),
}
LINES = (
    None, "WORK=points32", "WORK=t32 TILE=x1:8 REDUCE=lanes", "WORK=t32 TILE=x1:8 REDUCE=serial",
    "WORK=t32 TILE=x1:64 REDUCE=lanes",
)  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_every_form_is_right_for_rows_that_are_not_finite(name: str) -> None:
    assert_forms_right(SPECIAL[name], [ROWS], 3)


@pytest.mark.parametrize(
    ("name", "line"),
    [(n, LINES[(k + d) % len(LINES)]) for k, n in enumerate(SPECIAL) for d in (0, 2) if n != "a weighted sum"],
)
def test_the_text_is_right_for_rows_that_are_not_finite(name: str, line: str | None) -> None:
    verdict = check_on_cpu(SPECIAL[name], [ROWS], options=Options(schedule=line))
    assert verdict.max_rel_err < 1e-6, verdict


@pytest.mark.parametrize("line", LINES[1:4])
def test_a_variance_of_large_values_streams_as_right_as_two_passes(line: str) -> None:
    """The text keeps within twice the error of the same program swept twice."""
    rows = [ROWS[7:].repeat(3, 1) + 1e4]

    def error(**chosen: object) -> float:
        return check_on_cpu(lambda x: x.var(-1), rows, options=Options(schedule=line, **chosen)).max_rel_err  # type: ignore[arg-type]

    assert error() <= 2 * error(form="default") + 1e-7
