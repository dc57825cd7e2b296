"""The store keeps what was measured, says why a miss is one, and prices kernels."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from egraph.saturate import saturate
from extract.cost import kernel_cost
from extract.evidence import (
    HOPELESS_US,
    Evidence,
    Measurement,
    Where,
    code_version,
    family_of,
    family_ratios,
    shape_of,
)
from extract.forms import forms
from extract.key import canonical
from ir.loop import Form, KernelForm
from ir.machine import H200
from ir.node import IRError
from ir.schedule import schedule
from tests.extract.programs import program

HERE = Where(H200.name, H200.target, "13.0", "580", "v1")
OK = Measurement("k", "WORK=t64", HERE, "ok", 3.0, 2.9, 3.1, 21, 1e-7, 2e-7, source="text", taken="2026")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Evidence]:
    evidence = Evidence(tmp_path / "new" / "e.sqlite", code="v1")
    yield evidence
    evidence.close()


def line(n: int, us: float | None, status: str = "ok") -> Measurement:
    return replace(OK, schedule=f"WORK=t{n}", time_us=us, status=status)


def test_the_fastest_right_line_is_the_best(store: Evidence) -> None:
    store.add(line(64, 3.0), line(128, 2.0), line(256, 1.0, "wrong"), line(512, None, "hung"))
    best = store.best("k", H200.name)
    assert best is not None
    assert best == line(128, 2.0)
    assert store.best("k", "another") is None
    assert store.best("other", H200.name) is None
    assert set(store.lines("k", HERE)) == {f"WORK=t{n}" for n in (64, 128, 256, 512)}


def test_a_later_measurement_replaces_an_earlier_one_of_the_same_place_only(store: Evidence) -> None:
    store.add(line(64, 3.0))
    store.add(line(64, 5.0), replace(line(64, 1.0), where=replace(HERE, driver="590")))
    assert [m.time_us for m in store.rows(driver="580")] == [5.0]
    assert len(store.rows()) == 2


def test_a_time_of_other_code_does_not_count(store: Evidence) -> None:
    store.add(replace(OK, where=replace(HERE, code="v0")))
    assert store.best("k", H200.name) is None
    assert store.same_text("k", "text", HERE) is not None
    assert store.same_text("k", "other text", HERE) is None
    assert store.same_text("k", "text", replace(HERE, driver="590")) is None
    assert store.same_text("k", "text", replace(HERE, driver="", nvrtc="")) is not None


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
    store.add(OK, replace(OK, where=replace(HERE, target="t", machine="m", code="c")))
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


def test_shipped_evidence_is_taken_in_once_for_each_content(store: Evidence, tmp_path: Path) -> None:
    store.add(line(64, 3.0))
    store.export(tmp_path / "s.jsonl")
    store.clear()
    store.import_shipped(tmp_path / "s.jsonl")
    assert len(store.rows()) == 1
    store.clear()
    store.import_shipped(tmp_path / "s.jsonl")
    assert not store.rows()


def test_foreign_files_and_columns_are_refused(store: Evidence, tmp_path: Path) -> None:
    (tmp_path / "no.sqlite").write_text("no database, but long enough to be read as one" * 50)
    with pytest.raises(IRError, match="no store of evidence"):
        Evidence(tmp_path / "no.sqlite")
    with pytest.raises(IRError, match="no column colour"):
        store.rows(colour="red")
    (tmp_path / "x.jsonl").write_text('{"key": "k"}\n')
    with pytest.raises(IRError, match="not in both"):
        store.import_(tmp_path / "x.jsonl")
    (tmp_path / "y.jsonl").write_text("nothing\n")
    with pytest.raises(IRError, match="JSON lines"):
        store.import_(tmp_path / "y.jsonl")


def test_the_version_of_the_code_is_one_for_one_tree() -> None:
    made = subprocess.run(
        [sys.executable, "-c", "from extract.evidence import code_version; print(code_version())"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert made.stdout.strip() == code_version()


# ---- prices

NORMAL = "x[i, c] * rsqrt(add[c](x[i, c] * x[i, c]) / f32(10.0) + f32(1e-05))"


def two_forms(price: object = None) -> list[Form]:
    p = program({"i": 6, "c": 10}, {"x": ("f32", ("i", "c"))}, [("o", ("i", "c"), NORMAL)])
    return forms(saturate(p), H200, k=4, price=price)  # type: ignore[arg-type]


def measured(f: Form, kernel: KernelForm, us: float | None, status: str = "ok") -> Measurement:
    cost = kernel_cost(kernel, f, H200)
    family = family_of(kernel, cost, schedule(WORK="t64"))
    return replace(OK, key=canonical(kernel, f).key, time_us=us, status=status, family=family, modelled_us=cost.us)


def test_prices_turn_the_choice_to_what_was_measured_fast(store: Evidence) -> None:
    first = two_forms()
    assert (len(first[0].kernels), len(first[1].kernels)) == (1, 2)
    store.add(measured(first[0], first[0].kernels[0], 50.0))
    store.add(*(measured(first[1], k, 1.0) for k in first[1].kernels))
    again = two_forms(store.price(H200))
    assert len(again[0].kernels) == 2
    assert again[0].cost_us == pytest.approx(2.0)


def test_a_kernel_without_a_right_line_is_priced_out(store: Evidence) -> None:
    f = two_forms()[0]
    store.add(measured(f, f.kernels[0], 1.0, "wrong"))
    assert store.price(H200)(f.kernels[0], f) == HOPELESS_US
    assert len(two_forms(store.price(H200))[0].kernels) == 2


def test_unmeasured_kernels_take_the_low_ratio_of_their_family(store: Evidence) -> None:
    f, g = two_forms()[:2]
    assert store.price(H200)(g.kernels[0], g) is None
    row = measured(f, f.kernels[0], 0.0)
    ratios = {2.0: "a", 3.0: "b", 8.0: "c"}
    store.add(*(replace(row, key=k, time_us=r * (row.modelled_us or 0)) for r, k in ratios.items()))
    cost = kernel_cost(g.kernels[1], g, H200)
    assert shape_of(g.kernels[1], cost) == row.family.split("/", 1)[1] == "c0/plain/affine"
    assert store.price(H200)(g.kernels[1], g) == pytest.approx(2.0 * cost.us)


def test_the_unit_that_the_model_flatters_least_prices_a_shape() -> None:
    rows = [replace(OK, family=f"{u}/c1/plain/affine", modelled_us=1.0, time_us=us) for u, us in
            (("scalar", 30.0), ("scalar", 20.0), ("wgmma", 1.25))]  # fmt: skip
    assert family_ratios(rows) == {"c1/plain/affine": 1.25}


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
        assert store.best(f"c{n}", H200.name) is not None
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
