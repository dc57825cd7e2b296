"""Tile IR: programs over tiles with named axes. A value is a tile over a set of axes; a block computes one grid tile.

An axis has a role: `grid` (a block owns `tile` consecutive positions), `stream` (swept serially, `tile` positions a
step, by a Stream), or `whole` (one tile covers the extent). `Index(axis)` in a body is the global coordinate.
Tiles are padded: positions at or past an axis' extent hold undefined values, loads there never trap, stores there
write nothing, and folds must not see them (a Where puts the identity there).

A carried state may have the stream's own axis: then each position of the step's tile has a state of its own, and
the only use after the stream is a TileFold over that axis, which merges them once instead of at every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ir.dtype import DType, compute_type
from ir.loop import Buffer
from ir.node import IRError, postorder
from ir.ops import MONOIDS
from ir.schedule import Schedule
from ir.term import Term, Var, fold_type, join

ROLES = ("grid", "stream", "whole")


@dataclass(frozen=True)
class TileAxis:
    """`extent` positions, of which one tile covers `tile`."""

    name: str
    extent: int
    role: str
    tile: int

    @cached_property
    def tiles(self) -> int:
        """Number of tiles that cover the axis."""
        return -(-self.extent // self.tile)

    @cached_property
    def covered(self) -> int:
        """Positions of the first tile that are of the axis, at least 1."""
        return max(1, min(self.tile, self.extent))


@dataclass(frozen=True)
class TileLoad:
    """out = buffer[index], over the axes free in index; an index term may hold loaded values (a gather)."""

    out: str
    buffer: str
    index: tuple[Term, ...]


@dataclass(frozen=True)
class TileStore:
    """buffer[index] = value, or (+)= value under a monoid; writes only positions inside every axis' extent."""

    buffer: str
    index: tuple[Term, ...]
    value: str
    monoid: str | None = None


@dataclass(frozen=True)
class Map:
    """out = term over `Var` values and axis coordinates, elementwise over the union of their axes."""

    out: str
    term: Term


@dataclass(frozen=True)
class Where:
    """out = x where `pred` (a bool term over coordinates and values), else the identity of `monoid`."""

    out: str
    pred: Term
    x: str
    monoid: str


@dataclass(frozen=True)
class TileFold:
    """out = x folded by `monoid` over the tile's extent of `axes`; arg-folds give global positions (i64)."""

    out: str
    axes: tuple[str, ...]
    monoid: str
    x: str


@dataclass(frozen=True)
class TileScan:
    """out[t] = fold of x over positions of this tile up to t along `axis`."""

    out: str
    axis: str
    monoid: str
    x: str


@dataclass(frozen=True)
class Mma:
    """out = acc + sum over `over` of a * b, products of a's and b's type, accumulated in f32 (f64 for f64)."""

    out: str
    a: str
    b: str
    over: tuple[str, ...]
    acc: str | None = None


@dataclass(frozen=True)
class Convert:
    """out = x rounded to `dtype` (None: kept), and, where `layout_of` names a value, in that value's layout."""

    out: str
    x: str
    dtype: DType | None = None
    layout_of: str | None = None


@dataclass(frozen=True)
class Combine:
    """out = the monoid's product of two partial results, elementwise (the merge of a split or of a stream's steps).

    The monoid is no pair monoid: a partial arg-fold is two values, the best value and its position.
    """

    out: str
    monoid: str
    x: str
    y: str


@dataclass(frozen=True)
class Share:
    """out = x with `along` in place of `axis`: what each block of a cluster has of it, in every block."""

    out: str
    x: str
    axis: str
    along: str


@dataclass(frozen=True)
class Carried:
    """A state of a stream: a tile over `axes` that starts at the identity of `monoid` in `dtype`."""

    name: str
    axes: tuple[str, ...]
    dtype: DType
    monoid: str


@dataclass(frozen=True)
class Stream:
    """Sweep `axis` tile by tile: every step runs `body` with the carried values, then sets each to its yield.

    A stream without states only stores. After it the carried names hold their last values.
    """

    axis: str
    carried: tuple[Carried, ...]
    body: tuple[Statement, ...]
    yields: tuple[str, ...]


Statement = TileLoad | TileStore | Map | Where | TileFold | TileScan | Mma | Convert | Combine | Share | Stream


@dataclass(frozen=True)
class TilePart:
    """One tile computation of a kernel, over its own grid axes."""

    axes: tuple[TileAxis, ...]
    body: tuple[Statement, ...]

    def axis(self, name: str) -> TileAxis:
        """The axis of that name."""
        for a in self.axes:
            if a.name == name:
                return a
        raise IRError(f"no tile axis is named {name}")


@dataclass(frozen=True)
class TileProgram:
    """A scheduled kernel: parts laid side by side in one grid, before layouts and transport are chosen."""

    name: str
    buffers: tuple[Buffer, ...]
    parts: tuple[TilePart, ...]
    schedule: Schedule
    notes: Mapping[str, str] = field(default_factory=dict)

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        for b in self.buffers:
            if b.name == name:
                return b
        raise IRError(f"{self.name}: no buffer is named {name}")


