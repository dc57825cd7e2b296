"""The rate of memory that row programs reach over sizes: GB/s from least traffic and cold medians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.cases import SWEEP
from bench.cases.sweep import ODD, count_at
from eggtile import tables
from eggtile.ratios import median_us

CONTENDERS = ("eggtile", "compile", "copy")
"""Ours, torch.compile, and a copy of the input."""
Groups = Mapping[str, Sequence[dict[str, Any]]]


@dataclass(frozen=True)
class Rates:
    """One point of the sweep: GB/s by contender, for those that were timed."""

    program: str
    dtype: str
    rows: int
    length: int
    gb_per_s: Mapping[str, float]


def rates(groups: Groups) -> list[Rates]:
    """Every measured point, in the order of the sweep."""
    found = []
    for item in SWEEP:
        if rows := groups.get(item.name):
            program = item.name.split(".")[1].split("_")[0]
            times = {n: us for n in CONTENDERS if (us := median_us(rows, n, "cold")) is not None}
            own = {n: rows[-1]["bytes"] / us / 1e3 for n, us in times.items()}
            found.append(Rates(program, item.dtype, item.full["M"], item.full["N"], own))
    return found


def kept(groups: Groups) -> list[list[float]]:
    """For each odd length with the next multiple of 64: our GB/s on the one over that on the other."""
    of_lengths = [r for r in rates(groups) if r.length in ODD_SIZES and r.rows == count_at(r.length)]
    ours = {(r.program, r.dtype, r.length): r.gb_per_s.get("eggtile") for r in of_lengths}
    pairs = [(ours[p, d, n], ours.get((p, d, ODD[n]))) for p, d, n in ours if n in ODD]
    return [[odd / even] for odd, even in pairs if odd and even]


ODD_SIZES = {*ODD, *ODD.values()}
ODD_NAMES = tuple(c.name for c in SWEEP if c.full["N"] in ODD_SIZES and c.full["M"] == count_at(c.full["N"]))
"""The cases that `kept` reads."""


def show(groups: Groups) -> None:
    """The points as a table."""
    lines = [
        [
            r.program,
            r.dtype,
            str(r.rows),
            str(r.length),
            *(tables.number(r.gb_per_s.get(n), ".0f") for n in CONTENDERS),
        ]
        for r in rates(groups)
    ]
    tables.show("cold, GB/s", ["program", "dtype", "rows", "length", *CONTENDERS], lines)
