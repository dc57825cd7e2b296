"""How threads are dealt out to the axes of a tile, and which sectors and lines one request of a warp touches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache

LANES = 32
SECTOR_BYTES, LINE_BYTES = 32, 128
BANKS, READ_WORDS, AT_ONCE = 32, 4, 8
"""Of shared memory; words of one read, and lanes whose reads it serves at once where they want different places."""


@dataclass(frozen=True)
class Digits:
    """The threads along an axis: how many, how many stand before them, and the neighbours that each holds."""

    before: int
    count: int
    run: int

    @property
    def end(self) -> int:
        """Threads before the next axis."""
        return self.before * self.count

    @cached_property
    def lanes(self) -> int:
        """Lanes of one warp along the axis."""
        return self.within(LANES)

    def within(self, unit: int) -> int:
        """Threads along the axis among so many neighbouring ones."""
        return max(1, min(self.count, unit // self.before))

    def registers(self, tile: int) -> int:
        """Elements of the tile in one thread."""
        return -(-tile // (self.run * self.count)) * self.run


def dealt(
    axes: Iterable[tuple[str, int, int, int]],
    threads: int,
    block: int,
    unit: int = 0,
    beside: Mapping[str, Set[str]] | None = None,
) -> dict[str, Digits]:
    """The threads along each of (axis, tile, run, most threads), the axis that gets its threads first in front.

    As `codegen.passes.layouts` deals them out: whole digits of lanes, then of warps, then of blocks. No axis has both
    threads of a unit and several units where these take pieces, each of so many threads. With `beside` axes that no value
    has together may share threads.
    """
    out = dict[str, Digits]()
    start = 1
    for axis, tile, run, most in axes:
        if beside is not None:
            start = max((d.end for a, d in out.items() if a in beside[axis]), default=1)
        most = min(most, unit // start) if start < unit else most
        out[axis] = _digits(start, _fitting(start, threads, block, most, -(-tile // run)), run)
        start *= out[axis].count
    return out


_digits = lru_cache(maxsize=4096)(Digits)
"""Digits whose lanes are counted once."""


@lru_cache(maxsize=4096)
def _fitting(start: int, threads: int, block: int, most: int, wanted: int) -> int:
    """The fewest of up to `most` threads that reach a wanted number, or else the most."""
    fit = [d for d in _counts(start, threads, block) if d <= most]
    return next((d for d in fit if d >= wanted), fit[-1])


@lru_cache(maxsize=1024)
def _counts(start: int, threads: int, block: int) -> tuple[int, ...]:
    """Numbers of threads that an axis may get after `start` are taken, fewest first."""
    left = threads // start
    return tuple(d for d in range(1, left + 1) if left % d == 0 and _whole(start * d, block))


def _whole(end: int, block: int) -> bool:
    lanes = end % LANES == 0 or (end < LANES and LANES % end == 0)
    return lanes and (block % end == 0 or end % block == 0)


# ---- requests


@dataclass(frozen=True)
class Request:
    """What the lanes of a warp touch with one instruction: bytes that they want, sectors and lines that hold them."""

    useful: int
    sectors: int
    lines: int

    @property
    def waste(self) -> float:
        """Bytes of the sectors over bytes that are wanted, at least 1."""
        return max(1.0, self.sectors * SECTOR_BYTES / self.useful)

    @property
    def spare_lines(self) -> int:
        """Lines beyond those that the bytes would fill."""
        return max(0, self.lines - -(-self.useful // LINE_BYTES))


def request(run: int, steps: Sequence[tuple[int, int]]) -> Request:
    """The request of a warp whose lanes each want `run` bytes, with (lanes, bytes from one to the next) of its digits."""
    apart = sorted((step, n) for n, step in steps if step and n > 1)
    useful = run * math.prod([n for _, n in apart])
    return Request(useful, _touched(run, apart, SECTOR_BYTES), _touched(run, apart, LINE_BYTES))


def conflicts(places: int, apart: int) -> int:
    """Times over one read of a place by all lanes of a warp that it takes to read so many, so many words apart."""
    served = max(1, BANKS // max(READ_WORDS, math.gcd(apart, BANKS)))
    return -(-min(places, AT_ONCE) // served)


def _touched(run: int, apart: Iterable[tuple[int, int]], granule: int) -> int:
    """Aligned granules that hold the wanted bytes; what lies closer together than a granule shares it."""
    span, pieces = run, 1
    for step, n in apart:
        if step <= max(span, granule) and pieces == 1:
            span += (n - 1) * step
        else:
            pieces *= n
    return pieces * -(-span // granule)
