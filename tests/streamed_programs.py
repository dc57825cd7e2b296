"""Programs of one or two chains of folds over an axis, by a seed; run as a module, the table of what is found.

Of every program: all forms found are right in float64, and the sweeps found are the fewest that the laws allow, as
`tests.fewest_sweeps` counts them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from egraph.saturate import saturate
from extract.forms import forms
from ir.loop import Form, LoopProgram
from ir.loop_interp import run_form, run_loop
from ir.machine import H200
from tests.egraph.picking import Pick
from tests.egraph.written import inputs, program
from tests.fewest_sweeps import Sweeps, fold_count

AXIS = "j"
TOLERANCE = 1e-9
PROGRAMS = 200

SCORES = ("X[i, j]", "add[d](Q[i, d] * K[j, d])")
MAPS = (
    "{s} * f32(0.3)", "tanh({s} * f32(0.2)) * f32(5.0)", "{s} + M[i, j]", "{s} + B[j]", "{s} * R[j]", "-({s})",
    "({s} if j <= i + 2 else f32(-inf))", "({s} if P[i, j] else f32(-inf))", "{s} * C[i]", "{s} + f32.op(j) * f32(-0.1)",
    "({s} if (i <= j + 1) & (j <= i + 4) else f32(-30.0))", "abs({s})",
)  # fmt: skip
SHIFTS = (
    "max[j]({s})", "max[j]({s})", "max[j]({s})", "max(max[j]({s}), S[i])", "add[j]({s}) / f32.op(extent(j))",
    "(f32(0.0) if abs(max[j]({s})) == f32(inf) else max[j]({s}))",
)  # fmt: skip
WEIGHTS = (
    "exp({s} - {m})", "exp({s} - {m})", "exp({s} - {m})", "exp(({s} - {m}) * f32(0.7))", "{s} - {m}",
    "({s} - {m}) * ({s} - {m})", "tanh({s} - {m})", "max({s} - {m} + f32(1.0), f32(0.0))",
    "exp(-(({s} - {m}) * ({s} - {m})))", "exp({s} * {m})", "({s} - {m}) * G[j]",
    "exp({s} - {m}) * ({s} - {m})", "exp({s} - {m}) * G[j]",
)  # fmt: skip
LINEAR = ("{s} - {m}", "({s} - {m}) * G[j]")
ENDS = (
    "{m} + log(abs({D}))", "add[j]({p} / {D} * V[j, e])", "add[j]({p} * V[j, e]) * rsqrt({D} * {D} + f32(0.1))",
    "{m} * {D}", "add[j]({p} * ({s} - {m} - log(abs({D}))))", "{p} / {D}", "max[j]({p}) + {D}", "add[j]({p} * {D} + G[j])",
    "add[j](({p} / {D} * G[j] + B[j]) * W[j, e])", "{D}", "max[j]({s} - {D})", "add[j]({p}) * add[j]({p} * {p})",
)  # fmt: skip
SECOND = (
    "X[i, j] * {y}",
    "X[i, j] + {y}",
    "X[i, j] + B[j] * {y}",
    "X[i, j] * sigmoid({y})",
    "{y} * M[i, j] + X[i, j]",
)


@dataclass(frozen=True)
class Case:
    """A program, as text and as terms."""

    seed: int
    text: str

    @property
    def program(self) -> LoopProgram:
        return program(self.text, dtypes={"P": "bool"})


def case(seed: int) -> Case:
    """The program of a seed."""
    rng = np.random.default_rng(seed)

    def choice(options: tuple[str, ...]) -> str:
        return str(options[rng.integers(len(options))])

    lines: list[str] = []

    def chain(n: int, score: str, end: tuple[str, ...]) -> str:
        s = score
        for _ in range(rng.integers(0, 3)):
            s = choice(MAPS).format(s=s)
        shift, weight = choice(SHIFTS), choice(WEIGHTS)
        if "extent" in shift and weight in LINEAR:
            weight = "exp({s}) * ({s} - {m})"  # the sum of differences from the mean is 0 but for its rounding
        if "inf" in s and not weight.startswith("exp"):
            s = s.replace("-inf", "-9.0")
        lines.append(f"s{n} := {s}")
        lines.append(f"m{n} := {shift.format(s=f's{n}')}")
        lines.append(f"p{n} := {weight.format(s=f's{n}', m=f'm{n}')}")
        lines.append(f"D{n} := add[j](p{n})")
        return choice(end).format(s=f"s{n}", m=f"m{n}", p=f"p{n}", D=f"D{n}")

    if rng.random() < 0.25:
        rows = tuple(e for e in ENDS if "V" not in e and "W" not in e and not e.startswith("{p}"))
        lines.append(f"y := {chain(0, choice(SCORES), rows)}")
        lines.append(chain(1, choice(SECOND).format(y="y"), ENDS))
    else:
        lines.append(chain(0, choice(SCORES), ENDS))
    return Case(seed, "\n".join(lines))


@dataclass(frozen=True)
class Row:
    """What was found: sweeps as written, those found, the bound, and the largest error of a form."""

    seed: int
    written: int
    found: int
    bound: int
    forms: int
    nodes: int
    error: float

    def __str__(self) -> str:
        mark = "" if self.found == self.bound else "  *"
        return (
            f"{self.seed:5d} {self.written:8d} {self.found:6d} {self.bound:6d} {self.forms:6d} {self.nodes:6d} "
            f"{self.error:9.1e}{mark}"
        )


def row(c: Case, k: int = 3) -> Row:
    """Saturate a program, and run each of its forms."""
    p = c.program
    graph = saturate(p)
    found = forms(graph, H200, k=k, budget_s=5.0)
    roots = [r.value for r in p.results]
    bound = Sweeps(AXIS).fewest(roots)
    return Row(
        c.seed,
        fold_count(roots, AXIS),
        Pick(graph, AXIS).sweeps,
        bound,
        len(found),
        graph.nodes,
        _error(p, found, c.seed),
    )


def _error(p: LoopProgram, found: list[Form], seed: int) -> float:
    values = inputs(p, seed)
    worst = 0.0
    with np.errstate(all="ignore"):
        want = run_loop(p, values, exact=True)
        for f in found:
            got = run_form(f, values, exact=True)
            for name, w in want.items():
                if (np.isnan(w) != np.isnan(got[name])).any():
                    return np.inf
                finite = np.isfinite(w)
                scale = max(1e-30, float(np.abs(w[finite]).max(initial=0.0)))
                worst = max(worst, float(np.abs(got[name][finite] - w[finite]).max(initial=0.0)) / scale)
    return worst


def main(count: int = PROGRAMS, first: int = 0) -> int:
    """Print the table of programs of some seeds; 0 where all are right and nearly all take the fewest sweeps."""
    print(" seed  written  found  bound  forms  nodes     error")
    rows = []
    for seed in range(first, first + count):
        rows.append(row(case(seed)))
        print(rows[-1], flush=True)
    right = sum(r.error < TOLERANCE for r in rows)
    fewest = [r.seed for r in rows if r.found != r.bound]
    print(f"{right} of {count} right; {count - len(fewest)} of {count} take the fewest sweeps, not {fewest}")
    return int(right < count or len(fewest) > count // 40)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
