"""Scans within a tile: prefixes over registers, lanes and warps, from the digits of the least stride to the largest."""

from __future__ import annotations

import math

from codegen.passes.exchange import Slots, shuffled
from codegen.passes.nest import THREAD, WARP, Nests
from codegen.passes.partial import Algebra, Partial
from codegen.passes.terms import digit
from ir import kernel as K
from ir import term as T
from ir.layout import LANES, Mode
from ir.term import Term, Var


def write_scan(nests: Nests, axis: str, monoid: str, x: Var, value: Term, result: Var) -> str:
    """Inclusive prefixes along `axis` of the tile `x`, whose element at hand is `value`; returns their array."""
    nests.close()
    algebra = Algebra.of(monoid, x.dtype, nests.part.axis(axis).extent)
    modes = nests.modes(result.axes)
    prefix = Partial.new(nests, algebra, modes, result.name)
    with nests.now(modes):
        prefix.set([value, *(T.round_to(d, "cast", nests.coordinate(axis)) for d in algebra.dtypes[1:])])
    _Scan(nests, axis, result, prefix).run()
    if result.dtype == algebra.dtypes[-1]:
        return prefix.arrays[-1]
    final = nests.array(f"{result.name}_scan", result.dtype, math.prod(m.size for m in modes))
    with nests.now(modes):
        place = T.round_to(result.dtype, "cast", prefix.here[-1])
        nests.inner.append(K.Assign(final, nests.register(modes), place))
    return final


class _Scan:
    """`prefix` holds prefixes within groups of positions, `total` the product of each group; groups grow mode by mode."""

    def __init__(self, nests: Nests, axis: str, result: Var, prefix: Partial) -> None:
        self.nests, self.axis, self.prefix = nests, axis, prefix
        self.layout = nests.layouts.over(result.axes)
        self.total = prefix

    def run(self) -> None:
        """Take in the modes along the axis by growing stride."""
        digits = [(m.stride, before, m) for before, _, m in self.layout.digits((self.axis,))]
        digits += [(m.stride, 0, m) for m in self.layout.register if m.axis == self.axis]
        for _, before, mode in sorted(digits, key=lambda d: d[0]):
            if before == 0:
                self.registers(mode)
            elif before < LANES:
                self.lanes(before, mode.size)
            else:
                self.warps(before // LANES, mode.size)

    def partial(self, modes: tuple[Mode, ...], wish: str) -> Partial:
        """New partial results over `modes`, at the identity."""
        out = Partial.new(self.nests, self.prefix.algebra, modes, wish)
        out.clear()
        return out

    def shift(self, earlier: Partial) -> None:
        """Put what stands before each group in front of its prefixes."""
        with self.nests.now(self.prefix.modes):
            self.prefix.set(self.prefix.algebra.combine(earlier.here, self.prefix.here, self.nests))

    def registers(self, mode: Mode) -> None:
        """Groups that are neighbours along a register mode become one, in the order of the loop over its digits."""
        total, whole = self.total, tuple(m for m in self.total.modes if m != mode)
        running, earlier = self.partial(whole, "total"), self.partial(total.modes, "earlier")
        with self.nests.now(total.modes):
            earlier.set(running.here)
            running.absorb(total.here)
        self.shift(earlier)
        self.total = running

    def lanes(self, before: int, size: int) -> None:
        """A butterfly: a lane whose bit is set has the group of its partner before its own."""
        algebra = self.prefix.algebra
        if self.total is self.prefix:
            self.total = self.prefix.copy("total")
        earlier = self.partial(self.total.modes, "earlier")
        for bit in range(size.bit_length() - 1):
            other = shuffled(self.total, before << bit)
            late = T.binary("eq", digit(THREAD, before << bit, 2), T.number(1))
            with self.nests.now(self.total.modes):
                shifted = algebra.combine(other.here, earlier.here, self.nests)
                earlier.set([T.select(late, s, e) for s, e in zip(shifted, earlier.here, strict=True)])
                self.total.absorb(other.here)
        self.shift(earlier)

    def warps(self, weight: int, size: int) -> None:
        """Every warp reads the totals of its group of warps and keeps the product of the earlier ones apart."""
        nests, algebra, group = self.nests, self.prefix.algebra, self.total
        slots = Slots.fill(group, self.layout, LANES, "all" if nests.layouts.cluster > 1 else "own")
        own = digit(WARP, weight, size)
        first = T.binary("sub", WARP, T.binary("mul", own, T.number(weight)))
        total, earlier = self.partial(group.modes, "total"), self.partial(group.modes, "earlier")
        for k in range(size):
            seen = Partial.new(nests, algebra, group.modes, "seen")
            with nests.now(group.modes):
                at = nests.register(group.modes)
                warp = T.binary("add", first, T.number(k * weight))
                for name, array in zip(slots.shared, seen.arrays, strict=True):
                    nests.inner.append(K.LoadShared(array, at, name, slots.at(at, warp), 1))
                before = T.binary("lt", T.number(k), own)
                hidden = [T.select(before, s, e) for s, e in zip(seen.here, algebra.identity, strict=True)]
                earlier.absorb(hidden)
                total.absorb(seen.here)
        self.shift(earlier)
        self.total = total