def walk(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement in program order, a stream before its body."""
    for s in body:
        yield s
        if isinstance(s, Stream):
            yield from walk(s.body)


def reads(s: Statement) -> Iterator[str]:
    """Names of the values that a statement uses; of a Stream, those that its body hands on."""
    match s:
        case Stream(_, _, _, yields):
            yield from yields
        case TileStore(_, index, value, _):
            yield value
            yield from _names(index)
        case TileLoad(_, _, index):
            yield from _names(index)
        case Map(_, term):
            yield from _names((term,))
        case Where(_, pred, x, _):
            yield x
            yield from _names((pred,))
        case TileFold(_, _, _, x) | TileScan(_, _, _, x) | Share(_, x, _, _):
            yield x
        case Mma(_, a, b, _, acc):
            yield from (a, b, *((acc,) if acc else ()))
        case Convert(_, x, _, like):
            yield from (x, *((like,) if like else ()))
        case Combine(_, _, x, y):
            yield from (x, y)


def _names(terms: Sequence[Term]) -> Iterator[str]:
    return (t.name for t in postorder(*terms) if isinstance(t, Var))


def infer(part: TilePart, buffers: Mapping[str, Buffer]) -> dict[str, Var]:
    """Every value's dtype and axes (in the part's axis order), as the Var that terms use; raises on a misfit."""
    values: dict[str, Var] = {}

    def go(body: tuple[Statement, ...]) -> None:
        for s in body:
            if isinstance(s, Stream):
                values.update({c.name: state_var(c, part) for c in s.carried})
                go(s.body)
                for c, y in zip(s.carried, s.yields, strict=True):
                    if _known(values, y).free - set(c.axes):
                        raise IRError(f"stream: {y} has axes that the state {c.name} lacks")
            else:
                out = infer_one(s, values, part, buffers)
                if out is not None:
                    values[out.name] = out

    go(part.body)
    return values


def state_var(carried: Carried, part: TilePart) -> Var:
    """The Var of a carried state."""
    return _typed(carried.name, carried.dtype, frozenset(carried.axes), part)


def infer_one(s: Statement, values: Mapping[str, Var], part: TilePart, buffers: Mapping[str, Buffer]) -> Var | None:
    """The value that one statement (not a Stream) makes, given the values before it; None for a store."""
    match s:
        case TileLoad(out, buffer, index):
            dims = len(buffers[buffer].shape)
            if len(index) != dims:
                raise IRError(f"load {buffer}: {len(index)} index terms for {dims} dimensions")
            return _typed(out, buffers[buffer].dtype, frozenset[str]().union(*(t.free for t in index)), part)
        case Map(out, term):
            return _typed(out, term.dtype, term.free, part)
        case Where(out, pred, x, _):
            v = _known(values, x)
            return _typed(out, v.dtype, pred.free | v.free, part)
        case TileFold(out, axes, monoid, x):
            v = _known(values, x)
            return _typed(out, folded_type(monoid, v.dtype), v.free - set(axes), part)
        case TileScan(out, axis, monoid, x):
            v = _known(values, x)
            return _typed(out, folded_type(monoid, v.dtype), v.free | {axis}, part)
        case Mma(out, a, b, over, _):
            va, vb = _known(values, a), _known(values, b)
            dtype = compute_type(join(va.dtype, vb.dtype, "mma"))
            return _typed(out, dtype, (va.free | vb.free) - set(over), part)
        case Convert(out, x, to, _):
            v = _known(values, x)
            return _typed(out, to or v.dtype, v.free, part)
        case Combine(out, _, x, y):
            vx, vy = _known(values, x), _known(values, y)
            return _typed(out, join(vx.dtype, vy.dtype, "combine"), vx.free | vy.free, part)
        case Share(out, x, axis, along):
            v = _known(values, x)
            return _typed(out, v.dtype, v.free - {axis} | {along}, part)
        case TileStore(_, _, stored):
            _known(values, stored)
            return None
        case Stream():
            raise IRError(f"stream {s.axis}: a stream makes no single value")


def folded_type(monoid: str, dtype: DType) -> DType:
    """The type of a fold or a scan of values of `dtype`; i64 for positions."""
    if monoid not in MONOIDS:
        raise IRError(f"unknown monoid {monoid!r}")
    return "i64" if MONOIDS[monoid].pair else fold_type(monoid, dtype)


def _typed(name: str, dtype: DType, axes: frozenset[str], part: TilePart) -> Var:
    order = [a.name for a in part.axes]
    unknown = axes - set(order)
    if unknown:
        raise IRError(f"{name}: {', '.join(sorted(unknown))} is not a tile axis")
    return Var(name, dtype, tuple(a for a in order if a in axes))


def _known(values: Mapping[str, Var], name: str) -> Var:
    if name not in values:
        raise IRError(f"{name} is used before it is made")
    return values[name]
