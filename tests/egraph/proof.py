"""A checker of derivations that shares nothing with their replay: it reads steps as terms, and laws as their text.

A step must be an instance of a rule of its law: the rule's patterns bind variables in the step's terms, what is left to
compute is computed of them, and conditions hold. What a step needs must follow from earlier steps by congruence, as
must the result from all of them.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields

from egraph.border import kept_whole
from egraph.derive import EQUAL, SPLITS, Derivation, Step
from egraph.encode import COMMUTING, DTYPE_CODE, PREFIX_OF, signed
from egraph.graph import ENode
from egraph.laws import LAWS
from egraph.matches import Sexp, parsed
from egraph.prefixes import over
from egraph.trace import Explained, Pick
from extract.lineage import Reasons
from ir import term as T
from ir.dtype import is_float
from ir.node import postorder
from ir.term import Term
from ir.text import show_term
from tests.egraph.picking import rebuilt

Value = Term | frozenset[str] | str | int
Bound = dict[str, Value]
TESTS: Mapping[str, Callable[[object, object], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt
}  # fmt: skip
TOLD = ("state", "kind", "written")  # by demands and by the program, not of terms


# ---- a step is an instance of its law


def is_instance(step: Step) -> bool:
    """Whether some rule of the law gives the step, its conditions on axes and types being true of the step's terms."""
    return any(
        _bound(body, sides, step) is not None for body, actions in _rules(step.law) for sides in _said(actions)
    )


def _rules(law: str) -> Iterator[tuple[list[Sexp], list[Sexp]]]:
    for body, actions in LAWS[law].rules:
        yield parsed(body), parsed(actions)


def _said(actions: list[Sexp]) -> Iterator[tuple[Sexp, Sexp]]:
    for a in actions:
        if a[0] == "union":
            yield a[1], a[2]
        elif (sides := _equation(a)) is not None:
            yield sides


def _equation(e: Sexp) -> tuple[Sexp, Sexp] | None:
    if e[0] in SPLITS:
        return e[1], ("Binary", f'"{SPLITS[str(e[0])]}"', e[3], e[4])
    if e[0] == "single":
        return e[1], ("Fold", *e[2:])
    return (("New", e[2], e[1]), e[3]) if e[0] == "moving" else None


def _bound(body: list[Sexp], sides: tuple[Sexp, Sexp], step: Step) -> Bound | None:
    """What the variables of a rule are in a step, or None where the step is no instance of it."""
    bound: Bound = dict(step.bound)
    apart = {f[1]: f[2] for f in body if f[0] == "=" and isinstance(f[1], str) and _is_node(f[2])}
    for side, term in zip(sides, (step.before, step.after), strict=True):
        if not _matches(_expanded(side, apart), term, bound):
            return None
    for f in body:
        if (e := _equation(f)) is not None:
            left, right = (_term(x, bound) for x in e)
            trivial = left is right or (isinstance(right, T.Binary) and T.Identity in map(type, right.terms))
            if not trivial and (left, right) not in {g.terms for g in step.given if g.sentence == EQUAL}:
                return None
        elif not _holds(f, bound):
            return None
    return bound


def _is_node(e: Sexp) -> bool:
    return not isinstance(e, str) and (e[0] in PREFIX_OF or hasattr(T, str(e[0])))


def _expanded(e: Sexp, apart: Mapping[Sexp, Sexp]) -> Sexp:
    if isinstance(e, str):
        return _expanded(apart[e], apart) if e in apart else e
    return e[0], *(_expanded(a, apart) for a in e[1:])


def _matches(p: Sexp, t: object, bound: Bound) -> bool:
    """Bind the variables of a pattern so that it is `t`."""
    if isinstance(t, tuple):
        t = frozenset(t)
    if not _is_node(p):
        value = _value(p, bound)
        if value is None and isinstance(p, str):
            return bound.setdefault(p, t) == t
        return (_set(value) if isinstance(t, frozenset) else value) == t
    name, args = str(p[0]), p[1:]
    if not isinstance(t, Term) or type(t).__name__ != ("Prefix" if name in PREFIX_OF else name):
        return False
    parts = [_part(f.type, getattr(t, f.name)) for f in fields(t)]
    if name in PREFIX_OF:
        return parts[0] == PREFIX_OF[name] and all(
            _matches(a, x, bound) for a, x in zip(args, parts[1:], strict=True)
        )
    return all(_matches(a, x, bound) for a, x in zip(args, parts, strict=True))


def _part(kind: object, value: object) -> object:
    match kind:
        case "DType":
            return DTYPE_CODE[str(value)]
        case "int":
            return signed(int(str(value)))
    return value


def _term(e: Sexp, bound: Bound) -> Term:
    value = _value(e, bound)
    assert isinstance(value, Term), e
    return value


