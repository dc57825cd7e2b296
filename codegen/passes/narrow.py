"""Index arithmetic in 32 bits, wherever the intervals prove that no value needs more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from codegen.passes.simplify import launch_ranges
from codegen.passes.state import State
from codegen.passes.terms import rebuilt, with_children
from ir import kernel as K
from ir import term as T
from ir.dtype import is_integer
from ir.interval import Interval, Ranges, inside, type_range
from ir.term import Term, Var

_NARROW = type_range("i32")


def narrow_integers(state: State) -> State:
    """The kernel with i64 terms and scalars computed as i32 where every value fits."""
    kernel = state.kernel
    assert kernel is not None
    return replace(state, kernel=replace(kernel, body=_Narrower(launch_ranges(kernel)).body(kernel.body)))


class _Narrower:
    def __init__(self, leaves: dict[Term, Interval]) -> None:
        self.leaves = leaves
        self.ranges = Ranges(leaves)
        self.scalars: dict[Term, Term] = {}
        self.memo: dict[Term, Term] = {}

    def body(self, body: tuple[K.Statement, ...]) -> tuple[K.Statement, ...]:
        out: list[K.Statement] = []
        for s in body:
            match s:
                case K.Let(name, value):
                    out.append(self.let(name, value))
                case K.For(_, start, stop, step):
                    self.leaves[s.counter] = self.ranges.counter(start, stop, step)
                    start, stop = (T.round_to(t.dtype, "cast", self.of(t)) for t in (start, stop))
                    out.append(replace(s, start=start, stop=stop, body=self.body(s.body)))
                case K.If():
                    out.append(K.If(self.of(s.pred), self.body(s.body)))
                case K.Assign(array, index, value):
                    whole = T.round_to(value.dtype, "cast", self.of(value))
                    out.append(K.Assign(array, self.of(index), whole))
                case K.Shuffle(array, index, value, mask):
                    whole = T.round_to(value.dtype, "cast", self.of(value))
                    out.append(K.Shuffle(array, self.of(index), whole, mask))
                case K.LoadGlobal() | K.LoadShared():
                    out.append(K.map_terms(s, partial(self.unless, s.other)))
                case _:
                    out.append(K.map_terms(s, self.of))
        return tuple(out)

    def let(self, name: str, value: Term) -> K.Let:
        new = self.of(value)
        if is_integer(value.dtype):
            old, scalar = Var(name, value.dtype, ()), Var(name, new.dtype, ())
            self.leaves[old] = self.leaves[scalar] = self.ranges.of(value)
            self.scalars[old] = scalar
        return K.Let(name, new)

    def unless(self, kept: Term | None, t: Term) -> Term:
        """The narrowed term, but `kept`, which has the type of an array, as it is."""
        return t if t is kept else self.of(t)

    def of(self, t: Term) -> Term:
        """The term, as i32 where it is an i64 that fits."""
        return rebuilt(t, self.node, self.memo)

    def node(self, t: Term, kids: Sequence[Term]) -> Term:
        if t in self.scalars:
            return self.scalars[t]
        old = [k.dtype for k in t.terms]
        if "i64" not in (t.dtype, *old):
            return with_children(t, kids)
        fits = all(k.dtype == "i32" for k, d in zip(kids, old, strict=True) if d == "i64")
        match t:
            case T.Const() if inside(self.ranges.of(t), _NARROW):
                return T.const(t.value, "i32")
            case T.Round("i64", _, x) if is_integer(x.dtype) and inside(self.ranges.of(x), _NARROW):
                return T.round_to("i32", "cast", kids[0])
            case T.Round(dtype, origin, _):
                return T.round_to(dtype, origin, kids[0])
            case T.Load():
                return with_children(t, kids)
            case T.Binary() | T.Unary() | T.Select() if fits and (t.dtype != "i64" or self.small(t)):
                return with_children(t, kids)
        wide = [T.round_to(d, "cast", k) for k, d in zip(kids, old, strict=True)]
        new = with_children(t, wide)
        return T.round_to("i32", "cast", new) if self.small(t) and self._clamped(t) else new

    def small(self, t: Term) -> bool:
        """Whether an i64 term has only values that i32 holds."""
        return t.dtype == "i64" and inside(self.ranges.of(t), _NARROW)

    @staticmethod
    def _clamped(t: Term) -> bool:
        """Whether the node itself makes its value small."""
        return isinstance(t, T.Binary) and t.op in (
            "min",
            "max",
            "mod",
            "fmod",
            "floordiv",
            "truncdiv",
            "and",
            "shr",
        )
