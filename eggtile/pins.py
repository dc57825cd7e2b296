"""Schedule lines that the user pins: one for every kernel, or one for each kernel that is named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eggtile.echo import cut
from eggtile.plan import RequestError

_NAMED = re.compile(r"\s*([^\s:=]+)\s*:\s*(.*)", re.DOTALL)


@dataclass(frozen=True)
class Pin:
    """The line of the kernel with this name."""

    kernel: str
    line: str

    def refusal(self, reason: str) -> RequestError:
        """Why the kernel cannot have the line; what is long in the line is cut short."""
        for word in self.line.split():
            reason = reason.replace(word, cut(word))
        return RequestError(f"the schedule of {self.kernel} is refused: {reason}")


def pins_of(texts: Sequence[str]) -> dict[str, Any]:
    """Lines as they are written, `KERNEL: LINE` or one `LINE` for every kernel, as options."""
    matches = [(text, _NAMED.fullmatch(text)) for text in texts]
    every = [text for text, m in matches if m is None]
    if len(every) > 1:
        lines = " and ".join(map(cut, every[:2]))
        raise RequestError(
            f"{len(every)} schedules are given for every kernel, {lines}; name kernels, like k0: LINE"
        )
    return {"schedule": every[0] if every else None, "pins": tuple(Pin(m[1], m[2]) for _, m in matches if m)}


def check_once(pins: Sequence[Pin]) -> None:
    """Refuse two lines for one kernel."""
    names = [p.kernel for p in pins]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise RequestError(f"the kernel {cut(twice)} is given {names.count(twice)} schedules; give it one")


def pinned(pins: Sequence[Pin], every: str | None, names: Sequence[str]) -> Mapping[str, Pin]:
    """The pin of each kernel that has one, of the kernels with these names; another name is refused."""
    for p in pins:
        if p.kernel not in names:
            known = f"kernels are {', '.join(names)}" if names else "the program has no kernel"
            raise RequestError(f"there is no kernel {cut(p.kernel)} to pin a schedule to; {known}")
    all_alike = [] if every is None else [Pin(n, every) for n in names]
    return {p.kernel: p for p in (*all_alike, *pins)}
