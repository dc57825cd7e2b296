"""Matches replayed on terms: a small graph that starts as the program is written and grows by one match at a time.

A match is replayed where all that its rule needs is in this graph already and the conditions of the rule hold of the
terms that stand for its variables. So what is in the graph is proved, by the matches in the order in which they are
replayed, and nothing is taken from the saturated graph but which matches to try.
"""

from __future__ import annotations

import math
import operator
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from egraph.encode import (
    DTYPE_CODE,
    DTYPE_OF,
    FIXED,
    PREFIX_CONSTRUCTORS,
    PREFIX_OF,
    WHOLE,
    load_constructor,
    unsigned,
)
from egraph.history import AXIOMS, Key, Match, Value
from egraph.matches import Sexp
from egraph.trace import Explained
from ir import term as T
from ir.term import Term

MOST_INDICES = 9
NEUTRAL = {"one": "mul", "minus_zero": "add"}
"""Constants that are what the identity of a monoid is; laws put them into one class by way of their own products."""
MAKERS = {c.name: c for c in (*PREFIX_CONSTRUCTORS, *FIXED, *map(load_constructor, range(MOST_INDICES)))}
TESTS: Mapping[str, Callable[[Value, Value], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
    "set-contains": lambda s, a: a in as_set(s), "set-not-contains": lambda s, a: a not in as_set(s),
}  # fmt: skip
Bound = dict[Sexp, int]
"""What variables and inner expressions of a rule stand for: classes of the replay."""


@dataclass(frozen=True)
class Known:
    """A term of a class, and the axes that it folds over inside."""

    term: Term
    folded: frozenset[str]
    rank: tuple[int, int, str]
    """Written terms first, then small ones."""


def as_set(v: Value) -> frozenset[str]:
    """A set of axes; an axis is a set of one."""
    return v if isinstance(v, frozenset) else frozenset((str(v),))


class Replay:
    """Terms, their classes and facts of them; every class lies inside one class of the saturated graph."""

    def __init__(self, graph: Explained) -> None:
        self.tables = graph.trace.history.tables
        self.parent: list[int] = []
        self.within: list[int] = []
        self.known: list[Known] = []
        self.nodes: dict[Key, int] = {}
        self.rows: dict[Key, set[tuple[Value, ...]]] = defaultdict(set)
        """The rows here by the row of the saturated graph that they lie in."""
        self.users: dict[int, dict[Key, None]] = defaultdict(dict)
        """The nodes by the classes among their operands."""
        self.places: dict[int, dict[Key, None]] = defaultdict(dict)
        """The keys of `rows` by the classes among the arguments of rows there."""
        written: dict[Key | None, int] = {}
        for k, operands in self.tables.written.items():
            args = (a if o is None else written[o] for a, o in zip(k[1], operands, strict=True))
            written[k] = self.insert(k[0], tuple(args), written=True)
        for k in sorted(self.tables.stated, key=lambda k: k[0] not in MAKERS):
            if k[0] in MAKERS:
                self.insert(*k, written=True)
            else:
                args = (
                    self._constant(a) if s == "E" else a for a, s in zip(k[1], self.tables.sorts[k[0]], strict=True)
                )
                self._hold(k, tuple(args))
        for k in [k for k in self.rows if k[0] in NEUTRAL]:
            neutral = self.nodes.get(("Identity", (NEUTRAL[k[0]],)))
            if neutral is not None and self.within[neutral] == k[1][0]:
                for (c,) in self.rows[k]:
                    self.union(neutral, int(str(c)))

    def _constant(self, c: Value) -> int:
        """The class of a constant of which something is stated."""
        if c in self.within:
            return self.within.index(int(str(c)))
        return next(self.insert(*k) for k, out in self.tables.outputs.items() if out == c and k[0] == "Const")

    # ---- terms and classes

    def find(self, c: int) -> int:
        """The class that a class has become part of."""
        while self.parent[c] != c:
            c = self.parent[c]
        return c

    def cells(self, name: str, args: Sequence[Value], each: Callable[[int], int]) -> tuple[Value, ...]:
        """Arguments of a row, its classes changed."""
        sorts = self.tables.sorts[name]
        return tuple(each(int(str(a))) if s == "E" else a for a, s in zip(args, sorts, strict=True))

    def saturated(self, name: str, args: Sequence[Value]) -> Key:
        """The row of the saturated graph that a row here lies in."""
        return name, self.cells(name, args, self.within.__getitem__)

    def insert(self, name: str, args: tuple[Value, ...], written: bool = False) -> int:
        """The class of a node, which is made where it is new."""
        key = name, self.cells(name, args, self.find)
        if key not in self.nodes:
            place = self.saturated(*key)
            c = len(self.parent)
            self.parent.append(c)
            self.within.append(int(str(self.tables.outputs[place])))
            self.known.append(self._known(key, written))
            self._enter(key, c)
            self._hold(place, key[1])
        return self.find(self.nodes[key])

    def _classes(self, name: str, args: Sequence[Value]) -> list[int]:
        """The classes among the arguments of a row."""
        return [int(str(a)) for a, s in zip(args, self.tables.sorts[name], strict=True) if s == "E"]

    def _enter(self, key: Key, c: int) -> None:
        """Make a node known, where it is not."""
        self.nodes.setdefault(key, c)
        for kid in self._classes(*key):
            self.users[kid][key] = None

    def _hold(self, place: Key, row: tuple[Value, ...]) -> None:
        """Add a row."""
        self.rows[place].add(row)
        for c in self._classes(place[0], row):
            self.places[c][place] = None

    def _known(self, key: Key, written: bool) -> Known:
        name, args = key
        kids = [self.known[c] for c in self._classes(name, args)]
        inside = frozenset[str]().union(*(k.folded for k in kids))
        match MAKERS[name].op:
            case "Fold":
                inside |= as_set(args[0])
            case "Extent":
                inside = as_set(args[0])
            case "Prefix" | "Whole":
                inside -= as_set(args[0])
            case "At":
                inside = frozenset()
        term = node(name, args, [k.term for k in kids])
        return Known(term, inside, (not written, 1 + sum(k.rank[1] for k in kids), term.digest))

    def union(self, a: int, b: int) -> None:
        """Put two classes into one, and what becomes equal by it."""
        waiting = [(a, b)]
        while waiting:
            x, y = map(self.find, waiting.pop())
            if x == y:
                continue
            self.parent[y] = x
            self.known[x] = min(self.known[x], self.known[y], key=lambda k: k.rank)
            for name, args in self.users.pop(y, {}):
                c = self.nodes.pop((name, args), None)
                if c is None:  # it has another key since another of its operands became part of a class
                    continue
                key = name, self.cells(name, args, self.find)
                waiting += [(self.nodes[key], c)] if key in self.nodes else []
                self._enter(key, c)
            for place in self.places.pop(y, {}):
                rows, self.rows[place] = self.rows[place], set()
                for row in rows:
                    self._hold(place, self.cells(place[0], row, self.find))

    # ---- matches

    def replayed(self, matches: Iterable[Match], deadline: float = math.inf) -> Iterator[tuple[Match, Bound]]:
        """The matches with what their variables stand for, in an order in which each finds what it needs.

        They are applied one by one, and again where the graph holds more than one way to do so and others still wait;
        those that never find what they need are left out, and those whose turn comes after the deadline, a time of
        `time.perf_counter`.
        """
        left, done = list(matches), list[Match]()
        tried: set[tuple[int, ...]] = set()
        while left:
            waiting = []
            for m in left:
                if time.perf_counter() > deadline:
                    return
                bound = next(self.bound(m), None)
                if bound is None:
                    waiting.append(m)
                    continue
                done.append(m)
                tried.add((id(m), *bound.values()))
                yield m, bound
                self.apply(m, bound)
            if len(waiting) == len(left):
                again = [(m, b) for m in done for b in self.bound(m) if (id(m), *b.values()) not in tried]
                if not again:
                    return
                for m, bound in again:
                    if time.perf_counter() > deadline:
                        return
                    tried.add((id(m), *bound.values()))
                    yield m, bound
                    self.apply(m, bound)
            left = waiting

    def bound(self, m: Match) -> Iterator[Bound]:
        """What the variables of a match may stand for; nothing where the graph does not hold what it needs."""
        needs = [(e, out) for e, out in m.rule.needs if e[0] not in AXIOMS]
        return (b for b in self._joined(m, needs, {}) if self._conditions(m, b))

    def _joined(self, m: Match, needs: Sequence[tuple[Sexp, str | None]], bound: Bound) -> Iterator[Bound]:
        if not needs:
            own = zip(m.rule.variables, self.tables.sorts[m.rule.table], strict=True)
            alone = next((v for v, sort in own if sort == "E" and v not in bound), None)
            if alone is None:
                yield bound
            else:  # a variable of which only the conditions speak
                for c in sorted({self.find(c) for c, w in enumerate(self.within) if w == m.bound[alone]}):
                    yield from self._joined(m, (), {**bound, alone: c})
            return
        (e, out), *rest = needs
        name, key = str(e[0]), self.tables.key(e, m.bound)
        sorts = self.tables.sorts[name]
        rows = sorted(self.rows.get(key, ()), key=str)
        if "E" not in sorts and key not in self.tables.made:
            rows = [key[1]]  # said of an operator or an axis
        for row in rows:
            new = dict(bound)
            pairs = [(a, int(str(c))) for a, c, s in zip(e[1:], row, sorts, strict=True) if s == "E"]
            if name in MAKERS:
                pairs += [(x, self.find(self.nodes[name, row])) for x in (e, out) if x is not None]
            if all(new.setdefault(x, c) == c for x, c in pairs):
                yield from self._joined(m, rest, new)

    def _conditions(self, m: Match, bound: Bound) -> bool:
        """Whether the conditions of the rule hold of the terms that stand for its variables."""
        facts: dict[str, Value] = {}
        for f in m.rule.body:
            inner = [x[0] for x in f[1:] if not isinstance(x, str)]
            if f[0] in self.tables.sorts or any(x in self.tables.sorts and x not in AXIOMS for x in inner):
                continue  # a row that is needed
            if f[0] == "=" and isinstance(f[1], str) and f[1] in m.bound and f[1] not in {*facts, *bound}:
                facts[f[1]] = self._value(f[2], m, bound, facts)
            elif not TESTS[str(f[0])](*(self._value(x, m, bound, facts) for x in f[1:])):
                return False
        return True

    def _value(self, e: Sexp, m: Match, bound: Bound, facts: Mapping[str, Value]) -> Value:
        """The value of an expression in a condition."""
        if e in bound:
            return self.find(bound[e])
        if isinstance(e, str):
            return facts[e] if e in facts else self.tables.value(e, m.bound)
        if e[0] in MAKERS:
            args = tuple(self._value(a, m, bound, facts) for a in e[1:])
            return self.find(self.nodes.get((str(e[0]), args), -1))
        args = tuple(self._value(a, m, bound, facts) for a in e[1:])
        match e[0]:
            case "free":
                return self.known[int(str(args[0]))].term.free
            case "folded":
                return self.known[int(str(args[0]))].folded
            case "dtype":
                return DTYPE_CODE[self.known[int(str(args[0]))].term.dtype]
            case "state" | "kind" | "written":
                return self.tables.outputs.get(self.tables.key(e, m.bound), 0)
        return computed(str(e[0]), args)

    def apply(self, m: Match, bound: Bound) -> None:
        """Add what a match makes."""
        for e in m.rule.makes:
            if e[0] in MAKERS:
                self.cls(e, m, bound)
            elif e[0] not in AXIOMS:
                row = self.row(e, m, bound)
                self._hold(self.saturated(str(e[0]), row), row)
        for left, right in m.rule.unions:
            self.union(self.cls(left, m, bound), self.cls(right, m, bound))

    def cls(self, e: Sexp, m: Match, bound: Bound) -> int:
        """The class of an expression of a rule in a match."""
        if e in bound:
            return self.find(bound[e])
        return self.insert(str(e[0]), self.row(e, m, bound))

    def row(self, e: Sexp, m: Match, bound: Bound) -> tuple[Value, ...]:
        """The arguments of an expression of a rule in a match."""
        sorts = self.tables.sorts[str(e[0])]
        return tuple(
            self.cls(a, m, bound) if s == "E" else self.tables.value(a, m.bound)
            for a, s in zip(e[1:], sorts, strict=True)
        )

    def term(self, e: Sexp, m: Match, leaf: Callable[[str], Term], apart: bool = True) -> Term:
        """An expression of a rule in a match, with terms for its variables, those that the rule takes apart taken apart."""
        if isinstance(e, str):
            whole = next((n for n, out in m.rule.needs if out == e and n[0] in MAKERS), None) if apart else None
            return leaf(e) if whole is None else self.term(whole, m, leaf)
        pairs = list(zip(e[1:], MAKERS[str(e[0])].kinds, strict=True))
        kids = [self.term(a, m, leaf, apart) for a, kind in pairs if kind == "term"]
        return node(str(e[0]), [0 if kind == "term" else self.tables.value(a, m.bound) for a, kind in pairs], kids)


def computed(name: str, args: Sequence[Value]) -> Value:
    """A primitive of egglog on sets and numbers."""
    match name:
        case "|":
            return int(str(args[0])) | int(str(args[1]))
        case "&":
            return int(str(args[0])) & int(str(args[1]))
    sets = list(map(as_set, args))
    match name:
        case "set-length":
            return len(sets[0])
        case "set-intersect":
            return sets[0] & sets[1]
        case "set-remove" | "set-diff":
            return sets[0] - sets[1]
        case "set-get":
            return sorted(sets[0])[int(str(args[1]))]
    return frozenset[str]().union(*sets)


def node(name: str, args: Sequence[Value], kids: Sequence[Term]) -> Term:
    """The term of a row; what is kept whole is read at a place, through which no prefix looks."""
    if name == WHOLE.name:
        (out,) = kids
        for axis in sorted(as_set(args[0])):
            out = T.At(axis, T.number(0), out)
        return out
    rest = iter(kids)
    values: list[object] = []
    for kind, value in zip(MAKERS[name].kinds, args, strict=True):
        match kind:
            case "term":
                values.append(next(rest))
            case "axes":
                values.append(tuple(sorted(as_set(value))))
            case "dtype":
                values.append(DTYPE_OF[int(str(value))])
            case "bits":
                values.append(unsigned(int(str(value))))
            case _:
                values.append(value)
    if name in PREFIX_OF:
        return T.Prefix(PREFIX_OF[name], str(values[0]), kids[0])
    if MAKERS[name].op == "Load":
        return T.Load(str(values[0]), str(values[1]), tuple(kids))
    made: Term = getattr(T, name)(*values)
    return made
