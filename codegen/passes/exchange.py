"""Partial results that threads exchange: lanes by shuffles, warps and blocks of a cluster through shared slots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from codegen.passes.nest import THREAD
from codegen.passes.partial import Partial
from codegen.passes.terms import digit, linear, widened
from ir import kernel as K
from ir import term as T
from ir.dtype import DTYPES
from ir.layout import LANES, Layout
from ir.term import Term

VECTOR_BYTES = 16


def shuffled(partial: Partial, mask: int) -> Partial:
    """The partial results of the lane whose number differs in `mask`."""
    other = Partial.new(partial.nests, partial.algebra, partial.modes, "other")
    with partial.nests.now(partial.modes):
        at = partial.nests.register(partial.modes)
        for array, value in zip(other.arrays, partial.here, strict=True):
            partial.nests.inner.append(K.Shuffle(array, at, value, mask))
    return other


@dataclass
class Slots:
    """Shared arrays with a slot for each (register, kept thread of a unit, unit) of a partial result, the unit fastest.

    Units are warps, or blocks of a cluster: threads that have already agreed.
    """

    shared: tuple[str, ...]
    key: Term
    kept: int
    own: Term
    units: int

    @staticmethod
    def fill(partial: Partial, kept: Layout, unit: int, to: str) -> Slots:
        """Every unit of so many threads leaves its results in its slots; `kept` is the layout of the tile they make up.

        `to` says in which blocks' slots.
        """
        nests, key, place, count = partial.nests, dict[Term, int](), dict[Term, int](), 1
        for before, size, mode in kept.digits({m.axis for m in kept.thread if m.axis}, nests.layouts.block):
            if before < unit:
                key[digit(THREAD, before, size)] = count
                place[digit(THREAD, before, size)] = before
                count *= mode.size
        shared = tuple(nests.names.fresh("slots") for _ in partial.arrays)
        own, units = T.binary("floordiv", THREAD, T.number(unit)), nests.layouts.threads // unit
        out = Slots(shared, linear(key), count, own, units)
        size = math.prod(m.size for m in partial.modes) * count * units
        nests.out += [K.Shared(n, d, size) for n, d in zip(shared, partial.algebra.dtypes, strict=True)]
        with nests.now(partial.modes):
            at = nests.register(partial.modes)
            sender = T.binary("eq", T.binary("mod", THREAD, T.number(unit)), linear(place))
            for name, array in zip(shared, partial.arrays, strict=True):
                nests.inner.append(K.StoreShared(name, out.at(at, own), array, at, 1, sender, to))
        return out

    def at(self, register: Term, unit: Term) -> Term:
        """The slot of a register of this thread, as written by `unit`."""
        row = T.binary("add", T.binary("mul", widened(register), T.number(self.kept)), self.key)
        return T.binary("add", T.binary("mul", row, T.number(self.units)), unit)


def gather(partial: Partial, slots: Slots, units: list[tuple[int, int]]) -> None:
    """Combine the slots of this thread's group of units."""
    nests, algebra = partial.nests, partial.algebra
    count = math.prod(size for size, _ in units)
    width = _run(units, max(DTYPES[d].bytes for d in algebra.dtypes))
    read = seen(partial, slots, _first(slots.own, units), [_place(k, units) for k in range(0, count, width)], width)
    with nests.now(partial.modes):
        first = T.binary("mul", nests.register(partial.modes), T.const(count, "i32"))
        places = [T.binary("add", first, T.const(k, "i32")) for k in range(count)]
        items = [[T.Load(a, d, (p,)) for a, d in zip(read, algebra.dtypes, strict=True)] for p in places]
        partial.set(algebra.tree(items, nests))


def seen(partial: Partial, slots: Slots, first: Term, places: Sequence[int], width: int = 1) -> list[str]:
    """Arrays of the slots of the units at `places` behind the first, the fastest there; a load takes `width` of them."""
    nests, algebra = partial.nests, partial.algebra
    count, size = len(places) * width, math.prod(m.size for m in partial.modes)
    read = [nests.array("seen", d, size * count) for d in algebra.dtypes]
    with nests.now(partial.modes):
        at = nests.register(partial.modes)
        row = T.binary("mul", at, T.const(count, "i32"))
        for k, place in enumerate(places):
            unit = T.binary("add", first, T.number(place))
            for name, array in zip(slots.shared, read, strict=True):
                to = T.binary("add", row, T.const(k * width, "i32"))
                nests.inner.append(K.LoadShared(array, to, name, slots.at(at, unit), width))
    return read


def seen_of_all(partial: Partial, slots: Slots, over_lanes: bool) -> list[str]:
    """Arrays of the slots of all units: in every thread, or dealt out over the lanes of each warp."""
    if over_lanes:
        return seen(partial, slots, digit(THREAD, 1, LANES), range(0, slots.units, LANES))
    width = _run([(slots.units, 1)], max(DTYPES[d].bytes for d in partial.algebra.dtypes))
    return seen(partial, slots, T.number(0), range(0, slots.units, width), width)


def _run(units: list[tuple[int, int]], size: int) -> int:
    """How many slots of neighbouring units one load takes."""
    (first, weight), *_ = units
    width = VECTOR_BYTES // size if weight == 1 else 1
    while first % width:
        width //= 2
    return width


def _place(k: int, units: list[tuple[int, int]]) -> int:
    """The unit, relative to the first of its group, that is number `k` of the group."""
    out = 0
    for size, weight in units:
        out, k = out + k % size * weight, k // size
    return out


def _first(own: Term, units: list[tuple[int, int]]) -> Term:
    """The first unit of the group of this thread: its unit's number without the digits of the group."""
    out: dict[Term, int] = {}
    below = 1
    for size, weight in units:
        out[digit(own, below, weight // below)] = below
        below = weight * size
    return linear({**out, T.binary("floordiv", own, T.number(below)): below})
