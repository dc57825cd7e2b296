"""The saturated egglog graph as an `EGraph`: rows decoded, classes numbered, junk left out.

A class that no root can reach is left out, and so is a node that has its own class as a child, since neither can
stand in a finite term of a root.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

from egglog import bindings

from egraph.canonical import Classes, ranks, renumbered
from egraph.encode import (
    DTYPE_OF,
    FIXED,
    PREFIX_CONSTRUCTORS,
    PREFIX_OF,
    Constructor,
    Rows,
    unsigned,
)
from egraph.graph import EGraph, ENode
from egraph.sweeps import sweepable
from ir.loop import LoopProgram

V = TypeVar("V")


class Reader:
    """Decodes one frozen egglog graph; `rank` is a class's canonical number, `alias` the class that another keeps whole."""

    def __init__(self, egraph: bindings.EGraph, rows: Rows, program: LoopProgram) -> None:
        self.rows, self.program = rows, program
        self.ids: dict[bindings.Value, int] = {}
        self.strings: dict[bindings.Value, str] = {}
        self.sets: dict[bindings.Value, frozenset[str]] = {}
        self.egraph = egraph
        self.functions = egraph.freeze().functions
        self.rank: dict[int, int] = {}
        self.alias: dict[int, int] = {}

    def graph(self) -> EGraph:
        """The e-graph in canonical numbers."""
        nodes, tensors = self._nodes()
        slots = {self.egraph.value_to_i64(r.inputs[0]): self.id(r.output) for r in self.functions["slot"].rows}
        class_of = {t: slots[k] for t, k in self.rows.number.items()}
        roots = tuple(class_of[r.value] for r in self.program.results)
        streams = sweepable(nodes, self._pairs("streams"), _new(nodes))
        self.alias = alias = {c: n.children[0] for c, ns in nodes.items() for n in ns if n.op == "Whole"}
        nodes, tensors = _merged(nodes, alias), _merged(tensors, alias)
        new = _new(nodes)
        keep = _reachable(nodes, (*roots, *class_of.values()), streams, new)
        self.rank = rank = ranks({c: nodes[c] for c in keep})
        return EGraph(
            classes={rank[c]: renumbered(nodes[c], rank, c) for c in sorted(keep, key=rank.__getitem__)},
            roots=tuple(rank[c] for c in roots),
            free=_facts(self._axis_facts("free"), rank),
            folded=_facts(_folded(nodes, rank), rank),
            dtype=_facts(self._dtypes(), rank),
            safe=frozenset(rank[c] for c in self._members("safe") if c in rank),
            positive=frozenset(rank[c] for c in self._members("positive") if c in rank),
            streams=frozenset((rank[c], j) for c, j in streams if c in rank),
            carried=frozenset(rank[c] for c in self._members("carried") if c in rank),
            new=dict(sorted(((j, rank[c]), rank[n]) for (j, c), n in new.items() if c in rank and n in rank)),
            class_of={t: rank[c] for t, c in class_of.items()},
            program=self.program,
            tensors={
                rank[c]: renumbered(ns, rank, c)
                for c, ns in sorted(tensors.items(), key=lambda kv: rank.get(kv[0], -1))
                if c in rank
            },
        )

    def id(self, value: bindings.Value) -> int:
        """The number of a class."""
        found = self.ids.get(value)
        if found is None:
            found = self.ids[value] = len(self.ids)
        return found

    def string(self, value: bindings.Value) -> str:
        """A string of the graph."""
        found = self.strings.get(value)
        if found is None:
            found = self.strings[value] = self.egraph.value_to_string(value)
        return found

    def axes(self, value: bindings.Value) -> frozenset[str]:
        """A set of axes of the graph."""
        found = self.sets.get(value)
        if found is None:
            found = frozenset(map(self.string, self.egraph.value_to_set(value)))
            self.sets[value] = found
        return found

    def _nodes(self) -> tuple[Classes, Classes]:
        nodes: Classes = defaultdict(set)
        tensors: Classes = defaultdict(set)
        table = {c.name: c for c in (*FIXED, *PREFIX_CONSTRUCTORS, *self.rows.constructors)}
        for name, function in self.functions.items():
            c = table.get(name)
            if c is None:
                continue
            for row in function.rows:
                if not row.subsumed:
                    into = tensors if c.op == "Tensor" else nodes
                    into[self.id(row.output)].add(self.decoded(c, row))
        return nodes, tensors

    def decoded(self, c: Constructor, row: bindings.FrozenRow) -> ENode:
        """A row of a constructor as a node over egglog's classes."""
        payload: list[str | int] = [PREFIX_OF[c.name]] if c.op == "Prefix" else []
        children: list[int] = []
        for kind, value in zip(c.kinds, row.inputs, strict=True):
            match kind:
                case "term":
                    children.append(self.id(value))
                case "text":
                    payload.append(self.string(value))
                case "bits":
                    payload.append(unsigned(self.egraph.value_to_i64(value)))
                case "dtype":
                    payload.append(DTYPE_OF[self.egraph.value_to_i64(value)])
                case "axes":
                    payload += sorted(self.axes(value))
        return ENode(c.op, tuple(payload), tuple(children))

    def _axis_facts(self, name: str) -> dict[int, frozenset[str]]:
        return {self.id(r.inputs[0]): self.axes(r.output) for r in self.functions[name].rows}

    def _dtypes(self) -> dict[int, str]:
        return {
            self.id(r.inputs[0]): DTYPE_OF[self.egraph.value_to_i64(r.output)] for r in self.functions["dtype"].rows
        }

    def _members(self, name: str) -> set[int]:
        return {self.id(r.inputs[0]) for r in self.functions[name].rows}

    def _pairs(self, name: str) -> set[tuple[int, str]]:
        return {(self.id(r.inputs[0]), self.string(r.inputs[1])) for r in self.functions[name].rows}


