"""Turns on a card: processes run kernels side by side, but one that times them has the card alone."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from codegen import gpu


def card_lock() -> Path | None:
    """The file that stands for the card at hand, for all users of this machine; None where there is no card."""
    if not gpu.available()[0]:
        return None
    card = "".join(c if c.isalnum() else "-" for c in gpu.card())
    return Path(tempfile.gettempdir()) / f"eggtile-{card}.lock"


@contextmanager
def turn(lock: Path | None, alone: bool) -> Iterator[None]:
    """Hold the card: shared while kernels only have to run, `alone` while they are timed; the end of a process frees it.

    Whoever waits to be alone keeps newcomers waiting, so that those who share cannot keep the card for ever.
    """
    if lock is None:
        yield
        return
    with _opened(lock.with_suffix(".queue")) as queue, _opened(lock) as card:
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(card, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:  # a file that another user made may be opened, but not where one is to be made
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.chmod(path, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)
