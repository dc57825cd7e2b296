"""The suite check: one bad case costs itself alone."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from bench import check
from bench.cases import CASES, case


def outcome_of(monkeypatch: pytest.MonkeyPatch, done: Any) -> check.Outcome:
    def run(*args: Any, **kwargs: Any) -> Any:
        if isinstance(done, Exception):
            raise done
        return done

    monkeypatch.setattr(check.subprocess, "run", run)
    return check.check([case("mm.sq1024")], jobs=1, seconds=3)[0]


def test_a_verdict_comes_back_from_its_process(monkeypatch: pytest.MonkeyPatch):
    line = '{"ok": true, "max_rel_err": 0.25, "eager_rel_err": 0.5, "reason": "", "notes": ["one call"]}'
    got = outcome_of(monkeypatch, subprocess.CompletedProcess([], 0, f"warning\n{line}\n", ""))
    assert got == check.Outcome("mm.sq1024", True, 0.25, 0.5, "one call")


def test_a_hang_and_a_crash_are_wrong_and_say_why(monkeypatch: pytest.MonkeyPatch):
    hang = outcome_of(monkeypatch, subprocess.TimeoutExpired("python", 3))
    crash = outcome_of(
        monkeypatch, subprocess.CompletedProcess([], 1, "", "Traceback\nIRError: extents 3 and 4 differ")
    )
    assert (hang.ok, hang.reason) == (False, "stopped after 3 s")
    assert (crash.ok, crash.reason) == (False, "IRError: extents 3 and 4 differ")


def test_the_parts_of_the_suite_are_disjoint_and_whole():
    parts = [check.part(CASES, n) for n in range(4)]
    assert sorted(c.name for p in parts for c in p) == sorted(c.name for c in CASES)
