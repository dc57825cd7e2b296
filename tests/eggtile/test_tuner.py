"""The measuring loop without a GPU: planted faults never win and are named, and nothing that is stored is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from codegen.compile import compile_text
from codegen.disassemble import to_sass
from codegen.worker import Worker
from eggtile.candidates import Limits
from eggtile.cli_tune import kernel_line
from eggtile.pipeline import Options, compile_program
from eggtile.tuner import Tuner, build
from eggtile.tuning import Report, tune
from eggtile.turn import turn
from extract.evidence import Evidence
from extract.measurement import Where
from extract.spaces import space
from ir.machine import H200
from tests.eggtile.fake_device import command
from tests.gpu import tune_smoke

LIMITS = Limits(lines=10, rounds=3, candidate_s=1.5, threads=2)
WHERE = Where(H200.name, H200.target, "13.0", "1", "this")
X = torch.randn(6, 128)


def program(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def normal(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (128,))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Evidence]:
    evidence = Evidence(tmp_path / "e.sqlite", code="this")
    yield evidence
    evidence.close()


def tuned(
    evidence: Evidence, plan: dict[str, str], us: dict[str, float] | None = None, fn=program, emulated: bool = False
) -> tuple[Report, Worker]:
    worker = Worker(command(plan, us, emulated))
    tuner = Tuner(Options(evidence=evidence), WHERE, worker, LIMITS)
    try:
        return tune(fn, [X], "program", tuner), worker
    finally:
        worker.close()


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Lines of the program's one kernel with distinct texts, the model's choice first."""
    evidence = Evidence(tmp_path_factory.mktemp("lines") / "e.sqlite", code="this")
    report, _ = tuned(evidence, {})
    (row,) = report.kernels
    rows = evidence.rows(key=row.key)
    evidence.close()
    (default,) = (m.source for m in rows if m.schedule == row.default)
    first = {m.source: m.schedule for m in reversed(rows) if m.source != default}
    assert len(first) == LIMITS.lines - 1
    return [row.default, *first.values()]


def test_planted_faults_never_win_and_are_named(store: Evidence, lines: list[str]) -> None:
    kinds = ("wrong", "hang", "crash", "fault", "outside", "input", "unwritten", "hang in race", "crash in race")
    plan = dict(zip(lines, kinds, strict=False))
    report, worker = tuned(store, plan, {**dict.fromkeys(plan, 1.0), lines[-1]: 7.0})
    (row,) = report.kernels
    assert (row.best, row.best_us) == (lines[-1], 7.0)
    assert row.default_us is None
    status = {f.line: f.status for f in row.failures}
    wanted = {"hang": "hung", "hang in race": "hung"} | dict.fromkeys(
        ("crash", "fault", "crash in race"), "crashed"
    )
    assert status == {x: wanted.get(kind, "wrong") for x, kind in plan.items()}
    reason = {plan[f.line]: f.reason for f in row.failures}
    assert "error" in reason["wrong"]
    assert "SIGSEGV" in reason["crash"]
    assert "illegal memory access" in reason["fault"]
    assert "past its end" in reason["outside"]
    assert "has changed" in reason["input"]
    assert "timed" in reason["hang in race"]
    assert worker.starts >= 5
    assert store.right(row.key, H200)[0].schedule == lines[-1]


def test_a_kernel_that_differs_between_launches_is_wrong(store: Evidence, lines: list[str]) -> None:
    report, _ = tuned(store, dict.fromkeys(lines[:9], "racy"))
    assert any("different bits" in f.reason for f in report.kernels[0].failures)


def test_where_only_samples_are_affordable_the_fall_back_holds_the_rest(store: Evidence, lines: list[str]) -> None:
    worker = Worker(command({lines[0]: "one element", lines[1]: "unwritten"}))
    tuner = Tuner(Options(evidence=store), WHERE, worker, replace(LIMITS, work=500))
    try:
        report = tune(program, [X], "program", tuner)
    finally:
        worker.close()
    reasons = {f.line: f.reason for f in report.kernels[0].failures}
    assert set(reasons) == set(lines[:2])
    assert "differs from the fall-back" in reasons[lines[0]]
    assert report.kernels[0].best is not None


def test_a_kernel_of_which_no_line_is_known_is_not_called_wrong(store: Evidence) -> None:
    report = tune(program, [X], "program", Tuner(Options(evidence=store), WHERE, None, LIMITS))
    assert [kernel_line(k, report)[-1] for k in report.kernels] == ["none is measured"]


