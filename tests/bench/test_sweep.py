"""The sweep over sizes: its points, and what its rows say of odd lengths."""

from __future__ import annotations

from typing import Any

from bench import sweep
from bench.cases.sweep import LENGTHS, ODD, SWEEP, count_at, name


def row(us: float, moved: int = 10**6) -> dict[str, Any]:
    return {"bytes": moved, "contenders": {"eggtile": {"ok": True, "cold": {"samples_us": [us] * 3}}}}


def test_the_sweep_reaches_from_short_rows_to_long_and_from_one_to_many():
    sizes = {(c.full["M"], c.full["N"]) for c in SWEEP}
    assert (LENGTHS[0], LENGTHS[-1]) == (32, 262144)
    assert {(1, 4096), (65536, 4096), (128, 262144)} <= sizes
    assert {n: -(-n // 64) * 64 for n in ODD} == dict(ODD)


def test_an_odd_length_is_held_to_the_next_multiple_of_64():
    groups = {
        name("softmax", "bf16", count_at(n), n): [row(us)] for n, us in ((1000, 2.0), (1024, 1.0), (4095, 1.0))
    }
    assert sweep.kept(groups) == [[0.5]]
    groups |= {name("softmax", "bf16", m, 4096): [row(9.0)] for m in (1, 65536)}
    assert sweep.kept(groups) == [[0.5]]
    groups |= {name("softmax", "bf16", count_at(4096), 4096): [row(2.0)]}
    assert sweep.kept(groups) == [[0.5], [2.0]]
    assert [r.gb_per_s["eggtile"] for r in sweep.rates(groups)][:3] == [500.0, 1000.0, 1000.0]
    assert len(sweep.ODD_NAMES) == 24


def test_the_sweep_is_read_from_right_times_only():
    wrong = row(1.0)
    wrong["contenders"]["eggtile"]["ok"] = False
    (point,) = sweep.rates({name("rmsnorm", "fp32", 1, 4096): [wrong]})
    assert point.gb_per_s == {}
