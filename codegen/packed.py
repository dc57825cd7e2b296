"""Long rows of 16-bit values in registers stay packed: behind a barrier they are taken apart and computed with anew.

A value that is kept widened across a barrier takes two registers where the packed pair takes one; a few more
instructions behind the barrier leave room for another block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir import term as T
from ir.dtype import DTYPES
from ir.kernel import Array, Assign, Barrier, For, KernelProgram, Let, LoadGlobal, Pairwise, Statement, terms, walk
from ir.machine import LANES, resident_warps
from ir.node import postorder
from ir.term import Term, Var

LEAST_ELEMENTS = 64
"""Elements of an array that is worth packing."""
HALVES = ("f16", "bf16")
LOOPING_THREADS = 1024
"""Threads of a multiprocessor that keep memory busy with loops of several loads a step."""
CHEAP = ("add", "mul", "neg", "max", "min")
"""Operators that are computed again rather than kept."""
AGAIN_A_REGISTER = 4
"""Scalars computed again that cost a register, because some of them live at a time."""
REGISTERS = 65536
KEPT_REGISTERS = 10
"""Registers of a thread beside those that live across a barrier."""


@dataclass(frozen=True)
class Renewal:
    """What happens behind one barrier: arrays that are packed again, and scalars that are computed again."""

    arrays: tuple[str, ...]
    scalars: tuple[Let, ...]
    registers: int


def renewals(kernel: KernelProgram) -> dict[int, Renewal]:
    """The renewals of a kernel by the places of its barriers, of those that stand outside of loops and branches."""
    body = kernel.body
    arrays = {s.name: s for s in body if isinstance(s, Array)}
    packed = {s.array for s in body if isinstance(s, LoadGlobal) and s.width > 1 and _long(arrays.get(s.array))}
    out = {}
    for k, s in enumerate(body):
        if packed and isinstance(s, Barrier) and s.scope == "block":
            out[k] = _renewal(body[:k], body[k + 1 :], packed, arrays)
    return out


def least_blocks(kernel: KernelProgram, found: dict[int, Renewal]) -> int:
    """Blocks that a multiprocessor should have registers for; 0 leaves it to the compiler.

    For long packed rows as many as there are registers for, if no more than these live across barriers. For loops that
    load no more than keep memory busy: the compiler would make room for more and have fewer loads in flight at a time.
    Where what such a loop carries fills the registers of a thread, half as many do.
    """
    if not found:
        loops = [s for s in walk(kernel.body) if isinstance(s, For) and not s.unroll]
        loading = [s for s in loops if any(isinstance(k, LoadGlobal) for k in walk(s.body))]
        carried = max((_carried(s, kernel) for s in loading), default=0)
        registers = carried + carried // 2 + KEPT_REGISTERS  # with what a step brings for half of them at a time
        most = LOOPING_THREADS // (1 if registers <= REGISTERS // LOOPING_THREADS else 2)
        return max(1, most // kernel.block_threads) if loading else 0
    registers = -(-(max(r.registers for r in found.values()) + KEPT_REGISTERS) // 8) * 8
    return max(1, resident_warps(REGISTERS, registers) * LANES // kernel.block_threads)


def _carried(loop: For, kernel: KernelProgram) -> int:
    """Registers that the arrays of a thread take which a loop carries from step to step."""
    inside = {s.name for s in walk(loop.body) if isinstance(s, Array)}
    kept = {s.array for s in walk(loop.body) if isinstance(s, Assign)} - inside
    arrays = [s for s in walk(kernel.body) if isinstance(s, Array) and s.name in kept]
    return sum(-(-a.size * DTYPES[a.dtype].bytes // 4) for a in arrays)


def _long(a: Array | None) -> bool:
    return a is not None and a.dtype in HALVES and a.size >= LEAST_ELEMENTS


def _renewal(
    before: Sequence[Statement], after: Sequence[Statement], packed: set[str], arrays: dict[str, Array]
) -> Renewal:
    used = {n for s in walk(tuple(after)) for t in postorder(*terms(s)) if (n := _name(t)) is not None}
    used |= {s.other for s in walk(tuple(after)) if isinstance(s, Pairwise)}
    crossing = [s for s in before if isinstance(s, Let) and s.name in used]
    again = tuple(s for s in crossing if _cheap(s.value, packed))
    loaded = {s.array for s in before if isinstance(s, LoadGlobal)}
    needed = used | {n for s in again for t in postorder(s.value) if (n := _name(t)) is not None}
    kept = [arrays[n] for n in sorted(loaded & needed) if n in arrays]
    counted = [s for s in crossing if s not in again and not _is_place(s.value)]
    words = sum(-(-a.size * DTYPES[a.dtype].bytes // 4) for a in kept)
    renewed = tuple(a.name for a in kept if a.name in packed)
    return Renewal(renewed, again, words + len(counted) + len(again) // AGAIN_A_REGISTER)


def _is_place(value: Term) -> bool:
    """Whether a scalar is another one and a constant, which instructions that access memory add for nothing."""
    return isinstance(value, T.Binary) and value.op == "add" and isinstance(value.y, T.Const) and not value.x.terms


def _cheap(value: Term, packed: set[str]) -> bool:
    """Whether a value follows from packed elements and scalars by a few plain operations."""
    nodes = list(postorder(value))
    plain = all(
        t.buffer in packed
        if isinstance(t, T.Load)
        else t.op in CHEAP
        if isinstance(t, T.Unary | T.Binary)
        else True
        for t in nodes
    )
    return plain and any(isinstance(t, T.Load) for t in nodes) and not any(isinstance(t, T.Select) for t in nodes)


def _name(t: Term) -> str | None:
    match t:
        case Var(name) | T.Load(name):
            return name
    return None
