"""The values of a tile program while it is written: one statement for each term and loop, where the term belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from extract.facts import buffers_read, size
from extract.placing import Placing, is_coordinate, terms_of
from extract.roles import roles, tile_axes
from ir import term as T
from ir import tile
from ir.dtype import DType, is_float
from ir.loop import Buffer, Part, Store
from ir.node import IRError
from ir.ops import MONOIDS
from ir.schedule import Schedule
from ir.term import Term, Var
from ir.tile import Carried, Statement, TilePart

_INLINE = 24
"""Largest number of nodes of a coordinate term that is written out where it is used."""


@dataclass(eq=False)
class Group:
    """Sweeps over one axis that share a Stream: folds and streams, each by the term it stands for, and stores."""

    axis: str
    sweeps: dict[Term, Term] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    done: bool = False


@dataclass(eq=False)
class Loop:
    """The body of the part or of a stream while it is written; `known` maps terms to the values that hold them."""

    axis: str | None
    parent: Loop | None
    bound: frozenset[str]
    body: list[Statement] = field(default_factory=list)
    known: dict[Term, Var] = field(default_factory=dict)
    masks: dict[tuple[Term, Term, str], Var] = field(default_factory=dict)
    maps: dict[Term, Var] = field(default_factory=dict)
    groups: dict[tuple[int, str], Group] = field(default_factory=dict)
    group_of: dict[Term, Group] = field(default_factory=dict)
    carried: list[Carried] = field(default_factory=list)
    yields: dict[str, str] = field(default_factory=dict)


class Values:
    """Writes the values of one part; what sweeps make is written by `write`, `at_once` and `scanned` of a subclass."""

    def __init__(
        self,
        part: Part,
        buffers: Sequence[Buffer],
        axes: Mapping[str, int],
        schedule: Schedule,
        quotients: bool = False,
    ) -> None:
        self.quotients = quotients
        part = replace(part, stores=tuple(s for s in part.stores if all(axes[a] for a in s.axes)))
        self.terms = Placing(part.stores, tile_axes(roles(part, buffers), axes, schedule))
        self.axes = self.terms.axes
        self.buffers = {b.name: b for b in buffers}
        loaded = [buffers_read(t) for s in self.terms.stores for t in terms_of(s)]
        self.overwritten = {s.buffer for s in part.stores} & frozenset[str]().union(*loaded)
        self.values: dict[str, Var] = {}
        self.taken = {*self.axes, *self.buffers}

    def write(self, group: Group, loop: Loop) -> None:
        """Write the Stream of a group into `loop`, and after it the results of its folds and streams."""
        raise NotImplementedError

    def at_once(self, t: T.Stream, loop: Loop) -> Var:
        """A stream whose axis one tile covers."""
        raise NotImplementedError

    def scanned(self, t: T.Scan, loop: Loop) -> Var:
        """A scan within the tile, continued from the steps before where its axis is streamed."""
        raise NotImplementedError

    def place(self, t: Term, loop: Loop) -> Loop:
        """The outermost loop, from `loop` outwards, that binds what the term needs."""
        while loop.parent is not None and self.terms.needs(t) <= loop.parent.bound:
            loop = loop.parent
        return loop

    def name(self, prefix: str) -> str:
        n = 0
        while f"{prefix}{n}" in self.taken:
            n += 1
        self.taken.add(f"{prefix}{n}")
        return f"{prefix}{n}"

    def put(self, loop: Loop, s: Statement) -> Var:
        """Append a statement that makes a value."""
        made = tile.infer_one(s, self.values, TilePart(tuple(self.axes.values()), ()), self.buffers)
        if made is None:
            raise IRError(f"{type(s).__name__} makes no value")
        self.values[made.name] = made
        loop.body.append(s)
        return made

    def map(self, loop: Loop, term: Term) -> Var:
        """The value of a term over values and coordinates."""
        if isinstance(term, Var):
            return term
        if term not in loop.maps:
            loop.maps[term] = self.put(loop, tile.Map(self.name("v"), term))
        return loop.maps[term]

    def carry(self, loop: Loop, prefix: str, axes: Sequence[str], dtype: DType, monoid: str) -> Var:
        """A new state of the loop's stream."""
        state = Carried(self.name(prefix), tuple(a for a in self.axes if a in axes), dtype, monoid)
        loop.carried.append(state)
        self.values[state.name] = Var(state.name, dtype, state.axes)
        return self.values[state.name]

    def value(self, t: Term, loop: Loop) -> Var:
        """The value that holds the term, made where the term belongs unless it is there."""
        loop = self.place(t, loop)
        if t not in loop.known:
            if t in loop.group_of:
                self.write(loop.group_of[t], loop)
            else:
                loop.known[t] = self.made(t, loop)
        return loop.known[t]

    def made(self, t: Term, loop: Loop) -> Var:
        match t:
            case T.Load(buffer, _, index):
                where = tuple(self.operand(k, loop) for k in index)
                return self.put(loop, tile.TileLoad(self.name("v"), buffer, where))
            case T.Fold(axes, monoid, x):
                return self.folded(x, axes, monoid, loop)
            case T.Stream():
                return self.at_once(t, loop)
            case T.Scan():
                return self.scanned(t, loop)
            case T.State(name):
                raise IRError(f"state {name} is read outside its stream")
        return self.map(loop, self.written(t, loop, t.free))

    def operand(self, t: Term, loop: Loop, around: frozenset[str] | None = None) -> Term:
        """The term as a part of another whose axes are `around`: written out where that costs nothing, else a value."""
        if isinstance(t, T.Const | T.Index | T.Identity) or (is_coordinate(t) and size(t) <= _INLINE):
            return t
        pointwise = isinstance(t, T.Unary | T.Binary | T.Select | T.Round)
        once = self.terms.uses[t] <= 1 and t not in loop.known and self.place(t, loop) is loop
        if pointwise and once and (around is None or t.free == around):
            term = self.written(t, loop, t.free)
            return loop.maps.get(term, term)
        return self.value(t, loop)

    def written(self, t: Term, loop: Loop, around: frozenset[str]) -> Term:
        """A pointwise term over operands; `x / y` and `x - y` stay in one piece.

        Where many elements share a divisor they are multiplied by its reciprocal, unless quotients are wanted.
        """
        match t:
            case T.Binary("mul" | "add" as op, x, y):
                inverse = "recip" if op == "mul" else "neg"
                if _is(x, inverse) and not _is(y, inverse):
                    x, y = y, x
                first = self.operand(x, loop, around)
                if _is(y, "recip") and frozenset() < y.free < around and not self.quotients:
                    return T.Binary(op, first, self.value(y, loop))
                if _is(y, inverse):
                    return T.Binary(op, first, T.Unary(inverse, self.operand(y.terms[0], loop, around)))
                return T.Binary(op, first, self.operand(y, loop, around))
            case T.Unary(op, x):
                return T.Unary(op, self.operand(x, loop, around))
            case T.Binary(op, x, y):
                return T.Binary(op, self.operand(x, loop, around), self.operand(y, loop, around))
            case T.Select(p, x, y):
                return T.Select(*(self.operand(k, loop, around) for k in (p, x, y)))
            case T.Round(dtype, origin, x):
                return T.Round(dtype, origin, self.operand(x, loop, around))
            case T.Const() | T.Index() | T.Identity():
                return t
        raise IRError(f"{type(t).__name__} has no place in a tile program")

    def masked(self, x: Term, axes: Sequence[str], monoid: str, loop: Loop) -> Var:
        """The value of `x` over at least `axes`, with the monoid's identity where a tile overruns an extent."""
        tests: list[Term] = []
        match x:
            case T.Select(p, inner, T.Identity(same)) if same == monoid and inner.dtype != "any":
                tests.append(self.operand(p, loop))
                x = inner
        v = self.value(x, loop)
        for a in (self.axes[a] for a in axes):
            if a.extent % a.tile or a.extent == 0 or a.name not in v.axes:
                tests.append(T.Binary("lt", T.Index(a.name), T.number(a.extent)))
        if not tests:
            return v
        pred = tests[0]
        for test in tests[1:]:
            pred = T.Binary("and", pred, test)
        key = (v, pred, monoid)
        if key not in loop.masks:
            loop.masks[key] = self.put(loop, tile.Where(self.name("v"), pred, v.name, monoid))
        return loop.masks[key]

    def folded(self, x: Term, axes: Sequence[str], monoid: str, loop: Loop, old: Term | None = None) -> Var:
        """The fold of `x` over the tile's extent of `axes`, onto `old`; a contraction where `x` is a product over them."""
        if monoid == "add" and is_contraction(x, axes):
            a, b = (self.masked(k, [n for n in axes if n in k.free], monoid, loop) for k in x.terms)
            onto = None if old is None else self.map(loop, old).name
            return self.put(loop, tile.Mma(self.name("v"), a.name, b.name, tuple(axes), onto))
        v = self.masked(x, axes, monoid, loop)
        total = self.put(loop, tile.TileFold(self.name("v"), tuple(axes), monoid, v.name))
        if old is None:
            return total
        if isinstance(old, Var):
            return self.put(loop, tile.Combine(self.name("v"), MONOIDS[monoid].combine, old.name, total.name))
        return self.map(loop, T.Binary(MONOIDS[monoid].combine, old, total))

    def combine(self, loop: Loop, monoid: str, state: Var, x: Var) -> None:
        """Let the next value of the state be its product with `x`."""
        made = self.put(loop, tile.Combine(self.name("v"), monoid, state.name, x.name))
        loop.yields[state.name] = made.name


def is_contraction(x: Term, axes: Sequence[str]) -> bool:
    """Whether `x` is a product of two floats that both go along `axes` and each have an axis of their own."""
    match x:
        case T.Binary("mul", a, b) if is_float(a.dtype) and is_float(b.dtype):
            own = a.free - b.free and b.free - a.free and set(axes) <= a.free & b.free
            return bool(own) and not _is(a, "recip") and not _is(b, "recip")
    return False


def _is(t: Term, op: str) -> bool:
    return isinstance(t, T.Unary) and t.op == op
