"""Times and ratios: rotations are cold, samples pair, and an interval holds what it should."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.cases import case
from bench.peers import contenders
from bench.results import latest, load
from eggtile.ratios import against_best, best_peer, geometric, paired, samples, worst
from eggtile.timing import L2_BYTES, MOST_COPIES, Replay, calls_for, copies_for, interleave, lasting, summary


def row(name: str = "a", commit: str = "c1", ok: bool = True, **times: list[float]) -> dict[str, Any]:
    found: dict[str, Any] = {n.replace("_", "-"): {"ok": True, "cold": {"samples_us": t}} for n, t in times.items()}
    if "eggtile" in found:
        found["eggtile"]["ok"] = ok
    return {"case": name, "contenders": found, "machine": "card", "commit": commit, "time": "t", "bytes": 4277}


@pytest.mark.parametrize("size", [1, 1000, 10**6, 10**8, 10**9])
def test_the_copies_of_the_inputs_exceed_twice_the_cache(size: int):
    copies = copies_for(size)
    assert copies == MOST_COPIES or copies * size >= 2 * L2_BYTES
    assert copies == 1 or (copies - 1) * size < 2 * L2_BYTES


@pytest.mark.parametrize("call_ms", [1e-4, 0.01, 0.3, 50.0])
@pytest.mark.parametrize("copies", [1, 3, 200])
def test_a_replay_is_whole_rotations(call_ms: float, copies: int):
    assert calls_for(call_ms, copies) % copies == 0
    assert calls_for(call_ms, copies) >= copies


def test_a_replay_lasts_as_long_as_asked_however_slow_launches_are():
    made: list[int] = []

    def capture(calls: int, how: str = "graph") -> Replay:
        made.append(calls)
        return Replay(lambda: None, calls, how)

    def elapsed_ms(run: Callable[[], object]) -> float:
        return 0.004 * made[-1]

    assert lasting(capture, 0.2, 30, 8.0, elapsed_ms).calls == 2010
    assert made == [30, 2010]
    assert lasting(partial(capture, how="events"), 0.2, 30, 8.0, elapsed_ms).calls == 30


def test_rounds_alternate_their_order_and_samples_are_per_call():
    order: list[str] = []

    def contender(name: str, calls: int) -> Replay:
        return Replay(lambda: order.append(name), calls, "graph")

    def elapsed_ms(run: Callable[[], object]) -> float:
        run()
        return 2.0

    found = interleave({"a": contender("a", 10), "b": contender("b", 4)}, 3, elapsed_ms)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [200.0] * 3, "b": [500.0] * 3}


def test_a_summary_keeps_the_reason_why_no_graph_was_taken():
    kept = summary(Replay(lambda: None, 4, "events", "operation not permitted"), [3.0, 1.0, 2.0, 5.0, 4.0])
    assert (kept["median_us"], kept["how"], kept["note"]) == (3.0, "events", "operation not permitted")
    assert kept["samples_us"] == [3.0, 1.0, 2.0, 5.0, 4.0]


def test_a_ratio_pairs_the_samples_of_a_round():
    drifting = row(eggtile=[1.0, 10.0, 100.0], eager=[2.0, 20.0, 200.0])
    assert paired(drifting, "eager", "cold") == 2.0


def test_our_time_counts_only_where_our_values_are_right():
    assert samples(row(eggtile=[1.0], ok=False), "eggtile", "cold") == []
    assert against_best([row(eggtile=[1.0], eager=[2.0], ok=False)], ["eager"], "cold") == []


def test_the_best_peer_is_one_that_every_process_timed():
    rows = [row(eager=[5.0], compile=[4.0], max_autotune=[1.0]), row(eager=[5.0], compile=[4.5])]
    assert best_peer(rows, ["eager", "compile", "max-autotune"], "cold") == "compile"


def test_one_process_without_our_time_leaves_no_ratio_for_its_case():
    rows = [row(eggtile=[1.0], eager=[2.0]), row(eager=[2.0])]
    assert against_best(rows, ["eager"], "cold") == []


def test_the_geometric_mean_weighs_cases_alike_and_its_interval_holds_it():
    found = geometric([[2.0] * 5, [8.0] * 50])
    assert math.isclose(found.value, 4.0) and math.isclose(found.low, 4.0) and math.isclose(found.high, 4.0)
    assert found.processes == 5
    noisy = geometric([[1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4]])
    assert noisy.low < noisy.value < noisy.high
    assert noisy == geometric([[1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4]])


def test_the_worst_case_is_the_one_with_the_least_mean():
    assert worst([[2.0] * 5, [0.5] * 5, [1.0] * 5]).value == 0.5


def test_the_last_rows_of_a_case_come_from_one_machine_and_commit():
    rows = [row("a", "old"), row("b", "old"), row("a", "new"), row("a", "new"), {"case": "a", "error": "hang"}]
    groups = latest(rows)
    assert [r["commit"] for r in groups["a"]] == ["new", "new"]
    assert [r["commit"] for r in groups["b"]] == ["old"]


def test_rows_are_read_back_in_the_order_of_their_time(tmp_path: Path):
    (tmp_path / "x.jsonl").write_text('{"case": "a", "time": "2"}\n{"case": "b", "time": "1"}\n')
    assert [r["case"] for r in load([tmp_path / "x.jsonl"])] == ["b", "a"]


def test_contenders_stand_only_where_they_make_sense():
    asked = ["eggtile", "eager", "compile", "max-autotune", "plain", "flash", "cudnn"]
    assert set(contenders(case("rr.softmax_28x2048x2048"), asked)) == {"eggtile", "eager", "compile"}
    assert "max-autotune" in contenders(case("mm.sq4096"), asked)
    assert "plain" in contenders(case("at.hand_causal_32x2048x128"), asked)
    assert {"flash", "cudnn"} <= set(contenders(case("at.sdpa_full_32x2048x128"), asked))
    with pytest.raises(ValueError, match="no contender is named cublas"):
        contenders(case("mm.sq4096"), ["cublas"])
