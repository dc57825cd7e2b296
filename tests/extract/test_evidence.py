"""The store keeps what was measured, says why a miss is one, and prices kernels."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from extract.evidence import Evidence, code_version, sources
from extract.measurement import Measurement, Where
from ir.machine import H200
from ir.node import IRError

HERE = Where(H200.name, H200.target, "13.0", "580", "v1")
NOON = "2026-01-01T12:00:00+00:00"
KIND = {"source": "text", "family": "scalar/c0/plain/affine", "shapes": "f32[]"}
OK = Measurement("k", "WORK=t64", HERE, "ok", 3.0, 3.0, 3.0, 21, 1e-7, 2e-7, taken=NOON, **KIND)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Evidence]:
    evidence = Evidence(tmp_path / "new" / "e.sqlite", code="v1")
    yield evidence
    evidence.close()


def at(row: Measurement, us: float | None, status: str = "ok") -> Measurement:
    """The row at another time, or as one that fails."""
    us = us if status == "ok" else None
    return replace(row, time_us=us, low_us=us, high_us=us, status=status)


def line(n: int, us: float | None, status: str = "ok") -> Measurement:
    return at(replace(OK, schedule=f"WORK=t{n}"), us, status)


def test_the_fastest_right_line_is_the_best(store: Evidence) -> None:
    store.add(line(64, 3.0), line(128, 2.0), line(256, 1.0, "wrong"), line(512, None, "hung"))
    assert store.right("k", H200) == [line(128, 2.0), line(64, 3.0)]
    assert not store.right("k", replace(H200, name="another")) and not store.right("other", H200)
    assert not store.right("k", replace(H200, target="sm_80"))
    assert set(store.lines("k", HERE)) == {f"WORK=t{n}" for n in (64, 128, 256, 512)}


def test_a_later_measurement_replaces_an_earlier_one_of_the_same_place_only(store: Evidence) -> None:
    store.add(line(64, 3.0))
    store.add(line(64, 5.0), replace(line(64, 1.0), where=replace(HERE, driver="590")))
    assert [m.time_us for m in store.rows(driver="580")] == [5.0]
    assert len(store.rows()) == 2


def test_a_time_of_other_code_does_not_count(store: Evidence) -> None:
    store.add(replace(OK, where=replace(HERE, code="v0")))
    assert not store.right("k", H200)
    assert len(store.same_text("k", "text", HERE)) == 1
    assert not store.same_text("k", "other text", HERE)
    assert not store.same_text("k", "text", replace(HERE, machine="another"))
    assert not store.same_text("k", "text", HERE, shapes="f16[]")


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("machine", "on another machine (NVIDIA H200, not x)"),
        ("nvrtc", "by another NVRTC (13.0, not x)"),
        ("driver", "under another driver (580, not x)"),
        ("code", "by another version of the laws and the code generator (v1, not x)"),
        ("inputs", "with other caches (cold, not x)"),
    ],
)
def test_a_miss_names_the_column_that_differs(store: Evidence, column: str, said: str) -> None:
    store.add(OK, replace(OK, where=replace(HERE, target="sm_80", machine="m", code="c")))
    assert store.explain_miss("k", replace(HERE, **{column: "x"})) == f"measured {said}"


def test_a_miss_without_rows_or_without_a_right_line_says_so(store: Evidence) -> None:
    assert store.explain_miss("k", HERE) == "never measured"
    store.add(line(64, None, "hung"), line(128, None, "wrong"))
    assert store.explain_miss("k", HERE) == "no line is right here: hung, wrong"


def test_export_is_stable_and_import_gives_equal_stores(store: Evidence, tmp_path: Path) -> None:
    rows = [line(64, 3.0), line(128, 2.0), line(256, None, "crashed")]
    store.add(*rows)
    assert store.export(tmp_path / "a.jsonl") == 3
    other = Evidence(tmp_path / "f.sqlite", code="v1")
    other.add(*reversed(rows[1:]), line(64, 9.0))
    assert other.import_(tmp_path / "a.jsonl") == 0
    assert other.rows(schedule="WORK=t64")[0].time_us == 9.0
    other.clear(schedule="WORK=t64")
    assert other.import_(tmp_path / "a.jsonl") == 1
    other.export(tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    other.close()


def test_what_lies_under_a_store_is_read_and_never_changed(store: Evidence, tmp_path: Path) -> None:
    store.add(line(64, 3.0), line(128, 4.0))
    store.export(tmp_path / "s.jsonl")
    store.clear()
    over = Evidence(store.path, code="v1", under=tmp_path / "s.jsonl")
    assert over.right("k", H200)[0] == line(64, 3.0)
    over.add(line(64, 5.0))
    assert [m.time_us for m in over.rows()] == [4.0, 5.0]
    assert over.clear() == 1
    assert len(over.rows()) == 2
    assert over.export(tmp_path / "t.jsonl") == 2
    over.close()
    assert not store.rows()
    alone = Evidence(None, code="v1", under=tmp_path / "s.jsonl")
    assert alone.right("k", H200)[0] == line(64, 3.0)


def test_foreign_files_and_columns_are_refused(store: Evidence, tmp_path: Path) -> None:
    (tmp_path / "no.sqlite").write_text("no database, but long enough to be read as one" * 50)
    with pytest.raises(IRError, match="no store of evidence"):
        Evidence(tmp_path / "no.sqlite")
    with pytest.raises(IRError, match="no column colour"):
        store.rows(colour="red")
    (tmp_path / "x.jsonl").write_text('{"key": "k"}\n')
    with pytest.raises(IRError, match=r"x.jsonl, line 1: .* is missing"):
        store.import_(tmp_path / "x.jsonl")
    (tmp_path / "y.jsonl").write_text("nothing\n")
    with pytest.raises(IRError, match=r"y.jsonl, line 1: it is not JSON"):
        store.import_(tmp_path / "y.jsonl")


@pytest.mark.parametrize(("content", "said"), [(b"[1]\n", "is no row"), (b"\xff\xfe\n", "is not in JSON lines")])
def test_lines_that_are_no_rows_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "e.jsonl").write_bytes(content)
    with pytest.raises(IRError, match=said):
        Evidence(None, under=tmp_path / "e.jsonl")


def test_a_store_with_damaged_pages_is_named(tmp_path: Path) -> None:
    path = tmp_path / "e.sqlite"
    evidence = Evidence(path, code="v1")
    evidence.add(*(line(n, 1.0) for n in range(2000)))
    evidence.close()
    content = path.read_bytes()
    path.write_bytes(content[:8192] + b"\xaa" * (len(content) - 8192))
    with pytest.raises(IRError, match=r"e.sqlite.* store of evidence"):
        Evidence(path, code="v1").rows(key="k")


def test_the_version_of_the_code_is_that_of_what_writes_text() -> None:
    paths = {p for p, _ in sources()}
    assert {
        "codegen/emit.py",
        "codegen/passes/folds.py",
        "extract/splits.py",
        "ir/term.py",
        "ir/machine.py",
    } <= paths
    assert not {p for p in paths if p.startswith(("egraph/", "eggtile/"))}
    assert not {"codegen/gpu.py", "codegen/cpu.py", "extract/forms.py", "extract/cost.py"} & paths


def test_a_store_with_other_columns_is_refused(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "old.sqlite")
    base.execute("create table measured (key, schedule)")
    base.close()
    with pytest.raises(IRError, match="other columns"):
        Evidence(tmp_path / "old.sqlite")


def test_the_version_of_the_code_is_one_for_one_tree() -> None:
    made = subprocess.run(
        [sys.executable, "-c", "from extract.evidence import code_version; print(code_version())"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert made.stdout.strip() == code_version()


# ---- processes

WRITER = """
import sys
from pathlib import Path
from dataclasses import replace
from extract.evidence import Evidence
from tests.extract.test_evidence import OK
evidence = Evidence(Path(sys.argv[1]), code="v1")
for n in range(int(sys.argv[3])):
    evidence.add(replace(OK, key=f"{sys.argv[2]}{n}"))
    print(n, flush=True)
"""


def writer(store: Evidence, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(store.path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_writers_in_several_processes_lose_nothing(store: Evidence) -> None:
    running = [writer(store, name, 150) for name in "ab"]
    for n in range(150):
        store.add(replace(OK, key=f"c{n}"))
        assert store.right(f"c{n}", H200)
    assert [p.wait(60) for p in running] == [0, 0]
    for p in running:
        assert p.stdout is not None
        p.stdout.close()
    assert len(store.rows()) == 450


def test_a_killed_writer_loses_nothing_that_it_has_reported(store: Evidence) -> None:
    process = writer(store, "k", 1_000_000)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    reported = [int(n) for n in process.stdout.read().split("\n")[:-1]]
    process.wait()
    process.stdout.close()
    stored = {m.key for m in Evidence(store.path, code="v1").rows()}
    assert len(reported) > 10
    assert {f"k{n}" for n in reported} <= stored
    assert len(stored) <= len(reported) + 2
