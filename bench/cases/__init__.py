"""Programs with inputs: the timed suite, the untimed programs, and what other compilers got wrong."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from bench.cases.spec import Case
from bench.cases.suite import CASES, EXTRAS
from bench.cases.sweep import SWEEP

__all__ = ["CASES", "EXTRAS", "SWEEP", "Case", "baseline", "case", "select"]


def case(name: str) -> Case:
    """The case of that name, of the suite, beside it, or of the sweep."""
    for c in (*CASES, *EXTRAS, *SWEEP):
        if c.name == name:
            return c
    raise KeyError(f"no case is named {name}")


def select(pattern: str = "") -> list[Case]:
    """Cases whose name matches, the important ones first."""
    found = [c for c in (*CASES, *EXTRAS) if re.search(pattern, c.name)]
    return sorted(found, key=lambda c: c.prio)


@cache
def baseline() -> dict[str, dict[str, object]]:
    """Recorded H200 times by case: eager, torch.compile, max-autotune, and `reference_us` of the work itself."""
    recorded = json.loads((Path(__file__).parent / "h200_baseline.json").read_text())
    cases: dict[str, dict[str, object]] = recorded["cases"]
    return cases
