"""What the project promises, as data, and whether the last recorded figures keep it.

A ratio is met when the lower end of its 95 % interval over at least five processes reaches the target less 0.01; a
kernel's time when the upper end stays under the target. Seconds are met when the slowest of at least five samples is,
but where the target says otherwise.
What one process measures for many sizes or schedules says so in `processes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench import emmy, listings, model, sweep
from bench.cases import CASES, EXTRAS, baseline
from eggtile.measure import PEERS
from eggtile.ratios import OURS, Interval, against_best, geometric, median_us, samples, worst

Groups = Mapping[str, Sequence[dict[str, Any]]]
"""A case's rows by its name, as `bench.results.latest` gives them."""

COPY_BYTES_PER_US = 4.277e6
SLACK = 0.01
PROCESSES = 5


Values = list[list[float]]
"""Per case, one value a process."""


@dataclass(frozen=True)
class Figure:
    """A measured figure: its interval, how many cases it covers, and what it was taken on."""

    interval: Interval
    covered: int
    machine: str
    commit: str


@dataclass(frozen=True)
class Target:
    """One promise. Ratios must reach `required`; where `at_most`, seconds or factors must stay under it.

    `values` picks what is judged from the last rows of `cases`, `reduce` makes one figure of it.
    """

    area: str
    what: str
    required: float
    hoped: float | None
    cases: tuple[str, ...]
    values: Callable[[Groups], Values]
    reduce: Callable[[Values], Interval]
    at_most: bool = False
    parts: int | None = None
    processes: int = PROCESSES

    def measured(self, groups: Groups) -> Figure | None:
        """The last recorded figure; None where nothing is recorded."""
        here = {name: groups[name] for name in self.cases if name in groups}
        values = self.values(here)
        if not values:
            return None
        rows = [row for group in here.values() for row in group]
        machines, commits = sorted({r["machine"] for r in rows}), sorted({r["commit"] for r in rows})
        return Figure(self.reduce(values), len(values), " and ".join(machines), " ".join(commits))

    def verdict(self, figure: Figure | None) -> str:
        """met, not met or not measured; a figure over too few cases or processes says so."""
        if figure is None:
            return "not measured"
        wanted = self.parts or len(self.cases)
        if figure.covered < wanted:
            return f"not met: {figure.covered} of {wanted} measured"
        if figure.interval.processes < self.processes:
            return f"not met: {figure.interval.processes} of {self.processes} processes"
        if not self.reaches(figure, self.required):
            return "not met"
        return "met, and the hoped for" if self.hoped is not None and self.reaches(figure, self.hoped) else "met"

    def reaches(self, figure: Figure, target: float) -> bool:
        """Whether the whole interval is on the right side of `target`."""
        if self.at_most:
            return figure.interval.high <= target
        return figure.interval.low >= target - SLACK


def ratios(*peers: str, mode: str = "cold") -> Callable[[Groups], Values]:
    """The best peer's time over ours, for every case on which ours was right."""
    return lambda groups: [r for rows in groups.values() if (r := against_best(rows, peers, mode))]


def bandwidths(groups: Groups) -> Values:
    """The share of the copy bandwidth that our kernels reach, from the least traffic of each case."""
    times = {name: [samples(row, OURS, "cold") for row in rows] for name, rows in groups.items()}
    return [
        [row["bytes"] / median(us) / COPY_BYTES_PER_US for row, us in zip(groups[name], found, strict=True)]
        for name, found in times.items()
        if all(found)
    ]


def times(groups: Groups) -> Values:
    """Our cold time in us on every case on which ours was right."""
    found = {name: [samples(row, OURS, "cold") for row in rows] for name, rows in groups.items()}
    return [list(map(median, us)) for us in found.values() if all(us)]


def fallbacks(groups: Groups) -> Values:
    """How many of our kernels have the fall-back schedule, where a row says so."""
    found = [[r.get("contenders", {}).get(OURS, {}).get("fallbacks") for r in rows] for rows in groups.values()]
    return [counts for counts in found if None not in counts]


def rank_correlations(groups: Groups) -> Values:
    """Spearman's coefficient between modelled and measured times of a case's schedules."""
    return [[row["spearman"] for row in rows] for rows in groups.values()]


def same_work(groups: Groups) -> Values:
    """Our time on a hand-written program over our time on the library's call for the same work."""
    times = {hand: (median_us(groups.get(hand, []), OURS, "cold"), median_us(groups.get(plain, []), OURS, "cold"))
             for hand, plain in SAME_WORK.items()}  # fmt: skip
    return [[a / b] * len(groups[hand]) for hand, (a, b) in times.items() if a and b]