def _new(nodes: Classes) -> dict[tuple[str, int], int]:
    """The class of the prefix of a class after a step along an axis."""
    return {
        (str(n.payload[1]), n.children[0]): c
        for c, ns in nodes.items()
        for n in ns
        if n.op == "Prefix" and n.payload[0] == "new"
    }


def _merged(nodes: Classes, alias: dict[int, int]) -> Classes:
    """The classes with those that keep another whole taken into it."""
    if not alias:
        return nodes
    out: Classes = defaultdict(set)
    for c, ns in nodes.items():
        into = out[alias.get(c, c)]
        for n in ns:
            if n.op != "Whole":
                moved = any(k in alias for k in n.children)
                into.add(ENode(n.op, n.payload, tuple(alias.get(k, k) for k in n.children)) if moved else n)
    return out


def _folded(nodes: Classes, rank: dict[int, int]) -> dict[int, frozenset[str]]:
    """Axes over which every way to compute a class folds; while they are sought, a set of axes is a number."""
    bits: dict[str, int] = {}
    ways = {c: [_way(n, bits) for n in nodes[c] if c not in n.children] for c in sorted(rank, key=rank.__getitem__)}
    folded: dict[int, int] = {}
    changed = True
    while changed:
        changed = False
        for c, found in ways.items():
            every = -1
            for kids, added, kept in found:
                inside = added
                for k in kids:
                    inside |= folded.get(k, -1)
                every &= inside & kept
            changed = changed or folded.get(c) != every
            folded[c] = every
    sets = {n: frozenset(a for a, bit in bits.items() if n & bit) for n in set(folded.values())}
    return {c: sets[n] for c, n in folded.items()}


def _way(n: ENode, bits: dict[str, int]) -> tuple[tuple[int, ...], int, int]:
    """A node as its operands, the axes that it folds over itself and those that its value may hold folds over."""

    def along(names: Iterable[str | int]) -> int:
        return sum(bits.setdefault(str(a), 1 << len(bits)) for a in names)

    match n.op:
        case "Fold":
            return n.children, along(n.payload[:-1]), -1
        case "Extent":
            return n.children, along(n.payload), -1
        case "Prefix":
            return n.children, 0, ~along(n.payload[1:])
    return n.children, 0, -1


def _reachable(
    nodes: Classes, roots: Iterable[int], streams: set[tuple[int, str]], new: dict[tuple[str, int], int]
) -> set[int]:
    next_prefix: dict[int, list[int]] = defaultdict(list)
    for c, j in streams:
        next_prefix[c].append(new[j, c])
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        c = stack.pop()
        if c not in seen:
            seen.add(c)
            stack += next_prefix[c]
            for n in nodes[c]:
                if c not in n.children:
                    stack += n.children
    return seen


def _facts(facts: dict[int, V], rank: dict[int, int]) -> dict[int, V]:
    return {rank[c]: facts[c] for c in sorted(facts.keys() & rank.keys(), key=rank.__getitem__)}
