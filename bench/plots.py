"""`python -m bench.plots ratios|sweep|model FILE.svg`: recorded rows as pictures. Needs the extra `plots`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure

from bench import sweep
from bench.cases import CASES, EXTRAS
from bench.cases.sweep import LENGTH, PROGRAMS, TYPES, count_at
from bench.model import HELD_OUT
from bench.results import latest, load
from eggtile.measure import PEERS
from eggtile.ratios import Interval, against_best, geometric


def ratios_by_case() -> dict[str, Interval]:
    """Recorded ratios of the suite and the programs beside it with their intervals, least first."""
    named = {c.name for c in (*CASES, *EXTRAS)}
    groups = {name: rows for name, rows in latest(load()).items() if name in named}
    found = {name: against_best(rows, PEERS, "cold") for name, rows in groups.items()}
    intervals = {name: geometric([ratios]) for name, ratios in found.items() if ratios}
    return dict(sorted(intervals.items(), key=lambda item: item[1].value))


def draw_ratios(path: Path) -> None:
    """The best peer's time over ours, a bar a case on a logarithmic axis, with the line of equal times."""
    intervals = ratios_by_case()
    figure = Figure(figsize=(8, 1 + 0.2 * len(intervals)), layout="constrained")
    axes = figure.subplots()
    values = [i.value for i in intervals.values()]
    ends = [[i.value - i.low for i in intervals.values()], [i.high - i.value for i in intervals.values()]]
    axes.barh(list(intervals), values, xerr=ends)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("time of the best peer over ours, cold")
    figure.savefig(path)


def draw_sweep(path: Path) -> None:
    """GB/s over row lengths at one number of elements and over row counts at one length, a panel a program and type."""
    found = sweep.rates(latest(load()))
    kinds = [(p, d) for p in PROGRAMS for d in TYPES]
    figure = Figure(figsize=(4 * len(kinds), 7), layout="constrained")
    panels = figure.subplots(2, len(kinds), sharey=True)
    for k, (program, dtype) in enumerate(kinds):
        own = [r for r in found if (r.program, r.dtype) == (program, dtype)]
        by_length = sorted((r for r in own if r.rows == count_at(r.length)), key=lambda r: r.length)
        by_count = sorted((r for r in own if r.length == LENGTH), key=lambda r: r.rows)
        for axes, points, title in (
            (panels[0][k], [(r.length, r) for r in by_length], "row length, 2^25 elements"),
            (panels[1][k], [(r.rows, r) for r in by_count], f"rows of {LENGTH}"),
        ):
            for name in sweep.CONTENDERS:
                line = [(x, r.gb_per_s[name]) for x, r in points if name in r.gb_per_s]
                axes.plot([x for x, _ in line], [y for _, y in line], marker=".", label=name)
            axes.set_xscale("log", base=2)
            axes.set_xlabel(title)
        panels[0][k].set_title(f"{program}, {dtype}, cold")
    panels[0][0].set_ylabel("GB/s")
    panels[1][0].set_ylabel("GB/s")
    panels[0][0].legend()
    figure.savefig(path)


def draw_model(path: Path) -> None:
    """Modelled against measured time of every line, a panel a case, with the line of equal times."""
    rows = [r for rows in latest(load()).values() for r in rows if "model_us" in r]
    rows.sort(key=lambda r: (r["of"] in HELD_OUT, r["of"]))
    across = 4
    down = -(-len(rows) // across)
    figure = Figure(figsize=(4 * across, 3.5 * down), layout="constrained")
    for row, axes in zip(rows, figure.subplots(down, across, squeeze=False).flat, strict=False):
        x, y = zip(*((us, row["model_us"][line]) for line, us in row["us"].items()), strict=True)
        axes.loglog(x, y, ".")
        axes.loglog([min(x), max(x)], [min(x), max(x)], color="black", linewidth=0.8)
        kind = "held out" if row["of"] in HELD_OUT else "fitted"
        axes.set_title(f"{row['of']}\n{kind}, rank correlation {row['spearman']:.2f}", fontsize=9)
        axes.set_xlabel("measured, us")
        axes.set_ylabel("modelled, us")
    figure.savefig(path)


DRAWN: Mapping[str, Callable[[Path], None]] = {"ratios": draw_ratios, "sweep": draw_sweep, "model": draw_model}


def draw(what: Annotated[str, typer.Argument(help=", ".join(DRAWN))], path: Path) -> None:
    """Draw recorded rows into a file (.svg, .png or .pdf)."""
    if what not in DRAWN or path.suffix not in (".svg", ".png", ".pdf"):
        raise typer.BadParameter(f"{what} {path}: it is one of {', '.join(DRAWN)}, and a .svg, .png or .pdf file")
    DRAWN[what](path)


if __name__ == "__main__":
    typer.run(draw)
