"""What the sweeps of a part load, how often, and what of it goes through shared memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from extract.roles import Roles
from extract.staging import shared_bytes
from extract.tiles import Access, Tiles

KEPT_STEP = 0.25
"""A step that waits for shared memory alone, in steps that wait for memory."""


class SweepCost:
    """The loads and the sweeps of a part under tile sizes; of each load, `use` says if a fold uses it, and what is written.

    `sweeps` are those over each axis.
    """

    roles: Roles
    loads: Sequence[Access]
    stores: Sequence[Access]
    use: Sequence[tuple[bool, bool]]
    sweeps: Mapping[str, int]

    @cached_property
    def accesses(self) -> list[Access]:
        """All loads and stores."""
        return [*self.loads, *self.stores]

    def loaded(self, n: int, c: Tiles) -> int:
        """How many sweeps load what the n-th load does."""
        (folded, written), axes = self.use[n], self.loads[n].axes
        for_results = not self.roles.written.isdisjoint(axes & c.streams.keys())
        return max(1, self.repeats(axes, c) - (for_results and not written)) if folded else 1

    def repeats(self, axes: frozenset[str], c: Tiles) -> int:
        """How many sweeps use a value over these axes again, where one of them is streamed."""
        return max([self.sweeps[a] for a in c.streams if a in axes], default=1)

    def chain(self, c: Tiles) -> int:
        """Steps of streams that follow one another in a block, and one for what is outside of them."""
        return 1 + math.prod(c.streams.values()) * max([self.sweeps[a] for a in c.streams], default=0)

    # ---- loads that go through shared memory

    def staged(self, n: int, c: Tiles) -> bool:
        """Whether the n-th load goes through shared memory, as far as strides tell."""
        wish, access = c.choice.staging, self.loads[n]
        if wish is None or access.clamped or access.axes.isdisjoint(c.streams):
            return False
        own = wish.how == "bulk" or c.sharing(access.axes)[0] == c.choice.threads
        stored = any(access.buffer.name == s.buffer.name for s in self.stores)
        return own and not stored and access.contiguous is not None and (self.loaded(n, c) > 1 or not wish.kept)

    def staged_bytes(self, c: Tiles) -> int:
        """Shared memory of a block through which its loads go."""
        wish, found = (
            c.choice.staging,
            {self.loads[n].place: n for n in range(len(self.loads)) if self.staged(n, c)},
        )
        if wish is None or not found:
            return 0
        sizes = [
            c.held(self.loads[n].axes) * c.choice.threads * self.loads[n].element_bytes for n in found.values()
        ]
        steps = [c.steps(self.loads[n].axes) for n in found.values()]
        fills = [k * (1 if wish.kept else self.loaded(n, c)) for k, n in zip(steps, found.values(), strict=True)]
        return shared_bytes(sizes, fills, steps, wish)

    def fetched(self, n: int, c: Tiles) -> int:
        """How many sweeps get what the n-th load does from memory or the L2 cache."""
        wish = c.choice.staging
        return 1 if wish is not None and wish.kept and self.staged(n, c) else self.loaded(n, c)

    def waits(self, c: Tiles) -> float:
        """Steps of streams in a block that wait for memory one after another: fewer where copies come ahead."""
        wish, chain = c.choice.staging, self.chain(c)
        if wish is None or not all(self.staged(n, c) for n, a in enumerate(self.loads) if c.steps(a.axes) > 1):
            return chain
        sweeps = max([self.sweeps[a] for a in c.streams], default=1)
        once = (chain - 1) / max(1, sweeps)
        first = once / max(1, wish.depth - 1) if wish.how else once
        return 1 + first + once * (sweeps - 1) * (KEPT_STEP if wish.kept else 1 / max(1, wish.depth - 1))
