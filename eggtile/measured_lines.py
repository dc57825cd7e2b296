"""What a store has for a kernel, less lines that are none of it."""

from __future__ import annotations

from collections.abc import Sequence

from eggtile.pointers import at_pointer
from extract.evidence import Evidence, Measurement, rank
from extract.key import Canonical, canonical
from extract.prices import Prices
from extract.spaces import Space
from extract.subject import Subject
from ir.loop import Buffer, Form, KernelForm
from ir.machine import Machine
from ir.node import IRError
from ir.schedule import Schedule, parse_schedule


class LegalPrices(Prices):
    """Prices by lines that are legal for their kernels: `known` loses others where a kernel is first looked for."""

    def __init__(
        self, evidence: Evidence | None, machine: Machine, quotients: bool = False, hopeful: bool = False
    ) -> None:
        super().__init__(evidence, machine, quotients, hopeful)
        self.evidence, self.machine = evidence, machine
        self._looked_at: set[str] = set()

    def measured(self, kernel: KernelForm, form: Form) -> Measurement | None:
        """The best row of a kernel whose line is legal, one without a time where no line is right; or None."""
        found = super().measured(kernel, form)
        if found is None or self.evidence is None or found.key in self._looked_at:
            return found
        self._looked_at.add(found.key)
        if found.status == "ok":
            known = canonical(kernel, form, self.quotients)
            best = best_legal(known, tuple(map(at_pointer, known.buffers)), self.evidence, self.machine)
            if best is None:
                del self.known[found.key]
            else:
                self.known[found.key] = best
        return self.known.get(found.key)


def measured_schedule(
    known: Canonical, buffers: Sequence[Buffer], store: Evidence | None, machine: Machine
) -> Schedule | None:
    """The fastest line that is measured and legal for the kernel."""
    best = None if store is None else best_legal(known, buffers, store, machine)
    return None if best is None else parse_schedule(best.schedule)


def best_legal(
    known: Canonical, buffers: Sequence[Buffer], store: Evidence, machine: Machine
) -> Measurement | None:
    """The row of the fastest line that is legal for the kernel, as a store may hold lines that are not."""
    rows = store.rows(key=known.key, machine=machine.name, code=store.code, status="ok")
    return next((m for m in sorted(rows, key=rank) if is_legal(m.schedule, known, buffers, machine)), None)


def is_legal(line: str, known: Canonical, buffers: Sequence[Buffer], machine: Machine) -> bool:
    """Whether a line is one for the kernel, listed or not."""
    try:
        Space((), (), Subject(known.kernel, tuple(buffers), known.axes, machine)).check(line)
    except IRError:
        return False
    return True
