"""A row of evidence: its columns, what they may say, and what rows of one line say together.

`why_invalid` is the one definition of a row that means something: whoever reads or writes rows asks it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

from ir.node import IRError
from ir.schedule import parse_schedule

STATUSES = ("ok", "wrong", "refused", "crashed", "hung", "spills")
FAILURES = ("wrong", "crashed", "hung")
"""What a binary does under some driver; the rest is what compilers say of a text."""
INPUTS = ("cold",)
FORM = "form"
"""The family of rows that time a whole form: its key is the form's, `modelled_us` the sum of its kernels' times."""
LEAST_US, MOST_US = 0.1, 3.6e9
"""Below is no launch, above no measurement."""
MOST_REGISTERS, MOST_SHARED_BYTES = 255, 1 << 18
MOST_RELATIVE = 1e300
FACTOR = 4.0
"""What the gate lets an error be, times its bound."""
WARM_ONLY = "timed with warm inputs only, as far from the best"


@dataclass(frozen=True)
class Where:
    """What a time depends on besides kernel and line; `inputs` cold: program inputs come from DRAM, others are warm."""

    machine: str
    target: str
    nvrtc: str = ""
    driver: str = ""
    code: str = ""
    inputs: str = "cold"


@dataclass(frozen=True)
class Measurement:
    """How a kernel under a schedule line did; `error` and `bound` are relative to float64, as `codegen.gate` says.

    `shapes` are the types and shapes of what it writes and reads.
    """

    key: str
    schedule: str
    where: Where
    status: str
    time_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    rounds: int = 0
    error: float | None = None
    bound: float | None = None
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    clocks: str = ""
    source: str = ""
    family: str = ""
    shapes: str = ""
    modelled_us: float | None = None
    reason: str = ""
    taken: str = ""

    def values(self) -> tuple[Any, ...]:
        """Its columns in order."""
        return (*(getattr(self, c) for c in OWN), *(getattr(self.where, c) for c in PLACE))

    def row(self) -> dict[str, Any]:
        """Its columns by name."""
        return dict(zip(COLUMNS, self.values(), strict=True))

    @property
    def identity(self) -> tuple[str, ...]:
        """What no two rows of a store share."""
        return (self.key, self.schedule, *(getattr(self.where, c) for c in PLACE))

    @property
    def moment(self) -> datetime:
        """When it was taken."""
        return datetime.fromisoformat(self.taken)


PLACE = tuple(f.name for f in fields(Where))
OWN = tuple(f.name for f in fields(Measurement) if f.name != "where")
COLUMNS = (*OWN, *PLACE)
IDENTITY = ("key", "schedule", *PLACE)


# ---- what a row may say

Rule = tuple[Callable[[Any], bool], str]
_UNIT = r"(scalar|mma|wgmma)/c\d+/(plain|streamed)/(affine|gathers)"


def _within(low: float, high: float, *types: type) -> Callable[[Any], bool]:
    return lambda v: type(v) in types and low <= v <= high and (type(v) is float or v < 1 << 63)


def _spells(pattern: str) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, str) and re.fullmatch(pattern, v) is not None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda v: v is None or holds(v)


_TIME: Rule = (
    _or_none(_within(LEAST_US, MOST_US, int, float)),
    f"null or microseconds from {LEAST_US:g} to {MOST_US:g}",
)
_RELATIVE: Rule = _or_none(_within(0, MOST_RELATIVE, int, float)), f"null or a number from 0 to {MOST_RELATIVE:g}"
_NAME: Rule = (lambda v: _is_text(v) and v != "", "a text that is not empty")


def _count(most: int) -> Rule:
    return _within(0, most, int), f"a whole number from 0 to {most}"


RULES: Mapping[str, Rule] = dict.fromkeys(COLUMNS, (_is_text, "a text")) | {
    "key": _NAME,
    "machine": _NAME,
    "target": (_spells(r"sm_\d+[a-z]?"), "an architecture like sm_90a"),
    "inputs": (lambda v: v in INPUTS, " or ".join(INPUTS)),
    "status": (lambda v: v in STATUSES, f"one of {', '.join(STATUSES)}"),
    "family": (_spells(f"{FORM}|{_UNIT}"), f"{FORM} or UNIT/SHAPE like scalar/c0/plain/affine"),
    "taken": (_is_time, "an ISO time with its zone"),
    "rounds": _count((1 << 31) - 1),
    "registers": _count(MOST_REGISTERS),
    "spill_bytes": _count((1 << 31) - 1),
    "shared_bytes": _count(MOST_SHARED_BYTES),
    **dict.fromkeys(("time_us", "low_us", "high_us", "modelled_us"), _TIME),
    **dict.fromkeys(("error", "bound"), _RELATIVE),
}


def why_invalid(row: object) -> str | None:
    """What is wrong with a row of names and values, or None."""
    if not isinstance(row, dict):
        return f"{str(row)[:40]!r} is no row of names and values"
    if unlike := sorted({*row} ^ {*COLUMNS}):
        return f"{unlike[0]} is {'no column of the table' if unlike[0] in row else 'missing'}"
    for column, (holds, words) in RULES.items():
        if not holds(row[column]):
            return f"{column} is {words}, not {json.dumps(row[column], default=repr)[:40]}"
    form = row["family"] == FORM
    return _odd_lines(row["schedule"], form) or _odd_outcome(row, form)


@cache
def _odd_lines(text: str, form: bool) -> str | None:
    """What is wrong with the line of a kernel, or with those of a form."""
    try:
        for line in text.split(" | ") if form else [text]:
            if (spelled := str(parse_schedule(line))) != line or not line:
                return f"schedule is {line!r}, which is spelled {spelled!r}" if line else "schedule is empty"
    except IRError as e:
        return str(e)
    return None


def _odd_outcome(row: Mapping[str, Any], form: bool) -> str | None:
    """What does not go with a row's status: what is right has a time and an error in its bound, the rest has no time."""
    low, us, high = (row[c] for c in ("low_us", "time_us", "high_us"))
    if row["status"] != "ok":
        return None if low is us is high is None else f"it has a time, and the status {row['status']}"
    if us is None or low is None or high is None:
        return f"{'time_us' if us is None else 'low_us or high_us'} is null, and the status ok"
    if not low <= us <= high:
        return f"time_us is {us:g}, which is not from low_us {low:g} to high_us {high:g}"
    if row["rounds"] < 1:
        return "rounds is 0, and the status ok"
    if row["spill_bytes"]:
        return f"spill_bytes is {row['spill_bytes']}, and the status ok"
    if row["reason"] not in ("", WARM_ONLY):
        return f"it has the reason {row['reason'][:40]!r}, and the status ok"
    error, bound = row["error"], row["bound"]
    if form:
        return None if error is bound is None else "a form has no error or bound of its own"
    if error is None or bound is None:
        return f"{'error' if error is None else 'bound'} is null, and the status ok"
    return None if error <= FACTOR * bound else f"error is {error:g}, beyond {FACTOR:g} times the bound {bound:g}"


