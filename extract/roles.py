"""What a part does along its axes, and the tile that a schedule gives to each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from extract.facts import swept
from extract.merging import steps
from ir import term as T
from ir.loop import Buffer, Part
from ir.node import IRError, postorder
from ir.schedule import Schedule
from ir.term import Term
from ir.tile import TileAxis


@dataclass(frozen=True)
class Roles:
    """Axes of a part, slowest in memory first: `grid` axes index results only, `swept` axes are looped over.

    `written` axes are swept and index a result too; `serial` axes are swept by a
    stream whose positions must be taken one by one.
    """

    order: tuple[str, ...]
    grid: tuple[str, ...]
    swept: frozenset[str]
    written: frozenset[str]
    serial: frozenset[str]


def roles(part: Part, buffers: Sequence[Buffer]) -> Roles:
    """The roles of the axes that the part's stores use."""
    nodes = list(postorder(*(t for s in part.stores for t in (*s.index, s.value))))
    looped = frozenset(a for t in nodes for a in swept(t))
    free = frozenset[str]().union(*(s.axes for s in part.stores))
    order = memory_order(part, buffers, nodes)
    serial = frozenset(t.axis for t in nodes if isinstance(t, T.Stream) and steps(t) is None)
    return Roles(order, tuple(a for a in order if a in free - looped), looped, looped & free, serial)


def memory_order(part: Part, buffers: Sequence[Buffer], nodes: Sequence[Term]) -> tuple[str, ...]:
    """The part's axes by the stride with which they walk through the largest buffer, slowest first."""
    by_name = {b.name: b for b in buffers}
    accesses = [(by_name[s.buffer], s.index) for s in part.stores]
    accesses += [(by_name[t.buffer], t.index) for t in nodes if isinstance(t, T.Load)]
    stride: dict[str, int] = {}
    for buffer, index in sorted(accesses, key=lambda access: -access[0].size):
        for axis, step in strides(buffer, index).items():
            stride.setdefault(axis, step)
    every = {a for t in nodes for a in (*t.free, *swept(t))}
    written = frozenset[str]().union(*(s.axes for s in part.stores))
    return tuple(sorted(every, key=lambda a: (-stride.get(a, 1 << 62), a in written, a)))


def strides(buffer: Buffer, index: Sequence[Term]) -> dict[str, int]:
    """The elements that one step along each axis moves, for index terms that are sums of coordinates times constants."""
    out: dict[str, int] = {}
    for t, stride in zip(index, buffer.strides, strict=True):
        for axis, factor in _linear(t).items():
            out[axis] = out.get(axis, 0) + factor * stride
    return {a: abs(s) for a, s in out.items() if s}


def _linear(t: Term) -> dict[str, int]:
    match t:
        case T.Index(axis):
            return {axis: 1}
        case T.Binary("add", x, y):
            out = _linear(x)
            for axis, factor in _linear(y).items():
                out[axis] = out.get(axis, 0) + factor
            return out
        case T.Binary("mul", x, T.Const() as c):
            return {a: f * int(c.value) for a, f in _linear(x).items()}
        case T.Unary("neg", x):
            return {a: -f for a, f in _linear(x).items()}
    return {}


# ---- the schedule's side

_POINTS = re.compile(r"points(\d+)")
_THREADS = re.compile(r"t(\d+)(?:\+c(\d+))?")
_SPLIT = re.compile(r"(?:(\w+)\+)?split(\d+)")
_TILE = re.compile(r"(\w+):(\d+)(?:/v(\d+))?")


def padded(extent: int) -> int:
    """The least power of two that is at least `extent` and at least 1."""
    return 1 << max(extent - 1, 0).bit_length()


def threads(schedule: Schedule) -> int:
    """Threads of a block: the number in WORK=points128, WORK=t256 or WORK=t256+c8."""
    work = schedule.get("WORK")
    m = _POINTS.fullmatch(work) or _THREADS.fullmatch(work)
    if m is None:
        raise IRError(f"WORK={work} is none of points<threads>, t<threads> and t<threads>+c<blocks of a cluster>")
    return int(m[1])


def cluster(schedule: Schedule) -> int:
    """Blocks of a cluster: 8 in WORK=t256+c8, 1 where none is named."""
    m = _THREADS.fullmatch(schedule.get("WORK"))
    return int(m[2] or 1) if m else 1


def listed_tiles(schedule: Schedule) -> dict[str, tuple[int, int]]:
    """Tile and vector width of every axis that the TILE field lists."""
    out: dict[str, tuple[int, int]] = {}
    for word in schedule.get("TILE").split(",") if schedule.get("TILE") else ():
        m = _TILE.fullmatch(word)
        if m is None or m[1] in out:
            raise IRError(f"TILE: {word!r} is not axis:tile or axis:tile/v<width>, once an axis")
        if int(m[2]) < 1:
            raise IRError(f"TILE: {word} is a tile of no position")
        out[m[1]] = (int(m[2]), int(m[3] or 1))
    return out


def pieces(schedule: Schedule) -> int:
    """Pieces over which REDUCE=split16 or REDUCE=lanes+split16 splits the longest sweeps; 1 where they stay whole."""
    m = _SPLIT.fullmatch(schedule.get("REDUCE"))
    if m is not None and int(m[2]) < 2:
        raise IRError(f"REDUCE=split{m[2]}: a sweep is split into two pieces or more")
    return 1 if m is None else int(m[2])


def folding(schedule: Schedule) -> str:
    """How the threads of a block fold: block, lanes or serial, in a split as well."""
    m = _SPLIT.fullmatch(schedule.get("REDUCE"))
    return schedule.get("REDUCE", "block") if m is None else m[1] or "block"


def is_fallback(schedule: Schedule) -> bool:
    """Whether the line is WORK=points<threads>, which is legal for every kernel."""
    return _POINTS.fullmatch(schedule.get("WORK")) is not None


def tile_axes(r: Roles, axes: Mapping[str, int], schedule: Schedule) -> tuple[TileAxis, ...]:
    """Role and tile of every axis of a part under a schedule; an axis that TILE does not list has tile 1."""
    tiles = {a: tile for a, (tile, _) in listed_tiles(schedule).items()}
    if is_fallback(schedule):
        tiles, room = {}, threads(schedule)
        for a in reversed(r.grid):
            tiles[a] = min(padded(axes[a]), room)
            room //= tiles[a]
    return tuple(tile_axis(a, axes[a], tiles.get(a, 1), r) for a in r.order)


def tile_axis(name: str, extent: int, tile: int, r: Roles) -> TileAxis:
    """The axis with a tile of that size; raises where the tile is illegal."""
    swept = name in r.swept and name not in r.serial
    if not 1 <= tile <= padded(extent) or (tile & (tile - 1) and (tile != extent or not swept)):
        other = f", nor the extent {extent}" if swept else ""
        raise IRError(f"TILE: {name}:{tile} is no power of two between 1 and {padded(extent)}{other}")
    if name in r.grid:
        return TileAxis(name, extent, "grid", tile)
    if name in r.serial and tile > 1:
        raise IRError(f"TILE: {name} is streamed by single positions, not by {tile}")
    whole = tile >= extent and name not in r.serial
    return TileAxis(name, extent, "whole" if whole else "stream", tile)
