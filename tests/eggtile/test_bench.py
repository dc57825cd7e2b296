"""`eggtile bench`: who is timed, what is refused, and what a row says, without a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from eggtile import cli, cli_bench, provenance
from eggtile.cli_bench import measured, row_of, time_lines, wrong
from eggtile.measure import asked, build_and_gate, builders
from eggtile.pipeline import Options, RequestError, compile_program
from eggtile.source import SourceError, load
from eggtile.subjects import Subject, suite

SUITE = """
import torch

class Case:
    def __init__(self, name): self.name = name
    def program(self, tiny, device):
        return torch.neg, [torch.ones(2 if tiny else 4, device=device)]

CASES = [Case("a.neg"), Case("b.neg")]
CASES[1].max_autotune = False

def baseline():
    return {"a.neg": {"reference_us": 3.0}}
"""


def timed(us: float) -> dict[str, Any]:
    return {"median_us": us, "low_us": us, "high_us": us, "samples_us": [us] * 3, "how": "graph", "calls": 9}


def row(**contenders: tuple[bool, float]) -> dict[str, Any]:
    found = {
        name: {
            "ok": ok,
            "max_rel_err": 0.5,
            "reason": "" if ok else "error 0.5",
            **({"cold": timed(us)} if ok else {}),
        }
        for name, (ok, us) in contenders.items()
    }
    return row_of(Subject("p", lambda: (torch.neg, [])), None, found)


def times_of(us: Mapping[str, float]) -> Callable[..., tuple[dict[str, Any], dict[str, Any]]]:
    def time_calls(calls: Mapping[str, object], copies: Sequence[object], rounds: int) -> Any:
        return {n: {"cold": timed(us[n]), "hot": timed(us[n] / 2)} for n in calls}, {"before": {}, "during": {}}

    return time_calls


def run(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["eggtile", "bench", *args])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_the_ratio_is_against_the_best_peer_and_our_own_default_form_is_no_peer():
    found = row(eggtile=(True, 2.0), default=(True, 1.0), eager=(True, 8.0), compile=(True, 3.0))
    assert (found["best_peer"], found["ratio"]) == ("compile", 1.5)


def test_wrong_values_of_ours_leave_no_ratio_and_fail_the_command():
    found = row(eggtile=(False, 2.0), eager=(True, 8.0))
    assert found["ratio"] is None and wrong([found])
    assert not wrong([row(eggtile=(True, 2.0), eager=(False, 8.0))])
    assert wrong([row(eggtile=(True, 2.0), default=(False, 8.0))])


def test_a_line_of_the_table_shows_times_over_ours_and_faults():
    lines = {
        line[1]: line for line in time_lines([row(eggtile=(True, 2.0), eager=(True, 8.0), compile=(False, 1.0))])
    }
    assert lines["eager"][2:7] == ["8", "8 .. 8", "-", "0.5", "4"]
    assert lines["compile"][2] == "-" and lines["compile"][-1] == "error 0.5"


def test_contenders_that_fail_or_err_are_reported_and_not_timed(monkeypatch: pytest.MonkeyPatch):
    def broken(fn: object, inputs: object) -> Any:
        raise RuntimeError("no such instruction")

    contenders = {
        "eggtile": lambda fn, x: fn,
        "compile": lambda fn, x: lambda t: -t + 1e-3,
        "max-autotune": broken,
        "eager": lambda fn, x: fn,
    }
    monkeypatch.setattr(cli_bench, "builders", lambda options: contenders)
    monkeypatch.setattr(cli_bench, "time_calls", times_of({"eggtile": 2.0, "eager": 3.0}))
    steps: list[None] = []
    item = Subject("neg", lambda: (torch.neg, [torch.randn(8)]))
    found = measured(item, list(contenders), Options(), 3, lambda: steps.append(None))
    assert "cold" not in found["contenders"]["compile"] and not found["contenders"]["compile"]["ok"]
    assert found["contenders"]["max-autotune"] == {"error": "RuntimeError: no such instruction"}
    assert (found["best_peer"], found["ratio"], len(steps)) == ("eager", 1.5, 4)


def test_the_gate_sees_inputs_that_a_contender_changes():
    calls, found = build_and_gate(torch.neg, [[torch.ones(4)]], {"eager": lambda fn, x: lambda t: t.neg_()})
    assert not found["eager"]["ok"] and "eager" in calls


def test_contenders_are_asked_for_by_name_ours_first():
    assert list(asked(builders(Options()), ["eager", "default", "eager"])) == ["eggtile", "eager", "default"]
    with pytest.raises(RequestError, match="no contender is named cublas; there are eggtile, default"):
        asked(builders(Options()), ["cublas"])


def test_the_default_form_is_the_one_as_written():
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    for region in compile_program(fn, [torch.randn(8, 64)], options=Options(form="default")).regions:
        assert region.chosen is region.default and not region.chosen.laws


def test_a_module_with_cases_is_a_suite(tmp_path: Path):
    path = tmp_path / "own_suite.py"
    path.write_text(SUITE)
    first, second = suite(str(path), "", False, "cpu")
    assert (first.name, first.reference_us, first.max_autotune, first.tf32) == ("a.neg", 3.0, True, None)
    assert (second.reference_us, second.max_autotune) == (None, False)
    [tiny] = suite(str(path), "^a", True, "cpu")
    assert tiny.reference_us is None and tiny.load()[1][0].shape == (2,)
    for pattern, message in (("x", "no case of .* matches x"), ("(", "is no regular expression")):
        with pytest.raises(RequestError, match=message):
            suite(str(path), pattern, True, "cpu")
    with pytest.raises(RequestError, match="json defines no CASES"):
        suite("json", "", True, "cpu")
    with pytest.raises(SourceError, match="there is no module nowhere"):
        suite("nowhere.at_all", "", True, "cpu")


def test_without_a_gpu_forms_and_schedules_are_told_and_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setattr(cli_bench, "place_at_hand", lambda: ("cpu", "sm_90a", "no card"))
    code = run(monkeypatch, "-c", "torch.randn(4, 8).sum(-1)", "--json", str(tmp_path / "x.json"))
    shown = capsys.readouterr()
    assert code == 2 and shown.err.count("\n") == 1 and "no CUDA device" in shown.err
    told = json.loads((tmp_path / "x.json").read_text())
    [region] = told["regions"]
    assert "best peer" not in shown.out and told["ratio"] is None and told["contenders"] == {}
    assert region["kernels"][0]["schedule"] in shown.out
    assert [(f["id"], f["default"], f["chosen"]) for f in region["forms"]] == [(0, True, True)]


def test_a_suite_is_measured_program_by_program_into_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    (tmp_path / "own_suite.py").write_text(SUITE)
    monkeypatch.setattr(cli_bench, "place_at_hand", lambda: ("cpu", "sm_90a", ""))
    monkeypatch.setattr(cli_bench, "time_calls", times_of({"eggtile": 2.0, "default": 2.0, "eager": 3.0}))
    out = tmp_path / "x.json"
    code = run(
        monkeypatch, str(tmp_path / "own_suite.py"), "--against", "default,eager", "--tiny", "--json", str(out)
    )
    told = json.loads(out.read_text())
    assert code == 0 and [p["program"] for p in told["programs"]] == ["a.neg", "b.neg"]
    assert {"machine", "versions", "commit", "time"} <= told.keys()
    assert told["programs"][0]["contenders"]["eggtile"]["cold"]["samples_us"] == [2.0] * 3
    shown = capsys.readouterr().out
    assert "a.neg: 1.500 against the best peer, eager" in shown and "1.500, the geometric mean of 2" in shown


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-c", "torch.ones(3)", "--select", "x"], "are for a suite"),
        (["bench.cases", "--input", "f32[3]"], "a suite makes its own"),
        (["-c", "torch.ones(3)", "--against", "cublas"], "no contender is named cublas"),
        ([], "give a program"),
    ],
)
def test_a_bad_request_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str], message: str
):
    assert run(monkeypatch, *args) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


def test_torch_compile_reads_programs_from_code():
    sources = [load(f"m = nn.Linear(8, {n})\nF.relu(m(torch.randn(4, 8)))", None, []) for n in (2, 3)]
    torch.compiler.reset()
    for source in sources:
        call = torch.compile(source.fn, fullgraph=True, dynamic=False, backend="eager")
        with torch.no_grad():
            assert torch.equal(call(*source.inputs), source.fn(*source.inputs))


def test_a_tree_outside_a_checkout_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.commit() is None
