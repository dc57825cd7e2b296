"""Emmy's figures: which of its times counts, and where it stands in our rows."""

from __future__ import annotations

import json
from pathlib import Path

from bench import emmy
from bench.cases import case
from eggtile.ratios import against_best
from tests.bench.test_protocol import row

TUNED = {
    "backends": {"Emmy": {"latency_us": 3.0}, "Eager PyTorch": {"latency_us": 9.0}},
    "pinned": [
        {"status": "ok", "total_us": 1.0, "flags": ["wrong answer"]},
        {"status": "bench_fail", "total_us": 1.5, "flags": []},
        {"status": "ok", "total_us": 2.0, "flags": []},
    ],
}


def test_the_best_right_schedule_counts():
    assert emmy.best_us(TUNED) == 2.0
    assert emmy.best_us({**TUNED, "pinned": []}) == 3.0
    assert emmy.best_us({"backends": {"Emmy": {"status": "failed"}}, "pinned": None}) is None


def test_figures_are_those_of_the_programs_that_are_done(tmp_path: Path):
    done = next(iter(emmy.PROGRAMS))
    (tmp_path / f"{done}.json").write_text(json.dumps(TUNED))
    assert emmy.figures(tmp_path) == {done: 2.0}
    assert all(case(name).family == "emmy" for name in emmy.PROGRAMS)


def test_its_one_figure_stands_beside_every_round_of_ours():
    ours = row("a")
    ours["contenders"] = {"eggtile": {"ok": True, "hot": {"samples_us": [1.0, 1.0, 4.0]}}}
    (found,) = emmy.beside([ours], {"a": 2.0})
    assert found["case"] == "a beside Emmy"
    assert against_best([found], ["emmy"], "hot") == [2.0]
    assert emmy.beside([ours], {"b": 2.0}) == [ours]
