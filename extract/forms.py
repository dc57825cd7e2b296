"""The forms of a program, best first: candidate kernels, the cheapest covers, and one form per signature."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from egraph.graph import EGraph
from egraph.saturate import saturate
from egraph.trace import Explained
from extract.alike import Copy, Speller, Spelling, Text
from extract.assembly import Assembly, Kernel
from extract.bounds import Bounds
from extract.candidates import Candidate, Candidates
from extract.cost import Cost, kernel_cost
from extract.cover import Cover, CoverProblem
from extract.fragments import Breadth, Fragments, exponents
from extract.items import Scope
from extract.lineage import Reasons, named
from extract.regions import cuts
from extract.rounding import without_rounds
from extract.shifts import Shifts
from extract.source import Source, buffer_of
from extract.undisturbed import undisturbed
from ir.loop import Form, KernelForm, LoopProgram
from ir.machine import Machine
from ir.term import Term

Price = Callable[[KernelForm, Form, Cost], float | None]
"""The time of a kernel in us, given what the model says of it; None where the model's is to stand."""
Ratio = Callable[[Sequence[Term], Cost], float | None]
"""What to multiply the model's time of a kernel that stores these terms with, as kernels alike were measured."""
TRIES, LEAST_TRIES = 3, 36  # covers solved for each form asked for, and in all, since some differ by trivial moves
FRAGMENTS, FEWEST, MOST = 1200, 9, 24  # of a scope in all, and of each of its classes
MEASURED = 12
"""Forms of which the cheapest is chosen where whole forms of the program are measured."""


@dataclass(frozen=True)
class Choice:
    """A way to make the roots of a region; `gap` is None where candidates were cut short, so that it is not known."""

    kernels: tuple[Kernel, ...]
    us: float
    gap: float | None
    signature: tuple[object, ...]
    stop: tuple[str, ...] = ()
    reasons: Reasons = ()


