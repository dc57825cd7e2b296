"""Tile IR in numpy: every block in turn, tile by tile, with undefined values in padded positions.

A position past an axis' extent holds NaN (or a large odd integer) when it is loaded, so a fold or a contraction that
sees it without a Where gives a wrong result. Loads and stores act on one memory in program order.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ir import meaning, tile
from ir import term as T
from ir.dtype import DTYPES, Array, DType, compute_type, is_float
from ir.loop import Buffer
from ir.node import IRError
from ir.ops import MONOIDS
from ir.tile import TilePart, TileProgram


def run_tile(program: TileProgram, buffers: Mapping[str, Array], exact: bool = False) -> dict[str, Array]:
    """The logical contents of the stored buffers, given those of the others; where `exact`, floats are float64.

    A stored buffer that is not given starts undefined.
    """
    memory: dict[str, Array] = {}
    for b in program.buffers:
        if b.name in buffers:
            given = np.asarray(buffers[b.name])
            if given.shape != b.shape:
                raise IRError(f"{program.name}: {b.name} has shape {given.shape}, the buffer {b.shape}")
            memory[b.name] = np.array(meaning.convert(given, b.dtype, exact))
        else:
            memory[b.name] = np.full(b.shape, undefined(b.dtype), dtype=meaning.held(b.dtype, exact))
    stored: set[str] = set()
    for part in program.parts:
        grid = [a for a in part.axes if a.role == "grid"]
        for block in itertools.product(*(range(0, a.extent, a.tile) for a in grid)):
            starts = dict(zip((a.name for a in grid), block, strict=True))
            _Block(program, part, memory, starts, exact).run(part.body)
        stored |= {s.buffer for s in tile.walk(part.body) if isinstance(s, tile.TileStore)}
    return {name: memory[name] for name in sorted(stored)}


def undefined(dtype: DType) -> float | int:
    """What stands for an undefined value: NaN, or an integer that spoils sums, products and extrema."""
    return np.nan if is_float(dtype) or dtype == "any" else 1 if dtype == "bool" else 0x5B


@dataclass
class Tile:
    """An array with one dimension for each of `axes`, of a tile's length each."""

    array: Array
    axes: tuple[str, ...]
    dtype: DType


class TermValues:
    """Evaluates terms over values and coordinates, given those of its leaves; `order` ranks the axes of tiles."""

    exact: bool
    order: Mapping[str, int]

    def leaf(self, t: T.Term) -> Tile:
        """The value of a Var, an Index or an Extent."""
        raise NotImplementedError

    def union(self, *values: Tile) -> tuple[str, ...]:
        """All axes of the values, in order."""
        return tuple(sorted({a for v in values for a in v.axes}, key=self.order.__getitem__))

    def term(self, t: T.Term, want: DType) -> Tile:
        """The value of a term; `want` is the type of an identity in it that has none."""
        match t:
            case T.Index() | T.Extent() | T.Var():
                return self.leaf(t)
            case T.Const():
                return Tile(np.asarray(t.value, dtype=meaning.held(t.type, self.exact)), (), t.type)
            case T.Identity(monoid):
                value = np.asarray(meaning.identity(monoid, want), dtype=meaning.held(want, self.exact))
                return Tile(value, (), want)
        op, terms = meaning.operands(t)
        typed = [k.dtype for k in (terms[1:] if op == "select" else terms) if k.dtype != "any"]
        inner = typed[0] if typed else op if op in DTYPES else want
        return self.pointwise(op, [self.term(k, inner) for k in terms])

    def pointwise(self, op: str, args: list[Tile]) -> Tile:
        """An operator on tiles, broadcast over the union of their axes."""
        axes = self.union(*args)
        dtypes = [a.dtype for a in args]
        result = _result(op, dtypes)
        out = meaning.compute(op, [aligned(a, axes) for a in args], dtypes, result, self.exact)
        return Tile(out, axes, result)


