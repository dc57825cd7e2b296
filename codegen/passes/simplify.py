"""Constant folding: integer terms in affine normal form, predicates decided by intervals, dead branches gone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from codegen.passes.state import State
from codegen.passes.terms import rebuilt, with_children
from ir import kernel as K
from ir import term as T
from ir.dtype import DType, is_integer
from ir.interval import Affine, Interval, Ranges, divisor
from ir.term import Const, Term, Var

Known = Mapping[Term, Interval]


def simplify(state: State) -> State:
    """Simplify every term by what is known of the launch and of the loops around it."""
    kernel = state.kernel
    assert kernel is not None
    return replace(state, kernel=replace(kernel, body=_body(kernel.body, Facts(launch_ranges(kernel)))))


def launch_ranges(kernel: K.KernelProgram) -> dict[Term, Interval]:
    """What is known of the coordinates of a launch."""
    return {K.BLOCK: (0, max(kernel.blocks - 1, 0)), K.THREAD: (0, kernel.threads - 1)}


@dataclass
class Facts:
    """Intervals and divisors of the scalars in sight."""

    ranges: dict[Term, Interval]
    divisors: dict[Term, int] = field(default_factory=dict)

    def inner(self, ranges: Known) -> Facts:
        """The facts for a body inside, with its own intervals."""
        return Facts(dict(ranges), dict(self.divisors))


def _body(body: tuple[K.Statement, ...], facts: Facts) -> tuple[K.Statement, ...]:
    simplifier = Simplifier(facts)
    out: list[K.Statement] = []
    for old in body:
        s = K.map_terms(old, simplifier)
        match s:
            case K.Let(name, value):
                if is_integer(value.dtype):
                    facts.ranges[Var(name, value.dtype, ())] = simplifier.ranges.of(value)
                    facts.divisors[Var(name, value.dtype, ())] = divisor(value, facts.divisors)
            case K.For(_, start, stop, step):
                v = s.counter
                inside = facts.inner({**facts.ranges, v: simplifier.ranges.counter(start, stop, step)})
                inside.divisors[v] = math.gcd(divisor(start, facts.divisors), step)
                s = replace(s, body=_body(s.body, inside))
            case K.If(pred):
                if isinstance(pred, Const):
                    out += _body(s.body, facts.inner(facts.ranges)) if pred.value else ()
                    continue
                s = replace(s, body=_body(s.body, facts.inner(_refined(pred, facts.ranges))))
        out += _without_decided(s)
    return tuple(out)


def _refined(pred: Term, known: Known) -> Known:
    """What is known where `pred` holds: comparisons of a scalar with a constant bound it."""
    match pred:
        case T.Binary("and", x, y):
            return _refined(y, _refined(x, known))
        case T.Binary("lt" | "le" as op, Var() as v, Const() as c) if v in known:
            low, high = known[v]
            return {**known, v: (low, min(high, int(c.value) - (op == "lt")))}
        case T.Binary("lt" | "le" as op, Const() as c, Var() as v) if v in known:
            low, high = known[v]
            return {**known, v: (max(low, int(c.value) + (op == "lt")), high)}
    return known


def _without_decided(s: K.Statement) -> Sequence[K.Statement]:
    """The statement without a predicate that is always true; nothing, or the default, where it is always false."""
    moves = K.LoadGlobal | K.StoreGlobal | K.LoadShared | K.StoreShared | K.Copy
    if isinstance(s, moves) and isinstance(s.pred, Const):
        if s.pred.value:
            return (replace(s, pred=None),)
        if isinstance(s, K.StoreGlobal | K.StoreShared):
            return ()
        if isinstance(s, K.Copy):  # of zeros
            return (s,)
        if s.other is not None:
            places = (T.binary("add", s.index, T.const(e, "i32")) for e in range(s.width))
            return [K.Assign(s.array, place, s.other) for place in places]
    return (s,)


class Simplifier:
    """Rebuilds terms; integers that address memory become sums of coefficient * atom."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.ranges = facts, Ranges(facts.ranges)
        self.memo: dict[Term, Term] = {}

    def __call__(self, t: Term) -> Term:
        return rebuilt(t, self.node, self.memo)

    def node(self, t: Term, kids: Sequence[Term]) -> Term:
        new = with_children(t, kids)
        if new.dtype == "bool":
            return self.predicate(new)
        if is_integer(new.dtype):
            low, high = self.ranges.of(new)
            return T.const(low, new.dtype) if low == high else self.integer(new)
        return new

    def predicate(self, t: Term) -> Term:
        known = self.ranges.decide(t)
        if known is not None:
            return T.const(known, "bool")
        match t:
            case T.Binary("and" | "or" as op, x, Const() as c) | T.Binary("and" | "or" as op, Const() as c, x):
                return x if bool(c.value) == (op == "and") else c
            case T.Binary("lt" | "le" as op, x, y) if is_integer(x.dtype):
                return self.below(self.ranges.affine(x).plus(self.ranges.affine(y), -1), op == "lt", x.dtype)
        return t

    def below(self, form: Affine, strict: bool, dtype: DType) -> Term:
        """form < 0 (or <= 0) in one normal form: atoms with their positive coefficients < the others plus a constant.

        A step that all atoms share rounds the constant, so that neighbours in one run of elements have equal tests.
        """
        step = math.gcd(*(c * divisor(a, self.facts.divisors) for a, c in form.coefficients.items()))
        bound = -form.constant + (0 if strict else 1)
        bound = -(-bound // step) * step if step else bound
        left = Affine({a: c for a, c in form.coefficients.items() if c > 0}, 0)
        right = Affine({a: -c for a, c in form.coefficients.items() if c < 0}, bound)
        if not left.coefficients:
            left, right = Affine({}, -bound), Affine(right.coefficients, 0)
        return T.binary("lt", built(left, dtype), built(right, dtype))

    def integer(self, t: Term) -> Term:
        match t:
            case T.Binary("floordiv" | "mod" as op, x, Const() as m) if m.value > 0:
                return self.divided(op, x, int(m.value), t.dtype)
            case T.Binary("max" | "min" as op, x, y):
                (a, b), (c, d) = self.ranges.of(x), self.ranges.of(y)
                first, second = (a >= d, c >= b) if op == "max" else (b <= c, d <= a)
                return x if first else y if second else t
            case T.Binary("add" | "mul") | T.Unary("neg"):
                return built(self.ranges.affine(t), t.dtype)
        return t

    def divided(self, op: str, x: Term, m: int, dtype: DType) -> Term:
        """x // m or x % m, with the multiples of m in x taken apart."""
        form = self.ranges.affine(x)
        whole = Affine({a: c // m for a, c in form.coefficients.items() if c % m == 0}, form.constant // m)
        rest = form.plus(whole, -m)
        low, high = self.ranges.span(rest)
        if low >= 0 and high < m:
            return built(whole if op == "floordiv" else rest, dtype)
        remainder = built(rest, dtype)
        if low >= 0:  # C's operators agree with the floored ones
            op = "truncdiv" if op == "floordiv" else "fmod"
        part = T.binary(op, remainder, T.const(m, dtype))
        if op in ("mod", "fmod"):
            return part
        return T.binary("add", built(whole, dtype), part)


def built(form: Affine, dtype: DType) -> Term:
    """An affine form as a term of `dtype`: growing coefficients first, the constant last."""
    out: Term | None = None
    for atom, c in sorted(form.coefficients.items(), key=lambda item: (-item[1], T.order_key(item[0]))):
        product = T.binary("mul", T.round_to(dtype, "cast", atom), T.const(abs(c), dtype))
        signed = product if c > 0 else T.unary("neg", product)
        out = signed if out is None else T.binary("add", out, signed)
    if out is None:
        return T.const(form.constant, dtype)
    return T.binary("add", out, T.const(form.constant, dtype))