def seconds(key: str) -> Callable[[Groups], Values]:
    """The samples of a time in seconds."""
    return lambda groups: [[s for row in rows for s in row["seconds"][key]] for rows in groups.values()]


def spread(values: Values) -> Interval:
    """The median with the least and the greatest value."""
    found = sorted(v for case in values for v in case)
    return Interval(median(found), found[0], found[-1], len(found))


def longest(values: Values) -> Interval:
    """The greatest median of any case, with its least and its greatest value."""
    return max((spread([case]) for case in values), key=lambda i: i.value)


def longest_median(values: Values) -> Interval:
    """The greatest median of any case."""
    found = max(map(median, values))
    return Interval(found, found, found, min(map(len, values)))


def middle(values: Values) -> Interval:
    """The median over cases."""
    found = [v for case in values for v in case]
    return Interval(median(found), median(found), median(found), min(map(len, values)))


def least(values: Values) -> Interval:
    """The least value of any case."""
    found = min(v for case in values for v in case)
    return Interval(found, found, found, min(map(len, values)))


def most(values: Values) -> Interval:
    """The greatest value of any case."""
    found = max(v for case in values for v in case)
    return Interval(found, found, found, min(map(len, values)))


def named(pattern: str) -> tuple[str, ...]:
    """Names of graphable cases that match."""
    return tuple(c.name for c in (*CASES, *EXTRAS) if c.graphable and re.match(pattern, c.name))


SUITE = tuple(c.name for c in CASES)
CHAINS = named("at.hand|at.window|at.softmax_v")
GEMMS = ("mm.sq2048", "mm.sq4096", "mm.sq8192")
PLAIN_CHAINS = named("at.sdpa")
ROWS = named(r"(rr|pw|tr|rope)\.")
NORMS = named(r"rr\.(rmsnorm|layernorm)|norm\.")
LONG_ROWS = tuple(name for name in ROWS if float(str(baseline()[name]["reference_us"])) > 100)
ROWS_OF_EMMY = named(r"emmy\.(rmsnorm|layernorm|softmax)")
EMMY = tuple(map(emmy.label, named("emmy")))
EMMY_ROWS = tuple(map(emmy.label, ROWS_OF_EMMY))
ROW_RATIOS = {"rr.softmax_28x2048x2048": 2.2, "rr.cross_entropy_4096x32000": 2.5, "rr.log_softmax_2048x32000": 1.6}
ROW_TIMES = {
    "rr.logsumexp_16x128256": 4.0,
    "rr.layernormF_4096x4096": 19.0,
    "rr.cumsum_4096x4096_fp32": 38.0,
    "rr.rmsnorm_1x3584": 1.7,
    "emmy.rmsnorm_1x32x2048": 1.7,
}
"""Least ratios to the best peer, and most microseconds, of single cases."""
SAME_WORK = {
    "at.hand_full_32x2048x128": "at.sdpa_full_32x2048x128",
    "at.hand_decode_gqa_b8_kv4096": "at.sdpa_decode_gqa_b8_kv4096",
}
COMMANDS = {"rmsnorm": (5.0, 1.0), "linear": (6.0, 2.0), "attention": (7.0, 2.0)}
COMPILES = {"row": (0.7, 0.3), "attention": (1.0, 0.5), "decoder": (3.0, 1.5)}


def _times() -> Iterator[Target]:
    for name, (whole, ours) in COMMANDS.items():
        cases = (f"command {name}",)
        yield Target("command", f"{name}, whole process, s", whole, 2.5, cases, seconds("process"), spread, True)
        yield Target("command", f"{name}, our part, s", ours, None, cases, seconds("ours"), spread, True)
    for name, (most, hoped) in COMPILES.items():
        cases = (f"compile {name}",)
        yield Target("compile", f"{name}, capture to cubin, s", most, hoped, cases, seconds("cubin"), spread, True)
    for key, most in (("saturate", 1.0), ("extract", 2.0)):
        cases = ("compile layers32",)
        yield Target("layers", f"32 decoder layers, {key}, s", most, None, cases, seconds(key), spread, True)
    for what, names, reduce in (
        ("of the suite, slowest sample", ROWS, longest),
        ("of other long or odd rows, median", listings.PROGRAMS, longest_median),
    ):
        kernels = tuple(f"listing {name}" for name in names)
        title = f"the space of a kernel {what}, s"
        yield Target("listings", title, 0.2, None, kernels, seconds("list"), reduce, True, processes=3)


