"""The lines that a store has for a kernel, less those that are none of it."""

from __future__ import annotations

from collections.abc import Sequence

from extract.evidence import Evidence, rank
from extract.key import Canonical
from extract.spaces import Space
from extract.subject import Subject
from ir.loop import Buffer
from ir.machine import Machine
from ir.node import IRError
from ir.schedule import Schedule, parse_schedule


def measured_schedule(
    known: Canonical, buffers: Sequence[Buffer], store: Evidence | None, machine: Machine
) -> Schedule | None:
    """The fastest line that is measured and legal for the kernel, as a store may hold lines that are not."""
    rows = [] if store is None else store.rows(key=known.key, machine=machine.name, code=store.code, status="ok")
    lines = (m.schedule for m in sorted(rows, key=rank))
    return next((parse_schedule(line) for line in lines if is_legal(line, known, buffers, machine)), None)


def is_legal(line: str, known: Canonical, buffers: Sequence[Buffer], machine: Machine) -> bool:
    """Whether a line is one for the kernel, listed or not."""
    try:
        Space((), (), Subject(known.kernel, tuple(buffers), known.axes, machine)).check(line)
    except IRError:
        return False
    return True
