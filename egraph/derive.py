"""Derivations: the equations by laws that lead from a program as written to a form of it, each replayed and checked.

A step is one match of one law, replayed on terms: the two sides of the law under what its variables stand for. What a
law needs of them, that a value is one part combined with another or that an exponent is never positive, is replayed
before it, as a step of its own or as a fact; so the steps prove the last ones. Each is also checked by numbers, in
float64 on random extents. A prefix of a sum in which every shift is infinite, since all of it is masked, is no number
as written and is carried as 0: steps between prefixes are claims about those that are numbers.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from egraph.history import Key, Match, Value
from egraph.matches import Sexp
from egraph.prefixes import over, spelled_out
from egraph.replay import MAKERS, Bound, Replay
from egraph.trace import Explained
from ir import term as T
from ir.dtype import Array, is_float, numpy_type
from ir.loop import LoopProgram
from ir.loop_interp import evaluate
from ir.node import IRError, postorder
from ir.term import Term

SPLITS = {"psplit": "mul", "asplit": "add", "esplit": "mul", "shifts": "mul"}
"""Facts that a value, the first argument, is one part combined with another, the last two."""
FACTS = {
    "positive": "{} is never negative",
    "nonpositive": "{} is never positive",
    "safe": "exp({}) does not overflow",
    "bounded": "{} is within -1 and 1",
    "plain": "{} is never -0.0",
    "le": "{} <= {}",
    "inverse": "{} is the reciprocal of {}",
    "exponential": "{} is a product of exponentials",
    "tame": "{} is finite where its operands are",
    "leaves": "{} is in range by itself, as {} is",
}
EQUAL = "{} = {}"
NUMBER = "{} is a number at this step"
RANGED = "no exponential leaves the range of floats"
LARGEST = 6  # extents in a numeric check
TOLERANCE = 1e-9
TINY = 1e-280
OPERANDS = 2
"""How many operands below the variables of a match its helpers are looked for."""


@dataclass(frozen=True)
class Given:
    """What a law needs of its variables: a sentence with gaps, and the terms that fill them."""

    sentence: str
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Step:
    """`before` equals `after` by a law, in the class numbered `place` (-1: a value that no form uses by itself)."""

    law: str
    """Empty where they are equal by what a fold over two axes is, or a prefix of a sum."""
    before: Term
    after: Term
    place: int
    sides: tuple[Term, Term]
    """The law's own sides: those above with variables named `?x` in place of the terms in `bound`."""
    bound: Mapping[str, Term | Value]
    given: tuple[Given, ...]
    error: float | None
    """The largest relative difference in a numeric check; None where the terms cannot be evaluated."""
    matches: tuple[Match, ...]

    @property
    def holds(self) -> bool:
        """Whether the numeric check, where there is one, confirms the step."""
        return self.error is None or self.error <= TOLERANCE


@dataclass(frozen=True)
class Derivation:
    """Steps, each after those that it needs, and the matches that could not be replayed.

    Of these there should be none unless it is `cut`: unless the deadline came before all were tried.
    """

    steps: tuple[Step, ...]
    left: tuple[Match, ...]
    helpers: tuple[Match, ...] = ()
    """Matches among the steps' that show terms of one class to be equal, for others that need it."""
    cut: bool = False


def derivation(graph: Explained, matches: Iterable[Match], seed: int = 0, deadline: float = math.inf) -> Derivation:
    """The steps of the laws among the matches, the first ones first; `deadline` is a time of `time.perf_counter`."""
    wanted = list({id(m): m for m in matches}.values())
    found = _derived(graph, wanted, [], seed, deadline)
    helpers = _helpers(graph, wanted, found.left, deadline) if found.left and not found.cut else []
    helped = _derived(graph, wanted, helpers, seed, deadline) if helpers else found
    best = min(found, helped, key=lambda d: len(d.left))
    return replace(best, cut=bool(best.left) and time.perf_counter() > deadline)


