"""The seconds that a report may take, and what it leaves out where they are spent."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Deadline:
    """The end of `seconds` that start when it is made; those of a share are `asked` of the whole."""

    seconds: float
    asked: float | None = None
    since: float = field(default_factory=time.perf_counter)

    @property
    def at(self) -> float:
        """Where it is on the clock of `time.perf_counter`, in seconds."""
        return self.since + self.seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.at - time.perf_counter())

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return time.perf_counter() >= self.at

    def share(self, part: float) -> Deadline:
        """The deadline of what may take a part of what is left."""
        return Deadline(part * self.left_s, self.asked or self.seconds)

    def why(self) -> str:
        """Why something is left out."""
        return f"a report takes {self.asked or self.seconds:g} s; --budget report=SECONDS gives it more"


UNLIMITED = Deadline(math.inf)


def left_out(what: str, why: str, forms: Sequence[int] = ()) -> dict[str, Any]:
    """What a report lacks, of which forms, and why; the values themselves are null there."""
    return {"what": what, "forms": [*forms], "why": why}


def said(row: dict[str, Any]) -> str:
    """The same as a sentence."""
    forms = f" of form{'s' * (len(row['forms']) > 1)} {', '.join(map(str, row['forms']))}" if row["forms"] else ""
    return f"left out: {row['what']}{forms}, since {row['why']}"
