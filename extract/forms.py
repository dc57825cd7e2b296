"""The forms of a program, best first: candidate kernels, the cheapest covers, and one form per signature."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from egraph.graph import EGraph
from egraph.saturate import saturate
from extract.assembly import Assembly
from extract.candidates import Candidate, Candidates
from extract.cost import Cost, kernel_cost, sweeps
from extract.cover import Cover, CoverProblem
from extract.fragments import Breadth, Fragments
from extract.items import Scope
from extract.source import Source
from ir.loop import Form, KernelForm, LoopProgram
from ir.machine import Machine

Price = Callable[[KernelForm, Form], float | None]
NARROW, WIDE = Breadth(), Breadth(per_class=12, per_cut=1, slack=40.0)
NEAR_BEST = 3  # covers by simple candidates whose values siblings are sought among
NEAR_SECONDS = 1.0
TRIES = 6  # covers solved for each form asked for, since some differ by trivial moves


class Region:
    """The candidates of one scope, and its covers."""

    def __init__(self, scope: Scope, machine: Machine, breadth: Breadth, price: Price | None) -> None:
        self.scope = scope
        self.fragments = Fragments(scope, machine, breadth)
        self.candidates = Candidates(self.fragments)
        self.found = self.candidates.all(self._live)
        if price is not None:
            self.found = [self._priced(c, price) for c in self.found]
        self.problem = CoverProblem(self.found, scope.roots, scope.given)

    def _live(self, candidates: Sequence[Candidate]) -> set[int]:
        """Classes that near-best covers by these candidates make."""
        problem = CoverProblem(candidates, self.scope.roots, self.scope.given)
        near = itertools.islice(problem.covers(time.perf_counter() + NEAR_SECONDS), NEAR_BEST)
        return {o for cover in near for i in cover.picks for o in candidates[i].outs}

    def _priced(self, c: Candidate, price: Price) -> Candidate:
        pricing = self.fragments.pricing
        form = Form("", pricing.extents, tuple(pricing.buffers.values()), ())
        us = price(self.candidates.kernel(c), form)
        return c if us is None else replace(c, us=us)

    def signature(self, cover: Cover) -> object:
        """What is materialised, and how each kernel computes: covers with equal signatures differ by trivial moves."""
        return tuple(sorted((tuple(sorted(self.found[i].outs)), self.found[i].shape) for i in cover.picks))


def forms(
    graph: EGraph, machine: Machine, k: int = 1, price: Price | None = None, budget_s: float = 10.0
) -> list[Form]:
    """Up to `k` forms with distinct signatures, the cheapest first.

    `price` gives the measured time of a kernel in us where one is known. `details` of a form hold its `signature`,
    the `gap` to the best that was not closed in `budget_s`, and per kernel its cost.
    """
    deadline = time.perf_counter() + budget_s
    source = Source(graph)
    region = Region(Scope(source, graph.roots), machine, NARROW if k == 1 else WIDE, price)
    found: dict[object, Form] = {}
    for cover in itertools.islice(region.problem.covers(deadline), TRIES * k):
        signature = region.signature(cover)
        if signature not in found:
            kernels = [region.found[i].parts for i in cover.picks]
            form = Assembly(source, source.substitute.extents, kernels).form("")
            found[signature] = _costed(form, machine, price, signature, cover.gap)
        if len(found) == k:
            break
    ranked = sorted(found.values(), key=lambda f: f.cost_us)
    return [replace(f, name=f"f{n}") for n, f in enumerate(ranked)]


def _costed(form: Form, machine: Machine, price: Price | None, signature: object, gap: float) -> Form:
    """The form with the cost of its kernels, measured where it is known, and what stands behind it."""
    total = 0.0
    costs: dict[str, Cost] = {}
    loops: dict[str, int] = {}
    for kernel in form.kernels:
        cost = kernel_cost(kernel, form, machine)
        measured = price(kernel, form) if price is not None else None
        total += cost.us if measured is None else measured
        costs[kernel.name] = cost
        for axis, n in sweeps(kernel).items():
            loops[axis] = loops.get(axis, 0) + n
    details = {"signature": signature, "gap": gap, "sweeps": loops, "kernels": costs}
    return replace(form, cost_us=total, details=details)


def default_form(program: LoopProgram, machine: Machine) -> Form:
    """The form as written: the cover of the program's own terms, no law applied."""
    return replace(forms(saturate(program, phases=()), machine)[0], name="default")