def _derived(graph: Explained, wanted: list[Match], helpers: list[Match], seed: int, deadline: float) -> Derivation:
    replay = Replay(graph)
    number = {i: c for c, ids in graph.trace.ids.items() for i in ids}
    steps: dict[tuple[str, Term, Term], Step] = {}
    left = {id(m): m for m in wanted}
    for m, bound in replay.replayed([*wanted, *helpers], deadline):
        left.pop(id(m), None)
        said = _Said(replay, m, bound)
        for sides in _equations(m):
            before, after = map(said.term, sides)
            if not m.rule.law and _trivial(before, after):
                continue
            key = m.rule.law, before, after
            if key in steps:
                steps[key] = replace(steps[key], matches=(*steps[key].matches, m))
            else:
                own = said.law_side(sides[0]), said.law_side(sides[1])
                error, only = difference(graph.program, before, after, seed)
                given = *said.given(), *only
                place = number.get(said.within(sides[0]), -1)
                steps[key] = Step(*key, place, own, said.bound, given, error, (m,))
    late = bool(left) and time.perf_counter() > deadline
    return Derivation(tuple(steps.values()), tuple(left.values()), tuple(helpers), late)


def _helpers(graph: Explained, wanted: list[Match], waiting: Iterable[Match], deadline: float) -> list[Match]:
    """Matches without which those that wait do not find what they need, as terms of one class are not yet equal.

    They are looked for among all that put the classes of the variables of those together, or the classes of operands
    there and of theirs, and the needless are left out.
    """

    def stuck(more: list[Match]) -> list[Match]:
        done = {id(m) for m, _ in Replay(graph).replayed([*wanted, *more])}
        return [m for m in wanted if id(m) not in done]

    history = graph.trace.history
    keys: dict[Value, list[Key]] = defaultdict(list)
    for k, c in history.tables.outputs.items():
        if k[0] in MAKERS:
            keys[c].append(k)
    near = {v for m in waiting for v in m.bound.values() if isinstance(v, int)}
    for _ in range(OPERANDS):
        near |= {v for c in near for k in keys[c] for v in k[1] if isinstance(v, int)}
    known = {id(m) for m in wanted}
    found, _ = history.needed((keys[c][0], k) for c in sorted(near) for k in keys[c])
    helpers = [m for m in found if id(m) not in known]
    left, size = stuck(helpers), len(helpers)
    while size and helpers:
        for at in range(len(helpers) - size, -1, -size):
            if time.perf_counter() > deadline:
                return helpers
            rest = helpers[:at] + helpers[at + size :]
            helpers = rest if stuck(rest) == left else helpers
        size //= 2
    return helpers


def _equations(m: Match) -> Iterator[tuple[Sexp, Sexp]]:
    """What a match says, in the expressions of its rule."""
    yield from m.rule.unions
    yield from (said for e in m.rule.makes if (said := _equation(e)) is not None)


def _equation(e: Sexp) -> tuple[Sexp, Sexp] | None:
    """The two sides of a fact that is an equation."""
    match e:
        case (str(name), value, _, part, rest) if name in SPLITS:
            return value, ("Binary", f'"{SPLITS[name]}"', part, rest)
        case ("single", value, axis, monoid, body):
            return value, ("Fold", axis, monoid, body)
        case ("moving", value, axis, new):
            return ("New", axis, value), new
    return None


