"""Covering arrays meet every pair that can be met, in few rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.covering import covering, pairs_of

FACTORS = {"a": range(7), "b": range(5), "c": "xyz", "d": (True, False)}


def test_every_possible_pair_is_met_in_few_rows() -> None:
    def allowed(row: Mapping[str, Any]) -> bool:
        return row.get("a") != 3 or row.get("c") != "x"

    rows = covering(FACTORS, allowed)
    met = set().union(*map(pairs_of, rows))
    assert all(allowed(r) and r.keys() == FACTORS.keys() for r in rows)
    assert len(met) == 35 + 21 + 14 + 15 + 10 + 6 - 1
    assert len(rows) <= 40


def test_pairs_that_no_row_can_hold_are_left_out() -> None:
    rows = covering({"a": range(3), "b": range(3), "c": range(2)}, lambda row: row.get("c", 0) == 0)
    assert {r["c"] for r in rows} == {0}
    assert covering({"a": range(2), "b": range(2)}, lambda row: len(row) < 3, ()) != []
