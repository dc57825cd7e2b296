"""What a store has for a kernel, less lines that are none of it."""

from __future__ import annotations

from collections.abc import Sequence

from eggtile.pointers import at_pointer
from extract.evidence import Evidence
from extract.key import Canonical
from extract.prices import Prices, spelled_shapes
from extract.spaces import Space
from extract.subject import Subject
from ir.loop import Buffer
from ir.machine import Machine
from ir.node import IRError
from ir.schedule import Schedule, parse_schedule


class LegalPrices(Prices):
    """Prices by lines that are legal for their kernels."""

    def legal(self, line: str, known: Canonical) -> bool:
        """Whether a line is one for the kernel."""
        return is_legal(line, known, tuple(map(at_pointer, known.buffers)), self.machine)


def measured_schedule(
    known: Canonical, buffers: Sequence[Buffer], store: Evidence | None, machine: Machine
) -> Schedule | None:
    """The fastest line that is measured, right and legal for the kernel."""
    if store is None:
        return None
    rows = store.right(known.key, machine, shapes=spelled_shapes(known))
    legal = (m.schedule for m in rows if is_legal(m.schedule, known, buffers, machine))
    line = next(legal, None)
    return None if line is None else parse_schedule(line)


def is_legal(line: str, known: Canonical, buffers: Sequence[Buffer], machine: Machine) -> bool:
    """Whether a line is one for the kernel, listed or not."""
    try:
        Space((), (), Subject(known.kernel, tuple(buffers), known.axes, machine)).check(line)
    except IRError:
        return False
    return True
