"""A program and forms of it at smaller extents, so that their values can be compared in little time and memory.

Terms hold for all extents. An axis is made shorter only where its coordinate does nothing but choose elements of
buffers or compare with another coordinate; what is computed of coordinates may rest on how many there are. Positions
that a buffer holds are clamped to what is left, in all forms alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ir.loop import Buffer, Form, LoopProgram, Store, contiguous
from ir.node import postorder
from ir.ops import BINARY
from ir.term import At, Binary, Const, Index, Load, Term

Axes = Mapping[str, int]
SHORTEST = 8  # positions, so that small numbers are positions too
LONGEST = 192  # positions of an axis that may be shorter, since a sweep is computed one by one
MOST_WORK = 1 << 27  # elements of all values of the program, where axes that may be shorter allow it


def reduced(program: LoopProgram, forms: Sequence[Form], most: int) -> tuple[LoopProgram, list[Form]] | None:
    """The same at extents where no value and no buffer has over `most` elements; None where axes cannot be made short."""
    stores = [*program.results, *(s for f in forms for k in f.kernels for s in k.stores)]
    terms = list(postorder(*(t for s in stores for t in (*s.index, s.value))))
    spaces = {t.free for t in terms} | {s.axes for s in stores}
    values = Counter(t.free for t in postorder(*(t for s in program.results for t in (*s.index, s.value))))
    old = {a: e for axes in (*(f.axes for f in forms), program.axes) for a, e in axes.items()}
    kin = _kin(program, old)
    fixed = {k for a in _counted(terms) for k in kin[a]}
    axes = {a: e if a in fixed else min(e, LONGEST) for a, e in old.items()}
    while spaces:
        worst = max(spaces, key=lambda s: (_points(s, axes), sorted(s)))
        fits = _points(worst, axes) <= most
        if fits and sum(n * _points(s, axes) for s, n in values.items()) <= MOST_WORK:
            break
        longest = max((a for a in worst - fixed if axes[a] > SHORTEST), key=lambda a: (axes[a], a), default=None)
        if longest is None and fits:
            break
        if longest is None:
            return None
        axes |= dict.fromkeys(kin[longest], max(SHORTEST, axes[longest] // 2))
    own_axes = {a: axes[a] for a in program.axes}
    small = replace(program, axes=own_axes, buffers=_resized(program.buffers, program.results, old, axes))
    shapes = {b.name: b for b in small.buffers}
    out = []
    for f in forms:
        own = [s for k in f.kernels for s in k.stores]
        buffers = (shapes.get(b.name, b) for b in _resized(f.buffers, own, old, axes))
        out.append(replace(f, axes=own_axes | {a: axes[a] for a in f.axes}, buffers=tuple(buffers)))
    sizes = [b.size for buffers in (small.buffers, *(f.buffers for f in out)) for b in buffers]
    return None if max(sizes, default=0) > most else (small, out)


def _kin(program: LoopProgram, axes: Axes) -> Mapping[str, list[str]]:
    """Of each axis all those that stand for one of the program: forms name theirs after it (`Substitution.fresh`)."""
    found: dict[str, list[str]] = {}
    for axis in axes:
        origin = axis
        while origin not in program.axes and "_" in origin:
            origin = origin.rpartition("_")[0]
        found.setdefault(origin, []).append(axis)
    return {axis: alike for alike in found.values() for axis in alike}


def _points(space: Iterable[str], axes: Axes) -> int:
    return math.prod(axes[a] for a in space)


def _counted(terms: Iterable[Term]) -> set[str]:
    """Axes whose coordinates are computed with, or bound to a computed one."""
    found: set[str] = set()
    for t in terms:
        coordinates = {k.axis for k in t.terms if isinstance(k, Index)}
        compared = isinstance(t, Binary) and BINARY[t.op].result == "bool" and len(coordinates) == 2
        if not (compared or isinstance(t, Load)):
            found |= coordinates
        if isinstance(t, At) and _computed(t.index):
            found.add(t.axis)
    return found


def _computed(index: Term) -> bool:
    """Whether an index is more than what a buffer holds."""
    stack = [index]
    while stack:
        t = stack.pop()
        if isinstance(t, Index | Const):
            return True
        stack += [] if isinstance(t, Load) else t.terms
    return False


def _resized(buffers: Sequence[Buffer], stores: Sequence[Store], old: Axes, new: Axes) -> tuple[Buffer, ...]:
    """The buffers with each dimension that coordinates of one extent alone choose from at its new extent."""
    uses: dict[tuple[str, int], set[Term]] = {}
    terms = postorder(*(t for s in stores for t in (*s.index, s.value)))
    indexed = [*((s.buffer, s.index) for s in stores), *((t.buffer, t.index) for t in terms if isinstance(t, Load))]
    for buffer, index in indexed:
        for d, t in enumerate(index):
            uses.setdefault((buffer, d), set()).add(t)

    def extent(b: Buffer, d: int, e: int) -> int:
        ends = [
            new[t.axis] if isinstance(t, Index) and old[t.axis] == e else e
            for t in uses.get((b.name, d), ())
            if _computed(t)
        ]
        return max(ends, default=min(e, SHORTEST))

    shapes = [tuple(extent(b, d, e) for d, e in enumerate(b.shape)) for b in buffers]
    return tuple(replace(b, shape=s, strides=contiguous(s), offset=0) for b, s in zip(buffers, shapes, strict=True))
