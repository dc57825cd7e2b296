"""Verification of tile programs: scopes, types, axes and stores, and that no fold sees a position past an extent.

The last is an abstract interpretation on samples: for every axis whose tiles overrun its extent, each value is computed
at positions past the extent, where loads hold anything, NaN included, and every other value is some finite number. A
fold over the axis must then see the identity of its monoid, a contraction a product of 0, and a state that has the
axis of its stream must keep its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ir import meaning, tile
from ir import term as T
from ir.dtype import Array, DType, is_float, is_integer
from ir.loop import Buffer
from ir.node import IRError, postorder
from ir.ops import MONOIDS
from ir.tile import ROLES, Statement, Stream, TileAxis, TilePart, TileProgram
from ir.tile_interp import TermValues, Tile, aligned

_TERMS = (T.Const, T.Index, T.Extent, T.Identity, T.Var, T.Unary, T.Binary, T.Select, T.Round)


def verify_tile(program: TileProgram) -> TileProgram:
    """The program itself; raises `IRError` with one sentence where it breaks a rule of the level."""
    buffers = {b.name: b for b in program.buffers}
    for part in program.parts:
        try:
            for axis in part.axes:
                _check_axis(axis)
            if len({a.name for a in part.axes}) < len(part.axes):
                raise IRError("two axes have one name")
            _Scopes(part, buffers).body(part.body)
            for axis in part.axes:
                if axis.extent % axis.tile or not axis.extent:
                    _PastExtent(part, buffers, axis).body(part.body)
        except IRError as e:
            raise IRError(f"tile {program.name}: {e}") from None
    return program


def _check_axis(a: TileAxis) -> None:
    if a.role not in ROLES:
        raise IRError(f"axis {a.name}: the role {a.role} is none of {', '.join(ROLES)}")
    if a.tile < 1 or (a.tile & (a.tile - 1) and (a.role != "whole" or a.tile != a.extent)):
        raise IRError(f"axis {a.name}: the tile {a.tile} is no power of two and no whole extent")
    if a.extent < 0 or (a.role == "whole" and a.tile < a.extent):
        raise IRError(f"axis {a.name}: a whole tile of {a.tile} does not cover the extent {a.extent}")


@dataclass
class _Scopes:
    """Types and scopes: what is made before it is used, and in which streams."""

    part: TilePart
    buffers: Mapping[str, Buffer]
    values: dict[str, T.Var] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    open: tuple[str, ...] = ()

    def body(self, body: Sequence[Statement]) -> None:
        for s in body:
            if isinstance(s, Stream):
                self.stream(s)
            else:
                self.simple(s)

    def stream(self, s: Stream) -> None:
        axis = self.part.axis(s.axis)
        if axis.role != "stream":
            raise IRError(f"stream {s.axis}: the axis has the role {axis.role}")
        if s.axis in self.open:
            raise IRError(f"stream {s.axis}: stands in another stream over {s.axis}")
        if len(s.carried) != len(s.yields):
            raise IRError(f"stream {s.axis}: {len(s.carried)} states and {len(s.yields)} yields")
        outer = dict(self.values)
        states = {}
        for c in s.carried:
            self.new(c.name)
            self.monoid(c.monoid, c.name)
            states[c.name] = tile.state_var(c, self.part)
        self.values.update(states)
        self.open = (*self.open, s.axis)
        self.body(s.body)
        for c, y in zip(s.carried, s.yields, strict=True):
            v = self.known(y, f"stream {s.axis}")
            if v.dtype != c.dtype or v.free - set(c.axes):
                raise IRError(
                    f"stream {s.axis}: {y} is {v.dtype} over {v.axes}, the state {c.name} {c.dtype} over {c.axes}"
                )
        self.open = self.open[:-1]
        self.values = outer | states

    def simple(self, s: Statement) -> None:
        what = f"store {s.buffer}" if isinstance(s, tile.TileStore) else s.out if not isinstance(s, Stream) else ""
        for t in _terms(s):
            self.term(t, what)
        if isinstance(s, tile.TileLoad | tile.TileStore) and s.buffer not in self.buffers:
            raise IRError(f"{what}: no buffer is named {s.buffer}")
        if isinstance(s, tile.Where | tile.TileFold | tile.TileScan | tile.Combine):
            self.monoid(s.monoid, what)
        out = tile.infer_one(s, self.values, self.part, self.buffers)
        match s:
            case tile.TileLoad(_, _, index):
                self.indices(index, what)
            case tile.TileStore():
                self.store(s)
            case tile.Where(_, pred, _, _) if pred.dtype != "bool":
                raise IRError(f"{what}: the predicate is {pred.dtype}, not bool")
            case tile.Combine(_, monoid, _, _) if MONOIDS[monoid].pair:
                raise IRError(f"{what}: {monoid} combines pairs, not positions")
            case tile.TileFold(_, axes, monoid, x):
                self.folded(axes, monoid, [x], what)
            case tile.TileScan(_, axis, monoid, x):
                self.folded((axis,), monoid, [x], what)
            case tile.Share(_, x, axis, along):
                self.shared(x, self.part.axis(axis), self.part.axis(along), what)
            case tile.Mma(_, a, b, over, acc):
                self.folded(over, "add", [a, b], what)
                if acc is not None and self.known(acc, what).free - (out.free if out else frozenset()):
                    raise IRError(f"{what}: the accumulator {acc} has axes that the product lacks")
        if out is not None:
            self.new(out.name)
            fold = isinstance(s, tile.TileFold | tile.Map | tile.Where)
            for a in out.free:
                if self.part.axis(a).role == "stream" and a not in self.open and not fold:
                    raise IRError(f"{what}: the stream axis {a} is used outside its stream")
            self.values[out.name] = out

    def folded(self, axes: Sequence[str], monoid: str, xs: Sequence[str], what: str) -> None:
        if MONOIDS[monoid].pair and (
            len(axes) != 1 or (self.part.axis(axes[0]).role == "stream" and axes[0] not in self.open)
        ):
            raise IRError(f"{what}: {monoid} folds one axis, whose coordinate is known")
        for x in xs:
            lacking = set(axes) - self.known(x, what).free
            if lacking:
                raise IRError(f"{what}: {x} has no axis {', '.join(sorted(lacking))}")
        for a in axes:
            if self.part.axis(a).role == "grid":
                raise IRError(f"{what}: the grid axis {a} is spread over blocks and cannot be folded or scanned")

    def shared(self, x: str, axis: TileAxis, along: TileAxis, what: str) -> None:
        free = self.known(x, what).free
        if axis.name not in free or along.name in free:
            raise IRError(f"{what}: {x} is over {sorted(free)}, so not shared over {axis.name} as {along.name}")
        if (axis.role, axis.extent, axis.tile) != (along.role, along.extent, along.tile) or axis.role != "whole":
            raise IRError(f"{what}: {axis.name} and {along.name} are no two whole axes of one extent")

    def monoid(self, monoid: str, what: str) -> None:
        if monoid not in MONOIDS:
            raise IRError(f"{what}: unknown monoid {monoid!r}")

    def indices(self, index: Sequence[T.Term], what: str) -> None:
        for k, t in enumerate(index):
            if not is_integer(t.dtype):
                raise IRError(f"{what}: index {k} is {t.dtype}, not an integer")

    def store(self, s: tile.TileStore) -> None:
        self.indices(s.index, f"store {s.buffer}")
        if len(s.index) != len(self.buffers[s.buffer].shape):
            raise IRError(
                f"store {s.buffer}: {len(s.index)} index terms for {len(self.buffers[s.buffer].shape)} dimensions"
            )
        if s.monoid is not None:
            self.monoid(s.monoid, f"store {s.buffer}")
        reached = frozenset[str]().union(*(t.free for t in s.index))
        value = self.known(s.value, f"store {s.buffer}")
        several = [a for a in sorted(value.free - reached) if self.part.axis(a).extent > 1]
        if s.monoid is None and several:
            raise IRError(f"store {s.buffer}: the positions of {several[0]} write one element")
        for a in value.free | reached:
            if self.part.axis(a).role == "stream" and a not in self.open:
                raise IRError(f"store {s.buffer}: the stream axis {a} is used outside its stream")

    def term(self, t: T.Term, what: str) -> None:
        for k in postorder(t):
            if not isinstance(k, _TERMS):
                raise IRError(f"{what}: {type(k).__name__} has no place in a tile program")
            if isinstance(k, T.Var) and self.known(k.name, what) is not k:
                raise IRError(f"{what}: {k.name} is used as {k.type}{list(k.axes)}, which it is not")
            if isinstance(k, T.Index) and self.part.axis(k.axis).role == "stream" and k.axis not in self.open:
                raise IRError(f"{what}: the stream axis {k.axis} is used outside its stream")

    def known(self, name: str, what: str) -> T.Var:
        if name not in self.values:
            made = "made in a stream that is over" if name in self.made else "used before it is made"
            raise IRError(f"{what}: {name} is {made}")
        return self.values[name]

    def new(self, name: str) -> None:
        if name in self.made or any(a.name == name for a in self.part.axes):
            raise IRError(f"{name} is made twice, or is an axis")
        self.made.add(name)


def _terms(s: Statement) -> tuple[T.Term, ...]:
    match s:
        case tile.TileLoad(_, _, index) | tile.TileStore(_, index, _, _):
            return index
        case tile.Map(_, term):
            return (term,)
        case tile.Where(_, pred, _, _):
            return (pred,)
    return ()


# ---- positions past an extent

SAMPLES = 96
_ANYTHING = (np.nan, np.inf, -np.inf, 3e38, -2.5, 0.0, 1.0)


class _PastExtent(TermValues):
    """Values at positions past the extent of one axis, as arrays of samples; a value without the axis is any number."""

    exact = True
    order = {"sample": 0}

    def __init__(self, part: TilePart, buffers: Mapping[str, Buffer], axis: TileAxis) -> None:
        self.part, self.axis = part, axis
        self.types = tile.infer(part, buffers)
        self.rng = np.random.default_rng(11)
        self.values: dict[str, Tile] = {}
        self.bound = axis.role != "stream"

    def leaf(self, t: T.Term) -> Tile:
        match t:
            case T.Index(name) if name == self.axis.name:
                end = max(self.axis.tiles, 1) * self.axis.tile
                return self.sample(self.rng.integers(self.axis.extent, end, SAMPLES), "i64")
            case T.Index(name):
                return self.sample(self.rng.integers(0, max(self.part.axis(name).extent, 1), SAMPLES), "i64")
            case T.Extent(name):
                return Tile(np.asarray(self.part.axis(name).extent), (), "i64")
            case T.Var(name):
                return self.values[name]
        raise IRError(f"{type(t).__name__} is no leaf of a tile term")

    def sample(self, values: Array, dtype: DType) -> Tile:
        return Tile(values, ("sample",), dtype)

    def anything(self, v: T.Var) -> Tile:
        """What an unknown value may be: finite inside the extents, of any kind past them."""
        raw = self.rng.standard_normal(SAMPLES)
        if self.axis.name in v.axes and is_float(v.dtype):
            raw = self.rng.choice(_ANYTHING, SAMPLES)
        if not is_float(v.dtype):
            raw = np.nan_to_num(raw * 9)
        return self.sample(meaning.convert(raw, v.dtype, True), v.dtype)

    def body(self, body: Sequence[Statement]) -> None:
        for s in body:
            match s:
                case Stream():
                    self.stream(s)
                case tile.TileStore():
                    pass
                case tile.Map(out, term):
                    self.values[out] = self.term(term, term.dtype)
                case tile.Where(out, pred, x, monoid):
                    v = self.values[x]
                    picked = [self.term(pred, "bool"), v, self.term(T.Identity(monoid), v.dtype)]
                    self.values[out] = self.pointwise("select", picked)
                case tile.Combine(out, monoid, x, y):
                    self.values[out] = self.pointwise(MONOIDS[monoid].combine, [self.values[x], self.values[y]])
                case tile.Convert(out, x, dtype, _):
                    v = self.values[x]
                    self.values[out] = Tile(v.array, v.axes, dtype or v.dtype)
                case _:
                    self.reduce(s)
                    self.values[s.out] = self.anything(self.types[s.out])

    def reduce(self, s: Statement) -> None:
        """Check a fold or a contraction over the axis."""
        if not self.bound:
            return
        match s:
            case tile.TileFold(out, axes, monoid, x) if self.axis.name in axes:
                seen = self.values[x]
                if not np.all(seen.array == meaning.identity(monoid, seen.dtype)):
                    raise IRError(f"{out}: the fold sees {x} past the extent of {self.axis.name}")
            case tile.Mma(out, a, b, over, _) if self.axis.name in over:
                product = self.pointwise("mul", [self.values[a], self.values[b]])
                if not np.all(product.array == 0):
                    raise IRError(f"{out}: the contraction sees {a} and {b} past the extent of {self.axis.name}")

    def stream(self, s: Stream) -> None:
        """Run the body on states that keep their identity past the extent, as long as that is what it yields."""
        own = s.axis == self.axis.name
        kept = {c.name for c in s.carried if self.axis.name in c.axes and not own}
        while True:
            before = {c.name: self.state(c, c.name in kept, own) for c in s.carried}
            self.values |= before
            self.bound |= own
            self.body(s.body)
            ends = {c.name: self.over(y) for c, y in zip(s.carried, s.yields, strict=True)}
            same = {n for n in ends if np.array_equal(ends[n], aligned(before[n], ("sample",)))}
            if kept <= same:
                break
            kept &= same
        if own:
            self.bound = False
            for c in s.carried:
                if s.axis in c.axes and c.name not in same:
                    raise IRError(f"stream {s.axis}: the state {c.name} changes past the extent of {s.axis}")
        self.values |= before

    def state(self, c: tile.Carried, kept: bool, own: bool) -> Tile:
        if kept:
            identity = np.full(SAMPLES, meaning.identity(c.monoid, c.dtype), meaning.held(c.dtype, True))
            return self.sample(identity, c.dtype)
        return self.anything(T.Var(c.name, c.dtype, () if own else c.axes))

    def over(self, name: str) -> Array:
        return np.broadcast_to(aligned(self.values[name], ("sample",)), (SAMPLES,))
