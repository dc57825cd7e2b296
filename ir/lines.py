"""A reader over the lines of a text that names the line in its errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from ir.node import IRError

P = ParamSpec("P")
R = TypeVar("R")


class Lines:
    """Lines that are not empty, read in order by patterns."""

    def __init__(self, text: str) -> None:
        self.lines = [(k + 1, line.strip()) for k, line in enumerate(text.splitlines()) if line.strip()]
        self.at = 0
        self.last = 0

    def fail(self, why: str) -> IRError:
        """The error that `why` makes, with the line read last."""
        if not self.lines:
            return IRError(f"the text is empty: {why}")
        number, line = self.lines[min(self.last, len(self.lines) - 1)]
        return IRError(f"line {number}: {why}: {line!r}")

    def checked(self, make: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `make` gives, its errors told with the line."""
        try:
            return make(*args, **kwargs)
        except IRError as e:
            raise self.fail(str(e)) from None

    def take(self, pattern: re.Pattern[str]) -> tuple[str, ...] | None:
        """The groups of the next line, which is then passed, or None where it does not match."""
        self.last = self.at
        m = pattern.fullmatch(self.lines[self.at][1]) if self.at < len(self.lines) else None
        if m is None:
            return None
        self.at += 1
        return m.groups()

    def match(self, pattern: re.Pattern[str], why: str) -> tuple[str, ...]:
        """The groups of the next line, which must match."""
        found = self.take(pattern)
        if found is None:
            raise self.fail(why)
        return found

    def each(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, ...]]:
        """The groups of the lines that follow and match, one at a time."""
        while (found := self.take(pattern)) is not None:
            yield found

    def all(self, pattern: re.Pattern[str]) -> list[tuple[str, ...]]:
        """The groups of all lines that follow and match."""
        return list(self.each(pattern))

    def finish(self) -> None:
        """Raise where lines are left."""
        if self.at < len(self.lines):
            raise self.fail("the line is not understood")