@lru_cache(1 << 14, typed=True)
def read(*values: object) -> Measurement | str:
    """The row with these values in the order of `COLUMNS`, or what is wrong with it."""
    row: dict[str, Any] = dict(zip(COLUMNS, values, strict=True))
    return why_invalid(row) or _measurement(row)


def _measurement(row: Mapping[str, Any]) -> Measurement:
    return Measurement(where=Where(**{k: row[k] for k in PLACE}), **{k: row[k] for k in OWN})


def read_line(text: str) -> Measurement | str:
    """The row that a JSON line spells, or what is wrong with it."""
    try:
        row = json.loads(text, object_pairs_hook=_once)
    except IRError as e:
        return str(e)
    except (ValueError, RecursionError) as e:
        return f"it is not JSON: {getattr(e, 'msg', '') or str(e) or 'it is nested too deeply'}"
    return why_invalid(row) or _measurement(row)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise IRError(f"{next(n for n in names if names.count(n) > 1)} stands twice")
    return row


# ---- what rows say together


def rank(m: Measurement) -> tuple[float, str]:
    """By time; what is not right comes last."""
    return math.inf if m.time_us is None or m.status != "ok" else m.time_us, m.schedule


def latest(rows: Iterable[Measurement], by: Callable[[Measurement], object]) -> list[Measurement]:
    """Of rows that are alike the latest; of one moment the first, but one that fails before one that is right."""
    found: dict[object, Measurement] = {}
    for m in rows:
        old = found.setdefault(by(m), m)
        if (m.moment, m.status in FAILURES) > (old.moment, old.status in FAILURES):
            found[by(m)] = m
    return list(found.values())


def verdicts(rows: Iterable[Measurement]) -> list[Measurement]:
    """Of each line the row that counts: a failure, where that is some driver's last word, else the fastest time."""
    lines: dict[object, list[Measurement]] = {}
    for m in rows:
        lines.setdefault((m.key, m.schedule, m.shapes), []).append(m)
    return [_verdict(found) for found in lines.values()]


def _verdict(rows: list[Measurement]) -> Measurement:
    if len(rows) == 1:
        return rows[0]
    run = latest((m for m in rows if m.status in ("ok", *FAILURES)), lambda m: m.where.driver)
    failing = [m for m in run if m.status in FAILURES]
    return max(failing, key=lambda m: m.moment) if failing else min(rows, key=rank)
