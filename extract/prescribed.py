"""A form whose kernels are prescribed by what they store: the cheapest one that makes exactly these values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence

from egraph.graph import EGraph
from extract.assembly import Assembly, Kernel
from extract.candidates import Candidate
from extract.forms import Region, costed
from extract.items import Scope
from extract.source import ExtractError, Source
from ir.loop import Form
from ir.machine import Machine
from ir.term import Term


def prescribed(graph: EGraph, machine: Machine, groups: Sequence[Collection[Term]]) -> Form:
    """The cheapest form with one kernel a group, which stores these terms of the program and reads earlier ones.

    Raises `ExtractError` where no kernel makes a group.
    """
    source = Source(graph)
    made: set[int] = set()
    kernels: list[Kernel] = []
    for group in groups:
        roots = frozenset(graph.class_of[t] for t in group) - made
        region = Region(Scope(source, roots, made), machine, None, math.inf)
        fits = [c for c in _candidates(region, roots) if c.outs == roots and c.inputs <= made]
        if not fits:
            raise ExtractError(f"no kernel makes classes {sorted(roots)} from {len(made)} that were made before")
        kernels.append(min(fits, key=lambda c: c.us).parts)
        made |= roots
    form = Assembly(source, source.substitute.extents, kernels).form("prescribed")
    return costed(form, machine, None, {})


def _candidates(region: Region, roots: Collection[int]) -> Iterator[Candidate]:
    """What was found, and the terms of all roots side by side."""
    yield from region.found
    if len(roots) > 1:
        ways = [[(c, t) for t in region.fragments.closed(c)] for c in sorted(roots)]
        for made in itertools.islice(itertools.product(*ways), region.fragments.breadth.product):
            yield region.candidates.candidate(made, "siblings")