class Region:
    """The candidates of one scope, and its covers."""

    def __init__(
        self,
        scope: Scope,
        machine: Machine,
        price: Price | None,
        deadline: float,
        greedy: bool = False,
        ratio: Ratio | None = None,
    ) -> None:
        self.scope, self.deadline, self.greedy, self.price = scope, deadline, greedy, price
        self.fragments = Fragments(scope, machine, _breadth(scope), self._half(), ratio=ratio)
        self.late = self.fragments.late
        self.candidates = Candidates(self.fragments)
        self.found: list[Candidate] = []
        self.found = self._all(self.candidates)

    def _half(self) -> float:
        """When half of the time that is left is over: the rest is the solver's."""
        return (time.thread_time() + self.deadline) / 2

    def _all(self, candidates: Candidates) -> list[Candidate]:
        return [self._at_price(c) for c in candidates.all(self._live)]

    def _bounded(self, found: Sequence[Candidate]) -> list[Candidate]:
        """The candidates, and more whose exponents stay in range whoever makes what they read.

        Such fragments may be dear as kernels of their own: one that finds the maximum itself does so for every tile.
        """
        own = self.fragments
        breadth = replace(own.breadth, bounded=True)
        fragments = Fragments(self.scope, own.pricing.machine, breadth, self._half(), own.lineage, own.ratio)
        own.trusted |= fragments.trusted
        self.late = self.late or fragments.late
        more = Candidates(fragments, self.candidates)
        unique = {c.parts: c for c in (*found, *self._all(more))}
        fragments.risky |= own.risky
        self.candidates = more
        return [c for c in unique.values() if more.ordered(c)]

    def choices(self, k: int, deadline: float) -> list[Choice]:
        """Up to `k` covers with distinct signatures and kernels, the cheapest first; it is the same one for every `k`.

        Among more than `k` the cheapest of every number of kernels and of loops over each axis go first.
        """
        out: dict[object, Choice] = {}
        kinds: Counter[object] = Counter()
        texts: set[Text] = set()
        turn: dict[object, int] = {}
        pricing = self.fragments.pricing
        speller = Speller(pricing.extents, pricing.buffers.values(), roles=True)
        first, picks = self.best
        covers = itertools.chain([(first, picks)], self._others(deadline) if k > 1 else ())
        for cover, picks in itertools.islice(covers, max(LEAST_TRIES, TRIES * k)):
            signature = self._signature(picks)
            if signature in out or (out and not self._needed(picks)):
                continue
            kernels = tuple(c.parts for c in picks)
            text = speller.kernels(map(self.candidates.kernel, picks)).text if k > 1 else ()
            if text in texts:
                continue
            texts.add(text)
            stop = *(("candidates",) if self.late else ()), *(("solver",) if first.gap else ())
            gap = None if self.late else first.gap
            out[signature] = Choice(kernels, cover.us, gap, signature, stop, self._reasons(kernels))
            loops: Counter[str] = Counter()
            for c in picks:
                loops.update(c.cost.sweeps)
            kind = len(picks), tuple(sorted(loops.items()))
            turn[signature] = kinds[kind]
            kinds[kind] += 1
        best, *more = out
        kept = sorted(more, key=lambda s: (turn[s], out[s].us))[: k - 1]
        return [out[best], *sorted((out[s] for s in kept), key=lambda c: c.us)]

    @cached_property
    def best(self) -> tuple[Cover, list[Candidate]]:
        """The cheapest cover and its kernels; sound, where there is one that is."""
        self.problem = self._problem()
        if self.greedy and (own := self.problem.greedy()) is not None:
            return own, [self.found[i] for i in own.picks]
        widened, known, most = False, {c.parts for c in self.found}, math.inf
        while True:
            cover = self.problem.best(self.deadline, most)
            picks = [self.found[i] for i in cover.picks]
            if unsound := self._unsound(picks):
                rest = [c for c in self.found if c not in unsound]
                if not widened:
                    rest, widened = self._bounded(rest), True
                done, most = not self._coverable(rest), math.inf
            else:
                picks = self._trimmed(picks)
                cover = replace(cover, us=sum(c.us for c in picks))
                more = [c for c in self._nearby(picks) if c.parts not in known]
                self.late = self.late or (bool(more) and time.thread_time() > self.deadline)
                done, rest, most = self.late or not more, [*self.found, *more], cover.us
            if done:
                return cover, picks
            known.update(c.parts for c in rest)
            self.found = rest
            self.problem = self._problem()

    def _others(self, deadline: float) -> Iterator[tuple[Cover, list[Candidate]]]:
        """Covers that are not the best one, and their kernels; those alone that are sound."""
        for cover in self.problem.others(deadline):
            picks = [self.found[i] for i in cover.picks]
            if not self._unsound(picks):
                yield cover, picks

    def _problem(self) -> CoverProblem:
        return CoverProblem(self.found, self.scope.roots, self.scope.given)

    def _trimmed(self, picks: Sequence[Candidate]) -> list[Candidate]:
        """The kernels of a cover without stores that none of them reads."""
        read = self._read(picks)
        made = [[(o, t) for p in c.parts for o, t in p if o in read] for c in picks]
        return [
            c if c.outs <= read else self._at_price(self.candidates.candidate(m, c.kind))
            for c, m in zip(picks, made, strict=True)
        ]

    def _nearby(self, picks: Sequence[Candidate]) -> list[Candidate]:
        """The kernels of a cover, and any two of them that read one buffer as one."""
        pairs = [(c, d) for c, d in itertools.combinations(picks, 2) if c.buffers & d.buffers]
        made = ([m for c in pair for p in c.parts for m in p] for pair in pairs)
        found = (self.candidates.candidate(m, "nearby") for m in made)
        return [*picks, *(self._at_price(c) for c in found if self.candidates.ordered(c))]

    def _signature(self, picks: Sequence[Candidate]) -> tuple[object, ...]:
        """Per kernel the results and the kinds of scratch buffers that it stores, and its loops and states."""

        def stored(c: int) -> tuple[str, ...]:
            source = self.scope.source
            return (buffer_of(c),) if c in self.scope.roots else (source.dtype(c), *source.axes(c))

        return tuple(sorted((tuple(sorted(map(stored, c.outs))), c.cost.shape) for c in picks))

    def _needed(self, picks: Sequence[Candidate]) -> bool:
        """Whether all that the kernels store is read: else the cover is another one with stores that are left out."""
        read = self._read(picks)
        return all(c.outs <= read for c in picks)

    def _read(self, picks: Sequence[Candidate]) -> set[int]:
        return set(self.scope.roots).union(*(c.inputs for c in picks))

    def _unsound(self, picks: Sequence[Candidate]) -> list[Candidate]:
        """Those among which exponents that are to stay in range may not, or differences cancel less than as written."""
        made = {o: (n, t) for n, pick in enumerate(picks) for p in pick.parts for o, t in p}
        shifts = Shifts(made)

        def sound(terms: Sequence[Term]) -> bool:
            trusted = exponents(*terms) & self.fragments.trusted
            return (not trusted or Bounds(made).hold(terms, trusted)) and shifts.agree(terms)

        return [c for c in picks if not sound([t for p in c.parts for _, t in p])]

    def _coverable(self, found: Sequence[Candidate]) -> bool:
        have, size = set(self.scope.given), -1
        while len(have) > size:
            size = len(have)
            have.update(*(c.outs for c in found if c.inputs <= have))
        return have.issuperset(self.scope.roots)

    def _reasons(self, kernels: Sequence[Kernel]) -> Reasons:
        """Why the kernels' values are those of the roots as written; nothing where the graph has no history."""
        if not isinstance(self.scope.graph, Explained):
            return ()
        made = {c: t for kernel in kernels for part in kernel for c, t in part}
        picks = self.fragments.lineage.picks(made)
        written = self.scope.graph.trace.written
        return tuple((written[t], picks[c]) for c in self.scope.roots for t in self.scope.source.values_of(c))

    def _live(self, candidates: Sequence[Candidate]) -> set[int]:
        """Classes that a good cover by these candidates makes."""
        found = [*self.found, *candidates]
        problem = CoverProblem(found, self.scope.roots, self.scope.given)
        near = problem.greedy() or problem.best(self.deadline)
        return {o for i in near.picks for o in found[i].outs}

    def _at_price(self, c: Candidate) -> Candidate:
        if self.price is None:
            return c
        pricing = self.fragments.pricing
        form = Form("", pricing.extents, tuple(pricing.buffers.values()), ())
        us = self.price(self.candidates.kernel(c), form, c.cost)
        return c if us is None else replace(c, us=us)