def test_a_second_run_measures_nothing_and_the_best_line_is_compiled(store: Evidence, lines: list[str]) -> None:
    us = {x: 20.0 - k for k, x in enumerate(lines)}
    first, _ = tuned(store, {}, us)
    again, worker = tuned(store, {}, us)
    assert (first.measured, again.measured, worker.starts) == (10, 0, 0)
    assert again.kernels[0].known == 10
    assert again.kernels[0].best == lines[-1]
    compiled = compile_program(program, [X], options=Options(evidence=store))
    assert [str(k.schedule) for k in compiled.kernels] == [lines[-1]]
    assert compiled.regions[0].chosen.cost_us == pytest.approx(us[lines[-1]])


def test_equal_texts_keep_their_times_when_the_code_changes(store: Evidence) -> None:
    tuned(store, {})
    store.code = "next"
    there = Where(H200.name, H200.target, "13.0", "1", "next")
    report = tune(program, [X], "program", Tuner(Options(evidence=store), there, None, LIMITS))
    assert (report.measured, report.kernels[0].adopted) == (0, 10)
    assert report.kernels[0].best is not None


def test_a_line_that_fails_under_one_driver_is_not_adopted_as_right(store: Evidence, lines: list[str]) -> None:
    first, _ = tuned(store, {})
    (row,) = store.rows(key=first.kernels[0].key, schedule=lines[0])
    wrong = {
        "time_us": None,
        "low_us": None,
        "high_us": None,
        "status": "wrong",
        "taken": "2100-01-01T00:00:00+00:00",
    }
    store.add(replace(row, where=replace(row.where, driver="999"), **wrong))
    for code, driver in (("next", "1"), ("further", "")):
        store.code = code
        there = Where(H200.name, H200.target, "13.0", driver, code)
        report = tune(program, [X], "program", Tuner(Options(evidence=store), there, None, LIMITS))
        assert [f.line for f in report.kernels[0].failures] == [lines[0]]
        assert report.kernels[0].best == store.right(row.key, H200)[0].schedule != lines[0]


def test_emitted_text_passes_the_gate_and_faults_in_it_do_not(store: Evidence) -> None:
    limits = Limits(lines=3, rounds=3, candidate_s=20.0, threads=2)
    worker = Worker(command({}, emulated=True))
    tuner = Tuner(Options(evidence=store), WHERE, worker, limits)

    def broken(*args):
        ((kernel, text),) = build(*args)
        return ((kernel, text.replace("rsqrt", "sqrt") if str(args[2]) == lines[1] else text),)

    build, tuner.build = tuner.build, broken
    lines = [str(s) for s in listed_space()]
    try:
        report = tune(normal, [X], "program", tuner)
    finally:
        worker.close()
    row = next(k for k in report.kernels if k.key in report.chosen)
    assert [f.line for f in row.failures] == [lines[1]]
    assert "random" in row.failures[0].reason
    right = store.rows(key=row.key, status="ok")
    assert len(right) == 2
    assert all(m.error is not None and m.bound is not None and m.error <= m.bound < 1e-5 for m in right)


def test_a_line_with_two_launches_is_gated_and_timed_whole(store: Evidence) -> None:
    """The model's first line for few long columns splits them; a fault in the merge is seen."""
    x = torch.randn(1 << 16, 8)
    worker = Worker(command({}, emulated=True))
    tuner = Tuner(
        Options(evidence=store), WHERE, worker, Limits(lines=2, rounds=3, candidate_s=20.0, threads=2, work=1 << 20)
    )

    def broken(*args):
        *first, (kernel, text) = build(*args)
        return (*first, (kernel, text.replace("= v", "= 2 * v") if str(args[2]) == lines[1] else text))

    build, tuner.build = tuner.build, broken
    (k,) = compile_program(column_sums, [x], options=Options()).kernels
    lines = [str(s) for s in space(k.canonical.kernel, k.buffers, k.canonical.axes, H200).lines]
    assert len(k.launches) == 2
    try:
        report = tune(column_sums, [x], "program", tuner)
    finally:
        worker.close()
    row = next(k for k in report.kernels if k.key in report.chosen)
    assert [f.line for f in row.failures] == [lines[1]]
    assert row.best == lines[0]


def column_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


