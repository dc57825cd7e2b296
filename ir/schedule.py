"""Schedules: one canonical line of KEY=value fields. Values are strings here; the spaces of `extract` give them meaning.

WORK=points256                          one thread per point of the grid axes (the fall-back)
WORK=w4/r1 REDUCE=block STAGE=reg       four warps on one row per block, the row in registers
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ir.node import IRError

KEYS = ("WORK", "TILE", "REDUCE", "STAGE", "PIPE", "RASTER", "STORE")
_FIELD = re.compile(r"([A-Z]+)=([a-z0-9_+/.,:-]+)")


@dataclass(frozen=True)
class Schedule:
    """Fields in the order of KEYS; absent keys take the default of the family that reads them."""

    fields: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self.fields)

    def get(self, key: str, default: str = "") -> str:
        """The value of `key`, or `default`."""
        return dict(self.fields).get(key, default)


def schedule(**fields: str) -> Schedule:
    """A schedule from keyword fields, put in canonical order."""
    unknown = [k for k in fields if k not in KEYS]
    if unknown:
        raise IRError(f"unknown schedule key {unknown[0]}; keys are {', '.join(KEYS)}")
    return Schedule(tuple((k, fields[k]) for k in KEYS if k in fields))


def parse_schedule(line: str) -> Schedule:
    """The schedule that `line` spells; refuses unknown keys, repeated keys and anything that is not KEY=value."""
    fields: dict[str, str] = {}
    for word in line.split():
        m = _FIELD.fullmatch(word)
        if m is None:
            raise IRError(f"schedule: {word!r} is not KEY=value")
        if m[1] in fields:
            raise IRError(f"schedule: {m[1]} stands twice")
        fields[m[1]] = m[2]
    return schedule(**fields)
