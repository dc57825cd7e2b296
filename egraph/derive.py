"""Derivations: the equations by laws that lead from a program as written to a form of it, each shown and checked.

A step is one match of one law: what stood on its left and on its right, classes in it shown by a term. A step of a
two-sided law is replayed on these terms by matching; a step of a relational law is checked by numbers, in float64 on
random extents. What a match needed comes before it, so the steps prove the last ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from egraph.encode import DTYPE_OF, FIXED, PREFIX_CONSTRUCTORS, PREFIX_OF, WHOLE, load_constructor, unsigned
from egraph.history import Match, Value
from egraph.law import Law
from egraph.laws import LAWS
from egraph.matches import Sexp
from egraph.prefixes import over, spelled_out
from egraph.trace import Explained
from ir import term as T
from ir.dtype import Array, is_float, numpy_type
from ir.loop import LoopProgram
from ir.loop_interp import evaluate
from ir.node import IRError, postorder
from ir.term import Term

SPLITS = {"psplit": "mul", "asplit": "add", "esplit": "mul", "shifts": "mul"}
"""Facts that a value is one part combined with another: the first argument with a sort of class is the value."""
LARGEST = 6  # extents in a numeric check
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Step:
    """`before` equals `after` by a law, in the class numbered `place` (-1: a value that no form uses by itself)."""

    law: str
    place: int
    before: Term
    after: Term
    replayed: bool
    """Whether matching the law's own sides on `before` gives `after`."""
    error: float | None
    """The largest relative difference in a numeric check; None where the terms cannot be evaluated."""

    @property
    def holds(self) -> bool:
        """Whether the step is confirmed."""
        return self.replayed or (self.error is not None and self.error <= TOLERANCE)


def derivation(graph: Explained, matches: Iterable[Match], seed: int = 0) -> list[Step]:
    """The steps of the laws among the matches, in their order."""
    terms = _Terms(graph)
    steps: dict[tuple[str, Term, Term], Step] = {}
    for m in matches:
        for place, before, after in terms.equations(m) if m.rule.law else ():
            key = m.rule.law, before, after
            if before is not after and key not in steps:
                replayed = any(replays(LAWS[m.rule.law], a, b) for a, b in ((before, after), (after, before)))
                steps[key] = Step(
                    *key[:1], place, before, after, replayed, difference(graph.program, before, after, seed)
                )
    return list(steps.values())


class _Terms:
    """Terms for the classes and the matches of a graph."""

    def __init__(self, graph: Explained) -> None:
        self.tables = graph.trace.history.tables
        self.number = {i: c for c, ids in graph.trace.ids.items() for i in ids}
        self.of: dict[int, Term] = {}
        written = sorted(graph.trace.written.items(), key=lambda tk: sum(1 for _ in postorder(tk[0])))
        for t, k in written:
            self.of.setdefault(int(str(self.tables.outputs[k])), t)
        makers = {c.name: c for c in (*PREFIX_CONSTRUCTORS, *FIXED, *map(load_constructor, range(9)))}
        self.makers = makers
        order = {name: n for n, name in enumerate(makers)}
        rows = sorted((k for k in self.tables.outputs if k[0] in makers), key=lambda k: order[k[0]])
        waiting = [
            (k, [a for a, kind in zip(k[1], makers[k[0]].kinds, strict=True) if kind == "term"]) for k in rows
        ]
        progress = True
        while progress:
            progress = False
            for k, kids in waiting:
                c = int(str(self.tables.outputs[k]))
                if c not in self.of and all(x in self.of for x in kids):
                    self.of[c] = self.node(k[0], k[1], [self.of[int(str(x))] for x in kids])
                    progress = True

    def node(self, table: str, args: Sequence[Value], kids: Sequence[Term]) -> Term:
        """The term of a row; what is kept whole is read at a place, through which no prefix looks."""
        if table == WHOLE.name:
            (out,) = kids
            for axis in sorted(args[0]) if isinstance(args[0], frozenset) else ():
                out = T.At(axis, T.number(0), out)
            return out
        rest = iter(kids)
        values: list[object] = []
        for kind, value in zip(self.makers[table].kinds, args, strict=True):
            match kind:
                case "term":
                    values.append(next(rest))
                case "axes":
                    values.append(tuple(sorted(value)) if isinstance(value, frozenset) else ())
                case "dtype":
                    values.append(DTYPE_OF[int(str(value))])
                case "bits":
                    values.append(unsigned(int(str(value))))
                case _:
                    values.append(value)
        if table in PREFIX_OF:
            return T.Prefix(PREFIX_OF[table], str(values[0]), kids[0])
        if self.makers[table].op == "Load":
            return T.Load(str(values[0]), str(values[1]), tuple(kids))
        made: Term = getattr(T, table)(*values)
        return made

    def term(self, e: Sexp, m: Match, inside: tuple[str, ...] = ()) -> Term:
        """An expression of a rule in a match; a variable that the rule takes apart is shown taken apart."""
        if isinstance(e, str):
            apart = next((n for n, out in m.rule.needs if out == e and n[0] in self.makers), None)
            if apart is None or e in inside:
                return self.of[int(str(m.bound[e]))]
            return self.term(apart, m, (*inside, e))
        kinds = self.makers[str(e[0])].kinds
        kids = [self.term(a, m, inside) for a, kind in zip(e[1:], kinds, strict=True) if kind == "term"]
        args = [
            0 if kind == "term" else self.tables.value(a, m.bound) for a, kind in zip(e[1:], kinds, strict=True)
        ]
        return self.node(str(e[0]), args, kids)

    def equations(self, m: Match) -> Iterator[tuple[int, Term, Term]]:
        """What a match says: the class, a term of it, and another."""
        for left, right in m.rule.unions:
            yield self.place(left, m), self.term(left, m), self.term(right, m)
        for e in m.rule.makes:
            if e[0] in SPLITS:
                at = self.tables.sorts[str(e[0])].index("E")
                value, part, rest = e[1 + at], e[-2], e[-1]
                both = T.Binary(SPLITS[str(e[0])], self.term(part, m), self.term(rest, m))
                yield self.place(value, m), self.term(value, m), both
            elif e[0] == "single":
                axis, monoid = (str(self.tables.value(a, m.bound)) for a in e[2:4])
                yield self.place(e[1], m), self.term(e[1], m), T.Fold((axis,), monoid, self.term(e[4], m))

    def place(self, e: Sexp, m: Match) -> int:
        """The number of an expression's class."""
        return self.number.get(int(str(self.tables.value(e, m.bound))), -1)


