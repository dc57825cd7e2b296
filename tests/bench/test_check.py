"""The suite check: one bad case costs itself alone."""

from __future__ import annotations

from bench import check
from bench.cases import CASES, case
from tests.bench.test_workers import Scripted

ANSWER = '{"ok": true, "max_rel_err": 0.25, "eager_rel_err": 0.5, "reason": "", "notes": ["one call"]}'


def test_a_hang_or_a_crash_costs_its_case_alone() -> None:
    names = ["mm.sq1024", "mm.sq4096_fp16", "mm.sq4096_tf32", "mm.sq2048"]
    made = lambda: Scripted(ANSWER, hangs="fp16", crashes="tf32")  # noqa: E731
    first, hung, crashed, last = check.check([case(n) for n in names], 1, 2.0, made)
    assert first == check.Outcome("mm.sq1024", True, 0.25, 0.5, "one call")
    assert (hung.ok, hung.reason) == (False, "stopped after 2 s")
    assert (crashed.ok, crashed.reason) == (False, "its process ended with 7: a last word")
    assert last.ok


def test_the_parts_of_the_suite_are_disjoint_and_whole():
    parts = [check.part(CASES, n) for n in range(4)]
    assert sorted(c.name for p in parts for c in p) == sorted(c.name for c in CASES)
