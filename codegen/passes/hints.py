"""Cache hints: what a kernel touches once, and a large part of the cache would hold in vain, passes it by.

STORE=stream and STORE=plain of a schedule ask for these hints everywhere or nowhere, whatever the sizes. STORE=keep has the
L2 cache hold what is loaded longer than what is stored: of two streams through the cache the stored one then leaves at once
and in order, not where it happens to make room for the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from codegen.passes.state import State, access_name
from ir import tile
from ir.dtype import DTYPES
from ir.loop import Buffer
from ir.tile import TileLoad, TilePart, TileStore

LEAST_BYTES = 8
"""The narrowest access with a hint."""


def choose_hints(state: State) -> State:
    """Stream the stores that touch every element of a large buffer once, and in a part that folds such loads too.

    Where nothing is folded, many short blocks load at a time, and these are faster through the cache. What is kept is any
    load of a buffer that no two blocks share.
    """
    buffers = {b.name: b for b in state.tile.buffers}
    asked, total = state.tile.schedule.get("STORE"), sum(map(_bytes, state.tile.buffers))
    wish = asked or ("stream" if state.machine.streams(total) else "plain")
    if wish == "plain":
        return state
    statements = [s for p in state.tile.parts for s in tile.walk(p.body)]
    touched = Counter(s.buffer for s in statements if isinstance(s, TileLoad | TileStore))
    plans = []
    for part, plan in zip(state.tile.parts, state.plans, strict=True):
        values = tile.infer(part, buffers)
        accesses = dict(plan.accesses)
        folds = any(isinstance(s, tile.TileFold | tile.Stream) for s in tile.walk(part.body))
        for s in tile.walk(part.body):
            if not isinstance(s, TileLoad | TileStore):
                continue
            b, access, loads = buffers[s.buffer], accesses[access_name(s)], isinstance(s, TileLoad)
            axes = values[s.out if isinstance(s, TileLoad) else s.value].free | access.offset.free
            wide = access.width * DTYPES[b.dtype].bytes >= LEAST_BYTES
            large = bool(asked) or state.machine.large(_bytes(b))
            plain = isinstance(s, TileLoad) or s.monoid is None
            streamed = plain and touched[s.buffer] == 1 and (folds or not loads)
            if wide and large and _once(part, axes) and (streamed if wish == "stream" else loads):
                accesses[access_name(s)] = replace(access, cache=wish)
        plans.append(replace(plan, accesses=accesses))
    return replace(state, plans=tuple(plans))


def _bytes(b: Buffer) -> int:
    return b.size * DTYPES[b.dtype].bytes


def _once(part: TilePart, axes: frozenset[str]) -> bool:
    """Whether no two blocks, nor two steps of a stream, share an access over these axes."""
    return all(a.name in axes for a in part.axes if a.tiles > 1)
