"""Why a chosen way to compute a program is equal to the program as written: the matches of laws behind its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from egraph.encode import WHOLE
from egraph.graph import EGraph, ENode
from egraph.history import History, Key, Match
from egraph.laws import LAWS
from ir.term import Term

WRITTEN, DEMAND = "written", "demand"
PHASE = {"norm": 0, "split": 1, "hoist": 1, "online": 2, "mark": 2, "push": 2}
EXPONENTIALS = ("exp", "exp2")


@dataclass(frozen=True, eq=False)
class Pick:
    """A class and the node that makes it, with the picks of its operands; a sweep over `axis` has its states' instead.

    A state that is read inside its own sweep is picked as the node `Old` with no operands.
    """

    cls: int
    node: ENode | None
    kids: tuple[Pick, ...] = ()
    axis: str = ""
    updates: tuple[tuple[int, Pick], ...] = ()


@dataclass(frozen=True)
class Row:
    """A node of the graph as a row of egglog's: its key, and which argument each child is."""

    key: Key
    places: tuple[int, ...]


@dataclass(frozen=True)
class Trace:
    """The nodes of an `EGraph` as rows with a history; `ids` are its classes there, `written` the rows of terms."""

    history: History
    rows: Mapping[tuple[int, ENode], tuple[Row, ...]]
    ids: Mapping[int, tuple[int, ...]]
    written: Mapping[Term, Key]

    def origin(self, cls: int, node: ENode) -> str:
        """The law that first made a node, `written`, or `demand` where a law asked for it and made it later."""
        keys = [row.key for row in self.rows[cls, node]]
        if any(k in self.history.tables.written for k in keys):
            return WRITTEN
        k = min(keys, key=lambda k: self.history.order.get(k, 1 << 60))
        return (self.history.chosen[k].rule.law if k in self.history.chosen else "") or DEMAND

    def joins(self) -> dict[int, tuple[str, ...]]:
        """Per class the laws that put together what was made apart."""
        of = {i: c for c, ids in self.ids.items() for i in ids}
        found: dict[int, set[str]] = {}
        for k, edges in self.history.edges.items():
            c = of.get(int(str(self.history.tables.outputs[k])))
            if c is not None:
                found.setdefault(c, set()).update(m.rule.law for _, m in edges if m.rule.law)
        return {c: tuple(sorted(names)) for c, names in sorted(found.items()) if names}

    def matches(self, roots: Iterable[tuple[Key | None, Pick]]) -> tuple[list[Match], bool]:
        """The matches behind picks, each in place of a written node, earlier ones first; whether they give all."""
        return self.history.needed(self._wanted(roots))

    def _wanted(self, roots: Iterable[tuple[Key | None, Pick]]) -> Iterator[tuple[Key | None, Key]]:
        stack = list(roots)
        seen: set[tuple[Key | None, int]] = set()
        while stack:
            before, pick = stack.pop()
            before = self._plain(before)
            if (before, id(pick)) in seen:
                continue
            seen.add((before, id(pick)))
            if pick.node is None:
                yield from self._swept(before, pick, stack) if pick.axis else self._given(before, pick.cls)
                continue
            row = self._row(before, pick.cls, pick.node)
            yield before, row.key
            if pick.node.op == "Unary" and pick.node.payload[0] in EXPONENTIALS:
                for k in self._facts("safe", pick.node.children[0]):
                    yield None, k
                    yield from self._same(self.history.operand(row.key, 1), self.history.operand(k, 0))
            if pick.node.op == "Prefix":
                state = self._state(pick.node.children[0], str(pick.node.payload[1]))
                yield from self._same(state, self.history.operand(row.key, 1))
            for at, kid in zip(row.places, pick.kids, strict=False):
                stack.append((self.history.operand(row.key, at), kid))

    def _swept(
        self, before: Key | None, pick: Pick, stack: list[tuple[Key | None, Pick]]
    ) -> Iterator[tuple[Key | None, Key]]:
        """Every state of a sweep streams, and its update is its value after a step; one stands in place of `before`."""
        for c, update in pick.updates:
            state = self._state(c, pick.axis)
            if c == pick.cls:
                yield from self._same(before, state)
            for k in self._facts("streams", c, pick.axis):
                yield None, k
                yield from self._same(state, self.history.operand(k, 0))
            new = list(self._facts("New", c, pick.axis, last=True))
            yield from ((None, k) for k in new)
            stack.append((new[0] if new else None, update))

    def _given(self, before: Key | None, cls: int) -> Iterator[tuple[Key | None, Key]]:
        """What is there before a region is what was written of its class, all of which its makers show to be equal."""
        made = (k for k in self.history.tables.written if self.history.tables.outputs[k] in self.ids[cls])
        if before not in self.history.tables.written:
            yield from self._same(before, next(made, None))

    def _state(self, cls: int, axis: str) -> Key | None:
        """The node of a class that its value after a step of a sweep speaks of."""
        return next((self.history.operand(k, 1) for k in self._facts("New", cls, axis, last=True)), None)

    def _plain(self, k: Key | None) -> Key | None:
        """What a node that is kept whole stands for."""
        while k is not None and k[0] == WHOLE.name:
            k = self.history.operand(k, 1)
        return k

    def _same(self, a: Key | None, b: Key | None) -> Iterator[tuple[Key | None, Key]]:
        """One node in place of another of its class."""
        a, b = self._plain(a), self._plain(b)
        if a is not None and b is not None and a != b:
            yield a, b

    def _facts(self, table: str, cls: int, *rest: str, last: bool = False) -> Iterator[Key]:
        for i in self.ids[cls]:
            k = table, ((*rest, i) if last else (i, *rest))
            if k in self.history.chosen:
                yield k

    def _row(self, before: Key | None, cls: int, node: ENode) -> Row:
        """The row of a node that needs the least, in place of `before`."""

        def weight(row: Row) -> tuple[int, int, int]:
            apart = before is not None and self.history.origin(row.key) != self.history.origin(before)
            laws = self.history.support.get(row.key, frozenset())
            return int(apart), len(laws), self.history.order.get(row.key, 0)

        return min(self.rows[cls, node], key=weight)


@dataclass(frozen=True)
class Explained(EGraph):
    """A graph whose nodes have a history."""

    trace: Trace = field(kw_only=True, compare=False)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Laws by the phase in which they first run, then by name."""
    return tuple(sorted({*names}, key=lambda n: (PHASE[LAWS[n].ruleset], n)))


def laws_of(matches: Iterable[Match]) -> tuple[str, ...]:
    """The laws of matches, in order."""
    return in_order(m.rule.law for m in matches if m.rule.law)
