"""Dead values of a tile body: statements whose value nothing uses are left out."""

from __future__ import annotations

from ir import tile
from ir.tile import Statement, reads


def live(body: tuple[Statement, ...], used: frozenset[str] = frozenset()) -> tuple[Statement, ...]:
    """The statements that stores or the values `used` after the body depend on."""
    kept: list[Statement] = []
    wanted = set(used)
    for s in reversed(body):
        if isinstance(s, tile.Stream):
            short = _live_stream(s, frozenset(wanted))
            if short.body:
                kept.append(short)
                wanted |= _outer_reads(short)
        elif isinstance(s, tile.TileStore) or s.out in wanted:
            kept.append(s)
            wanted |= set(reads(s))
    return tuple(reversed(kept))


def _live_stream(s: tile.Stream, wanted: frozenset[str]) -> tile.Stream:
    states = {c.name for c in s.carried} & wanted
    while True:
        pairs = [(c, y) for c, y in zip(s.carried, s.yields, strict=True) if c.name in states]
        body = live(s.body, frozenset(y for _, y in pairs))
        short = tile.Stream(s.axis, tuple(c for c, _ in pairs), body, tuple(y for _, y in pairs))
        more = {c.name for c in s.carried} & (_outer_reads(short) | set(short.yields)) - states
        if not more:
            return short
        states |= more


def _outer_reads(s: tile.Stream) -> set[str]:
    """What the body of a stream uses; names made inside do no harm."""
    return {n for k in tile.walk(s.body) for n in reads(k)}