@dataclass
class _Block(TermValues):
    """One block: where each axis' current tile starts, and the values made so far."""

    program: TileProgram
    part: TilePart
    memory: dict[str, Array]
    starts: dict[str, int]
    exact: bool
    values: dict[str, Tile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.axes = {a.name: a for a in self.part.axes}
        self.order = {a.name: k for k, a in enumerate(self.part.axes)}
        self.starts |= {a.name: 0 for a in self.part.axes if a.role == "whole"}

    def run(self, body: Sequence[tile.Statement]) -> None:
        for s in body:
            match s:
                case tile.Stream():
                    self.stream(s)
                case tile.TileStore():
                    self.store(s)
                case _:
                    self.values[s.out] = self.value(s)

    def stream(self, s: tile.Stream) -> None:
        for c in s.carried:
            start = meaning.identity(c.monoid, c.dtype)
            shape = [self.axes[a].tile for a in c.axes]
            self.values[c.name] = Tile(np.full(shape, start, meaning.held(c.dtype, self.exact)), c.axes, c.dtype)
        axis = self.axes[s.axis]
        for start in range(0, axis.extent, axis.tile):
            self.starts[s.axis] = start
            self.run(s.body)
            states = [self.full(self.values[y], c.axes, c.dtype) for c, y in zip(s.carried, s.yields, strict=True)]
            for c, array in zip(s.carried, states, strict=True):
                self.values[c.name] = Tile(array, c.axes, c.dtype)
        self.starts.pop(s.axis, None)

    def full(self, v: Tile, axes: tuple[str, ...], dtype: DType) -> Array:
        """The value over exactly `axes`, converted to `dtype`."""
        shape = [self.axes[a].tile for a in axes]
        return np.array(np.broadcast_to(meaning.convert(aligned(v, axes), dtype, self.exact), shape))

    # ---- values

    def value(self, s: tile.Statement) -> Tile:
        match s:
            case tile.TileLoad(_, buffer, index):
                return self.load(self.program.buffer(buffer), index)
            case tile.Map(_, term):
                return self.term(term, term.dtype)
            case tile.Where(_, pred, x, monoid):
                v, p = self.values[x], self.term(pred, "bool")
                axes = self.union(v, p)
                other = np.asarray(meaning.identity(monoid, v.dtype)).astype(v.array.dtype)
                return Tile(np.where(aligned(p, axes), aligned(v, axes), other), axes, v.dtype)
            case tile.TileFold(_, axes, monoid, x):
                return self.fold(self.values[x], axes, monoid)
            case tile.TileScan(_, axis, monoid, x):
                return self.scan(self.values[x], axis, monoid)
            case tile.Mma():
                return self.mma(s)
            case tile.Convert(_, x, dtype, _):
                v = self.values[x]
                return Tile(meaning.convert(v.array, dtype or v.dtype, self.exact), v.axes, dtype or v.dtype)
            case tile.Combine(_, monoid, x, y):
                return self.pointwise(MONOIDS[monoid].combine, [self.values[x], self.values[y]])
            case tile.Share(_, x, axis, along):
                return self.moved(self.values[x], axis, along)
        raise IRError(f"{type(s).__name__} makes no value")

    def leaf(self, t: T.Term) -> Tile:
        match t:
            case T.Index(axis):
                return Tile(self.coordinate(axis), (axis,), "i64")
            case T.Extent(axis):
                return Tile(np.asarray(self.axes[axis].extent, dtype=np.int64), (), "i64")
            case T.Var(name):
                return self.values[name]
        raise IRError(f"{type(t).__name__} is no leaf of a tile term")

    def coordinate(self, axis: str) -> Array:
        if axis not in self.starts:
            raise IRError(f"{self.program.name}: {axis} is used outside its stream")
        return np.arange(self.axes[axis].tile, dtype=np.int64) + self.starts[axis]

    def inside(self, axes: tuple[str, ...]) -> Array:
        """Which positions of the current tile over `axes` lie within every extent."""
        shape = [self.axes[a].tile for a in axes]
        found = np.ones(shape, dtype=bool)
        for a in axes:
            within = Tile(self.coordinate(a) < self.axes[a].extent, (a,), "bool")
            found &= aligned(within, axes)
        return found

    def load(self, b: Buffer, index: tuple[T.Term, ...]) -> Tile:
        where = [self.term(t, t.dtype) for t in index]
        axes = self.union(*where)
        inside = self.inside(axes)
        if not b.size:
            return Tile(np.full(inside.shape, undefined(b.dtype), meaning.held(b.dtype, self.exact)), axes, b.dtype)
        clamped = (np.clip(aligned(i, axes), 0, e - 1) for i, e in zip(where, b.shape, strict=True))
        found = self.memory[b.name][tuple(np.broadcast_to(i, inside.shape).astype(np.int64) for i in clamped)]
        bad = np.asarray(undefined(b.dtype)).astype(found.dtype)
        return Tile(np.where(inside, found, bad), axes, b.dtype)

    def moved(self, v: Tile, axis: str, along: str) -> Tile:
        """The value with another axis in place of one of its own."""
        names = [along if a == axis else a for a in v.axes]
        places = sorted(range(len(names)), key=lambda k: self.order[names[k]])
        return Tile(v.array.transpose(places), tuple(names[k] for k in places), v.dtype)

    def fold(self, v: Tile, axes: tuple[str, ...], monoid: str) -> Tile:
        places = tuple(v.axes.index(a) for a in axes)
        dtype = tile.folded_type(monoid, v.dtype)
        out = meaning.fold(monoid, v.array, places, dtype, self.exact)
        if MONOIDS[monoid].pair:
            out = out + self.starts[axes[0]]
        return Tile(np.asarray(out), tuple(a for a in v.axes if a not in axes), dtype)

    def scan(self, v: Tile, axis: str, monoid: str) -> Tile:
        axes = tuple(sorted({*v.axes, axis}, key=self.order.__getitem__))
        array = self.full(v, axes, v.dtype)
        dtype = tile.folded_type(monoid, v.dtype)
        out = meaning.scan(monoid, array, axes.index(axis), dtype, self.exact)
        return Tile(out + self.starts[axis] if MONOIDS[monoid].pair else out, axes, dtype)

    def mma(self, s: tile.Mma) -> Tile:
        a, b = self.values[s.a], self.values[s.b]
        dtype = compute_type(T.join(a.dtype, b.dtype, "mma"))
        axes = self.union(a, b)
        out = tuple(x for x in axes if x not in s.over)
        labels = [[axes.index(x) for x in v] for v in (a.axes, b.axes, out)]
        total = meaning.sum_of_products(a.array, labels[0], b.array, labels[1], labels[2], dtype, self.exact)
        product = Tile(total, out, dtype)
        return product if s.acc is None else self.pointwise("add", [self.values[s.acc], product])

    # ---- stores

    def store(self, s: tile.TileStore) -> None:
        b = self.program.buffer(s.buffer)
        index = [self.term(t, t.dtype) for t in s.index]
        value = self.values[s.value]
        axes = self.union(value, *index)
        inside = self.inside(axes)
        where = [np.broadcast_to(aligned(i, axes), inside.shape).astype(np.int64) for i in index]
        for i, e in zip(where, b.shape, strict=True):
            inside &= (i >= 0) & (i < e)
        array = np.broadcast_to(aligned(value, axes), inside.shape)[inside]
        if s.monoid is None:
            array = meaning.convert(array, b.dtype, self.exact)
        old = self.memory[s.buffer]
        if index:
            picked = tuple(i[inside] for i in where)
            self.memory[s.buffer] = meaning.scatter(s.monoid, old, picked, array, b.dtype, self.exact)
        else:
            one = (np.zeros(array.shape, np.int64),)
            self.memory[s.buffer] = meaning.scatter(s.monoid, old[None], one, array, b.dtype, self.exact)[0]


def aligned(v: Tile, axes: tuple[str, ...]) -> Array:
    """The array with dimensions in the order of `axes`, length 1 where the value lacks one."""
    own = [a for a in axes if a in v.axes]
    array = v.array.transpose([v.axes.index(a) for a in own])
    return array.reshape([array.shape[own.index(a)] if a in own else 1 for a in axes])


def _result(op: str, dtypes: Sequence[DType]) -> DType:
    """The type that an operator of `meaning.operands` gives for operands of these types."""
    if op in DTYPES:
        return op
    x, *rest = (T.Var("x", d, ()) for d in dtypes)
    match op:
        case "select":
            return T.Select(x, *rest).dtype
        case "div" | "sub":
            return T.Binary("mul" if op == "div" else "add", x, *rest).dtype
    return T.Binary(op, x, *rest).dtype if rest else T.Unary(op, x).dtype
