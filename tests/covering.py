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
    tries: int = 60,
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
    while todo:
        best: Row = {}
        for _ in range(tries):
            row = _filled(dict(rng.choice(sorted(todo, key=repr))), factors, allowed, todo, rng)
            if not best or len(pairs_of(row) & todo) > len(pairs_of(best) & todo):
                best = row
        rows.append(best)
        todo -= pairs_of(best)
    return rows


def _filled(
    row: Row,
    factors: Mapping[str, Sequence[Hashable]],
    allowed: Callable[[Mapping[str, Hashable]], bool],
    todo: set[Pair],
    rng: random.Random,
) -> Row:
    """The row with the missing factors, in a random order, at the levels that meet most of what is left."""
    missing = [n for n in factors if n not in row]
    rng.shuffle(missing)
    for name in missing:
        levels = [v for v in factors[name] if allowed({**row, name: v})]
        gains = {v: len(pairs_of({**row, name: v}) & todo) for v in levels}
        most = max(gains.values())
        row[name] = rng.choice([v for v in levels if gains[v] == most])
    return row
