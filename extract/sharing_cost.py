"""What the threads of a part exchange for folds and scans: instructions, waits, and the shared memory that it takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from extract.facts import swept
from extract.sweep_cost import SweepCost
from extract.tiles import VECTOR_BYTES, Access, Choice, Tiles, aligned
from extract.warps import SECTOR_BYTES, Digits, conflicts, dealt
from ir import term as T
from ir.dtype import DTYPES, compute_type
from ir.machine import LANES, Machine
from ir.ops import MONOIDS
from ir.term import Term
from ir.tile import TileAxis

FOLD_THREADS = {"lanes": 32, "serial": 1}
"""Per way of folding: the threads that may share a fold; all of them where it is not named."""
STAGED_BYTES = 32768
"""The largest tile that a load brings into its layout through shared memory."""
STORE_WEIGHT = 4
"""The say of a store in which axis has neighbouring lanes, beside that of a load."""
PLACE_BYTES = 8
"""A position that a stream keeps beside a value."""


@dataclass(frozen=True)
class Exchange:
    """What threads may exchange for a fold, a scan or a state of a stream: the axes of its results, and those it runs over.

    Its partial results are values of `value_bytes`, those of a pair monoid with positions of `place_bytes`.
    """

    kept: frozenset[str]
    over: frozenset[str]
    value_bytes: int
    place_bytes: int = 0
    scans: bool = False


def exchanges(nodes: Iterable[Term], axes: Mapping[str, int]) -> Counter[Exchange]:
    """How many of each there are: one for each fold and scan among some terms, and for each state of their streams."""
    out: dict[Term, Exchange] = {}
    for t in nodes:
        over = frozenset(swept(t))
        match t:
            case T.Stream(_, carries, _):
                for c in carries:
                    out[c] = Exchange(c.free - over, over, DTYPES[compute_type(c.dtype)].bytes)
            case T.Fold(_, monoid, x) | T.Scan(_, monoid, x):
                place = "i32" if max(axes[a] for a in over) < 1 << 31 else "i64"
                place_bytes = DTYPES[place].bytes if MONOIDS[monoid].pair else 0
                scans = isinstance(t, T.Scan)
                out[t] = Exchange(t.free - over, over, DTYPES[compute_type(x.dtype)].bytes, place_bytes, scans)
    return Counter(out.values())


class SharingCost(SweepCost):
    """The folds and scans of a part under tile sizes: how many there are with results over the same axes, over the same.

    `beside` gives of each axis those that some value has with it.
    """

    machine: Machine
    folds: Mapping[tuple[frozenset[str], frozenset[str]], int]
    scans: Mapping[tuple[frozenset[str], frozenset[str]], int]
    exchanges: Mapping[Exchange, int]
    beside: Mapping[str, frozenset[str]]

    @cached_property
    def nearest(self) -> dict[str, float]:
        """The shortest stride with which an access walks along each axis."""
        steps = [(a, step) for access in self.accesses for a, step in access.strides.items()]
        return {a: min((n for b, n in steps if a == b), default=math.inf) for a in self.roles.order}

    def thread_order(self, axes: Mapping[str, TileAxis], times: Sequence[int] = ()) -> list[str]:
        """Axes from the first to get threads: that along which most is moved side by side, then those that stay apart.

        Loads count once, or so many `times`.
        """
        votes = dict.fromkeys(self.roles.order, 0)
        for n, access in enumerate(self.accesses):
            if access.contiguous is not None:
                weight = (times[n] if times else 1) if n < len(self.loads) else STORE_WEIGHT
                votes[access.contiguous] += weight * math.prod(axes[a].tile for a in access.axes)
        place = {a: k for k, a in enumerate(self.roles.order)}
        near = sorted(place, key=lambda a: (-votes[a], self.nearest[a], -place[a]))
        return near[:1] + sorted(near[1:], key=self.roles.swept.__contains__)

    def dealt(
        self,
        order: Sequence[str],
        axes: Mapping[str, TileAxis],
        choice: Choice,
        beside: Mapping[str, frozenset[str]] | None = None,
    ) -> dict[str, Digits]:
        """The threads along each axis when they are dealt out in an order."""
        sharing = FOLD_THREADS.get(choice.reduce, choice.threads)
        alone = self.roles.swept - {choice.pieces}
        most = {a: sharing if a in alone else choice.threads for a in order}
        runs = {a: choice.run(axes[a]) for a in order}
        wanted = ((a, axes[a].tile, runs[a], most[a]) for a in order)
        return dealt(wanted, choice.threads, choice.block, choice.unit, beside)

    def turned(
        self, access: Access, c: Tiles, beside: Mapping[str, frozenset[str]] | None = None
    ) -> dict[str, Digits] | None:
        """The threads of a load whose neighbours lie in other warps, and which changes its layout in shared memory."""
        near, first = access.contiguous, next((a for a in c.order if c.digits[a].count > 1), None)
        if near in (None, first) or near is None or c.choice.cluster > 1:
            return None
        small = c.elements(access.axes) * access.element_bytes <= STAGED_BYTES
        if not small or c.axes[near].tile * access.element_bytes < SECTOR_BYTES:
            return None
        return self.dealt([near, *(a for a in c.order if a != near)], c.axes, c.choice, beside)

    def exchange(self, c: Tiles) -> tuple[float, float]:
        """Instructions of a thread, and the time it waits, for the folds that threads share."""
        instructions = us = 0.0
        rates = self.machine.rates
        between = [folded for _, folded in self.folds if folded and all(a == c.choice.pieces for a in folded)]
        us += rates.exchange_cluster_us if between else 0.0  # all at once, and folded by each thread alone
        for scans, found in ((False, self.folds), (True, self.scans)):
            for (kept, folded), count in found.items():
                if folded in between:
                    continue
                more, wait = self.shared(kept, folded, scans, c)
                instructions += count * more
                us += count * wait
        return instructions, us

    def shared(self, kept: frozenset[str], folded: frozenset[str], scans: bool, c: Tiles) -> tuple[float, float]:
        """The instructions of a thread, and the time it waits, for one fold or scan."""
        instructions = us = 0.0
        rates, block = self.machine.rates, c.choice.block
        sharing, lanes = c.sharing(folded)
        results, steps = float(c.held(kept)), 1
        if scans:  # at every step
            steps = c.steps(folded)
            results *= rates.scan * c.held(folded) / c.run(folded) * steps
        instructions += results * rates.shuffle * math.log2(lanes)
        if sharing > lanes:
            here, places = min(sharing, block), c.sharing(kept)[1]
            instructions += results * rates.slot * here / lanes * conflicts(places, sharing // lanes)
            us += steps * rates.exchange_block_us * (1 + block / 2048)
            if sharing > block:
                blocks = sharing // block
                far = results / here * blocks + rates.meeting / block
                instructions += results * blocks * rates.slot * conflicts(places, c.held(kept)) + rates.remote * far
                us += steps * rates.exchange_cluster_us
        elif sharing > 1:
            us += steps * rates.exchange_lanes_us
        return instructions, us

    # ---- shared memory

    def exchanged_bytes(self, c: Tiles, room: float = 0) -> int:
        """Shared memory of a block for what its threads exchange, and for loads that change their layout in it.

        As the passes lay it out (`codegen.passes.exchange`), but for arrays that take the place of others. What is surely
        less than there is room for is 0.
        """
        if self.most_exchanged_bytes(c) <= room:
            return 0
        c = self.laid_out(c)
        slots = sum(self.slots(e, c) * size * self.repeats(e.kept, c) for e, size in self.exchanged(c))
        return slots + sum(self.turned_bytes(a, c) * self.repeats(a.axes, c) for a in self.loads)

    def laid_out(self, c: Tiles) -> Tiles:
        """The tiles as the passes lay them out: with a vector that accesses can use, and threads that axes share."""
        vector = self.usable_vector(c)
        choice = replace(c.choice, vector=vector, vector_axis=c.choice.vector_axis if vector > 1 else None)
        order = self.thread_order(c.axes, [self.loaded(n, c) for n in range(len(self.loads))])
        return Tiles(c.axes, choice, order, self.dealt(order, c.axes, choice, self.beside))

    def most_exchanged_bytes(self, c: Tiles) -> int:
        """At least `exchanged_bytes`: a slot for each register of every thread, and what may change its layout."""
        each = sum(
            c.held(e.kept | e.over if e.scans else e.kept) * size * self.repeats(e.kept, c)
            for e, size in self.exchanged(c)
        )
        turned = sum(
            2 * min(STAGED_BYTES, c.elements(a.axes) * a.element_bytes) * self.repeats(a.axes, c)
            for a in self.loads
            if c.choice.cluster == 1 and a.contiguous not in (None, *c.order[:1])
        )
        return each * c.choice.threads * (1 + (c.choice.cluster > 1)) + turned

    def exchanged(self, c: Tiles) -> Iterator[tuple[Exchange, int]]:
        """What threads exchange, with the bytes of a partial result of each: in a stream, of all that a pair becomes."""
        for e, count in self.exchanges.items():
            both = count * (e.value_bytes + e.place_bytes)
            if e.over.isdisjoint(c.streams):
                yield e, both
            elif e.scans:
                both += count * e.value_bytes if e.place_bytes else 0
                yield e, both
                yield replace(e, scans=False), both
            else:
                yield e, count * (e.value_bytes + (PLACE_BYTES if e.place_bytes else 0))

    def slots(self, e: Exchange, c: Tiles) -> int:
        """Slots of a partial result: one for each register of it, kept thread of a unit, and unit, a warp or a block.

        Warps leave for a scan what all their lanes hold behind the runs of each thread.
        """
        block, threads = c.choice.block, c.choice.threads
        borders = ((LANES, threads),) if e.scans else ((LANES, block), (block, threads))
        axes, runs = (e.kept | e.over, c.run(e.over)) if e.scans else (e.kept, 1)
        return sum(
            c.held(axes) // runs * math.prod(c.digits[a].within(unit) for a in axes) * (threads // unit)
            for unit, end in borders
            if any(max(d.before, unit) < min(d.end, end) for d in (c.digits[a] for a in e.over))
        )

    def turned_bytes(self, access: Access, c: Tiles) -> int:
        """Shared memory in which a load changes its layout, if it does; rows are an element longer than they need."""
        near, digits = access.contiguous, self.turned(access, c, self.beside)
        first = next((a for a in c.order if c.digits[a].count > 1 and a in access.axes), near)
        if near is None or near == first or digits is None:
            return 0
        tiles = {a: c.axes[a].tile for a in access.axes}
        whole = all(d[a].registers(n) * d[a].count == n for d in (c.digits, digits) for a, n in tiles.items())
        elements = math.prod(tiles.values())
        fits = elements * access.element_bytes <= STAGED_BYTES
        return (elements + elements // tiles[near]) * access.element_bytes if whole and fits else 0

    def usable_vector(self, c: Tiles) -> int:
        """The vector of the choice, as far as some access can use it."""
        wish, axis = c.choice.vector, c.choice.vector_axis
        found = [1]
        for access in (a for a in (*self.loads, *self.stores) if axis is not None and axis in a.axes):
            most = min(wish, VECTOR_BYTES // access.element_bytes)
            width = aligned(access.buffer, access.index, c.axes[axis], most) if axis is not None else 1
            found.append(wish if width == most else width)
        return max(found)
