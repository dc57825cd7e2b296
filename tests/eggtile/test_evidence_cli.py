"""What was measured, from the command line: tuned, read, demanded, explained, moved; and suites by many processes."""

from __future__ import annotations

import copy
import json
import pickle
import re
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eggtile import api, stores
from eggtile.fleet import Fleet, fly
from eggtile.pipeline import Options, RequestError, compile_program
from extract.evidence import Evidence, code_version
from extract.measurement import Where
from extract.prices import shapes_of
from ir.machine import H200
from ir.schedule import schedule
from tests.eggtile.test_cli import called
from tests.extract.test_evidence import OK, at

CODE = "torch.sin(torch.randn(64, 64))"
SLOW_LINE = str(schedule(WORK="t64", TILE="x0:64"))
HERE = Where(H200.name, H200.target, "13.0", "580", code_version())


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A store in which the kernel of CODE has one line, which no model would choose."""
    compiled = compile_program(torch.sin, [torch.randn(64, 64)], options=Options())
    (k,) = compiled.kernels
    path = tmp_path / "e.sqlite"
    store = Evidence(path)
    shapes = shapes_of(k.form, compiled.regions[0].chosen)
    row = replace(OK, key=k.canonical.key, schedule=SLOW_LINE, where=HERE, shapes=shapes, modelled_us=1.0)
    store.add(at(row, 5.0))
    store.close()
    return path


def test_the_measured_line_is_compiled_and_said_to_be(measured: Path, tmp_path: Path) -> None:
    export = tmp_path / "e.jsonl"
    assert called("evidence", "export", str(export), "--current", "--evidence", str(measured)).exit_code == 0
    for given in (measured, export):
        found = called("compile", "-c", CODE, "--ir", "tile", "--evidence", str(given), "--hits", "demand")
        assert found.exit_code == 0, found.stderr
        assert SLOW_LINE in found.stdout
        assert "5 us on NVIDIA H200, NVRTC 13.0, driver 580" in found.stderr
    assert SLOW_LINE not in called("compile", "-c", CODE, "--ir", "tile").stdout


def test_a_miss_is_explained_and_a_hit_can_be_demanded(measured: Path) -> None:
    store = Evidence(measured)
    (row,) = store.rows()
    store.clear()
    store.add(replace(row, where=replace(HERE, code="old")))
    store.close()
    for wanted, asked, code in (("by another version of the laws and", "explain", 0), ("is demanded", "demand", 2)):
        found = called("run", "--on", "cpu", "-c", CODE, "--evidence", str(measured), "--hits", asked)
        assert found.exit_code == code
        assert wanted in found.stderr
    assert "never measured" in called("compile", "-c", "torch.randn(3) + 1", "--hits", "explain", "--evidence",
                                      str(measured)).stderr  # fmt: skip
    assert "no evidence is read" in called("compile", "-c", CODE, "--hits", "explain").stderr
    assert called("compile", "-c", CODE, "--hits", "perhaps").exit_code == 2


def test_forms_and_schedules_show_what_is_measured(measured: Path) -> None:
    found = json.loads(called("explore", "--json", "-c", CODE, "--evidence", str(measured)).stdout)
    chosen = next(f for f in found["forms"] if f["chosen"])
    assert (chosen["measured_us"], chosen["cost_us"], chosen["kernels"][0]["measured_us"]) == (5.0, 5.0, 5.0)
    assert json.loads(called("explore", "--json", "-c", CODE).stdout)["forms"][0]["measured_us"] is None
    (row,) = json.loads(called("schedules", "--json", "-c", CODE, "--evidence", str(measured)).stdout)["kernels"]
    assert len(row["lines"]) == len(row["model_us"]) == len(row["measured_us"]) == row["size"]
    assert row["model_us"][0] > 0 and row["model_us"][-1] is None
    shown = called("evidence", "show", row["key"][:6], "--evidence", str(measured)).stdout
    assert "f32[64,64] <- f32[64,64]" in shown and "measured here" in shown
    assert row["key"][:8] in called("evidence", "list", "--evidence", str(measured)).stdout


def numbered(data: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What tells the forms of a dump or a report apart."""
    columns = ("id", "cost_us", "measured_us", "chosen", "default", "signature", "laws")
    return [tuple(str(f[c]) for c in columns) for f in data["forms"]]


