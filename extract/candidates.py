"""Candidate kernels: a fragment stored; a fragment with values met on the way stored too; siblings laid side by side."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from extract.cost import Cost
from extract.facts import buffers_read, product, size
from extract.fragments import Fragments
from extract.streams import merged
from ir import term as T
from ir.loop import KernelForm, Part
from ir.node import postorder
from ir.term import Term

MOST_SIBLINGS = 8
MOST_GROUPED = 5  # siblings among which every pair is tried too
MOST_ALSO = 2  # values met on the way that one kernel stores besides its own
Made = tuple[tuple[int, Term], ...]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A kernel: in every part (class, term) pairs that share their axes. `inputs` are the classes that it reads."""

    parts: tuple[Made, ...]
    inputs: frozenset[int]
    us: float
    cost: Cost
    kind: str

    @cached_property
    def outs(self) -> frozenset[int]:
        """Classes that it stores."""
        return frozenset(c for p in self.parts for c, _ in p)

    @cached_property
    def buffers(self) -> frozenset[str]:
        """Buffers that it reads."""
        return frozenset[str]().union(*(buffers_read(t) for p in self.parts for _, t in p))


class Candidates:
    """All candidate kernels of a scope, in one order with `others` of it."""

    def __init__(self, fragments: Fragments, others: Candidates | None = None) -> None:
        self.fragments, self.scope, self.source = fragments, fragments.scope, fragments.source
        self.needed = self._reached()
        self.reads = {c: {x for t in ts for x in fragments.inputs(t)} for c, ts in self.needed.items()}
        for c, read in others.reads.items() if others else ():
            self.reads[c] = self.reads.get(c, set()) | read
        self.ranks = self._ranks()
        results = zip(self.source.graph.roots, self.source.results, strict=True)
        inputs = {b.name for b in self.source.graph.program.buffers if b.role == "input"}
        self.overwrites = frozenset((c, s.buffer) for c, s in results if s.buffer in inputs)

    def candidate(self, made: Iterable[tuple[int, Term]], kind: str) -> Candidate:
        """A kernel that makes these values, those with equal axes in one part."""
        parts: dict[frozenset[str], list[tuple[int, Term]]] = defaultdict(list)
        for c, t in made:
            parts[frozenset(self.source.store_axes(c))].append((c, t))
        listed = [parts[axes] for axes in sorted(parts, key=sorted)]
        inputs = frozenset(c for p in listed for _, t in p for c in self.fragments.inputs(t))
        cost = self.fragments.pricing.cost(self._parts(listed))
        us = self.fragments.corrected([t for p in listed for _, t in p], cost)
        return Candidate(tuple(map(tuple, listed)), inputs, us, cost, kind)

    def _parts(self, parts: Sequence[Sequence[tuple[int, Term]]]) -> tuple[Part, ...]:
        stores = [[s for c, t in made for s in self.source.stores(c, t)] for made in parts]
        axes = [self.source.store_axes(made[0][0]) for made in parts]
        return merged([Part(a, tuple(s)) for a, s in zip(axes, stores, strict=True)])

    def kernel(self, c: Candidate) -> KernelForm:
        """The candidate as a kernel over the buffers of the program and of the classes."""
        return KernelForm("kernel", self._parts(c.parts))

    def singles(self) -> list[Candidate]:
        """One kernel per needed class and fragment."""
        return [self.candidate([(c, t)], "single") for c, ts in sorted(self.needed.items()) for t in ts]

    def all(self, live: Callable[[Sequence[Candidate]], Iterable[int]]) -> list[Candidate]:
        """Every candidate; `live` says which classes near-best covers by simpler candidates make."""
        found = self.singles()
        for single in list(found):
            found += self._also(single)
        found = undominated(c for c in found if self.ordered(c))
        found += self._siblings(found, frozenset(live(found)))
        return undominated(found)

    # ---- order

    def _reached(self) -> dict[int, list[Term]]:
        """Closed fragments of the classes that covers of the roots may need."""
        needed: dict[int, list[Term]] = {}
        stack = sorted(self.scope.roots)
        while stack:
            c = stack.pop()
            if c not in needed and c not in self.scope.given:
                needed[c] = self.fragments.closed(c)
                stack += [x for t in needed[c] for x in self.fragments.inputs(t)]
        return needed

    def _ranks(self) -> dict[int, int]:
        """Per class, the number of classes below it: several outputs must all rank above all inputs (no cycles)."""
        below: dict[int, set[int]] = {}
        for start in sorted(self.reads):
            seen: set[int] = set()
            stack = list(self.reads[start])
            while stack:
                c = stack.pop()
                if c not in seen:
                    seen.add(c)
                    stack += self.reads.get(c, ())
            below[start] = seen
        return {c: len(b) for c, b in below.items()}

    def ordered(self, c: Candidate) -> bool:
        """Whether what it makes all comes after what it reads, and no part writes over what another one reads."""
        if c.inputs & c.outs:
            return False
        if len(c.parts) > 1 and any(o in c.outs and b in c.buffers for o, b in self.overwrites):
            return False
        highest = max((self.ranks.get(x, -1) for x in c.inputs), default=-1)
        return len(c.outs) == 1 or highest < min(self.ranks[o] for o in c.outs)

    # ---- several outputs

    def _also(self, single: Candidate) -> list[Candidate]:
        """Values that a fragment computes on the way and that others read, stored as well."""
        ((c, t),) = single.parts[0]
        axes = frozenset(self.source.store_axes(c))
        met: dict[int, Term] = {}
        for x in postorder(t):
            k = self.fragments.class_of.get(x)
            if k is None or k == c or k not in self.needed or isinstance(x, T.Load):
                continue
            if x.free == axes == frozenset(self.source.store_axes(k)) and self._wanted(k):
                met.setdefault(k, x)
        groups = [g for n in range(1, MOST_ALSO + 1) for g in itertools.combinations(sorted(met.items()), n)]
        return [self.candidate([(c, t), *g], "also") for g in groups]

    def _wanted(self, c: int) -> bool:
        return self.source.fan.get(c, 1) > 1 or c in self.scope.roots

    def _siblings(self, found: Sequence[Candidate], live: frozenset[int]) -> list[Candidate]:
        """Kernels laid side by side that have a contraction operand in common, or a buffer and all axes or no folds."""
        buckets = self._buckets(found)
        wishes: tuple[Callable[[Candidate], tuple[float, float]], ...] = (
            lambda c: (float(c.outs <= live), -c.us),
            lambda c: (-len(c.inputs), _extent_of_terms(c)),
            lambda c: (-len(c.inputs), -_extent_of_terms(c)),
        )
        done: set[tuple[int, ...]] = set()
        out: list[Candidate] = []
        number = {c: k for k, c in enumerate(found)}
        for bucket in buckets:
            keys = sorted(bucket)
            groups = [keys, [k for k in keys if any(c.outs <= live for c in bucket[k])]]
            if 2 < len(keys) <= MOST_GROUPED:
                groups += [list(g) for g in itertools.combinations(keys, 2)]
            groups = [g for g in groups if len(g) <= MOST_SIBLINGS]
            for group, wish in itertools.product(groups, wishes):
                picks = sorted({number[max(bucket[k], key=wish)] for k in group})
                outs = [o for k in picks for o in found[k].outs]
                if len(outs) < 2 or len(set(outs)) < len(outs) or tuple(picks) in done:
                    continue
                done.add(tuple(picks))
                joined = self.candidate([m for k in picks for p in found[k].parts for m in p], "siblings")
                if self.ordered(joined):
                    out.append(joined)
        return out

    def _buckets(self, found: Sequence[Candidate]) -> list[dict[str, list[Candidate]]]:
        """Groups of what is shared: per shared operand or buffer, the candidates of each contraction or class."""
        shared: dict[tuple[str, ...], dict[str, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
        for c in found:
            if c.kind != "single":
                continue
            ((out, t),) = c.parts[0]
            axes = ",".join(self.source.store_axes(out))
            folds = [x for x in postorder(t) if isinstance(x, T.Fold | T.Stream | T.Scan)]
            for x in folds:
                factors = product(x)
                if isinstance(x, T.Fold) and factors is not None:
                    for operand in factors[:2]:
                        shared["operand", operand.digest][str(self.fragments.class_of.get(x, x.digest))].append(c)
            for buffer in buffers_read(t):
                shared["buffer", buffer, axes][f"{out:08d}"].append(c)
                if not folds:
                    shared["buffer", buffer][f"{out:08d}"].append(c)
        return [b for _, b in sorted(shared.items()) if len(b) > 1]


def _extent_of_terms(c: Candidate) -> int:
    return sum(size(t) for p in c.parts for _, t in p)


def undominated(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Candidates less those with an equal in outputs and shape, no dearer and with no more inputs."""
    kept: list[Candidate] = []
    by: dict[object, list[Candidate]] = defaultdict(list)
    for c in sorted(candidates, key=lambda c: (c.us, len(c.inputs), sorted(c.outs), _text(c))):
        same = by[c.outs, c.cost.shape]
        if not any(k.inputs <= c.inputs for k in same):
            same.append(c)
            kept.append(c)
    return kept


def _text(c: Candidate) -> list[str]:
    return [t.digest for p in c.parts for _, t in p]
