"""Ratios from paired samples: one per process and case, their geometric mean, and its 95 % interval."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
"""One measured case of one process, with the samples of every contender."""

DRAWS = 2000
OURS = "eggtile"


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 95 % interval, over `processes` (the fewest of any case)."""

    value: float
    low: float
    high: float
    processes: int


def samples(row: Row, name: str, mode: str) -> list[float]:
    """A contender's microseconds by round; none where it was not timed. Ours count only where the values are right."""
    contender = row.get("contenders", {}).get(name, {})
    if mode not in contender or (name == OURS and not contender["ok"]):
        return []
    found: list[float] = contender[mode]["samples_us"]
    return found


def paired(row: Row, peer: str, mode: str) -> float | None:
    """The median over rounds of the peer's time over ours; None where either was not timed.

    A peer that times itself has one sample, which stands for every round.
    """
    mine, theirs = samples(row, OURS, mode), samples(row, peer, mode)
    theirs = theirs * len(mine) if len(theirs) == 1 else theirs
    return statistics.median(t / m for m, t in zip(mine, theirs, strict=True)) if mine and theirs else None


def median_us(rows: Sequence[Row], name: str, mode: str) -> float | None:
    """The geometric mean over a case's processes of a contender's median; None where one of them lacks it."""
    medians = [statistics.median(found) for row in rows if (found := samples(row, name, mode))]
    return statistics.geometric_mean(medians) if medians and len(medians) == len(rows) else None


def best_peer(rows: Sequence[Row], peers: Sequence[str], mode: str) -> str | None:
    """The fastest peer among those timed in all processes of a case."""
    times = {name: us for name in peers if (us := median_us(rows, name, mode)) is not None}
    return min(times, key=times.__getitem__, default=None)


def against_best(rows: Sequence[Row], peers: Sequence[str], mode: str) -> list[float]:
    """One ratio a process of a case: the best peer's time over ours. Empty where ours is missing in any of them."""
    peer = best_peer(rows, peers, mode)
    found = [paired(row, peer, mode) for row in rows] if peer else []
    return [] if None in found else [r for r in found if r is not None]


def geometric(cases: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """The geometric mean over cases of the geometric mean over processes; processes are resampled within a case."""
    chance = random.Random(seed)
    logs = [[math.log(r) for r in case] for case in cases]

    def mean(of: Sequence[Sequence[float]]) -> float:
        return math.exp(statistics.fmean(statistics.fmean(case) for case in of))

    draws = sorted(mean([chance.choices(case, k=len(case)) for case in logs]) for _ in range(DRAWS))
    low, high = draws[int(0.025 * DRAWS)], draws[int(0.975 * DRAWS)]
    return Interval(mean(logs), low, high, min(map(len, cases)))


def worst(cases: Sequence[Sequence[float]]) -> Interval:
    """The interval of the case with the least geometric mean."""
    return min((geometric([case]) for case in cases), key=lambda interval: interval.value)
