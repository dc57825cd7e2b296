"""What a report may take: seconds are spent on the chosen form first, and what is left out is said."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from eggtile import accuracy
from eggtile.abridged import MOST_NODES, short_text
from eggtile.accuracy import Runs, form_errors, seeded_inputs
from eggtile.deadline import Deadline, said
from eggtile.explore import by_weight, report
from eggtile.explorer import page
from eggtile.pipeline import Compiled, Options, capture_and_lower, choose_forms
from eggtile.reduced import MOST_WORK, reduced
from eggtile.why import Names, chains
from ir.loop_interp import run_form
from ir.term import Load, Term, binary, number
from tests.eggtile.test_cli import called

WIDE = "x = torch.randn(4, 8)\n[torch.softmax(x * i, -1).sum(0) for i in range(1, 7)]"
SPENT = Deadline(0.0)


def wide(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.softmax(x * i, -1).sum(0) + F.rms_norm(x, (8,)).amax(0) * i for i in range(1, 5)]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return choose_forms(capture_and_lower(wide, [torch.randn(4, 8)], "wide", Options(k=3, explain=True)))


def test_a_report_without_time_has_every_form_and_says_what_it_lacks(compiled: Compiled) -> None:
    whole, cut = report(compiled), report(compiled, deadline=SPENT)
    assert not whole["left_out"] and all(f["max_rel_err"] < 1e-12 for f in whole["forms"])
    assert all(k["launches"] == 1 for f in whole["forms"] for k in f["kernels"])
    ids = [f["id"] for f in whole["forms"]]
    assert [(x["what"], x["forms"]) for x in cut["left_out"]] == [("max rel err", ids), ("launches", ids)]
    assert all("--budget report=SECONDS" in x["why"] for x in cut["left_out"])
    for f, g in zip(whole["forms"], cut["forms"], strict=True):
        kernels = [{**k, "launches": None} for k in f["kernels"]]
        assert {**f, "max_rel_err": None, "kernels": kernels} == g


def test_the_command_says_what_is_left_out_as_text_data_and_page(tmp_path: Path) -> None:
    given = ("-k", "2", "--budget", "report=0", "-c", WIDE)
    outcome = called("explore", *given)
    assert (
        outcome.exit_code == 0
        and "left out: max rel err of forms 0, 1, 2, since a report takes 0 s" in outcome.stdout
    )
    found = json.loads(called("explore", "--json", *given).stdout)
    assert {x["what"] for x in found["left_out"]} == {"max rel err", "launches"}
    called("explore", "--html", str(tmp_path / "x.html"), *given)
    text = (tmp_path / "x.html").read_text()
    assert "left out: steps of forms" in text and "left out: CUDA text of kernels" in text
    listed = json.loads(called("schedules", "--json", "--budget", "report=0", "-c", WIDE).stdout)
    assert listed["kernels"] == [] and "schedules of" in listed["left_out"][0]["what"]
    steps = json.loads(called("explore", "--why", "default", "0", "--json", *given).stdout)
    assert not steps["regions"][0]["steps"] and steps["regions"][0]["left_out"]


def test_a_gap_that_is_not_known_is_null_and_said_in_words() -> None:
    given = ("--budget", "extract=0", "-c", WIDE)
    found = json.loads(called("explore", "--json", *given).stdout)["forms"]
    assert all(f["gap"] is None and "candidates" in f["stop"] for f in found)
    assert "the gap is not known" in " ".join(called("explore", *given).stdout.split())


def test_the_chosen_form_and_the_one_as_written_come_first(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    (region,) = compiled.regions
    region = replace(region, forms=[region.forms[0]] * 3, chosen=region.forms[0])
    assert [region.listed[n] is region.chosen for n in by_weight(region)][:3] == [True] * 3
    other = replace(region, forms=[replace(f, name="x") for f in region.forms], chosen=region.default)
    assert other.listed[by_weight(other)[0]] is other.default
    ran = []
    runs = Runs.of

    def one(self: Runs, form: Any) -> Any:
        ran.append(form)
        return runs(self, form) if len(ran) == 1 else None

    monkeypatch.setattr(accuracy.Runs, "of", one)
    rows = report(compiled)["forms"]
    assert [f["chosen"] for f in rows if f["max_rel_err"] is not None] == [True]


def test_a_kernel_that_forms_share_runs_once_and_gives_what_each_would(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    (region,) = compiled.regions
    small = reduced(region.program, region.listed, accuracy.POINTS)
    assert small is not None
    program, forms = small
    runs, count = Runs(seeded_inputs(program)), 0
    own = Runs._run

    def counted(self: Runs, *given: Any) -> Any:
        nonlocal count
        count += 1
        return own(self, *given)

    monkeypatch.setattr(Runs, "_run", counted)
    for f in [*forms, *forms]:
        made = runs.of(f)
        assert made is not None
        for name, y in run_form(f, runs.inputs, exact=True).items():
            assert np.array_equal(made[name], y, equal_nan=True)
    assert count <= sum(len(f.kernels) for f in forms) and len(forms) > 1
    monkeypatch.setattr(accuracy, "KEPT_BYTES", 0)
    few = Runs(seeded_inputs(program))
    assert few.of(forms[0]) is not None and len(few.made) == 1


def test_a_form_is_interpreted_once_for_all_its_outputs(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    (region,) = compiled.regions
    ran: list[object] = []
    of = Runs.of
    monkeypatch.setattr(Runs, "of", lambda self, form: (ran.append(form), of(self, form))[1])
    assert form_errors(region.program, region.listed)
    assert len(ran) == len(region.listed) and len(region.program.results) == 4


def test_a_program_of_many_values_is_checked_at_smaller_extents() -> None:
    def long(x: torch.Tensor) -> torch.Tensor:
        for _ in range(400):
            x = torch.sin(x) * 1.25
        return x

    (region,) = choose_forms(capture_and_lower(long, [torch.randn(192, 192)], "long", Options())).regions
    few, many = (reduced(region.program, region.listed, most) for most in (1 << 8, accuracy.POINTS))
    assert few is not None and many is not None
    assert max(b.size for b in few[0].buffers) <= 1 << 8
    assert math.prod(many[0].axes.values()) * 800 <= MOST_WORK


def test_axes_that_a_form_names_itself_are_as_short_as_the_programs() -> None:
    m = torch.nn.Linear(4, 4)
    (region,) = choose_forms(
        capture_and_lower(lambda x: x.sin().exp() + m(x), [torch.randn(3, 4)], "both", Options(k=12))
    ).regions
    assert any(f.axes.keys() - region.program.axes.keys() for f in region.listed)
    small = reduced(region.program, region.listed, accuracy.POINTS)
    assert small is not None
    program, forms = small
    for form in forms:
        assert all(n == program.axes.get(a.split("_")[0]) for a, n in form.axes.items())
    runs = Runs(seeded_inputs(program))
    assert all(runs.of(form) is not None for form in forms)


def test_every_second_of_a_command_is_in_its_times(tmp_path: Path) -> None:
    for command in (("explore", "-k", "3"), ("explore", "--html", str(tmp_path / "x.html")), ("schedules",)):
        since = time.perf_counter()
        found = json.loads(called(*command, "--json", "-c", WIDE).stdout)
        taken = time.perf_counter() - since
        known = sum(t for name, t in found["times"].items() if name != "imports")
        assert known > 0.9 * taken - 0.3


# ---- large terms


def doubled(times: int) -> Term:
    t: Term = Load("x", "f32", ())
    for _ in range(times):
        t = binary("mul", t, t)
    return t


def test_a_term_of_few_nodes_and_endless_text_is_cut() -> None:
    text = short_text(doubled(200))
    assert "..." in text and len(text) < 8 * MOST_NODES
    assert short_text(doubled(2)) == "x[()] * x[()] * (x[()] * x[()])"


def test_values_of_a_deep_program_get_names() -> None:
    t: Term = Load("x", "i64", ())
    for k in range(3000):
        t = binary("add", binary("mul", t, number(3)), number(k))
    names = Names(frozenset((t, t.terms[0], t.terms[1])))
    assert names.short(t) == "$1" and names.lines[1] == "$1 = $0 + 2999"
    assert "..." in names.lines[0] and len(names.lines[0]) < 8 * MOST_NODES


def test_the_page_of_a_deep_program_is_written() -> None:
    def deep(x: torch.Tensor) -> torch.Tensor:
        for i in range(12):
            x = F.layer_norm(x * (1 + i / 7), (8,))
        return x

    made = choose_forms(
        capture_and_lower(deep, [torch.randn(4, 8)], "deep", Options(k=2, explain=True, extract_s=2))
    )
    since = time.perf_counter()
    assert len(page(made, deadline=Deadline(5.0))) < 1 << 22
    assert time.perf_counter() - since < 60


def test_a_deadline_says_whose_seconds_are_spent() -> None:
    whole = Deadline(8.0)
    part = whole.share(1 / 4)
    assert 1.9 < part.seconds <= 2.0 and "takes 8 s" in part.why() and not part.spent
    assert said({"what": "steps", "forms": [2], "why": "w"}) == "left out: steps of form 2, since w"


def test_steps_that_come_too_late_are_left_out(compiled: Compiled) -> None:
    (whole,) = chains(compiled.regions, "default", "0")
    (cut,) = chains(compiled.regions, "default", "0", SPENT)
    assert whole["steps"] and not whole["left_out"] and not whole["not_replayed"]
    assert not cut["steps"] and cut["left_out"]


@pytest.mark.parametrize("bound", ["nodes=0", "extract=0"])
@pytest.mark.parametrize(
    "command", [("schedules",), ("explore", "--why", "0", "default"), ("explore", "--without", "operands_commute")]
)
def test_a_cut_search_is_told_by_every_report(command: tuple[str, ...], bound: str) -> None:
    code = "x = torch.randn(4, 8)\ntorch.softmax(x, -1)"
    for asked, cut in ((("--budget", bound), True), ((), False)):
        text, data = called(*command, *asked, "-c", code), called(*command, *asked, "--json", "-c", code)
        assert text.exit_code == data.exit_code == 0
        assert (
            ("a budget cuts" in text.stdout)
            == cut
            == any("a budget cuts" in n for n in json.loads(data.stdout)["notes"])
        )
