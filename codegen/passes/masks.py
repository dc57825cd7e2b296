"""Tile to tile: what loads leave where they touch nothing, by abstract interpretation; masks over it need not be there.

A load that some test keeps from memory leaves a constant, which is free to choose: then every value that is computed of
it alone is known where the test fails. Where that is the identity of the fold that a mask serves, the mask goes.

v0 = load x[i], nothing where i >= n          leaves -inf
v1 = where i < n: v0 else identity of max     is v0
v2 = fold max over i of v1                    m
v3 = map exp(v0 - m)                          0 where i >= n: -inf less any number
v4 = where i < n: v3 else identity of add     is v3, as a sum begins at 0

A value that does not go along the axes of a test may be any. One that is known not to be infinite is a number or NaN, and
where it is NaN, operators that pass NaN on make every term of the fold NaN, masked or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from codegen.passes.order import renamed
from codegen.passes.state import PartPlan, State, access_name
from codegen.passes.terms import conjunction, typed
from ir import meaning, tile
from ir import term as T
from ir.dtype import DTYPES, Array, is_float
from ir.interval import Ranges
from ir.live import live
from ir.loop import Buffer
from ir.node import postorder
from ir.ops import MONOIDS
from ir.term import Index, Term, Var
from ir.tile import Statement, TileFold, TileLoad, TilePart

PASS_NAN = {"add", "sub", "mul", "div", "neg", "abs", "exp", "exp_coarse", "sqrt", "rsqrt", "recip", "log", "tanh"}
"""Operators whose result is NaN where an operand is."""


@dataclass(frozen=True)
class Fact:
    """What a value is where a test fails: this constant, or NaN where all that the test lets through is NaN too."""

    value: Array
    or_nan: bool = False


NUMBER = "number"
"""A float that is not infinite, and the same along the axes of the test at hand."""
Known = Fact | str | None
"""None is anything."""


@dataclass(frozen=True)
class Test:
    """One inequality over coordinates, however it is spelled: 0 <= (or <) the sum of constant and terms."""

    op: str
    form: tuple[int, frozenset[tuple[Term, int]]]
    free: frozenset[str]


class Tests:
    """Terms of inequalities as `Test`s, over the axes of a part."""

    def __init__(self, part: TilePart) -> None:
        self.ranges = Ranges({Index(a.name): (0, max(2 * a.extent - 1, 0)) for a in part.axes})

    def of(self, pred: Term) -> Test | None:
        """The test that an inequality of integers spells."""
        match pred:
            case T.Binary("lt" | "le" as op, x, y) if x.dtype in ("i32", "i64") and y.dtype in ("i32", "i64"):
                form = self.ranges.affine(y).plus(self.ranges.affine(x), -1)
                return Test(op, (form.constant, frozenset(form.coefficients.items())), pred.free)
        return None

    def all_of(self, pred: Term) -> set[Test]:
        """The tests that must hold where the predicate does."""
        return {t for p in T.conjuncts(pred) if (t := self.of(p)) is not None}


def hidden(part: TilePart, name: str, tests: set[Test]) -> bool:
    """Whether a value is never seen where one of the tests fails: all that is made of it is masked by them."""
    found, known = list(tile.walk(part.body)), Tests(part)
    waiting, done = [name], set[str]()
    while waiting:
        here = waiting.pop()
        done.add(here)
        for s in found:
            if isinstance(s, tile.Stream):
                if here in s.yields:
                    return False
                continue
            if here not in tile.reads(s):
                continue
            match s:
                case tile.Where(_, pred, x, _) if x == here and here not in _names(pred):
                    if tests <= known.all_of(pred):
                        continue
                case tile.Map(_, term) if _selected(term, here, tests, known):
                    continue
                case tile.Map() | tile.Convert() | tile.Combine():
                    pass
                case _:
                    return False
            if s.out not in done:
                waiting.append(s.out)
    return True


def _names(term: Term) -> set[str]:
    return {t.name for t in postorder(term) if isinstance(t, Var)}


def _selected(term: Term, name: str, tests: set[Test], known: Tests) -> bool:
    """Whether the term reads the value only where the tests hold."""
    match term:
        case T.Select(pred, _, y) if tests <= known.all_of(pred):
            return name not in _names(pred) | _names(y)
        case Var(own, _, _):
            return own != name
    return all(_selected(k, name, tests, known) for k in term.terms)


def drop_masks(state: State) -> State:
    """Give every load what it leaves, and take away masks and bounds of folds that see the identity anyway."""
    buffers = {b.name: b for b in state.tile.buffers}
    parts, plans = list[TilePart](), list[PartPlan]()
    for part, plan in zip(state.tile.parts, state.plans, strict=True):
        part, plan = _Masks(part, plan, buffers).without()
        parts.append(part)
        plans.append(plan)
    return replace(state, tile=replace(state.tile, parts=tuple(parts)), plans=tuple(plans))


class _Masks:
    def __init__(self, part: TilePart, plan: PartPlan, buffers: Mapping[str, Buffer]) -> None:
        self.part, self.plan, self.tests = part, plan, Tests(part)
        self.types = tile.infer(part, buffers)
        self.made = {s.out: s for s in tile.walk(part.body) if not isinstance(s, tile.Stream | tile.TileStore)}
        self.kept = {
            s.out: self.tests.all_of(t)
            for s in self.made.values()
            if isinstance(s, TileLoad) and (t := self.limits(s))
        }
        """Of each load that may touch nothing, when it does touch memory."""
        self.leaves: dict[str, float | int | bool] = {}
        self.folds = [s for s in self.made.values() if isinstance(s, TileFold) and not MONOIDS[s.monoid].pair]

    def rewritten(self, body: tuple[Statement, ...], names: dict[str, str]) -> tuple[Statement, ...]:
        """The body without masks that are not needed; `names` are what stands in their place."""
        out = list[Statement]()
        for s in body:
            inner = replace(s, body=self.rewritten(s.body, names)) if isinstance(s, tile.Stream) else s
            match s:
                case tile.Where(made, _, x, monoid):
                    pred = conjunction(self.needed(s))
                    if pred is None:
                        names[made] = names.get(x, x)
                        continue
                    inner = tile.Where(made, pred, x, monoid)
            out.append(renamed(inner, names))
        return tuple(out)

    def limits(self, s: TileLoad) -> Term | None:
        """What must hold for a load to touch memory."""
        access = self.plan.accesses[access_name(s)]
        return conjunction([*access.tests, *(self.bound(a) for a in access.extents)])

    def bound(self, axis: str) -> Term:
        return T.binary("lt", Index(axis), T.number(self.part.axis(axis).extent))

    def without(self) -> tuple[TilePart, PartPlan]:
        """The part and its plan without what is not needed."""
        for name in self.kept:
            choices = {repr(v): v for v in self.choices(self.types[name].dtype)}
            self.leaves[name] = max(choices.values(), key=lambda v: self.saved({**self.leaves, name: v}))
        names, accesses = dict[str, str](), {}
        body = self.rewritten(self.part.body, names)
        for s in tile.walk(self.part.body):
            if isinstance(s, TileLoad | tile.TileStore):
                access = self.plan.accesses[access_name(s)]
                leaves = self.leaves.get(s.out, 0) if isinstance(s, TileLoad) else 0
                here = renamed(s, names)
                assert isinstance(here, TileLoad | tile.TileStore)
                accesses[access_name(here)] = replace(access, leaves=leaves)
        whole = frozenset((s.out, a) for s in self.folds for a in s.axes if self.ends(s, a))
        part = replace(self.part, body=live(body))
        return part, replace(self.plan, accesses=accesses, ended=whole)

    def choices(self, dtype: str) -> list[float | int | bool]:
        """Constants that a load may leave: 0, and the identities of the folds."""
        return [0, *(meaning.identity(s.monoid, dtype) for s in self.folds)]

    def saved(self, leaves: Mapping[str, float | int | bool]) -> int:
        """How many tests need not be made if loads leave these."""
        self.leaves, before = dict(leaves), self.leaves
        wheres = [s for s in self.made.values() if isinstance(s, tile.Where)]
        count = sum(len(list(T.conjuncts(s.pred))) - len(self.needed(s)) for s in wheres)
        count += sum(self.ends(s, a) for s in self.folds for a in s.axes)
        self.leaves = before
        return count

    def needed(self, s: tile.Where) -> list[Term]:
        """The conjuncts of a mask that its value does not stand for."""
        return [p for p in T.conjuncts(s.pred) if not self.neutral(s.x, s.monoid, self.tests.of(p))]

    def ends(self, s: TileFold, axis: str) -> bool:
        """Whether the fold sees its identity past the end of an axis that one tile holds."""
        a = self.part.axis(axis)
        return (
            a.role == "whole"
            and a.tile == a.extent
            and self.neutral(s.x, s.monoid, self.tests.of(self.bound(axis)))
        )

    def neutral(self, name: str, monoid: str, test: Test | None) -> bool:
        """Whether a value is the identity of a monoid where the test fails; a sum begins at 0."""
        if test is None:
            return False
        return _is(self.value(name, test, {}), meaning.identity(monoid, self.types[name].dtype))

    def value(self, name: str, test: Test, memo: dict[str, Known]) -> Known:
        """What a value is where the test fails."""
        if name not in memo:
            memo[name] = None
            memo[name] = self.evaluated(name, test, memo)
        return memo[name]

    def evaluated(self, name: str, test: Test, memo: dict[str, Known]) -> Known:
        dtype = self.types[name].dtype
        match self.made.get(name):
            case TileLoad():
                kept = test in self.kept.get(name, ())
                return Fact(np.asarray(self.leaves.get(name, 0), meaning.held(dtype, False))) if kept else None
            case tile.Map(_, term):
                return self.term(typed(term), test, memo)
            case tile.Convert(_, x, to, _):
                return self.term(T.round_to(to or dtype, "cast", self.types[x]), test, memo)
            case tile.Combine(_, monoid, x, y):
                return self.term(T.binary(MONOIDS[monoid].combine, self.types[x], self.types[y]), test, memo)
            case tile.Where(_, pred, x, monoid):
                inner, e = self.value(x, test, memo), meaning.identity(monoid, dtype)
                if test in self.tests.all_of(pred):
                    return inner if _is(inner, e) else Fact(np.asarray(e, meaning.held(dtype, False)))
                return inner if isinstance(inner, Fact) and _is(inner, e) and not inner.or_nan else None
        return None

    def term(self, root: Term, test: Test, memo: dict[str, Known]) -> Known:
        """What a term is where the test fails."""
        known: dict[Term, Known] = {}
        for t in postorder(root):
            known[t] = self.node(t, known, test, memo)
        return known[root]

    def node(self, t: Term, known: Mapping[Term, Known], test: Test, memo: dict[str, Known]) -> Known:
        match t:
            case T.Const():
                return Fact(np.asarray(t.value, dtype=meaning.held(t.type, False)))
            case Var(name, _, _):
                return self.value(name, test, memo)
            case T.Select(T.Binary("eq", T.Unary("abs", x), T.Const(value=bound)), T.Const() as c, y) if (
                x is y and bound == np.inf and np.isfinite(c.value) and not t.free & test.free
            ):
                return NUMBER
            case T.Unary() | T.Binary() | T.Select() | T.Round():
                op, operands = meaning.operands(t)
                return _computed(t, op, operands, [known.get(k) for k in operands])
        return None


def _is(found: Known, constant: float | int | bool) -> bool:
    return isinstance(found, Fact) and bool(found.value == constant)


def _computed(t: Term, op: str, operands: Sequence[Term], values: Sequence[Known]) -> Known:
    """An operator over what is known of its operands."""
    facts = [v for v in values if isinstance(v, Fact)]
    floats = is_float(t.dtype) and all(is_float(k.dtype) for k in operands)
    passes = op in PASS_NAN or op in DTYPES or (op in ("addz", "mulz") and values[0] in facts[:1])
    if any(f.or_nan for f in facts) and not (passes and floats):
        return None
    or_nan = any(f.or_nan for f in facts)
    if len(facts) == len(values):
        found = meaning.compute(op, [f.value for f in facts], [k.dtype for k in operands], t.dtype, False)
        return Fact(found, or_nan)
    if op == "neg" and values[0] == NUMBER:
        return NUMBER
    if len(facts) != 1 or not floats:
        return None
    constant, first = facts[0].value, isinstance(values[0], Fact)
    number = NUMBER in values
    match op:
        case "add" if number and np.isinf(constant):
            return Fact(constant, True)
        case "sub" if number and np.isinf(constant):
            return Fact(constant if first else -constant, True)
        case "addz" if first and np.isneginf(constant):
            return Fact(constant, or_nan)
        case "mul" if number and constant == 0:
            return Fact(np.zeros_like(constant), True)
        case "mulz" if first and constant == 0:
            return Fact(np.zeros_like(constant), or_nan)
    return None