@undisturbed
def forms(
    graph: EGraph,
    machine: Machine,
    k: int = 1,
    price: Price | None = None,
    ratio: Ratio | None = None,
    budget_s: float = 10.0,
    drop_rounds: bool = False,
    greedy: bool = False,
    beyond: Callable[[Form, float], float] | None = None,
) -> list[Form]:
    """Up to `k` forms with distinct signatures, the chosen one first, which does not depend on `k`, then the cheapest.

    `price` gives the time of a kernel in us where one is known, `ratio` by how much to correct the model's before there
    are kernels; `beyond` what a form takes besides its kernels' time, where that is known of some forms of the program.
    With `drop_rounds` (never under strict numerics) values that stay inside a kernel keep the precision of
    their arithmetic where eager operators round them. `budget_s` is seconds of this thread's own time, so that the load
    of the machine changes no choice.
    `greedy` takes the cheapest way to each value on its own, to compare with.

    `details` of a form hold its `signature`, what ran out of that time in `stop` (`candidates`: only few were looked
    for; `solver`), the `gap` to the best of the candidates that was not closed (None where only few were looked for: it
    is not known), its `sweeps`, and the `Cost` of each kernel by name in `kernels`; with a graph that is `Explained`
    also the `reasons` that it equals the program, whether they are all `traced` and, where some are left out,
    `dropped_rounds`.
    """
    deadline = time.thread_time() + budget_s

    def half() -> float:
        return (time.thread_time() + deadline) / 2  # the last region may use what the first ones leave

    source = Source(graph)
    places: list[Spelling] = []
    solved: dict[Text, tuple[Spelling, Region]] = {}
    speller = Speller(graph.program.axes, graph.program.buffers, roles=False)
    for cut in cuts(source):
        spelling = speller.region(source, cut)
        if spelling.text not in solved:
            region = Region(Scope(source, cut.roots, cut.given), machine, price, half(), greedy, ratio)
            solved[spelling.text] = spelling, region
        places.append(spelling)
    weights = Counter(place.text for place in places)

    def listed(k: int) -> list[Form]:
        """The cheapest cover's form, then others, the cheapest first."""
        found = {key: region.choices(k, half()) for key, (_, region) in solved.items()}
        ranked = []
        for picks in _best({key: [weights[key] * c.us for c in cs] for key, cs in found.items()}, k):
            kernels: list[Kernel] = []
            for spelling in places:
                first, own = solved[spelling.text][0], found[spelling.text][picks[spelling.text]].kernels
                kernels += own if spelling is first else Copy(source, first, spelling).kernels(own)
            chosen = [found[key][n] for key, n in picks.items()]
            form = Assembly(source, source.substitute.extents, kernels).form("")
            form = named(form, graph, tuple(r for c in chosen for r in c.reasons))
            if drop_rounds:
                form = without_rounds(form)
            details: dict[str, object] = {"signature": tuple(c.signature for c in chosen)}
            gaps = [c.gap for c in chosen if c.gap is not None]
            details |= {
                "gap": max(gaps) if len(gaps) == len(chosen) else None,
                "stop": tuple(sorted({s for c in chosen for s in c.stop})),
            }
            form = costed(form, machine, price, details)
            ranked.append(
                form if beyond is None else replace(form, cost_us=form.cost_us + beyond(form, form.cost_us))
            )
        return [ranked[0], *sorted(ranked[1:], key=_us)]

    if beyond is None:
        found = listed(k)
    else:
        best = min(known := listed(MEASURED), key=_us)
        others = known if k <= MEASURED else listed(k)
        signature = best.details["signature"]
        found = [best, *sorted((f for f in others if f.details["signature"] != signature), key=_us)][:k]
    return [replace(f, name=f"f{n}") for n, f in enumerate(found)]


