"""Searches that the collector of garbage does not interrupt: it would walk all that they keep, and find nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
V = TypeVar("V")


def undisturbed(search: Callable[P, V]) -> Callable[P, V]:
    """The search without collections of garbage while it runs: all that it makes is in use, or freed without them."""

    @wraps(search)
    def run(*given: P.args, **named: P.kwargs) -> V:
        if not gc.isenabled():
            return search(*given, **named)
        gc.disable()
        try:
            return search(*given, **named)
        finally:
            gc.enable()

    return run
