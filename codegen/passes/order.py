"""Tile to tile: loads go up to the start of their straight line, contractions become products and sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from codegen.passes.state import State
from ir import term as T
from ir import tile
from ir.node import postorder
from ir.tile import Statement, Stream, TileLoad, TilePart, TileStore

Body = tuple[Statement, ...]


def bodies(state: State, change: Callable[[TilePart, Body], Body]) -> State:
    """The state with `change` applied to every body of every part, inner bodies first."""

    def go(part: TilePart, body: Body) -> Body:
        inner = (replace(s, body=go(part, s.body)) if isinstance(s, Stream) else s for s in body)
        return change(part, tuple(inner))

    parts = tuple(replace(p, body=go(p, p.body)) for p in state.tile.parts)
    return replace(state, tile=replace(state.tile, parts=parts))


def _reads(index: Iterable[T.Term]) -> set[str]:
    return {t.name for t in postorder(*index) if isinstance(t, T.Var)}


def hoist_loads(state: State) -> State:
    """Every load that no loaded value indexes stands first, so that all of them are in flight at once.

    A load does not move over a stream, where it would hold registers for long, nor over a store to its buffer.
    """
    return bodies(state, _hoisted)


def _hoisted(part: TilePart, body: Body) -> Body:
    out: list[Statement] = []
    start = 0
    for s in body:
        if isinstance(s, Stream):
            out.append(s)
            start = len(out)
            continue
        place = len(out)
        if isinstance(s, TileLoad) and not _reads(s.index):
            stored = [k + 1 for k, o in enumerate(out) if isinstance(o, TileStore) and o.buffer == s.buffer]
            place = max([start, *stored])
            while place < len(out) and isinstance(out[place], TileLoad):
                place += 1
        out.insert(place, s)
    return tuple(out)


def expand_contractions(state: State) -> State:
    """Every Mma becomes a product, its sum, and the addition of the accumulator."""
    buffers = {b.name: b for b in state.tile.buffers}

    def change(part: TilePart, body: Body) -> Body:
        if not any(isinstance(s, tile.Mma) for s in body):
            return body
        values = tile.infer(part, buffers)
        return tuple(new for s in body for new in _expanded(s, values))

    return bodies(state, change)


def _expanded(s: Statement, values: Mapping[str, T.Var]) -> Body:
    if not isinstance(s, tile.Mma):
        return (s,)
    product = T.binary("mul", values[s.a], values[s.b])
    total = s.out if s.acc is None else f"{s.out}_sum"
    lines: Body = (
        tile.Map(f"{s.out}_product", product),
        tile.TileFold(total, s.over, "add", f"{s.out}_product"),
    )
    return lines if s.acc is None else (*lines, tile.Combine(s.out, "add", s.acc, total))