def _us(form: Form) -> float:
    return form.cost_us


def _breadth(scope: Scope) -> Breadth:
    """How widely to look: more widely in a scope of few classes."""
    return Breadth(per_class=min(MOST, max(FEWEST, FRAGMENTS // len(scope.reachable))))


def _best(prices: Mapping[Text, Sequence[float]], k: int) -> Iterator[dict[Text, int]]:
    """The `k` cheapest ways to take one choice of each region, every list being sorted."""
    keys = list(prices)
    start = (0,) * len(keys)
    heap = [(sum(prices[key][0] for key in keys), start)]
    seen = {start}
    while heap and k > 0:
        us, picks = heapq.heappop(heap)
        yield dict(zip(keys, picks, strict=True))
        k -= 1
        for n, key in enumerate(keys):
            later = (*picks[:n], picks[n] + 1, *picks[n + 1 :])
            if later[n] < len(prices[key]) and later not in seen:
                seen.add(later)
                heapq.heappush(heap, (us + prices[key][later[n]] - prices[key][picks[n]], later))


def costed(form: Form, machine: Machine, price: Price | None, details: Mapping[str, object]) -> Form:
    """The form with the cost of its kernels, measured where it is known, and what stands behind it."""
    total = 0.0
    costs = _costs(form, machine)
    loops: dict[str, int] = {}
    for kernel in form.kernels:
        cost = costs[kernel.name]
        measured = price(kernel, form, cost) if price is not None else None
        total += cost.us if measured is None else measured
        for axis, n in cost.sweeps.items():
            loops[axis] = loops.get(axis, 0) + n
    known = {**form.details, **details, "sweeps": loops, "kernels": costs}
    return replace(form, cost_us=total, details=known)


def _costs(form: Form, machine: Machine) -> dict[str, Cost]:
    """The modelled cost of each kernel by name; kernels that are equal but for names are priced once."""
    speller = Speller(form.axes, form.buffers, roles=True)
    known: dict[Text, tuple[Spelling, Cost]] = {}
    costs: dict[str, Cost] = {}
    for kernel in form.kernels:
        spelling = speller.kernel(kernel)
        if spelling.text not in known:
            known[spelling.text] = spelling, kernel_cost(kernel, form, machine)
        first, cost = known[spelling.text]
        axis = dict(zip(first.axes, spelling.axes, strict=True))
        costs[kernel.name] = replace(cost, sweeps={axis[a]: n for a, n in cost.sweeps.items()})
    return costs


@undisturbed
def default_form(program: LoopProgram, machine: Machine, budget_s: float = 10.0) -> Form:
    """The form as written: the cover of the program's own terms, no law applied."""
    return replace(forms(saturate(program, phases=()), machine, budget_s=budget_s)[0], name="default")
