"""Tile to tile: contractions become products and sums, equal statements merge, loads go up to the start of their line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from codegen.passes.state import State
from codegen.passes.terms import replaced
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


def merge_equal(state: State) -> State:
    """A statement that computes what an earlier one of its straight line does gives way to it."""
    return bodies(state, _merged)


def _merged(part: TilePart, body: Body) -> Body:
    out: list[Statement] = []
    made: dict[Statement, str] = {}
    same: dict[str, str] = {}
    for s in body:
        new = renamed(s, same)
        if isinstance(new, Stream | TileStore):
            out.append(new)
            made = {k: v for k, v in made.items() if not isinstance(k, TileLoad)}
            continue
        key = replace(new, out="")
        if key in made:
            same[new.out] = made[key]
        else:
            made[key] = new.out
            out.append(new)
    return tuple(out)


def renamed(s: Statement, names: Mapping[str, str]) -> Statement:
    """The statement with the values that it reads renamed, in bodies too."""
    if not names:
        return s

    def term(t: T.Term) -> T.Term:
        return replaced(
            t, lambda v: T.Var(names.get(v.name, v.name), v.type, v.axes) if isinstance(v, T.Var) else v
        )

    fields: dict[str, object] = {}
    for key, value in vars(s).items():
        if isinstance(value, T.Term):
            fields[key] = term(value)
        elif key == "index":
            fields[key] = tuple(map(term, value))
        elif key in ("x", "y", "a", "b", "acc", "value", "layout_of"):
            fields[key] = names.get(value, value)
        elif key == "yields":
            fields[key] = tuple(names.get(v, v) for v in value)
        elif key == "body":
            fields[key] = tuple(renamed(inner, names) for inner in value)
    return replace(s, **fields)  # type: ignore[arg-type]


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