def _value(e: Sexp, bound: Bound) -> Value | None:
    """An expression under what is bound; None for a free variable."""
    if isinstance(e, str):
        if e[0] == '"':
            return e[1:-1]
        return int(e) if e.lstrip("-").isdigit() else bound.get(e)
    values = [_value(a, bound) for a in e[1:]]
    x = values[0] if values else None
    match e[0]:
        case "free":
            return x.free if isinstance(x, Term) else None
        case "folded":
            return _folded(x) if isinstance(x, Term) else None
        case "dtype":
            return DTYPE_CODE[x.dtype] if isinstance(x, Term) else None
        case "set-length":
            return len(_set(x))
        case "set-remove" | "set-diff":
            return _set(x) - _set(values[1])
        case "set-intersect":
            return _set(x) & _set(values[1])
        case "set-get":
            return sorted(_set(x))[int(str(values[1]))]
        case "set-of" | "set-union" | "set-empty":
            return frozenset[str]().union(*map(_set, values))
        case "New" | "Old" | "Ratio" | "Delta":
            return T.Prefix(PREFIX_OF[str(e[0])], str(x), _term(e[2], bound))
        case "Fold":
            return T.Fold(tuple(sorted(_set(x))), str(values[1]), _term(e[3], bound))
    return getattr(T, str(e[0]))(*values)


def _set(x: Value | None) -> frozenset[str]:
    return x if isinstance(x, frozenset) else frozenset((str(x),))


def _folded(root: Term) -> frozenset[str]:
    memo: dict[Term, frozenset[str]] = {}
    for t in postorder(root):
        inside = frozenset[str]().union(*(memo[k] for k in t.terms))
        match t:
            case T.Fold(axes, _, _):
                inside |= frozenset(axes)
            case T.Prefix(_, axis, _):
                inside -= {axis}
            case T.Extent(axis):
                inside = frozenset((axis,))
            case T.At():
                inside = frozenset()
        memo[t] = inside
    return memo[root]


def _holds(f: Sexp, bound: Bound) -> bool:
    """A condition on axes, types and names. Facts of the analyses are not computed here."""
    if f[0] == "=" and isinstance(f[1], str) and f[1] not in bound and not _is_node(f[2]) and f[2][0] not in TOLD:
        value = _value(f[2], bound)
        assert value is not None, f
        bound[f[1]] = value
        return True
    if f[0] in TESTS and not any(not isinstance(x, str) and (_is_node(x) or x[0] in TOLD) for x in f[1:]):
        x, y = (_value(a, bound) for a in f[1:])
        return bool(TESTS[str(f[0])](x, y))
    if f[0] in ("set-contains", "set-not-contains"):
        s, a = (_value(x, bound) for x in f[1:])
        return (a in _set(s)) == (f[0] == "set-contains")
    return True


# ---- the steps prove the form


class Congruence:
    """Terms and what is equal among them. Commuted operands are, x with an identity is x, and folds nest.

    The constants 1 of products and -0.0 of sums are identities.
    """

    def __init__(self) -> None:
        self.parent: dict[Term, Term] = {}
        self.seen: dict[tuple[object, ...], Term] = {}

    def find(self, t: Term) -> Term:
        """The representative of a term, which is taken in where it is new."""
        for k in postorder(t):
            if k not in self.parent:
                self.parent[k] = k
                self._join(k)
        return self._root(t)

    def union(self, a: Term, b: Term) -> None:
        """Make two terms equal, and what follows."""
        a, b = self.find(a), self.find(b)
        while a is not b:
            self.parent[a] = b
            roots = self._roots()
            self.seen = {}
            for t in self.parent:
                self._join(t)
            if self._roots() == roots:
                return

    def has(self, t: Term) -> bool:
        """Whether a term or its like over equal operands is taken in."""
        for k in t.terms:
            self.find(k)
        return self._key(t) in self.seen

    def equal(self, a: Term, b: Term) -> bool:
        """Whether two terms are known to be equal."""
        return self.find(a) is self.find(b)

    def _root(self, t: Term) -> Term:
        while self.parent[t] is not t:
            t = self.parent[t]
        return t

    def _roots(self) -> int:
        return sum(t is r for t, r in self.parent.items())

    def _join(self, t: Term) -> None:
        other = self._root(self.seen.setdefault(self._key(t), t))
        self.parent[self._root(t)] = other
        match t:
            case T.Binary(op, x, y):
                for a, b in ((x, y), (y, x)):
                    if neutral(op, b):
                        self.parent[self._root(t)] = self._root(a)
                        return
            case T.Const() if monoid := next((m for m in ("mul", "add") if neutral(m, t)), ""):
                self.parent[self._root(t)] = self.find(T.Identity(monoid))

    def _key(self, t: Term) -> tuple[object, ...]:
        kids = [self._root(k).digest for k in t.terms]
        if isinstance(t, T.Binary) and t.op in COMMUTING:
            kids.sort()
        own = (getattr(t, f.name) for f in fields(t) if "Term" not in str(f.type))
        return type(t).__name__, *own, *kids


