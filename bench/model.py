"""The schedule model against measured times: many lines of one kernel gated and timed in one process, and the fit.

Some cases fit the weights (`ir.machine.Rates`) and shaped the model, others check it. A case is one kernel; its lines are
the model's first ones and a spread over all that it has priced, so that bad lines count as well as good ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.stats import spearmanr

from bench.cases import EXTRAS, Case, case
from bench.cases.spec import DTYPES
from bench.workers import Question
from eggtile.check import judge, longest_folds
from eggtile.conditioning import Sways
from eggtile.measure import Row, run_on_copies
from eggtile.pipeline import (
    Compiled,
    Options,
    capture_and_lower,
    choose_forms,
    compile_kernels,
)
from eggtile.planning import plan_of
from eggtile.provenance import taken_on
from eggtile.reference import run_eager, run_in_float64
from eggtile.runtime import execution_for
from eggtile.timing import copies_for, interleave, prepare
from eggtile.turn import turn
from extract.points import point
from extract.roles import cluster, is_fallback, pieces
from extract.spaces import Rules, Space, space
from extract.subject import Subject
from ir.machine import Rates
from ir.schedule import Schedule, parse_schedule

FITTED = (
    "pw.bias_gelu_res_8192x4096",
    "rr.rmsnorm_4096x2048",
    "rr.layernormF_4096x4096",
    "rr.log_softmax_2048x32000",
    "rr.var_mean_8192x4096_fp32",
    "rr.cumsum_4096x4096_fp32",
    "tr.split_heads_8x2048x32x128",
    "emmy.rmsnorm_1x32x2048",
    "pw.swiglu_4096x18944",
    "pw.bias_gelu_res_16x4096",
    "rr.rmsnorm_8192x8192",
    "rr.add_rmsnorm_4096x4096",
    "rr.layernorm_hand_4096x4096_fp32",
    "rr.softmax_28x2048x2048",
    "rr.colsum_8192x4096",
    "tr.gelu_t_add_8192",
)
"""Cases with whose times in view the model is made; its weights are fitted to the first eight."""
HELD_OUT = tuple(c.name for c in EXTRAS if c.family == "held")
"""Cases that check it: nothing in the model looked at them."""
FIRST, LINES, PRICED, FAR = 8, 32, 4096, 8.0
"""Of the lines that are measured: the model's first, all of them, how many priced ones they are spread over, and how far
the model may think them from its best."""
ROUNDS, REPLAY_MS = 7, 3.0
MACHINE = Options().machine()


def label(name: str) -> str:
    """The name of a case's rows."""
    return f"model {name}"


# ---- lines


@dataclass(frozen=True)
class Scheduled:
    """A case of one kernel, up to its schedule."""

    case: Case
    compiled: Compiled
    subject: Subject

    def us(self, lines: Sequence[Schedule]) -> list[float]:
        """The modelled times of lines."""
        rules = {n: Rules(self.subject, *n) for n in {(pieces(x), cluster(x)) for x in lines}}
        return [rules[pieces(x), cluster(x)].us(point(x)) for x in lines]

    def under(self, rates: Rates) -> Scheduled:
        """The same under other weights of the model."""
        return replace(self, subject=replace(self.subject, machine=replace(self.subject.machine, rates=rates)))

    def space(self, most: int) -> Space:
        """The kernel's space with at most so many lines."""
        s = self.subject
        return space(s.kernel, s.buffers, s.axes, s.machine, most)


def scheduled(item: Case) -> Scheduled:
    """The case at full size, on tensors without values."""
    built = item.built()
    with torch.device("meta"):
        inputs = [torch.empty(t.shape, dtype=DTYPES[t.dtype or item.dtype]) for t in built.inputs]
    compiled = compile_kernels(choose_forms(capture_and_lower(built.fn, inputs, "program", Options())))
    (kernel,) = compiled.kernels
    known = kernel.canonical
    return Scheduled(item, compiled, Subject(known.kernel, kernel.buffers, known.axes, MACHINE))


def sample(own: Scheduled) -> list[Schedule]:
    """The model's first lines, and others spread evenly over those that are not far from them."""
    lines = [x for x in own.space(PRICED).lines if not is_fallback(x)]
    us = own.us(lines)
    first = lines[:FIRST]
    rest = [x for x, t in zip(lines[FIRST:], us[FIRST:], strict=True) if t < FAR * us[0]]
    spread = np.linspace(0, len(rest) - 1, min(LINES - FIRST, len(rest)))
    return [*first, *(rest[round(float(k))] for k in spread)]


# ---- measuring


