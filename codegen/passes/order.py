"""Tile to tile: loads go up to the start of their straight line, contractions become products and sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from codegen.passes.state import State
from ir import term as T
from ir import tile
from ir.node import IRError, postorder
from ir.tile import Statement, Stream, TileLoad, TileStore

Body = tuple[Statement, ...]


def bodies(state: State, change: Callable[[Body], Body]) -> State:
    """The state with `change` applied to every body, inner bodies first."""

    def go(body: Body) -> Body:
        return change(tuple(replace(s, body=go(s.body)) if isinstance(s, Stream) else s for s in body))

    parts = tuple(replace(p, body=go(p.body)) for p in state.tile.parts)
    return replace(state, tile=replace(state.tile, parts=parts))


def _reads(index: Iterable[T.Term]) -> set[str]:
    return {t.name for t in postorder(*index) if isinstance(t, T.Var)}


def hoist_loads(state: State) -> State:
    """Every load that no loaded value indexes stands first, so that all of them are in flight at once.

    A load does not move over a stream, where it would hold registers for long, nor over a store to its buffer.
    """
    return bodies(state, _hoisted)


def _hoisted(body: Body) -> Body:
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
    return bodies(state, lambda body: tuple(new for s in body for new in _expanded(s, state)))


def _expanded(s: Statement, state: State) -> Body:
    if not isinstance(s, tile.Mma):
        return (s,)
    buffers = {b.name: b for b in state.tile.buffers}
    for part in state.tile.parts:
        values = tile.infer(part, buffers)
        if s.out in values and s.a in values and s.b in values:
            product = T.binary("mul", values[s.a], values[s.b])
            total = s.out if s.acc is None else f"{s.out}_sum"
            lines: Body = (
                tile.Map(f"{s.out}_product", product),
                tile.TileFold(total, s.over, "add", f"{s.out}_product"),
            )
            return lines if s.acc is None else (*lines, tile.Combine(s.out, "add", s.acc, total))
    raise IRError(f"mma {s.out}: no part makes its operands")