def neutral(op: str, t: Term) -> bool:
    """Whether a term is the identity of an operator."""
    if isinstance(t, T.Const) and is_float(t.type):
        value = float(t.value)
        return (op == "mul" and value == 1) or (op == "add" and value == 0 and math.copysign(1, value) < 0)
    return isinstance(t, T.Identity) and t.monoid == op


def gaps(graph: Explained, derivation: Derivation, reasons: Reasons) -> list[str]:
    """Where a derivation is no proof: steps that are no instances or rest on nothing, and results that do not follow."""
    found = [f"{len(derivation.left)} matches are not replayed"] if derivation.left else []
    known = Congruence()
    for s in derivation.steps:
        said = f"{s.law}: {show_term(s.before)} = {show_term(s.after)}"
        if s.law and not is_instance(s):
            found.append(f"{said} is no instance")
        for g in s.given:
            if g.sentence == EQUAL and not known.equal(*g.terms):
                found.append(f"{said} needs {' = '.join(map(show_term, g.terms))}")
        known.union(s.before, s.after)
    written = {k: t for t, k in graph.trace.written.items()}
    goals = Goals(graph, known)
    for key, pick in reasons:
        assert key is not None
        goals.require(goals.inserted[written[key]], goals.term(pick))
    return found + goals.open


class Goals:
    """What the steps must have shown: written terms are what is picked for them, and so is every update of a sweep."""

    def __init__(self, graph: Explained, known: Congruence) -> None:
        self.graph, self.known = graph, known
        self.open: list[str] = []
        self.states: dict[tuple[str, int], Term] = {}
        self.nodes = {n: c for c, nodes in graph.classes.items() for n in nodes}
        terms = tuple(postorder(*(r.value for r in graph.program.results)))
        self.inserted: dict[Term, Term] = {}
        seen: dict[Term, Term] = {}
        whole, _ = kept_whole(terms)
        for t in terms:
            seen[t] = self.inserted[t] = over(t, [seen[k] for k in t.terms])
            for axis in sorted(whole.get(t, ())):
                seen[t] = T.At(axis, T.number(0), seen[t])
            known.find(seen[t])
        self.whole = {self.inserted[t]: seen[t] for t in whole}
        self.within = self.classes()

    def require(self, a: Term, b: Term) -> None:
        """Note what is not shown."""
        if not self.known.equal(a, b):
            self.open.append(f"{show_term(a)} = {show_term(b)} is not shown")

    def term(self, p: Pick) -> Term:
        """The term that a pick makes; a sweep is the state that it ends with, its updates being required."""
        if p.axis:
            for c, update in p.updates:
                if (p.axis, c) not in self.states:
                    state = self.states[p.axis, c] = self._state(p.axis, c)
                    self.require(T.Prefix("new", p.axis, state), self.term(update))
            return self.states[p.axis, p.cls]
        if p.node is None:  # there before the region
            return next(t for t in self.inserted.values() if self.within.get(self.known.find(t)) == p.cls)
        if p.node.op == "Prefix":
            return T.Prefix("old", str(p.node.payload[1]), self._state(str(p.node.payload[1]), p.node.children[0]))
        kids = [self.term(k) for k in p.kids]
        ways = itertools.product(
            *([k, *(w for t, w in self.whole.items() if self.known.equal(t, k))] for k in kids)
        )
        made = [rebuilt(p.node, list(way)) for way in ways]
        return next((t for t in made if self.known.has(t)), made[0])

    def _state(self, axis: str, c: int) -> Term:
        """A value of a class whose next prefix the steps speak of."""
        if (axis, c) in self.states:
            return self.states[axis, c]
        prefixes = (t for t in self.known.parent if isinstance(t, T.Prefix) and (t.which, t.axis) == ("new", axis))
        found = next((t.x for t in prefixes if self.within.get(self.known.find(t.x)) == c), None)
        if found is None:
            self.open.append(f"nothing is said of a state #{c} over {axis}")
        return found or T.Var(f"#{c}", "f32", ())

    def classes(self) -> dict[Term, int]:
        """The class of the graph that what is known to be equal to a term lies in, where it has a node there."""
        within: dict[Term, int] = {}
        size = -1
        while size < len(within):
            size = len(within)
            for t in self.known.parent:
                root = self.known.find(t)
                if isinstance(t, T.At) and t.axis not in t.x.free:
                    c = within.get(self.known.find(t.x))
                else:
                    kids = [within.get(self.known.find(k), -1) for k in t.terms]
                    c = self.nodes.get(enode(t, kids))
                if c is not None:
                    within.setdefault(root, c)
        return within


def enode(t: Term, kids: list[int]) -> ENode:
    """The node of a term over classes."""
    own: list[str | int] = []
    for f in fields(t):
        value = getattr(t, f.name)
        if "Term" not in str(f.type):
            own += value if isinstance(value, tuple) else [value]
    commutes = isinstance(t, T.Binary) and t.op in COMMUTING
    return ENode(type(t).__name__, tuple(own), tuple(sorted(kids) if commutes else kids))