def _memory() -> Iterator[Target]:
    best = ratios(*PEERS)
    yield Target("memory", "best peer, least of any case", 0.95, None, ROWS, best, worst)
    yield Target("memory", "best peer; geomean", 1.3, None, ROWS, best, geometric)
    yield Target("memory", "best peer, least of any norm", 0.98, None, NORMS, best, worst)
    for name, ratio in ROW_RATIOS.items():
        yield Target("memory", f"{name}, best peer", ratio, None, (name,), best, geometric)
    for name, us in ROW_TIMES.items():
        yield Target("memory", f"{name}, us", us, None, (name,), times, geometric, True)
    yield Target("memory", "share of copy bandwidth over 100 us, least", 0.93, 0.97, LONG_ROWS, bandwidths, worst)
    hot = ratios(emmy.NAME, mode="hot")
    yield Target("memory", "Emmy 0.3.22 tuned, hot, least of the row programs", 1.0, None, EMMY_ROWS, hot, worst)
    odd = sweep.ODD_NAMES
    yield Target(
        "memory", "GB/s at lengths 1000, 4095, 4097 over those at the next multiple of 64, least",
        0.8, None, odd, sweep.kept, least, parts=len(odd) // 2, processes=1,
    )  # fmt: skip
    every = tuple(dict.fromkeys((*ROWS, *NORMS, *ROWS_OF_EMMY)))
    yield Target("memory", "kernels under the fall-back schedule", 0, None, every, fallbacks, most, True)
    held = tuple(map(model.label, model.HELD_OUT))
    yield Target(
        "memory", "model, rank correlation over schedules; median case", 0.8, None, held, rank_correlations, middle,
        processes=1,
    )  # fmt: skip
    yield Target("memory", "the same, least of any case", 0.0, None, held, rank_correlations, least, processes=1)


def _ratios() -> Iterator[Target]:
    best, fused = ratios(*PEERS), ratios("flash", "cudnn")
    yield Target("suite", "best of eager, torch.compile, max-autotune; geomean", 1.4, 1.6, SUITE, best, geometric)
    yield Target("suite", "the same, least of any case", 0.95, None, SUITE, best, worst)
    yield Target(
        "chains", "hand-written against torch.compile; geomean", 5, 10, CHAINS, ratios("compile"), geometric
    )
    pairs = (*SAME_WORK, *SAME_WORK.values())
    yield Target(
        "chains", "hand-written over the plain program, ours", 1.1, None, pairs, same_work, geometric, True, 2
    )
    yield Target("gemm", "cuBLAS at 2048, 4096, 8192; geomean", 1.02, 1.08, GEMMS, ratios("eager"), geometric)
    yield Target("attention", "best of cuDNN and flash; geomean", 1.15, 1.25, PLAIN_CHAINS, fused, geometric)
    yield Target("attention", "the same, least of any case", 0.97, None, PLAIN_CHAINS, fused, worst)
    yield Target(
        "emmy", "Emmy 0.3.22 tuned, hot, least of any case", 1.0, None, EMMY, ratios(emmy.NAME, mode="hot"), worst
    )
    yield Target("emmy", "the same; geomean", 2.0, 4.0, EMMY, ratios(emmy.NAME, mode="hot"), geometric)


TARGETS: tuple[Target, ...] = (*_ratios(), *_memory(), *_times())


def table(groups: Groups, area: str = "") -> tuple[list[str], list[list[str]]]:
    """Header and rows: each target, its last figure, what it was taken on, and the verdict."""
    header = ["area", "target", "required", "hoped for", "measured", "95 %", "machine", "commit", "verdict"]
    rows = []
    for target in TARGETS:
        if area and target.area != area:
            continue
        figure = target.measured(groups)
        sign = "<=" if target.at_most else ">="
        row = [
            target.area,
            target.what,
            f"{sign} {target.required:g}",
            "" if target.hoped is None else f"{target.hoped:g}",
        ]
        if figure is None:
            row += ["", "", "", ""]
        else:
            i = figure.interval
            row += [f"{i.value:.3g}", f"{i.low:.3g} .. {i.high:.3g}", figure.machine, figure.commit]
        rows.append([*row, target.verdict(figure)])
    return header, rows
