"""Schedules: one canonical line of KEY=value fields. Values are strings here; the spaces of `extract` give them meaning.

WORK=points256                          one thread per point of the grid axes (the fall-back)
WORK=w4/r1 REDUCE=block STAGE=reg       four warps on one row per block, the row in registers
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ir.node import IRError

KEYS = ("WORK", "TILE", "REDUCE", "STAGE", "PIPE", "RASTER", "STORE")
STAGES = "shared, async/dN, bulk/dN, shared+async/dN and shared+bulk, with a depth N from 2 to 16"
_STAGE = re.compile(r"(?:(shared\+)?async/d(\d+)|bulk/d(\d+)|shared(\+bulk)?)")
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


@dataclass(frozen=True)
class Staging:
    """How loads of a streamed axis go through shared memory.

    `kept`: what several sweeps load is loaded once, and stays there in between. `how` tiles come: by loads into
    registers (the empty word), by copies of each thread's own (`async`), or by those of one thread for all (`bulk`), into a
    ring of `depth` slots, one less than that ahead; where all is kept, each tile has a slot of its own.
    """

    kept: bool
    how: str = ""
    depth: int = 0


def staging(line: Schedule) -> Staging | None:
    """What STAGE asks for; None where loads go to registers. Raises where it has no meaning."""
    value = line.get("STAGE")
    if not value:
        return None
    m = _STAGE.fullmatch(value)
    depth = int(m[2] or m[3] or 0) if m else 0
    if m is None or (depth and not 2 <= depth <= 16) or str(depth) != (m[2] or m[3] or "0"):
        raise IRError(f"STAGE={value} is none of {STAGES}")
    how = "async" if m[2] else "bulk" if m[3] or m[4] else ""
    return Staging(value.startswith("shared"), how, depth)


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
