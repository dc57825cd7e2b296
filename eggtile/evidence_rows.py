"""Rows of evidence that others wrote: what they may say, checked before anything is made of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path

from eggtile.plan import RequestError
from extract.evidence import FORM, STATUSES, Evidence, Measurement, Where
from ir.node import IRError
from ir.schedule import parse_schedule

COLUMNS = tuple(f.name for f in (*fields(Measurement), *fields(Where)) if f.name != "where")
NAMED = ("key", "machine", "target")
MICROSECONDS = ("time_us", "low_us", "high_us", "modelled_us")
RELATIVE = ("error", "bound")
COUNTS = ("rounds", "registers", "spill_bytes", "shared_bytes")
Rule = tuple[Callable[[object], bool], str]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _rule(column: str) -> Rule:
    """What a column holds, as a test and in words."""
    if column in MICROSECONDS:
        return lambda v: v is None or (_is_number(v) and v > 0), "null or microseconds above 0"
    if column in RELATIVE:
        return lambda v: v is None or (_is_number(v) and v >= 0), "null or a number from 0"
    if column in COUNTS:
        return lambda v: type(v) is int and 0 <= v < 1 << 63, "a whole number from 0"
    if column == "status":
        return lambda v: v in STATUSES, f"one of {', '.join(STATUSES)}"
    if column == "family":
        return lambda v: v == FORM or (_is_text(v) and "/" in str(v)), f"{FORM} or UNIT/SHAPE"
    if column in NAMED:
        return lambda v: _is_text(v) and bool(v), "a text that is not empty"
    return _is_text, "a text"


RULES: Mapping[str, Rule] = {c: _rule(c) for c in COLUMNS}


def odd(row: object) -> str | None:
    """What is wrong with a row, or None."""
    if not isinstance(row, dict):
        return f"{str(row)[:40]!r} is no row of names and values"
    if unlike := sorted({*row} ^ {*COLUMNS}):
        return f"{unlike[0]} is {'no column of the table' if unlike[0] in row else 'missing'}"
    for column, (holds, words) in RULES.items():
        if not holds(row[column]):
            return f"{column} is {words}, not {json.dumps(row[column])[:40]}"
    if row["status"] == "ok" and row["time_us"] is None:
        return "time_us is null, and the status ok"
    return _odd_lines(row["schedule"], row["family"] == FORM)


@cache
def _odd_lines(text: str, form: bool) -> str | None:
    """What is wrong with the line of a kernel, or with those of a form."""
    try:
        for line in text.split(" | ") if form else [text]:
            if not parse_schedule(line).fields and not form:
                return "schedule is empty"
    except IRError as e:
        return str(e)
    return None


def check(path: Path) -> None:
    """Refuse a file of JSON lines with a row that means nothing, and say which and why."""
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError:
        raise RequestError(f"{path} is not in JSON lines: it is no text") from None
    for n, line in enumerate(lines, 1):
        try:
            why = odd(json.loads(line))
        except (json.JSONDecodeError, RecursionError) as e:
            why = f"it is not JSON: {getattr(e, 'msg', 'it is nested too deeply')}"
        if why is not None:
            raise RequestError(f"{path}, line {n}: {why}")


class Store(Evidence):
    """A store of the user's, less rows that mean nothing, which an older version may have taken in."""

    def __init__(self, path: Path | str | None, under: Path | None = None) -> None:
        with _way_out(path):
            super().__init__(path, under=under)

    def rows(self, **wanted: object) -> list[Measurement]:
        """Measurements whose columns have these values, in the order of their identity."""
        with _way_out(self.path):
            return [m for m in super().rows(**wanted) if odd(m.row()) is None]


@contextmanager
def _way_out(path: Path | str | None) -> Iterator[None]:
    """Say of a store that cannot be read what to do."""
    try:
        yield
    except IRError as e:
        raise RequestError(f"{e}; remove {path} to begin anew, or read none of it with --evidence none") from None
