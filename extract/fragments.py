"""Fragments: the few best terms of every class down to buffers, as priority cuts choose them in technology mapping.

A class is a choice node: an operand is its buffer, where it may be materialised, or one of its fragments. Within a
kernel every class has one form. What is kept is bounded by two rankings: inputs paid in full, and inputs shared by
all their readers (Mishchenko et al., Combinational and sequential mapping with priority cuts, 2007).
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from egraph.graph import ENode
from extract.bounds import Bounds
from extract.build import node_term, stream
from extract.cost import Cost, Pricing
from extract.facts import buffers_read, open_states
from extract.items import Scope
from extract.lineage import Lineage
from extract.source import buffer_of, class_read
from extract.streams import merged
from extract.work import EXPONENTIALS
from ir import term as T
from ir.loop import Part, Store
from ir.machine import Machine
from ir.node import postorder
from ir.term import Term

UNKNOWN_US = 1e3


@dataclass(frozen=True)
class Breadth:
    """How many fragments are kept: per class and ranking, per set of inputs; how far from the best; leaves of one.

    Terms that differ in loops and contractions are kept beside cheaper ones with the same inputs, in turns. `bounded`
    keeps of values whose exp is to stay in range those alone where it does whoever makes what they read.
    """

    per_class: int = 9
    per_cut: int = 2
    leaves: int = 10
    product: int = 400
    slack: float = 40.0
    bounded: bool = False


def exponents(*terms: Term) -> set[Term]:
    """The arguments of the exponentials in the terms."""
    return {t.x for t in postorder(*terms) if isinstance(t, T.Unary) and t.op in EXPONENTIALS}


LATE = Breadth(per_class=1, per_cut=1, product=4)  # when the time is up
Choice = Mapping[int, Term]
NO_CHOICE: Choice = {}


class Fragments:
    """The fragments of the classes of a scope, with their modelled times as kernels of their own."""

    def __init__(
        self,
        scope: Scope,
        machine: Machine,
        breadth: Breadth,
        deadline: float = math.inf,
        lineage: Lineage | None = None,
        ratio: Callable[[Sequence[Term], Cost], float | None] | None = None,
    ) -> None:
        self.scope, self.source, self.graph, self.breadth = scope, scope.source, scope.graph, breadth
        self.substitute = scope.source.substitute
        buffers = {b.name: b for b in self.graph.program.buffers}
        buffers |= {buffer_of(c): scope.source.scratch(c) for c in sorted(scope.items)}
        self.late = False  # whether the time ran out, so that few are kept
        self.risky: set[Term] = set()
        self.trusted: set[Term] = set()
        self.pricing = Pricing(self.substitute.extents, buffers, machine, lambda t: t not in self.risky)
        self.choice: dict[Term, Choice] = {}
        self.class_of: dict[Term, int] = {}
        self.lineage, self.ratio = lineage or Lineage(self.graph), ratio
        self._known: dict[int, list[Term]] = {}
        self._in_range: dict[int, bool] = {}
        self._busy: set[int] = set()
        self._plains: dict[int, Term] = {}
        self._costs: dict[Term, Cost] = {}
        self._flow: dict[int, float] = {}
        for c in scope.reachable:
            if time.thread_time() > deadline:
                self.breadth, self.late = replace(LATE, bounded=breadth.bounded), True
            self.of(c)

    # ---- prices

    def cost(self, t: Term) -> Cost:
        """The modelled cost of a kernel that stores `t` alone."""
        if t not in self._costs:
            axes = tuple(sorted(t.free))
            part = Part(axes, (Store("", tuple(map(T.Index, axes)), t),))
            self._costs[t] = self.pricing.cost(merged([part]))
        return self._costs[t]

    def us(self, t: Term) -> float:
        """The modelled time of a kernel that stores `t` alone."""
        return self.corrected([t], self.cost(t))

    def corrected(self, terms: Sequence[Term], cost: Cost) -> float:
        """The modelled time of a kernel that stores the terms, as far as measured ones of its family correct it."""
        ratio = self.ratio(terms, cost) if self.ratio is not None else None
        return cost.us if ratio is None else ratio * cost.us

    def inputs(self, t: Term) -> list[int]:
        """Classes whose buffers `t` reads."""
        return sorted(c for b in buffers_read(t) if (c := class_read(b)) >= 0)

    def rank(self, t: Term, share: bool) -> float:
        """The time of `t` with the time to have its inputs, shared by their readers or paid in full."""
        fan = self.source.fan
        return self.us(t) + sum(self.flow(c) / (fan.get(c, 1) if share else 1) for c in self.inputs(t))

    def flow(self, c: int) -> float:
        """An estimate of the time to have a class in its buffer, shared by its readers."""
        if c in self.scope.given:
            return 0.0
        if c not in self._flow:
            self._flow[c] = UNKNOWN_US
            self._flow[c] = min((self.rank(t, True) for t in self.closed(c)), default=UNKNOWN_US)
        return self._flow[c]

    # ---- fragments

    def closed(self, c: int) -> list[Term]:
        """Fragments that can be a kernel: no state is read that they do not carry."""
        return [t for t in self.of(c) if not open_states(t)]

    def of(self, c: int) -> list[Term]:
        """The kept fragments of a class, best first; none where the class is being worked on or is a border."""
        if c in self._known:
            return self._known[c]
        if c in self._busy or c in self.scope.given:
            return []
        self._busy.add(c)
        found = list(dict.fromkeys(t for n in self.source.nodes(c) for t in self._of_node(c, n)))
        for axis in self.source.swept_by(c):
            found += self._streams_of(axis, c)
        if self.breadth.bounded and self._stays(c):
            found = [t for t in found if open_states(t) or Bounds({}).hold([t], [t])] or found
        self._busy.discard(c)
        kept = self._best(found)
        if self.late and not kept and (plain := self._plain(c)) is not None:
            kept = [plain]
        for t in kept:
            self._keep(c, t)
        if kept or not self._busy:
            self._known[c] = kept
        return kept

    def _keep(self, c: int, t: Term) -> None:
        self.class_of.setdefault(t, c)
        if c in self.scope.items or self.source.fan.get(c, 1) > 1:
            self.choice[t] = {**self.choice.get(t, NO_CHOICE), c: t}

    def _plain(self, c: int) -> Term | None:
        """The class over the buffers of all that may have one, so that no two operands choose other forms of a class.

        Nothing where it is made by a stream alone, or through itself.
        """
        if c in self._plains or c in self._busy:
            return self._plains.get(c)
        self._busy.add(c)
        for n in self.source.nodes(c):
            kids = [self._read(k) or self._plain(k) for k in n.children]
            whole = [k for k in kids if k is not None]
            chosen = self._agreed(whole)
            if n.op == "Prefix" or len(whole) < len(kids) or chosen is None:
                continue
            if (t := self._built(c, n, whole)) is not None:
                self.choice.setdefault(t, chosen)
                self.lineage.node(c, t, n, whole)
                self._keep(c, t)
                self._plains[c] = t
                break
        self._busy.discard(c)
        return self._plains.get(c)

    def _read(self, c: int) -> Term | None:
        """The buffer of a class that may have one."""
        if c not in self.scope.given and c not in self.scope.items:
            return None
        read = self.source.load(c)
        self.choice.setdefault(read, {c: read})
        return read

    def uses(self, c: int) -> list[Term]:
        """What a reader of the class can take: its buffer and its fragments."""
        inlined = self.of(c)
        if c not in self.scope.given and all(open_states(t) for t in inlined):
            return inlined
        read = self._read(c)
        return inlined if read is None else [read, *inlined]

    def _of_node(self, c: int, n: ENode) -> Iterator[Term]:
        if n.op == "Prefix":
            (below,) = n.children
            axis = str(n.payload[1])
            if axis in self.source.swept_by(below):
                state = T.State(f"s{below}", self.graph.dtype[below], tuple(sorted(self.graph.free[below])))
                self.lineage.node(c, state, n, ())
                yield state
            return
        options = [self.uses(k) for k in n.children]
        if n.op == "Load":
            options = [o[:2] for o in options]
        for kids in _first(options, self.breadth.product):
            chosen = self._agreed(kids)
            t = None if chosen is None else self._built(c, n, kids)
            if t is not None and chosen is not None:
                self.choice.setdefault(t, chosen)
                self.lineage.node(c, t, n, kids)
                yield t

    def _built(self, c: int, n: ENode, kids: Sequence[Term]) -> Term | None:
        if n.op == "At":
            index, x = kids
            t = self.substitute(x, str(n.payload[0]), index)
            if t is not None and t is not x:
                self._keep_risks(x, t)
            return t
        t = node_term(n, kids)
        if n.op == "Unary" and n.payload[0] in EXPONENTIALS:
            as_written = (c, str(n.payload[0]), n.children) in self.source.written
            if self._stays(n.children[0]):
                self.trusted.add(kids[0])
            elif not as_written:
                self.risky.add(kids[0])
        return t

    def _stays(self, c: int) -> bool:
        """Whether an exponent of this class is to stay in range: the graph says so, or its term as it is written."""
        if c not in self._in_range:
            written = self.source.terms.get(c)
            self._in_range[c] = c in self.graph.safe or (written is not None and Bounds({}).safe(written))
        return self._in_range[c]

    def _keep_risks(self, before: Term, after: Term) -> None:
        old, new = exponents(before), exponents(after)
        if not old.isdisjoint(self.risky):
            self.risky.update(new)
        elif old and old <= self.trusted:
            self.trusted.update(new)

    def _agreed(self, kids: Sequence[Term]) -> Choice | None:
        """The forms that the operands chose for classes, or None where two of them differ."""
        merged: dict[int, Term] = {}
        for kid in kids:
            for c, form in self.choice.get(kid, NO_CHOICE).items():
                if merged.setdefault(c, form) is not form:
                    return None
        return merged

    # ---- streams

    def _streams_of(self, axis: str, c: int) -> Iterator[Term]:
        """Sweeps over `axis` that carry the class and every state its update reads."""
        for update in self.of(self.graph.new[axis, c]):
            updates = {c: update}
            chosen: dict[int, Term] | None = dict(self.choice.get(update, NO_CHOICE))
            todo = [update]
            while todo and chosen is not None:
                for x in self._states(todo.pop(), axis):
                    if x not in updates and chosen is not None:
                        chosen = self._add_state(x, axis, updates, chosen)
                        todo.append(updates.get(x, update))
            if chosen is not None:
                t = stream(axis, c, {x: (self._monoid(x, axis), updates[x]) for x in sorted(updates)})
                if not t.free <= self.graph.free[c]:
                    continue  # a state has an axis that the result lacks: one loop cannot carry both
                self.choice.setdefault(t, chosen)
                self.lineage.sweep(c, t, axis, updates)
                yield t

    def _states(self, t: Term, axis: str) -> list[int]:
        """Classes of the open states of `t` that are carried along `axis`."""
        classes = sorted(int(name[1:]) for name in open_states(t) if name[1:].isdigit())
        return [x for x in classes if axis in self.source.swept_by(x)]

    def _add_state(
        self, x: int, axis: str, updates: dict[int, Term], chosen: dict[int, Term]
    ) -> dict[int, Term] | None:
        """Choose the update of another state so that it fits what is chosen; None where nothing fits."""
        read = frozenset[str]().union(*map(buffers_read, updates.values()))
        fitting = [
            f
            for f in self.of(self.graph.new[axis, x])
            if all(chosen.get(k, form) is form for k, form in self.choice.get(f, NO_CHOICE).items())
        ]
        if not fitting:
            return None

        def price(f: Term) -> tuple[int, int, float, str]:
            more = {*self._states(f, axis)} - {x, *updates}
            return len(buffers_read(f) - read), len(more), self.us(f), f.digest

        best = min(fitting, key=price)
        updates[x] = best
        return {**chosen, **self.choice.get(best, NO_CHOICE)}

    def _monoid(self, c: int, axis: str) -> str:
        return next(str(n.payload[-1]) for n in self.graph.classes[c] if n.op == "Fold" and axis in n.payload[:-1])

    # ---- what is kept

    def _best(self, found: Sequence[Term]) -> list[Term]:
        found = [*dict.fromkeys(found)]
        if len(found) == 1:  # what it costs is asked where it is a kernel
            return [t for t in found if len(buffers_read(t)) <= self.breadth.leaves]
        cuts: dict[object, list[tuple[float, str, Term]]] = defaultdict(list)
        for t in found:
            if len(buffers_read(t)) <= self.breadth.leaves:
                cuts[buffers_read(t), open_states(t), self.cost(t).shape].append((self.us(t), t.digest, t))
        few = [t for cut in cuts.values() for _, _, t in sorted(cut)[: self.breadth.per_cut]]
        kept: dict[Term, None] = {}
        for share in (False, True):
            taken = 0
            for t in self._ranked(few, share):
                if taken == self.breadth.per_class:
                    break
                if not any(self._dominates(k, t) for k in kept):
                    kept[t] = None
                    taken += 1
        return list(kept)

    def _ranked(self, few: Sequence[Term], share: bool) -> list[Term]:
        """Terms not too far from the best, the best first, one of each set of inputs and shape in turns."""
        ranked = sorted((self.rank(t, share), t.digest, t) for t in few)
        near = [t for rank, _, t in ranked if rank <= self.breadth.slack * ranked[0][0]]
        turns: Counter[object] = Counter()
        turn: dict[Term, int] = {}
        for t in near:
            kind = buffers_read(t), self.cost(t).shape
            turn[t] = turns[kind]
            turns[kind] += 1
        return sorted(near, key=turn.__getitem__)

    def _dominates(self, k: Term, t: Term) -> bool:
        fewer = buffers_read(k) < buffers_read(t) and open_states(k) == open_states(t)
        return fewer and self.us(k) <= self.us(t)


def _first(options: Sequence[Sequence[Term]], most: int) -> Iterator[tuple[Term, ...]]:
    """Ways to take one of each, best first, those of good ones first where there are too many."""
    if math.prod(map(len, options)) <= most:
        return itertools.product(*options)
    places = sorted(itertools.product(*map(range, map(len, options))), key=sum)
    return (tuple(o[k] for o, k in zip(options, place, strict=True)) for place in places[:most])
