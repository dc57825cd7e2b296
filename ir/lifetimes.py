"""Lifetimes: from the first step that uses a name to the last."""

from __future__ import annotations

from collections.abc import Sequence


def lifetimes(uses: Sequence[frozenset[str]]) -> dict[str, tuple[int, int]]:
    """Per name the first and the last step that uses it."""
    out: dict[str, tuple[int, int]] = {}
    for step, names in enumerate(uses):
        for name in names:
            out[name] = out.get(name, (step, step))[0], step
    return out
