"""A row that means nothing is refused or left out, whatever says it; of rows of one line the last word counts."""

from __future__ import annotations

import copy
import json
import pickle
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codegen import gate
from extract.evidence import SHIPPED, Evidence, lines_of
from extract.measurement import COLUMNS, FACTOR, FORM, WARM_ONLY, Measurement, read, verdicts, why_invalid
from ir.machine import H200
from ir.node import IRError
from tests.extract.test_evidence import OK, at

EARLIER = "2026-01-01T13:00:00+02:00"
"""An hour before `NOON`, though as a text it comes after."""


def changed(**change: object) -> dict[str, Any]:
    return OK.row() | change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"time_us": 0.01, "low_us": 0.01}, "time_us is null or microseconds from 0.1"),
        ({"time_us": 1e-300}, "time_us is null"),
        ({"high_us": 10**400}, "high_us is null"),
        ({"modelled_us": 5e-324}, "modelled_us is null"),
        ({"low_us": 5, "high_us": 1}, "not from low_us 5 to high_us 1"),
        ({"high_us": 2.0}, "time_us is 3, which is not from"),
        ({"low_us": None}, "low_us or high_us is null"),
        ({"error": 1e6}, "beyond 4 times the bound"),
        ({"error": None}, "error is null"),
        ({"bound": float("inf")}, "bound is null or a number"),
        ({"bound": 1 << 63}, "bound is null or a number"),
        ({"error": 10**30}, "error is null or a number"),
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": 10**30}, "rounds is a whole number"),
        ({"rounds": True}, "rounds is a whole number"),
        ({"spill_bytes": 4096}, "spill_bytes is 4096"),
        ({"registers": 9999}, "registers is a whole number from 0 to 255"),
        ({"reason": "results differ"}, "it has the reason 'results differ'"),
        ({"status": "wrong"}, "it has a time, and the status wrong"),
        ({"family": "quantum/c0/plain/affine"}, "family is form or"),
        ({"family": FORM}, "a form has no error"),
        ({"target": "sm_potato"}, "target is an architecture"),
        ({"inputs": "lukewarm"}, "inputs is cold"),
        ({"taken": "yesterday"}, "taken is an ISO time"),
        ({"taken": "2026-01-01"}, "taken is an ISO time"),
        ({"clocks": b"\1\2"}, "clocks is a text"),
        ({"schedule": "WORK=t64 | "}, "schedule"),
        ({"schedule": "TILE=x0:4  WORK=t64"}, "spelled 'WORK=t64 TILE=x0:4'"),
        ({"schedule": "WORK=t64 | ", "family": FORM, "error": None, "bound": None}, "schedule is empty"),
    ],
)
def test_a_row_that_means_nothing_is_told_why(change: dict[str, object], said: str) -> None:
    assert said in (why_invalid(changed(**change)) or "")


def test_all_that_a_tuner_writes_means_something() -> None:
    assert FACTOR == gate.FACTOR
    assert len(lines_of(SHIPPED)) == len(SHIPPED.read_text().splitlines()) > 1000
    form = replace(OK, family=FORM, schedule="WORK=t64 | WORK=t32", error=None, bound=None)
    for m in (replace(OK, reason=WARM_ONLY), form, *(at(OK, 0, s) for s in ("wrong", "refused", "hung", "spills"))):
        assert read(*m.values()) == m


def test_the_last_word_of_each_driver_counts() -> None:
    other = replace(OK, where=replace(OK.where, driver="999"))
    (row,) = verdicts([OK, wrong := at(other, None, "wrong")])
    assert row == wrong
    earlier, again = replace(wrong, taken=EARLIER), replace(at(other, 5.0), where=replace(other.where, nvrtc="14"))
    assert verdicts([OK, earlier, again]) == [OK]
    assert verdicts([OK, wrong, replace(again, taken=EARLIER)]) == [wrong]
    assert verdicts([OK, at(other, None, "refused")]) == [OK]
    assert verdicts([OK, replace(wrong, shapes="f32[7]")]) == [OK, replace(wrong, shapes="f32[7]")]


# ---- files


def written(path: Path, *rows: Measurement) -> Path:
    path.write_text("".join(json.dumps(m.row()) + "\n" for m in rows))
    return path


def test_a_file_without_rows_is_one(tmp_path: Path) -> None:
    assert lines_of(written(tmp_path / "e.jsonl")) == ()