@pytest.mark.parametrize(
    "code", [CODE, "nn.RMSNorm(2048)(torch.randn(1, 32, 2048))", "torch.randn(4,8).softmax(-1)"]
)
def test_a_form_has_its_number_in_all_commands(
    code: str, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--evidence", str(measured)) if code == CODE else ()
    monkeypatch.delenv(stores.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    listed = json.loads(called("explore", "--json", "-c", code, *given).stdout)
    first, again = (called("dump", "-c", code, *given).stdout for _ in range(2))
    (region,) = json.loads(first)["regions"]
    assert numbered(region) == numbered(listed)
    assert first.partition('"times"')[0] == again.partition('"times"')[0]
    chosen = next(f for f in region["forms"] if f["chosen"])
    assert (chosen["measured_us"] == 5.0) == (code == CODE)
    written = [
        called("compile", "-c", code, "--ir", "form", *more, *given).stdout
        for more in ((), ("--form", str(chosen["id"])))
    ]
    assert written[0] == written[1]


def test_python_reads_the_store_too(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(64, 64)
    assert [str(k.schedule) for k in api.optimize(torch.sin, [x], evidence=measured).kernels] == [SLOW_LINE]
    assert [str(k.schedule) for k in api.optimize(torch.sin, [x]).kernels] != [SLOW_LINE]
    monkeypatch.setenv(stores.VARIABLE, str(measured))
    assert [str(k.schedule) for k in api.optimize(torch.sin, [x]).kernels] == [SLOW_LINE]


def test_the_users_store_lies_over_what_is_shipped(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(stores.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    export = tmp_path / "shipped.jsonl"
    called("evidence", "export", str(export), "--evidence", str(measured))
    monkeypatch.setattr(stores, "SHIPPED", export)
    store = stores.opened()
    assert store is not None and store.path is None
    assert [m.time_us for m in store.rows()] == [5.0]
    assert not stores.default_store().exists()
    own = stores.opened(write=True)
    assert own is not None and own.path == tmp_path / "cache" / "eggtile" / "evidence.sqlite"
    own.add(at(own.rows()[0], 4.0))
    again = stores.opened()
    assert again is not None and [m.time_us for m in again.rows()] == [4.0]
    assert stores.opened("none") is None
    for given in ("none", str(export)):
        with pytest.raises(RequestError, match="needs a store"):
            stores.opened(given, write=True)
    with pytest.raises(RequestError, match="there is no file"):
        stores.opened("nowhere.jsonl")
    with pytest.raises(RequestError, match="there is no store"):
        stores.opened("nowhere/store.sqlite")
    assert not Path("nowhere").exists()


CHILD = """
import json, sys, time
name = sys.argv[sys.argv.index("--select") + 1]
if name == "^bad$":
    sys.exit("no such thing")
if name == "^slow$":
    time.sleep(60)
row = {"kernels": [], "chosen": [], "forms": [], "forms_timed": 0, "rounds": 1, "seconds": 1.0, "complete": True}
print(json.dumps({"programs": [row | {"program": " ".join(sys.argv[1:])}]}))
"""


def test_the_programs_of_a_suite_are_tuned_by_processes_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("eggtile.fleet.LAST_S", 1.0)
    fleet = Fleet("suite", ["a.b", "bad", "c"], "e.sqlite", ["-n", "2"], 3, 50.0, (sys.executable, "-c", CHILD))
    first, last = (r.program for r in fly(fleet))
    assert (
        re.fullmatch(r"tune suite --select \^a\\.b\$ --json --evidence e.sqlite --budget (50|49) -n 2", first)
        and "^c$" in last
    )
    assert [r.program for r in fly(replace(fleet, names=["slow", "c"], jobs=1, budget_s=1.0))] == []
    said = capsys.readouterr().err
    assert "bad: exit 1: no such thing" in said
    assert "slow: stopped" in said and "c: no time is left" in said


ODD_ROWS: dict[str, tuple[dict[str, object], str]] = {
    "time of text": ({"time_us": "x"}, 'time_us is null or microseconds from 0.1 to 3.6e+09, not "x"'),
    "time of none": ({"time_us": float("nan")}, "time_us is null or microseconds from 0.1 to 3.6e+09, not NaN"),
    "time below 0": ({"time_us": -1}, "time_us is null or microseconds from 0.1 to 3.6e+09, not -1"),
    "no time": ({"time_us": None}, "time_us is null, and the status ok"),
    "no key": ({"key": None}, "key is a text that is not empty, not null"),
    "no line": ({"schedule": "fast please"}, "schedule: 'fast' is not KEY=value"),
    "an empty line": ({"schedule": ""}, "schedule is empty"),
    "no status": ({"status": "fine"}, "status is one of ok, wrong"),
    "half a pair of code units": ({"key": "\ud800"}, 'key is a text that is not empty, not "\\ud800"'),
    "no unit": ({"family": "scalar"}, "family is form or UNIT/SHAPE like"),
    "half a register": ({"registers": 1.5}, "registers is a whole number from 0 to 255, not 1.5"),
    "another column": ({"colour": 1}, "colour is no column of the table"),
}


@pytest.mark.parametrize("what", ODD_ROWS)
def test_rows_that_mean_nothing_are_refused_with_their_line(what: str, measured: Path, tmp_path: Path) -> None:
    path, (change, said) = tmp_path / "e.jsonl", ODD_ROWS[what]
    called("evidence", "export", str(path), "--evidence", str(measured))
    path.write_text(path.read_text() + json.dumps(json.loads(path.read_text()) | change) + "\n")
    for command in (("evidence", "import", str(path), "--evidence", str(tmp_path / "new.sqlite")),
                    ("compile", "-c", CODE, "--evidence", str(path))):  # fmt: skip
        outcome = called(*command)
        assert outcome.exit_code == 2 and f"{path}, line 2: {said}" in outcome.stderr
    assert called("evidence", "import", str(path.with_name("none")), "--evidence", str(measured)).exit_code == 2
    path.write_text(path.read_text().splitlines()[0] + "\n{")
    assert "line 2: it is not JSON" in called("compile", "-c", CODE, "--evidence", str(path)).stderr


@pytest.mark.parametrize(
    "line", ["WORK=t64 TILE=x9:4", "WORK=t65", "BANANA=1", "WORK=tx", "REDUCE=split4", "WORK=t64 STAGE=x"]
)
def test_a_stored_line_that_is_none_of_the_kernel_is_passed_over(line: str, measured: Path) -> None:
    store = Evidence(measured)
    (row,) = store.rows()
    store.add(at(replace(row, schedule=line), 1.0), at(replace(row, schedule="WORK=t128 TILE=x0:32"), -2.0))
    store.close()
    found = called("run", "--on", "cpu", "-c", CODE, "--evidence", str(measured), "--hits", "explain")
    assert found.exit_code == 0 and SLOW_LINE in found.stderr
    told = json.loads(called("explore", "--json", "-c", CODE, "--evidence", str(measured)).stdout)
    assert [f["measured_us"] for f in told["forms"] if f["chosen"]] == [5.0]
    for command in (("schedules", "--json"), ("evidence", "list"), ("dump",)):
        code = () if command[0] == "evidence" else ("-c", CODE)
        assert called(*command, *code, "--evidence", str(measured)).exit_code == 0


def test_a_damaged_store_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(stores.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = stores.default_store()
    path.parent.mkdir()
    path.write_bytes(b"no database" * 100)
    outcome = called("explore", "-c", CODE)
    assert outcome.exit_code == 2 and str(path) in outcome.stderr
    assert f"remove {path} to begin anew, or read none of it with --evidence none" in outcome.stderr


def test_rows_of_a_store_that_mean_nothing_are_left_out_and_counted(measured: Path) -> None:
    store = Evidence(measured)
    (row,) = store.rows()
    store.add(at(replace(row, schedule="WORK=t128 TILE=x0:32"), 1.0))
    store.base.execute("update measured set inputs = 'lukewarm' where time_us = 1.0")
    store.close()
    with pytest.warns(UserWarning, match="1 of its rows mean nothing and are left out; the first: inputs is cold"):
        outcome = called("explore", "--json", "-c", CODE, "--evidence", str(measured))
    assert [f["measured_us"] for f in json.loads(outcome.stdout)["forms"] if f["chosen"]] == [5.0]
    with pytest.warns(UserWarning, match="left out"):
        assert "1 rows in" in called("evidence", "export", "/dev/null", "--evidence", str(measured)).stderr


def test_only_stores_may_be_removed(measured: Path, tmp_path: Path) -> None:
    upper, text, database = tmp_path / "U.JSONL", tmp_path / "text.sqlite", tmp_path / "app.db"
    text.write_text("no database" * 100)
    upper.write_text("{")
    base = sqlite3.connect(database)
    base.execute("create table users (a)")
    base.close()
    odd = map(Path, ("/dev/null", ":memory:", "a\0b"))
    for path in (upper, text, database, tmp_path, tmp_path / "new.sqlite", *odd):
        for command in (("evidence", "list"), ("explore", "-c", CODE), ("evidence", "clear")):
            if path.name == "new.sqlite" and command[-1] == "clear":
                continue
            outcome = called(*command, "--evidence", str(path))
            assert outcome.exit_code == 2 and "; remove" not in outcome.stderr
    store = Evidence(measured)
    store.base.execute("alter table measured add column colour")
    store.close()
    outcome = called("evidence", "list", "--evidence", str(measured))
    assert outcome.exit_code == 2 and f"other columns; remove {measured} to begin anew" in outcome.stderr


def test_a_store_may_have_a_name_like_an_address(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Evidence(Path("file::memory:"))
    store.add(*Evidence(measured).rows())
    store.close()
    assert (tmp_path / "file::memory:").exists() and len(Evidence(Path("file::memory:")).rows()) == 1
    assert "is a folder" in called("evidence", "list", "--evidence", str(tmp_path)).stderr


def test_a_store_is_not_exported_over_itself(measured: Path, tmp_path: Path) -> None:
    export = tmp_path / "e.jsonl"
    called("evidence", "export", str(export), "--evidence", str(measured))
    for path in (measured, export):
        before = path.read_bytes()
        outcome = called("evidence", "export", str(path), "--machine", "NVIDIA", "--evidence", str(path))
        assert outcome.exit_code == 2 and "is the store itself" in outcome.stderr
        assert path.read_bytes() == before


def test_a_program_with_a_store_can_be_copied_and_used_by_threads(measured: Path) -> None:
    x = torch.randn(64, 64)
    f = api.optimize(torch.sin, [x], evidence=measured)
    made = pickle.loads(pickle.dumps(f))
    with ThreadPoolExecutor(1) as pool:
        for g in (f, copy.deepcopy(f), made):
            assert [str(k.schedule) for k in g.kernels] == [SLOW_LINE]
            torch.testing.assert_close(pool.submit(g, x[:3]).result(), torch.sin(x[:3]))
