"""Cache hints: what a kernel touches once, and a large part of the cache would hold in vain, passes it by.

Where all that a kernel touches fills the L2 cache many times, this holds what is loaded longer than what is stored: of two
streams through the cache the stored one then leaves at once and in order, not where it happens to make room for the other.
STORE=plain, STORE=stream and STORE=keep of a schedule ask for no hint, the first kind or the second, whatever the sizes.
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

    Where nothing is folded, many short blocks load at a time, and these are faster through the cache. To keep is for loads
    of such parts alone, where the kernel has a large buffer to store besides.
    """
    buffers, machine = {b.name: b for b in state.tile.buffers}, state.machine
    asked = state.tile.schedule.get("STORE")
    wish = asked or ("stream" if machine.streams(sum(map(_bytes, state.tile.buffers))) else "keep")
    large = {n for n, b in buffers.items() if asked or machine.large(_bytes(b))}
    statements = [s for p in state.tile.parts for s in tile.walk(p.body)]
    stored = {s.buffer for s in statements if isinstance(s, TileStore)}
    if wish == "plain" or (wish == "keep" and not large & stored):
        return state
    touched = Counter(s.buffer for s in statements if isinstance(s, TileLoad | TileStore))
    plans = []
    for part, plan in zip(state.tile.parts, state.plans, strict=True):
        values = tile.infer(part, buffers)
        accesses = dict(plan.accesses)
        folds = any(isinstance(s, tile.TileFold | tile.Stream) for s in tile.walk(part.body))
        for s in tile.walk(part.body):
            if not isinstance(s, TileLoad | TileStore) or s.buffer not in large:
                continue
            access, loads = accesses[access_name(s)], isinstance(s, TileLoad)
            axes = values[s.out if isinstance(s, TileLoad) else s.value].free | access.offset.free
            wide = access.width * DTYPES[buffers[s.buffer].dtype].bytes >= LEAST_BYTES
            once = touched[s.buffer] == 1 and (isinstance(s, TileLoad) or s.monoid is None)
            wished = folds if loads else wish == "stream"
            if wide and wished and _once(part, axes) and (once or wish == "keep"):
                accesses[access_name(s)] = replace(access, cache=wish)
        plans.append(replace(plan, accesses=accesses))
    return replace(state, plans=tuple(plans))


def _bytes(b: Buffer) -> int:
    return b.size * DTYPES[b.dtype].bytes


def _once(part: TilePart, axes: frozenset[str]) -> bool:
    """Whether no two blocks, nor two steps of a stream, share an access over these axes."""
    return all(a.name in axes for a in part.axes if a.tiles > 1)