class _Said:
    """The expressions of a rule in a replayed match, as terms."""

    def __init__(self, replay: Replay, m: Match, bound: Bound) -> None:
        self.replay, self.match = replay, m
        self.terms = {v: replay.known[replay.find(c)].term for v, c in bound.items() if isinstance(v, str)}
        named = {v for e, _ in m.rule.needs for v in e[1:] if isinstance(v, str) and v in m.bound}
        self.bound: dict[str, Term | Value] = {v: m.bound[v] for v in sorted(named)} | self.terms

    def term(self, e: Sexp) -> Term:
        """An expression; a variable that the rule takes apart is shown taken apart."""
        return self.replay.term(e, self.match, self.terms.__getitem__)

    def law_side(self, e: Sexp) -> Term:
        """The same with variables of the law in place of what they stand for."""
        return self.replay.term(e, self.match, self._variable)

    def within(self, e: Sexp) -> int:
        """The class of the saturated graph, -1 where it has no such row."""
        tables, bound = self.replay.tables, self.match.bound
        return int(str(bound[e] if isinstance(e, str) else tables.outputs.get(tables.key(e, bound), -1)))

    def _variable(self, v: str) -> Term:
        t = self.terms[v]
        return T.Var(f"?{v}", t.dtype, tuple(sorted(t.free)))

    def given(self) -> tuple[Given, ...]:
        """The facts that the match needs, but those that split off an identity."""
        found = []
        for e, _ in self.match.rule.needs:
            if (equation := _equation(e)) is not None:
                value, other = (self.replay.term(x, self.match, self.terms.__getitem__, False) for x in equation)
                found += [] if _trivial(value, other) else [Given(EQUAL, (value, other))]
            elif e[0] in FACTS:
                terms = (self.terms[a] for a in e[1:] if isinstance(a, str) and a in self.terms)
                found.append(Given(FACTS[str(e[0])], tuple(terms)))
        return tuple(dict.fromkeys(found))


def _trivial(x: Term, y: Term) -> bool:
    """Whether terms are equal by what an identity is."""
    return x is y or (isinstance(y, T.Binary) and any(isinstance(k, T.Identity) for k in y.terms))


# ---- numbers


def difference(
    program: LoopProgram, before: Term, after: Term, seed: int
) -> tuple[float | None, tuple[Given, ...]]:
    """The largest difference of two terms in float64 on random small extents, relative to the largest value or to 1,
    since what cancels is compared too; None where there is no value. And where alone they are compared: a term that
    holds a prefix, where it is NaN and the other is not, is left out, and terms that differ as an exponential leaves
    the range of float64 are not compared at all.
    """
    rng = np.random.default_rng(seed)
    extents = {a: int(rng.integers(2, LARGEST)) for a in program.axes}
    buffers = {b.name: _random(b.dtype, tuple(min(n, LARGEST) for n in b.shape), rng) for b in program.buffers}
    try:
        x, y = (spelled_out(t, extents) for t in (before, after))
        order = tuple(sorted(x.free | y.free))
        with np.errstate(all="ignore"):
            a, b = (np.asarray(evaluate(t, extents, buffers, order, exact=True), dtype=np.float64) for t in (x, y))
    except IRError:
        return None, ()
    only: tuple[Given, ...] = ()
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if any(isinstance(t, T.Prefix) for t in postorder(before, after)):
        one = np.isnan(a) != np.isnan(b)
        only = tuple(Given(NUMBER, (t,)) for t, v in ((before, a), (after, b)) if (one & np.isnan(v)).any())
        same |= one
    with np.errstate(all="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    scale = float(np.max(np.abs(np.where(np.isfinite(a), a, 0.0)), initial=0.0))
    worst = float(np.max(apart, initial=0.0))
    error = float("inf") if np.isnan(worst) else worst / max(scale, 1.0)
    if error > TOLERANCE and any(_leaves_range(t, extents, buffers) for t in postorder(x, y)):
        return None, (*only, Given(RANGED, ()))
    return error, only


def _leaves_range(t: Term, extents: Mapping[str, int], buffers: Mapping[str, Array]) -> bool:
    """Whether an exponential of a finite value is 0, infinite or close to it."""
    if not isinstance(t, T.Unary) or t.op not in ("exp", "exp2"):
        return False
    order = tuple(sorted(t.free))
    with np.errstate(all="ignore"):
        x, y = (np.asarray(evaluate(k, extents, buffers, order, exact=True)) for k in (t.x, t))
    return bool((np.isfinite(x) & ~((y > TINY) & (y < 1 / TINY))).any())


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
