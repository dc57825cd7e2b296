"""What kernels and forms cost where something is measured: their times, or the model's under a family's ratio."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from extract.cost import Cost
from extract.evidence import Evidence
from extract.facts import buffers_read
from extract.key import Canonical, canonical, form_key
from extract.measurement import FORM, LEAST_US, Measurement, rank, verdicts
from ir import term as T
from ir.loop import Form, KernelForm, LoopProgram
from ir.machine import Machine
from ir.node import postorder
from ir.schedule import Schedule
from ir.term import Term

USUAL, OPTIMISM = 0.75, 0.1
"""The quantile of measured / modelled at which a family's unmeasured kernels are priced: to choose, and to choose what to
measure, where a kernel must not be passed over because its family did badly."""
LEAST_ALIKE = 3  # measured kernels of a family from which a ratio is taken
NEAR = 4  # those that are taken of it, below a kernel's modelled time and above it: the model misses small ones by more
ANY = ""  # the shape of all kernels
HOPELESS_US = 1e7  # the price of a kernel none of whose measured lines is right
INTERACTION = 0.1  # the share by which a form's time must differ from the sum of its kernels' for that to be kept


class Prices:
    """Prices on a machine, from what a store holds now, if there is one; as a callable, the price of a kernel for `forms`.

    With `quotients`, those of kernels whose divisions round once. Where `hopeful`, unmeasured kernels are priced low, to
    find out; else never below the model, so that nothing measured is given up for a guess.
    """

    def __init__(
        self, evidence: Evidence | None, machine: Machine, quotients: bool = False, hopeful: bool = False
    ) -> None:
        rows = [] if evidence is None else sorted(verdicts(evidence.current(machine)), key=rank)
        self.machine, self.quotients, self.hopeful = machine, quotients, hopeful
        self.known = _by_key(m for m in rows if m.family != FORM)
        self.whole = _by_key(m for m in rows if m.family == FORM and m.status == "ok")
        self.shapes = {m.shapes for found in self.known.values() for m in found}
        self.programs = {m.shapes for found in self.whole.values() for m in found}
        self.ratios = family_ratios(found[0] for found in self.known.values() if found[0].status == "ok")
        self._best: dict[str, Measurement | None] = {}
        self._timed: dict[str, Measurement | None] = {}

    def legal(self, line: str, known: Canonical) -> bool:
        """Whether a line is one for the kernel, as far as is known here."""
        return True

    def __call__(self, kernel: KernelForm, form: Form, cost: Cost) -> float | None:
        """Its best measured time in us, else the model's under the ratio of its family; None where there is none."""
        found = self.measured(kernel, form)
        if found is not None:
            return HOPELESS_US if found.time_us is None else found.time_us
        ratio = self.ratio(stored(kernel), cost)
        return None if ratio is None else ratio * cost.us

    def ratio(self, terms: Sequence[Term], cost: Cost) -> float | None:
        """Measured over modelled time in the family of a kernel that stores the terms, or of all kernels where it is not
        known, so that no family is ahead for not being measured; None where nothing is.
        """
        units = self.ratios.get(shape_of(terms, cost), self.ratios.get(ANY)) if self.ratios else None
        if units is None:
            return None
        if self.hopeful:
            return min(near(rows, cost.us, OPTIMISM) for rows in units.values())
        return max(1.0, min(near(rows, cost.us, USUAL) for rows in units.values()))

    def measured(self, kernel: KernelForm, form: Form) -> Measurement | None:
        """The best row of a kernel, one without a time where no line is right; None where it is not measured.

        Rows of other shapes, or of lines that are not legal, are none of it.
        """
        if not self.known or (shapes := shapes_of(kernel, form)) not in self.shapes:
            return None
        known = canonical(kernel, form, self.quotients)
        if known.key not in self._best:
            rows = (m for m in self.known.get(known.key, ()) if m.shapes == shapes)
            self._best[known.key] = next((m for m in rows if self.legal(m.schedule, known)), None)
        return self._best[known.key]

    def timed(self, form: Form) -> Measurement | None:
        """The fastest row of the whole form under lines that are legal for its kernels."""
        key = form_key(form, self.quotients) if self.whole else ""
        if key not in self._timed:
            kernels = [canonical(k, form, self.quotients) for k in form.kernels if stores_something(k, form)]
            rows = ((m, m.schedule.split(" | ")) for m in self.whole.get(key, ()))
            legal = (m for m, lines in rows if len(lines) == len(kernels) and all(map(self.legal, lines, kernels)))
            self._timed[key] = next(legal, None)
        return self._timed[key]

    def interaction_us(self, form: Form, kernels_us: float) -> float:
        """What a form takes beyond its kernels' sum, where that is much; 0 where it is not known, or leaves no time."""
        found = self.timed(form)
        if found is None or found.time_us is None or not found.modelled_us:
            return 0.0
        beyond = found.time_us - found.modelled_us
        much = abs(beyond) > INTERACTION * found.modelled_us and kernels_us + beyond >= LEAST_US
        return beyond if much else 0.0

    def beyond(self, program: LoopProgram) -> Callable[[Form, float], float] | None:
        """`interaction_us` where a form of the program may be measured whole."""
        return self.interaction_us if shapes_of_program(program) in self.programs else None

    def form(self, form: Form) -> Form:
        """The form at its price: `cost_us` is that of its kernels and what they take together."""
        costs: Mapping[str, Cost] = form.details["kernels"]  # type: ignore[assignment]
        prices = [(self(k, form, costs[k.name]), costs[k.name].us) for k in form.kernels]
        total = sum(by_model if us is None else us for us, by_model in prices)
        return replace(form, cost_us=total + self.interaction_us(form, total))

    def kernels_us(self, form: Form) -> float | None:
        """The sum of what the kernels of a form take by measurement; None where one is not measured, or never right."""
        found = [self.measured(k, form) for k in form.kernels]
        times = [m.time_us for m in found if m is not None and m.time_us is not None]
        return None if len(times) < len(found) else sum(times)

    def form_us(self, form: Form) -> float | None:
        """What a form takes by measurement alone; None where a kernel is not measured, or never right."""
        us = self.kernels_us(form)
        return None if us is None else us + self.interaction_us(form, us)


