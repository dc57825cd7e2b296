"""Covering arrays: few rows in which every pair of levels of two factors meets."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import combinations

Row = dict[str, Hashable]
Pair = tuple[tuple[str, Hashable], tuple[str, Hashable]]


def pairs_of(row: Mapping[str, Hashable]) -> set[Pair]:
    return set(combinations(sorted(row.items()), 2))


def covering(
    factors: Mapping[str, Sequence[Hashable]],
    allowed: Callable[[Mapping[str, Hashable]], bool] = lambda row: True,
    apart: Collection[tuple[str, str]] = (),
    seed: int = 0,
    tries: int = 20,
) -> list[Row]:
    """Rows in which all pairs of levels meet that allowed rows can hold, by greed (the AETG algorithm, Cohen 1997).

    The pairs of factors in `apart` may be met or not. `allowed` also judges rows in which factors are missing.
    """
    rng = random.Random(seed)
    names = sorted(factors)
    todo = {
        ((a, x), (b, y))
        for a, b in combinations(names, 2)
        if (a, b) not in apart and (b, a) not in apart
        for x in factors[a]
        for y in factors[b]
        if allowed({a: x, b: y})
    }
    rows: list[Row] = []
    left = sorted(todo, key=repr)
    while left:
        start = rng.choice(left)
        tried = [row for _ in range(tries) if (row := _filled(dict(start), factors, allowed, todo, rng))]
        if tried:
            rows.append(max(tried, key=lambda row: len(pairs_of(row) & todo)))
        todo -= pairs_of(rows[-1]) if tried else {start}
        left = [p for p in left if p in todo]
    return rows


def _filled(
    row: Row,
    factors: Mapping[str, Sequence[Hashable]],
    allowed: Callable[[Mapping[str, Hashable]], bool],
    todo: set[Pair],
    rng: random.Random,
) -> Row:
    """The row with the missing factors, in a random order, at the levels that meet most of what is left; {} if stuck."""
    missing = [n for n in factors if n not in row]
    rng.shuffle(missing)
    for name in missing:
        levels = [v for v in factors[name] if allowed({**row, name: v})]
        if not levels:
            return {}
        gains = [sum(_pair((name, v), other) in todo for other in row.items()) for v in levels]
        row[name] = rng.choice([v for v, g in zip(levels, gains, strict=True) if g == max(gains)])
    return row


def _pair(a: tuple[str, Hashable], b: tuple[str, Hashable]) -> Pair:
    return (a, b) if a[0] < b[0] else (b, a)
