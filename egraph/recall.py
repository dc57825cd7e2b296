"""The history of a saturated egglog graph, read from the rows in which its rules wrote down their matches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from egglog import bindings

from egraph.analysis import stated
from egraph.border import kept_whole
from egraph.encode import COMMUTING, FIXED, PREFIX_CONSTRUCTORS, WHOLE, arguments, constructor_of
from egraph.graph import EGraph, ENode
from egraph.history import AXIOMS, History, Key, Match, Tables, Value
from egraph.matches import Rule, Signature, parsed
from egraph.readback import Reader
from egraph.trace import Explained, Row, Trace
from ir import term as T


def explained(
    graph: EGraph, reader: Reader, rules: Sequence[Rule], signatures: Mapping[str, Signature]
) -> Explained:
    """The graph with its history; `rules` and `signatures` are those of `recorded`."""
    recall = _Recall(reader, signatures)
    history = History(recall.tables, tuple(m for r in rules for m in recall.matches(r)))
    trace = Trace(history, recall.rows(), recall.ids(), recall.keys)
    origin = {(c, n): trace.origin(c, n) for c, nodes in graph.classes.items() for n in nodes}
    given = {f.name: getattr(graph, f.name) for f in fields(graph)}
    return replace(Explained(**given, trace=trace), origin=origin, joins=trace.joins())


class _Recall:
    """The rows of a graph that `Reader` has decoded, by table and arguments."""

    def __init__(self, reader: Reader, signatures: Mapping[str, Signature]) -> None:
        self.reader, self.signatures = reader, signatures
        outputs: dict[Key, Value] = {}
        for name, (_, result) in signatures.items():
            if name in reader.functions:
                for row in reader.functions[name].rows:
                    outputs[self._key(name, row)] = self._value(result, row.output)
        self.slots = {int(str(args[0])): c for (name, args), c in outputs.items() if name == "slot"}
        self.keys: dict[T.Term, Key] = {}
        written: dict[Key, tuple[Key | None, ...]] = {}
        whole, _ = kept_whole(tuple(reader.rows.number))
        seen_as = dict(reader.rows.number) | {t: len(reader.rows.number) + k for k, t in enumerate(whole)}
        seen: dict[T.Term, Key] = {}
        for t in reader.rows.number:
            c = constructor_of(t)
            cells = arguments(t, seen_as)
            self.keys[t] = seen[t] = key = c.name, tuple(map(self._cell, c.kinds, cells))
            operands = iter(t.terms)
            written.setdefault(key, tuple(seen[next(operands)] if k == "term" else None for k in c.kinds))
            if t in whole:
                seen[t] = WHOLE.name, (whole[t], self.slots[reader.rows.number[t]])
                written.setdefault(seen[t], (None, key))
        sorts = {name: given for name, (given, _) in signatures.items()}
        told = Tables(outputs, sorts, written, frozenset())
        facts = (told.key(e, {}) for e in parsed(stated(reader.rows.number)))
        self.tables = replace(told, stated=frozenset(k for k in facts if k in outputs))

    def _key(self, name: str, row: bindings.FrozenRow) -> Key:
        return name, tuple(map(self._value, self.signatures[name][0], row.inputs))

    def _value(self, sort: str, value: bindings.Value) -> Value:
        match sort:
            case "E":
                return self.reader.id(value)
            case "String":
                return self.reader.string(value)
            case "Axes":
                return self.reader.axes(value)
            case "i64":
                return self.reader.egraph.value_to_i64(value)
        return 0

    def _cell(self, kind: str, cell: str) -> Value:
        match kind:
            case "term":
                return self.slots[int(cell)]
            case "axes":
                return frozenset(cell.split())
            case "text":
                return cell
        return int(cell)

    def matches(self, rule: Rule) -> Iterator[Match]:
        """The matches of a rule."""
        for row in self.reader.functions[rule.table].rows:
            bound = dict(zip(rule.variables, self._key(rule.table, row)[1], strict=True))
            needs = [(self.tables.key(e, bound), out) for e, out in rule.needs if e[0] not in AXIOMS]
            of = {out: k for k, out in reversed(needs) if out is not None}
            left = ((of.get(a) if isinstance(a, str) else self.tables.key(a, bound), b) for a, b in rule.unions)
            joins = tuple((k, b) for k, b in left if k is not None)
            makes = tuple(self.tables.key(e, bound) for e in rule.makes if e[0] not in AXIOMS)
            yield Match(rule, bound, tuple(k for k, _ in needs), makes, joins)

    def rows(self) -> dict[tuple[int, ENode], tuple[Row, ...]]:
        """The nodes of the graph, each with the rows that it stands for."""
        found: dict[tuple[int, ENode], list[Row]] = defaultdict(list)
        rank, alias = self.reader.rank, self.reader.alias
        for c in (*FIXED, *PREFIX_CONSTRUCTORS, *self.reader.rows.constructors):
            if c.name not in self.reader.functions or c is WHOLE or c.op == "Tensor":
                continue
            for row in self.reader.functions[c.name].rows:
                n, own = self.reader.decoded(c, row), self.reader.id(row.output)
                kids = [rank.get(alias.get(k, k), -1) for k in n.children]
                cls = rank.get(alias.get(own, own), -1)
                if row.subsumed or cls < 0 or min(kids, default=0) < 0:
                    continue
                places = list(zip(kids, c.terms, strict=True))
                if n.op == "Binary" and n.payload[0] in COMMUTING:
                    places.sort()
                node = ENode(n.op, n.payload, tuple(k for k, _ in places))
                found[cls, node].append(Row(self._key(c.name, row), tuple(at for _, at in places)))
        return {place: tuple(dict.fromkeys(rows)) for place, rows in found.items()}

    def ids(self) -> dict[int, tuple[int, ...]]:
        """The numbers of egglog's classes that a class of the graph stands for."""
        found: dict[int, list[int]] = defaultdict(list)
        for i in self.reader.ids.values():
            c = self.reader.rank.get(self.reader.alias.get(i, i))
            if c is not None:
                found[c].append(i)
        return {c: tuple(ids) for c, ids in found.items()}
