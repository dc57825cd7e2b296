"""`eggtile tune` measures the schedules of programs' best forms, one program or a suite, and keeps what is measured."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from typing import Annotated

import torch
import typer

from eggtile import stores
from eggtile.candidates import Limits
from eggtile.cli_options import Code, Inputs, Numerics, Program, Select, Store, Tiny, options_of
from eggtile.fleet import Fleet, fly
from eggtile.pipeline import TUNED, RequestError
from eggtile.subjects import Subject, is_suite, place_at_hand, subjects
from eggtile.tables import number, show
from eggtile.tuner import KernelReport, Tuner
from eggtile.tuning import FormReport, Report, tune, tuner_of

LINES, BUDGET_S, LIMIT_S = 12, 600.0, 30.0
app = typer.Typer()


def tuned(item: Subject, tuner: Tuner, budget_s: float, device: str = "cpu", suite: bool = False) -> Report:
    """Tune one program, whose own tensors lie on the device."""
    if item.tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = item.tf32
    with nullcontext() if suite else torch.device(device):
        return tune(*item.load(), item.name, tuner, budget_s)


@app.command("tune")
def tune_command(
    program: Program = None,
    code: Code = None,
    inputs: Inputs = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Distinct texts to measure of each kernel.")] = LINES,
    k: Annotated[int, typer.Option("-k", min=1, help="Forms whose kernels are measured in each round.")] = TUNED,
    budget: Annotated[float, typer.Option(help="Seconds after which no further kernel is begun.")] = BUDGET_S,
    limit: Annotated[float, typer.Option(help="Seconds after which one candidate counts as hung.")] = LIMIT_S,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Measure nothing; keep the times of kernels whose text is the same.")
    ] = False,
    numerics: Numerics = "default",
    select: Select = "",
    tiny: Tiny = False,
    jobs: Annotated[int, typer.Option(min=1, help="Programs of a suite at a time; one at a time is timed.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Compilations at a time.")] = os.cpu_count() or 2,
    store: Store = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the best schedules of the best forms on the GPU at hand, and keep what was measured."""
    start = time.monotonic()
    device, target, why = place_at_hand()
    if why and not adopt:
        raise RequestError(f"there is no GPU to measure on ({why}); --adopt keeps the times of equal texts")
    options = options_of(numerics, target, k=k, evidence=stores.opened(store, write=True))
    suite = is_suite(program, code)
    items = subjects(program, code, inputs, select, tiny, device)
    if suite and jobs > 1:
        own = ["-n", str(n), "-k", str(k), "--limit", str(limit), "--numerics", numerics]
        own += ["--threads", str(max(1, threads // jobs))] + ["--tiny"] * tiny + ["--adopt"] * adopt
        assert options.evidence is not None
        reports = fly(Fleet(program or "", [i.name for i in items], str(options.evidence.path), own, jobs, budget))
    else:
        reports = []
        with tuner_of(options, Limits(n, candidate_s=limit, threads=threads), not adopt) as tuner:
            for item in items:
                reports.append(tuned(item, tuner, budget - (time.monotonic() - start), device, suite))
            if tuner.where.machine != tuner.machine.name:
                kept = f"times are kept under {tuner.where.machine}; extraction for {target} knows {tuner.machine.name}"
                typer.echo(kept, err=True)
    if json_:
        rows = [r.json() for r in reports]
        typer.echo(json.dumps({"programs": rows} if suite else rows[0], allow_nan=False))
    else:
        for report in reports:
            print_report(report)
    raise typer.Exit(0 if len(reports) == len(items) and all(r.right for r in reports) else 1)


# ---- tables

KERNELS = (
    "kernel", "chosen", "space", "measured", "known", "failed", "model, us", "default, us", "best, us", "gain", "best line",
)  # fmt: skip
FORMS = ("form", "kernels: loops, contractions, states", "model, us", "kernels, us", "whole, us", "chosen")


def print_report(report: Report) -> None:
    """Forms by the model and by the clock, the best line of every kernel, and every line that failed."""
    show(f"{report.program}: forms before and after", FORMS, [*map(form_line, range(99), report.forms)])
    show(f"{report.program}: kernels of these forms", KERNELS, [kernel_line(k, report) for k in report.kernels])
    for k in report.kernels:
        for f in k.failures:
            typer.echo(f"{k.key[:8]} {f.line}: {f.status}: {f.reason}")
    end = "the choice is stable" if report.complete else "the budget is spent"
    typer.echo(
        f"{report.measured} lines and {report.forms_timed} forms measured in {report.seconds:.1f} s"
        f" and {report.rounds} rounds; {end}"
    )


def form_line(n: int, f: FormReport) -> list[str]:
    """One form of a region."""
    marks = [word for word, holds in (("before", f.before), ("after", f.after)) if holds]
    name = f"{f.region}.{n}" + (" default" if f.default else "")
    times = map(number, (f.modelled_us, f.kernels_us, f.whole_us))
    return [name, "\n".join(f.kernels), *times, " and ".join(marks)]


def kernel_line(k: KernelReport, report: Report) -> list[str]:
    """One kernel; its name is the beginning of its key."""
    gain = k.default_us / k.best_us if k.default_us and k.best_us else None
    counts = (k.space, k.measured, k.known + k.adopted, len(k.failures))
    numbers = (k.modelled_us, k.default_us, k.best_us, gain)
    chosen = "*" if k.key in report.chosen else ""
    best = k.best or ("none is right" if k.failures else "none is measured")
    return [k.key[:8], chosen, *map(str, counts), *map(number, numbers), best]