def measure_lines(q: Question) -> Row:
    """Gate and time the sampled lines of a case in this process; `q` names the `case`, the `lock` and the `commit`."""
    item, lock = case(q["case"]), Path(q["lock"])
    own = scheduled(item)
    lines = sample(own)
    with turn(lock, alone=False):
        fn, first = item.program(False, "cuda")
        eager, exact = run_eager(fn, first), run_in_float64(fn, first)
        swayed = Sways(fn, first, exact)
    calls: dict[str, Callable[..., Any]] = {}
    refused: dict[str, str] = {}
    for line in lines:
        pinned = replace(own.compiled, options=replace(own.compiled.options, schedule=str(line)))
        try:
            written = compile_kernels(pinned)
            call, longest = execution_for(plan_of(written), first[0].device), longest_folds(written)
            with turn(lock, alone=False):
                got = run_on_copies(call, first)
                verdict = judge("cuda", got, eager, exact, longest=longest, swayed=swayed)
        except Exception as error:  # a line that cannot be made is a result; the next one is tried
            refused[str(line)] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        if verdict.ok:
            calls[str(line)] = call
        else:
            refused[str(line)] = verdict.reason
    del eager, exact, swayed
    built = item.built()
    with turn(lock, alone=False):
        more = range(1, copies_for(sum(t.nbytes for t in first)))
        copies = [first, *(item.inputs(built, "cuda", k) for k in more)]
        replays = {line: prepare(call, copies, REPLAY_MS) for line, call in calls.items()}
    with turn(lock, alone=True):
        samples = interleave(replays, ROUNDS)
    times = {line: median(us) for line, us in samples.items()}
    row = {"case": label(item.name), "of": item.name, "us": times, "refused": refused, **taken_on()}
    return judged(row, own) | {"commit": q["commit"]}


def judged(row: Row, own: Scheduled) -> Row:
    """The row with what the model says of its lines now, and the rank correlation of both."""
    modelled = dict(zip(row["us"], own.us([parse_schedule(x) for x in row["us"]]), strict=True))
    return {**row, "model_us": modelled, "spearman": correlation(row["us"], modelled)}


def correlation(times: Mapping[str, float], modelled: Mapping[str, float]) -> float:
    """Spearman's rank correlation of measured and modelled times of the same lines."""
    return float(spearmanr([times[x] for x in times], [modelled[x] for x in times]).statistic)


# ---- the fit

LEVEL, REGRET, PRIOR = 0.3, 2.0, 0.01
"""What the spread of measured over modelled time counts for, what the model's first line takes longer than the best, and
a factor of e of a weight from where it was."""


def loss(rows: Sequence[tuple[Row, Scheduled]], rates: Rates) -> float:
    """Over the cases: what the rank correlation lacks of 1, what the first line loses, and the deviation of all lines."""
    lacks, lost, logs = [], [], []
    for row, own in rows:
        lines = [x for x in map(parse_schedule, row["us"]) if pieces(x) == 1]
        us = [row["us"][str(x)] for x in lines]
        modelled = own.under(rates).us(lines)
        lacks.append(1 - float(spearmanr(us, modelled).statistic))
        lost.append(math.log(us[modelled.index(min(modelled))] / min(us)))
        logs += [math.log(u / m) for u, m in zip(us, modelled, strict=True)]
    return float(np.mean(lacks) + REGRET * np.mean(lost) + LEVEL * np.sqrt(np.mean(np.square(logs))))


def fit(rows: Sequence[tuple[Row, Scheduled]], start: Rates, steps: int) -> Rates:
    """Weights under which the rows' times are best told, near `start`: a simplex search over their logarithms."""
    names = [n for n, v in vars(start).items() if v]

    def at(x: Sequence[float]) -> Rates:
        return replace(start, **{n: getattr(start, n) * math.exp(e) for n, e in zip(names, x, strict=True)})

    found = minimize(
        lambda x: loss(rows, at(x)) + PRIOR * float(np.mean(np.square(x))),
        np.zeros(len(names)),
        method="Nelder-Mead",
        options={"maxfev": steps, "adaptive": True, "initial_simplex": _simplex(len(names))},
    )
    return Rates(**{n: float(f"{v:.3g}") for n, v in vars(at(found.x)).items()})


def _simplex(n: int) -> Any:
    return np.vstack([np.zeros(n), 0.4 * np.eye(n)])


# ---- reading


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and a line a case: how many lines, the correlation, and what the model's first line loses."""
    header = ["case", "", "lines", "refused", "spearman", "best, us", "model's first, us", "over best", "best line"]
    out = []
    for row in sorted(rows, key=lambda r: (r["of"] in HELD_OUT, r["of"])):
        best = min(row["us"], key=row["us"].__getitem__)
        first = min(row["us"], key=lambda x: row["model_us"][x])
        kind = "held out" if row["of"] in HELD_OUT else "fitted"
        over = row["us"][first] / row["us"][best]
        numbers = [f"{row['spearman']:.2f}", f"{row['us'][best]:.3g}", f"{row['us'][first]:.3g}", f"{over:.3f}"]
        out.append([row["of"], kind, str(len(row["us"])), str(len(row["refused"])), *numbers, best])
    return header, out