def test_of_two_rows_of_one_place_the_later_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "e.jsonl", OK, replace(at(OK, 1.0), taken=EARLIER), at(OK, 2.0))
    assert lines_of(path) == (OK,)
    store = Evidence(tmp_path / "e.sqlite", code="v1")
    store.add(replace(at(OK, 1.0), taken=EARLIER))
    assert (store.import_(path), store.import_(path), store.rows()) == (1, 0, [OK])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (json.dumps(OK.row())[:-1] + ', "time_us": 1.0}', "time_us stands twice"),
        (json.dumps(OK.row()).replace('"rounds": 21', f'"rounds": {"1" * 5000}'), "it is not JSON: Exceeds"),
        ("[" * 100_000, "it is not JSON"),
        ("\n" + json.dumps(OK.row()), "it is not JSON"),
    ],
)
def test_lines_that_are_refused_are_told_why(line: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "e.jsonl", OK)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(IRError, match=f"line 2: .*{said}"):
        lines_of(path)


ODD_VALUES = {"taken": b"\1", "reason": "x", "key": b"k", "rounds": 1.5, "status": "fine", "time_us": "fast"}


@pytest.mark.parametrize("column", [*ODD_VALUES, "text"])
def test_odd_rows_of_a_store_are_left_out_and_hide_nothing(column: str, tmp_path: Path) -> None:
    under = written(tmp_path / "u.jsonl", OK)
    store = Evidence(tmp_path / "e.sqlite", code="v1", under=under)
    store.add(at(OK, 2.0), replace(OK, key="other"))
    value = "cast(x'ff41' as text)" if column == "text" else "?"
    store.base.execute(
        f"update measured set {'reason' if column == 'text' else column} = {value} where key = 'k'",
        () if column == "text" else (ODD_VALUES[column],),
    )
    store.close()
    again = Evidence(tmp_path / "e.sqlite", code="v1", under=under, read_only=True)
    assert again.rows() == [OK, replace(OK, key="other")]
    assert list(again.odd) == [1]
    mended = Evidence(tmp_path / "e.sqlite", code="v1")
    mended.add(at(OK, 2.0))
    assert at(OK, 2.0) in mended.rows()


def test_a_foreign_database_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    base = sqlite3.connect(path)
    base.execute("create table users (a, b)")
    base.commit()
    base.close()
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(IRError, match="no table of measurements"):
            Evidence(path, read_only=read_only)
    with pytest.raises(IRError, match="is no file"):
        Evidence(":memory:")
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_store_that_is_read_is_not_changed(tmp_path: Path) -> None:
    Evidence(tmp_path / "e.sqlite", code="v1").add(OK)
    store = Evidence(tmp_path / "e.sqlite", code="v1", read_only=True)
    assert store.rows() == [OK]
    with pytest.raises(IRError, match="readonly"):
        store.add(OK)
    with pytest.raises(IRError, match="no store"):
        Evidence(tmp_path / "none" / "e.sqlite", read_only=True)
    assert not (tmp_path / "none").exists()


def test_an_export_is_whole_and_never_over_its_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "e.jsonl", OK)
    store = Evidence(tmp_path / "e.sqlite", code="v1", under=path)
    for own in (path, tmp_path / "e.sqlite", tmp_path / "e.sqlite-wal", tmp_path / "x" / ".." / "e.jsonl"):
        with pytest.raises(IRError, match="is the store itself"):
            store.export(own, machine="another")
    out = tmp_path / "o.jsonl"
    store.export(out)
    before = out.read_text()
    monkeypatch.setattr(Path, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.export(out, machine="another")
    assert out.read_text() == before and not list(tmp_path.glob(".o*"))
    assert store.export(Path("/dev/null")) == 1


# ---- threads and copies


def test_threads_share_a_store(tmp_path: Path) -> None:
    for path in (tmp_path / "e.sqlite", None):
        store = Evidence(path, code="v1")

        def work(n: int, store: Evidence = store) -> int:
            store.add(replace(OK, key=f"k{n}"))
            return len(store.right(f"k{n}", H200))

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(40))) == [1] * 40


def test_a_copy_of_a_store_has_its_rows(tmp_path: Path) -> None:
    under = written(tmp_path / "u.jsonl", OK)
    for store in (Evidence(tmp_path / "e.sqlite", code="v1", under=under), Evidence(None, code="v1", under=under)):
        store.add(replace(OK, key="own"))
        for made in (copy.deepcopy(store), pickle.loads(pickle.dumps(store))):
            assert made.rows() == store.rows() and len(made.rows()) == 2
            made.add(replace(OK, key="new"))
            assert (len(store.rows()) == 3) == (store.path is not None)
            made.clear(key="new")


def test_a_row_has_every_column() -> None:
    assert set(OK.row()) == set(COLUMNS)
