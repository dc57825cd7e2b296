"""`python -m bench.plots FILE.svg`: the best peer's time over ours, a bar a recorded case. Needs the extra `plots`."""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from bench.results import latest, load
from eggtile.measure import PEERS
from eggtile.ratios import Interval, against_best, geometric


def ratios_by_case() -> dict[str, Interval]:
    """Recorded ratios with their intervals, least first."""
    found = {name: against_best(rows, PEERS, "cold") for name, rows in latest(load()).items()}
    intervals = {name: geometric([ratios]) for name, ratios in found.items() if ratios}
    return dict(sorted(intervals.items(), key=lambda item: item[1].value))


def draw(intervals: dict[str, Interval], path: Path) -> None:
    """Bars on a logarithmic axis with the line of equal times."""
    figure = Figure(figsize=(8, 1 + 0.2 * len(intervals)), layout="constrained")
    axes = figure.subplots()
    values = [i.value for i in intervals.values()]
    ends = [[i.value - i.low for i in intervals.values()], [i.high - i.value for i in intervals.values()]]
    axes.barh(list(intervals), values, xerr=ends)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("time of the best peer over ours, cold")
    figure.savefig(path)


if __name__ == "__main__":
    draw(ratios_by_case(), Path(sys.argv[1]))