@pytest.mark.parametrize("fault", tune_smoke.PLANTED)
def test_a_planted_fault_reaches_the_machine_code(fault: str) -> None:
    """A compiler may leave out what has no effect, a loop without end among it."""
    inputs = [torch.randn(1, 32, tune_smoke.COLUMNS), torch.randn(tune_smoke.COLUMNS)]
    text = compile_program(tune_smoke.normal, inputs).kernels[0].only.text
    right, wrong = (to_sass(compile_text(t, H200.target).cubin) for t in (text, tune_smoke.spoiled(text, fault)))
    assert right != wrong


def listed_space() -> tuple[object, ...]:
    from_space = compile_program(normal, [X]).kernels[0]
    return space(from_space.canonical.kernel, from_space.buffers, from_space.canonical.axes, H200).lines


def exponentials(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def test_a_form_that_measures_fast_is_chosen_instead_of_the_models(store: Evidence) -> None:
    """The model takes one kernel; two together take less than their sum, and less than the one."""
    limits = Limits(lines=1, rounds=3, candidate_s=20.0, threads=2)
    reports = []
    for _ in range(2):
        worker = Worker(command({}, {"form": 2.0}, emulated=True))
        try:
            reports.append(
                tune(exponentials, [X], "program", Tuner(Options(evidence=store), WHERE, worker, limits))
            )
        finally:
            worker.close()
    first, again = reports
    assert first.complete and again.complete
    (before,) = (f for f in first.forms if f.before)
    (after,) = (f for f in first.forms if f.after)
    assert (len(before.kernels), before.kernels_us, before.whole_us) == (1, 9.0, 9.0)
    assert (len(after.kernels), after.kernels_us, after.whole_us) == (2, 18.0, 2.0)
    assert before.modelled_us < after.modelled_us
    assert (again.measured, again.forms_timed) == (0, 0)
    assert again.forms == first.forms
    chosen = compile_program(exponentials, [X], options=Options(evidence=store)).regions[0].chosen
    assert (len(chosen.kernels), chosen.cost_us) == (2, 2.0)
    assert Report.of(json.loads(json.dumps(first.json()))) == first


def test_a_tuner_writes_a_kernel_as_the_pipeline_does(store: Evidence) -> None:
    for numerics in ("default", "strict"):
        (k,) = compile_program(exponentials, [X], options=Options(numerics=numerics)).kernels
        assert [text for _, text in build(k.canonical, k.buffers, k.schedule, H200)] == [k.text]
        assert k.canonical.quotients == (numerics == "strict")


def test_nothing_is_timed_while_another_has_the_card(store: Evidence, tmp_path: Path) -> None:
    lock, worker = tmp_path / "card.lock", Worker(command({}))

    def measured() -> int:
        own = Evidence(store.path, code="this")
        return tune(
            program, [X], "program", Tuner(Options(evidence=own), WHERE, worker, LIMITS, lock=lock)
        ).measured

    with ThreadPoolExecutor(1) as pool:
        try:
            with turn(lock, alone=False):
                done = pool.submit(measured)
                deadline = time.monotonic() + 60
                while worker.starts == 0 and time.monotonic() < deadline:
                    time.sleep(0.02)
                time.sleep(1.0)
                assert not done.done()
            assert done.result(60) > 0
        finally:
            worker.close()


KILLED = """
import sys, torch
from pathlib import Path
from codegen.compile import compile_text
from codegen.disassemble import to_sass
from eggtile.pipeline import Options
from eggtile.candidates import Limits
from eggtile.cli_tune import kernel_line
from eggtile.tuner import Tuner
from eggtile.tuning import tune
from codegen.worker import Worker
from extract.evidence import Evidence
from tests.eggtile.fake_device import command
from tests.eggtile.test_tuner import WHERE, H200, program
evidence = Evidence(Path(sys.argv[1]), code="this")
for n in range(40, 60):
    worker = Worker(command({}, {"seconds": 0.05}))
    tuner = Tuner(Options(evidence=evidence), WHERE, worker, Limits(2, 3, 5.0, 2))
    tune(program, [torch.randn(6, n)], "program", tuner)
"""


def test_a_killed_run_loses_nothing_that_is_stored(store: Evidence) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(store.path)], env=dict(os.environ))
    deadline = time.monotonic() + 60
    while len(store.rows()) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    before = store.rows()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(before) >= 4
    other = Evidence(store.path, code="this")
    after = other.rows()
    assert {(m.key, m.schedule) for m in before} <= {(m.key, m.schedule) for m in after}
    assert all(m.status == "ok" and m.time_us == 9.0 for m in after)
    assert other.base.execute("pragma integrity_check").fetchone()[0] == "ok"
    other.close()
