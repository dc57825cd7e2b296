"""How the rows of a saturated graph came to be: for each the cheapest match of a rule that makes it, down to what was
written.

A row is a node with its class, or a fact. A match needs rows and makes rows; the cheapest way to have a row weighs the
laws behind it by their class. Where a class has several origins - terms written apart, or made apart - that a law has
put together, a chain of matches joins one to another.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from egraph.law import LAW_CLASSES
from egraph.laws import LAWS
from egraph.matches import Rule, Sexp

Value = int | str | frozenset[str]
Key = tuple[str, tuple[Value, ...]]
"""A row: the name of its table and its arguments. Classes are egglog's own, as numbers."""
AXIOMS = frozenset(("free", "folded", "dtype", "state", "kind", "written", "slot", "axes_named"))
_WEIGHT = {name: 1 << k for k, name in enumerate(LAW_CLASSES)}


@dataclass(frozen=True)
class Match:
    """One match of a rule."""

    rule: Rule
    bound: Mapping[str, Value]
    needs: tuple[Key, ...]
    makes: tuple[Key, ...]
    joins: tuple[tuple[Key, Sexp], ...]
    """Rows of a class that the rule unites with another expression."""


@dataclass(frozen=True)
class Tables:
    """The rows of a graph: the class of every node, and the nodes of the terms as written with those below them."""

    outputs: Mapping[Key, Value]
    sorts: Mapping[str, tuple[str, ...]]
    written: Mapping[Key, tuple[Key | None, ...]]
    stated: frozenset[Key]
    """Facts that the program states."""
    made: set[Key] = field(default_factory=set)
    """Rows that some match makes."""

    def value(self, e: Sexp, bound: Mapping[str, Value]) -> Value:
        """An expression under a match."""
        if isinstance(e, str):
            if e in bound:
                return bound[e]
            return e[1:-1] if e[0] == '"' else int(e)
        if e[0] in self.sorts:
            return self.outputs[self.key(e, bound)]
        args = [self.value(a, bound) for a in e[1:]]
        sets = [a if isinstance(a, frozenset) else frozenset((str(a),)) for a in args]
        match e[0]:
            case "set-remove" | "set-diff":
                return sets[0] - sets[1]
            case "set-get":
                return sorted(sets[0])[int(str(args[1]))]
        return frozenset[str]().union(*sets)

    def key(self, e: Sexp, bound: Mapping[str, Value]) -> Key:
        """The row of an expression under a match."""
        return str(e[0]), tuple(self.value(a, bound) for a in e[1:])