# ---- replay


def replays(law: Law, before: Term, after: Term) -> bool:
    """Whether one side of the law matches `before` so that the other side is `after`."""
    for left, right in law.sides:
        bound: dict[str, object] = {}
        if _matches(left, before, bound) and _matches(right, after, bound):
            return True
    return False


def _matches(p: Term, t: Term, bound: dict[str, object]) -> bool:
    """Bind the pattern's variables so that it is `t`."""
    if isinstance(p, T.Var):
        return bound.setdefault(p.name, t) is t
    if type(p) is not type(t):
        return False
    for f in fields(p):
        want, got = getattr(p, f.name), getattr(t, f.name)
        if isinstance(want, Term):
            if not _matches(want, got, bound):
                return False
        elif not _same(want[0] if isinstance(want, tuple) and want else want, got, bound):
            return False
    return True


def _same(want: object, got: object, bound: dict[str, object]) -> bool:
    if not isinstance(want, str) or not want.startswith("?"):
        return want == got
    if want.startswith("?(set-union"):
        names = want.strip("?()").split()[1:]
        return got == tuple(sorted({a for n in names for a in bound[n]}))  # type: ignore[attr-defined]
    return bound.setdefault(want[1:], got) == got


# ---- numbers


def difference(program: LoopProgram, before: Term, after: Term, seed: int) -> float | None:
    """The largest relative difference of two terms in float64 on random small extents; None where there is no value."""
    rng = np.random.default_rng(seed)
    extents = {a: int(rng.integers(2, LARGEST)) for a in program.axes}
    buffers = {b.name: _random(b.dtype, tuple(min(n, LARGEST) for n in b.shape), rng) for b in program.buffers}
    try:
        x, y = (spelled_out(t, extents) for t in (before, after))
        order = tuple(sorted(x.free | y.free))
        with np.errstate(all="ignore"):
            a, b = (np.asarray(evaluate(t, extents, buffers, order, exact=True), dtype=np.float64) for t in (x, y))
    except IRError:
        return None
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    scale = float(np.max(np.abs(np.where(np.isfinite(a), a, 0.0)), initial=0.0))
    worst = float(np.max(apart, initial=0.0))
    return float("inf") if np.isnan(worst) else worst / (scale or 1.0)


def _random(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if is_float(dtype):
        return rng.standard_normal(shape)
    return rng.integers(0, 2, shape).astype(numpy_type(dtype))


def shown(t: Term) -> Term:
    """A term for people: what is kept whole stands as it is."""
    memo: dict[Term, Term] = {}
    for k in postorder(t):
        kids = [memo[x] for x in k.terms]
        memo[k] = kids[1] if isinstance(k, T.At) and k.axis not in kids[1].free else over(k, kids)
    return memo[t]
