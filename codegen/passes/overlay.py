"""Shared memory that is used no more serves what comes later, where a kernel asks for more than it may declare.

An array takes the place of one whose last use lies behind a barrier, so that the block's footprint is the largest of the
two and not their sum. Kernels that may declare what they need keep arrays of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from codegen.passes.state import State
from codegen.resources import STATIC_SHARED_BYTES
from ir import kernel as K


def overlay(state: State) -> State:
    """The kernel with aliases for arrays that have room where others have been."""
    kernel = state.kernel
    assert kernel is not None
    memory = [s for s in K.walk(kernel.body) if isinstance(s, K.Shared | K.Ring)]
    if kernel.cluster > 1 or sum(map(K.shared_bytes, memory)) <= STATIC_SHARED_BYTES:
        return state
    return replace(state, kernel=replace(kernel, body=_overlaid(kernel.body)))


def _overlaid(body: Sequence[K.Statement]) -> tuple[K.Statement, ...]:
    uses: dict[str, list[int]] = {}
    for at, s in enumerate(body):
        for name in K.shared_uses(s):
            uses.setdefault(name, []).append(at)
    barriers = [at for at, s in enumerate(body) if isinstance(s, K.Barrier) and s.scope == "block"]
    declared = [s for s in body if isinstance(s, K.Shared | K.Ring) and s.name in uses]
    here = {s.name: s.name for s in declared}
    """By an array with memory of its own, what uses it now."""
    aliases: dict[int, list[K.Alias]] = {}
    for s in sorted(declared, key=lambda s: uses[s.name][0]):
        first = uses[s.name][0]
        rooms = (
            old for old in declared
            if old.name in here and old is not s and K.shared_bytes(old) >= K.shared_bytes(s)
            and any(uses[here[old.name]][-1] < b < first for b in barriers)
        )  # fmt: skip
        room = next(rooms, None)
        if room is not None and isinstance(s, K.Shared):
            here[room.name] = s.name
            del here[s.name]
            aliases.setdefault(first, []).append(K.Alias(s.name, s.dtype, s.size, room.name))
    moved = {a.name for found in aliases.values() for a in found}
    out: list[K.Statement] = []
    for at, s in enumerate(body):
        out += aliases.get(at, [])
        out += [] if isinstance(s, K.Shared) and s.name in moved else [s]
    return tuple(out)