def _by_key(rows: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = defaultdict(list)
    for m in rows:
        found[m.key].append(m)
    return dict(found)


def stores_something(kernel: KernelForm, form: Form) -> bool:
    """Whether a kernel has anything to store: along an empty axis there is nothing."""
    return any(all(form.axes[a] for a in s.axes) for s in kernel.stores)


# ---- kernels alike


def shapes_of(kernel: KernelForm, form: Form) -> str:
    """The types and shapes of what a kernel writes and reads; equal kernels have equal ones."""
    buffers = {b.name: b for b in form.buffers}

    def text(names: Iterable[str]) -> str:
        return " ".join(
            sorted(f"{b.dtype}{list(b.shape)}".replace(" ", "") for b in map(buffers.__getitem__, names))
        )

    read = set[str]().union(*map(buffers_read, stored(kernel)))
    return f"{text({s.buffer for s in kernel.stores})} <- {text(read)}"


def shapes_of_program(program: LoopProgram) -> str:
    """The types and shapes of a program's buffers in order, as rows of its whole forms have them."""
    return " ".join(f"{b.dtype}{list(b.shape)}".replace(" ", "") for b in program.buffers)


def stored(kernel: KernelForm) -> list[Term]:
    """The terms of a kernel's stores."""
    return [t for s in kernel.stores for t in (*s.index, s.value)]


def shape_of(terms: Sequence[Term], cost: Cost) -> str:
    """The part of a kernel's family that its schedule does not decide: contractions, states, gathers."""
    loads = [t for t in postorder(*terms) if isinstance(t, T.Load)]
    gathers = any(isinstance(x, T.Load) for t in loads for x in postorder(*t.index))
    streamed = "streamed" if cost.states else "plain"
    return f"c{cost.contractions}/{streamed}/{'gathers' if gathers else 'affine'}"


def spelled_shapes(known: Canonical) -> str:
    """The same of a kernel in canonical spelling."""
    return shapes_of(known.kernel, Form("", known.axes, known.buffers, ()))


def family_of(kernel: KernelForm, cost: Cost, line: Schedule) -> str:
    """Kernels whose times the model misjudges alike: by the unit that multiplies, and by shape."""
    tile = line.get("TILE")
    unit = next((u for u in ("wgmma", "mma") if tile.startswith(u)), "scalar")
    return f"{unit}/{shape_of(stored(kernel), cost)}"


Ratios = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
"""Of each shape and unit the modelled times of what is measured, sorted, with measured over modelled time."""


def family_ratios(best: Iterable[Measurement]) -> Ratios:
    """The ratios of the shapes of which some kernels are measured, and of all together."""
    taken: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for m in best:
        if m.time_us and m.modelled_us:
            unit, shape = m.family.split("/", 1)
            for name in (shape, ANY):
                taken[name][unit].append((m.modelled_us, m.time_us / m.modelled_us))
    return {
        shape: {unit: sorted(rows) for unit, rows in units.items()}
        for shape, units in taken.items()
        if sum(map(len, units.values())) >= LEAST_ALIKE
    }


def near(rows: Sequence[tuple[float, float]], us: float, quantile: float) -> float:
    """A quantile of the ratios of kernels whose modelled times are next to a time."""
    at = bisect_left(rows, (us, 0.0))
    found = sorted(ratio for _, ratio in rows[max(0, at - NEAR) : at + NEAR])
    return found[int(quantile * (len(found) - 1))]
