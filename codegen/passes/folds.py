"""Folds over registers, lanes (butterflies of shuffles), warps, and blocks of a cluster (shared slots for each fold)."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from codegen.passes.exchange import Slots, gather, shuffled
from codegen.passes.nest import Nests
from codegen.passes.partial import Algebra, Partial
from codegen.passes.terms import conjunction
from ir import kernel as K
from ir import term as T
from ir import tile
from ir.layout import LANES, Layout, Mode
from ir.ops import MONOIDS
from ir.term import Term, Var

CHAINS = 4
"""Independent additions that hide the latency of one."""


def begin_fold(
    nests: Nests,
    axes: tuple[str, ...],
    monoid: str,
    x: Var,
    value: Term,
    result: Var,
    ended: Set[str] = frozenset(),
) -> str:
    """Fold the tile `x`, whose element at hand is `value`, into registers in the open nest; the rest when it closes.

    Returns the array that then holds the result in every thread that needs it. Along the axes `ended` the tile holds the
    identity past its end.
    """
    algebra = Algebra.of(monoid, x.dtype, nests.part.axis(axes[0]).extent)
    kept, folded = nests.modes(result.axes), [m for m in nests.modes(x.axes) if m.axis in axes]
    beyond = [a for a in axes if nests.layouts.over((a,)).cover(a) > nests.part.axis(a).tile and a not in ended]
    inside = conjunction([T.binary("lt", nests.local(a), T.number(nests.part.axis(a).tile)) for a in beyond])
    modes = nests.modes(x.axes)
    pairs = _in_pairs(algebra, x, modes, axes) and all(
        _together(modes[0], a, nests.part.axis(a).tile) for a in beyond
    )
    chains = max(_chains(kept, folded), 2 if pairs else 1)
    narrow = replace(algebra, dtypes=(x.dtype,)) if pairs else algebra
    partial = Partial.new(nests, narrow, kept, f"{result.name}_chain" if chains > 1 else result.name, chains)
    total = Partial.new(nests, algebra, kept, result.name) if chains > 1 else partial
    partial.clear()
    step = 2 if pairs else 1
    chain = _chain(nests, folded, chains, step)
    if pairs and isinstance(value, T.Load):
        op = MONOIDS[monoid].combine
        body = nests.over(x.axes, step, "pairs")
        both = K.Pairwise(partial.arrays[0], partial.place(chain), op, value.buffer, value.index[0])
        body.append(both if inside is None else K.If(inside, (both,)))
    else:
        nests.over(x.axes)
        components = [value, *(T.round_to(d, "cast", nests.coordinate(axes[0])) for d in algebra.dtypes[1:])]
        if inside is not None:
            components = [T.select(inside, c, e) for c, e in zip(components, algebra.identity, strict=True)]
        partial.absorb(components, chain)
    final = _final(total, result)

    def finish() -> None:
        if chains > 1:
            total.join(partial)
        _finish(total, nests.layouts.over(x.axes), axes, result, final)

    nests.after.append(finish)
    return final


def _final(total: Partial, result: Var) -> str:
    """The array for the result: that of the partial results, unless the result is narrower."""
    if result.dtype == total.algebra.dtypes[-1]:
        return total.arrays[-1]
    return total.nests.array(f"{result.name}_fold", result.dtype, total.nests.registers(result.axes))


def _chain(nests: Nests, folded: Sequence[Mode], chains: int, step: int = 1) -> Term:
    """The chain of the element at hand; elements that are taken `step` at a time have neighbouring chains."""
    group = T.binary("floordiv", nests.register(folded), T.const(step, "i32"))
    return T.binary("mul", T.binary("mod", group, T.const(chains // step, "i32")), T.const(step, "i32"))


@dataclass
class Running:
    """A state of a stream that nothing reads before its fold over `axes` after the stream.

    A thread keeps its partial result alone, in a few chains, not one for every register of the step's tile.
    """

    partial: Partial
    axes: tuple[str, ...]
    folded: tuple[Mode, ...]

    @staticmethod
    def begin(nests: Nests, state: tile.Carried, axes: tuple[str, ...]) -> Running:
        """The identity, in front of the stream."""
        modes = nests.modes(state.axes)
        kept, folded = ([m for m in modes if (m.axis in axes) == inner] for inner in (False, True))
        algebra = Algebra.of(state.monoid, state.dtype, nests.part.axis(axes[0]).extent)
        partial = Partial.new(nests, algebra, tuple(kept), state.name, _chains(kept, folded))
        partial.clear()
        return Running(partial, axes, tuple(folded))

    def absorb(self, x: Var, value: Term) -> None:
        """Take in the tile `x` of a step, whose element at hand is `value`."""
        nests = self.partial.nests
        nests.over(x.axes)
        self.partial.absorb([value], _chain(nests, self.folded, self.partial.chains))

    def end(self, x: Var, result: Var) -> str:
        """The fold over all threads and chains, behind the stream; returns the array of the result."""
        partial, nests = self.partial, self.partial.nests
        total = partial
        if partial.chains > 1:
            total = Partial.new(nests, partial.algebra, partial.modes, result.name)
            total.join(partial)
        final = _final(total, result)
        _finish(total, nests.layouts.over(x.axes), self.axes, result, final)
        return final


def _in_pairs(algebra: Algebra, x: Var, modes: Sequence[Mode], axes: Sequence[str]) -> bool:
    """Whether two neighbouring registers of 16-bit floats fold at once, which rounds nothing."""
    exact = algebra.monoid in ("max", "min") and x.dtype in ("f16", "bf16")
    return exact and bool(modes) and modes[0].axis in axes and modes[0].size % 2 == 0


def _together(fastest: Mode, axis: str, tile: int) -> bool:
    """Whether two registers that are neighbours lie inside the tile along an axis, or neither does."""
    return fastest.axis != axis or (fastest.stride == 1 and tile % 2 == 0)


def _chains(kept: Sequence[Mode], folded: Sequence[Mode]) -> int:
    """How many chains each result is folded in: few results need several, so that additions overlap."""
    wanted = min(CHAINS // math.prod(m.size for m in kept), math.prod(m.size for m in folded))
    return 1 << (wanted.bit_length() - 1) if wanted else 1


def _finish(partial: Partial, layout: Layout, axes: tuple[str, ...], result: Var, final: str) -> None:
    """Combine over the lanes, warps and blocks among which `axes` are spread."""
    nests, block = partial.nests, partial.nests.layouts.block
    digits = layout.digits(axes, block)
    for before, size, _ in digits:
        if before < LANES:
            for bit in range(size.bit_length() - 1):
                other = shuffled(partial, before << bit)
                with nests.now(partial.modes):
                    partial.absorb(other.here)
    for unit, end in ((LANES, block), (block, nests.layouts.threads)):
        units = [(size, before // unit) for before, size, _ in digits if unit <= before < end]
        if units:
            gather(
                partial,
                Slots.fill(partial, layout.project(result.axes), unit, "all" if unit == block else "own"),
                units,
            )
    if final != partial.arrays[-1]:
        with nests.now(partial.modes):
            value = T.round_to(result.dtype, "cast", partial.here[-1])
            nests.inner.append(K.Assign(final, nests.register(partial.modes), value))
