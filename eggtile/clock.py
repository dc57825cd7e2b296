"""Where the time of one compilation goes: named spans that add up, none unaccounted for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Seconds by stage, in the order of first use. Spans do not nest: an inner span pauses the outer one."""

    seconds: dict[str, float] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0

    def _credit(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now

    @contextmanager
    def span(self, stage: str) -> Iterator[None]:
        """Credit the time of the block to `stage`."""
        self._credit()
        self._open.append(stage)
        try:
            yield
        finally:
            self._credit()
            self._open.pop()

    def add(self, stage: str, seconds: float) -> None:
        """Credit time that was measured elsewhere."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