@dataclass
class History:
    """The matches of all rules over the rows of a graph."""

    tables: Tables
    matches: tuple[Match, ...]
    chosen: dict[Key, Match] = field(default_factory=dict)
    order: dict[Key, int] = field(default_factory=dict)
    support: dict[Key, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Choose for each row the match that needs the least, by the shortest paths of a hypergraph (Knuth 1977)."""
        waiting: dict[Key, list[int]] = defaultdict(list)
        count = []
        queue: list[tuple[int, int, int, int]] = []
        self.tables.made.update(k for m in self.matches for k in m.makes)
        for n, m in enumerate(self.matches):
            needed = {k for k in m.needs if not self._given(k)}
            count.append(len(needed))
            for k in needed:
                waiting[k].append(n)
            if not needed:
                self._push(queue, n)
        while queue:
            *_, n = heapq.heappop(queue)
            m = self.matches[n]
            laws = self._laws(m)
            for k in m.makes:
                if k in self.chosen or self._given(k):
                    continue
                self.chosen[k], self.support[k], self.order[k] = m, laws, 1 + len(self.order)
                for other in waiting[k]:
                    count[other] -= 1
                    if not count[other]:
                        self._push(queue, other)

    def _push(self, queue: list[tuple[int, int, int, int]], n: int) -> None:
        m = self.matches[n]
        laws = self._laws(m)
        depth = max((self.order.get(k, 0) for k in m.needs), default=0)
        heapq.heappush(queue, (sum(_WEIGHT[LAWS[x].class_] for x in laws), len(laws), depth, n))

    def _laws(self, m: Match) -> frozenset[str]:
        own = frozenset((m.rule.law,)) if m.rule.law else frozenset[str]()
        return own.union(*(self.support.get(k, frozenset()) for k in m.needs))

    # ---- where a row's operands come from

    def operand(self, k: Key, at: int) -> Key | None:
        """The node that argument `at` of a row was when the row was made; None where that is not known."""
        if k in self.tables.written:
            return self.tables.written[k][at]
        m = self.chosen.get(k)
        if m is None:
            return None
        e = next(e for e in _rows(m.rule.makes, self.tables) if self.tables.key(e, m.bound) == k)
        return self.node_of(e[at + 1], m)

    def node_of(self, e: Sexp, m: Match) -> Key | None:
        """The node that an expression of a rule stood for in a match."""
        if not isinstance(e, str):
            return self.tables.key(e, m.bound)
        for need, out in m.rule.needs:
            if out == e:
                return self.tables.key(need, m.bound)
        for need, _ in m.rule.needs:
            if e in need[1:] and need[0] not in AXIOMS:
                return self.operand(self.tables.key(need, m.bound), need[1:].index(e))
        return None

    def origin(self, k: Key) -> Key:
        """The first node of the class on the way to `k`: a written one, or one that was made inside another."""
        seen = {k}
        while k in self.chosen:
            before = next((left for left, right in self.chosen[k].joins if self._is(right, k)), None)
            if before is None or before in seen:
                return k
            seen.add(before)
            k = before
        return k

    def _is(self, e: Sexp, k: Key) -> bool:
        m = self.chosen[k]
        return not isinstance(e, str) and self.tables.key(e, m.bound) == k

    # ---- what a row needed

    @cached_property
    def edges(self) -> Mapping[Key, list[tuple[Key, Match]]]:
        """Matches that join one origin of a class to another."""
        edges: dict[Key, list[tuple[Key, Match]]] = defaultdict(list)
        for m in self.matches:
            for left, right in m.joins:
                other = self.node_of(right, m)
                if other is not None:
                    a, b = self.origin(left), self.origin(other)
                    if a != b:
                        edges[a].append((b, m))
                        edges[b].append((a, m))
        return edges

    def path(self, start: Key, end: Key) -> list[Match] | None:
        """The matches that join two origins of a class, those that weigh least; None where no chain is known."""
        queue: list[tuple[int, int, Key, tuple[Match, ...]]] = [(0, 0, start, ())]
        done: set[Key] = set()
        tick = 0
        while queue:
            weight, _, k, way = heapq.heappop(queue)
            if k == end:
                return list(way)
            if k in done:
                continue
            done.add(k)
            for other, m in self.edges.get(k, ()):
                tick += 1
                more = sum(_WEIGHT[LAWS[x].class_] for x in self._laws(m)) + 1
                heapq.heappush(queue, (weight + more, tick, other, (*way, m)))
        return None

    def needed(self, wanted: Iterable[tuple[Key | None, Key]]) -> tuple[list[Match], bool]:
        """All matches behind rows, earlier ones first, and whether they give all of them.

        Each row is wanted in place of another of its class, or of none.
        """
        whole = True
        found: dict[int, Match] = {}
        stack = list(wanted)
        seen: set[tuple[Key | None, Key]] = set()
        while stack:
            place = stack.pop()
            if place in seen:
                continue
            seen.add(place)
            before, k = place
            more = [self.chosen[k]] if k in self.chosen else []
            whole = whole and bool(more or self._given(k))
            if before is not None and (a := self.origin(before)) != (b := self.origin(k)):
                way = self.path(a, b)
                whole = whole and way is not None
                more += way or []
            for m in more:
                found[id(m)] = m
                stack += self._wanted(m)
        steps = sorted(found.values(), key=lambda m: max((self.order.get(k, 0) for k in m.needs), default=0))
        return steps, whole

    def _given(self, k: Key) -> bool:
        """Whether a row needs no match: it was written, or is a fact that the program states."""
        return k in self.tables.written or k in self.tables.stated or k not in self.tables.made

    def _wanted(self, m: Match) -> Iterator[tuple[Key | None, Key]]:
        """The rows that a match needs, and for what stands in several of them that it is one class there."""
        stands: dict[Sexp, Key] = {}
        for e, out in m.rule.needs:
            if e[0] in AXIOMS:
                continue
            k = self.tables.key(e, m.bound)
            yield None, k
            places: list[tuple[Sexp | None, Key | None]] = [(out, k), (e, k)]
            sorts = self.tables.sorts[str(e[0])]
            places += [(a, self.operand(k, at)) for at, a in enumerate(e[1:]) if sorts[at] == "E"]
            for x, n in places:
                if x is not None and n is not None and stands.setdefault(x, n) != n:
                    yield stands[x], n


def _rows(makes: Iterable[Sexp], tables: Tables) -> Iterator[tuple[Sexp, ...]]:
    return (e for e in makes if not isinstance(e, str) and e[0] in tables.sorts)
