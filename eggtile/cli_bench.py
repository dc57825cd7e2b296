"""`eggtile bench`: a program or a suite of them, timed against PyTorch on the GPU at hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from eggtile import files, stores
from eggtile.api import Optimized
from eggtile.candidates import Limits
from eggtile.cli_options import (
    Code,
    FormNumber,
    Hits,
    Inputs,
    Numerics,
    ScheduleLines,
    Select,
    Store,
    Tiny,
    options_of,
    told_hits,
)
from eggtile.cli_tune import BUDGET_S, LINES, print_report, tuned
from eggtile.measure import DEFAULT, PEERS, Row, asked, build_and_gate, builders, cold_copies, time_calls
from eggtile.pipeline import Compiled, Options, Region, RequestError, compile_program
from eggtile.provenance import taken_on
from eggtile.ratios import OURS, against_best, best_peer, geometric, median_us
from eggtile.subjects import Subject, is_suite, place_at_hand, subjects
from eggtile.tables import number, progress, show
from eggtile.timing import ROUNDS
from eggtile.tuning import tuner_of
from eggtile.turn import card_lock, turn

Program = Annotated[
    str | None,
    typer.Argument(help="file.py:name, module:name, or a module with CASES, like bench.cases", show_default=False),
]
OWN = (OURS, DEFAULT)


# ---- one row a program


def measured(
    item: Subject,
    names: Sequence[str],
    options: Options,
    rounds: int,
    advance: Callable[[], object],
    hits: str | None = None,
) -> Row:
    """Gate and time one program; contenders with wrong values are reported, not timed."""
    if item.tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = item.tf32
    fn, inputs = item.load()
    taken = asked(builders(options), [n for n in names if item.max_autotune or n != "max-autotune"])
    calls, found = build_and_gate(fn, [inputs], taken, advance)
    with turn(card_lock(), alone=True):
        times, clocks = time_calls({n: c for n, c in calls.items() if found[n]["ok"]}, cold_copies(inputs), rounds)
    ours = calls.get(OURS)
    if isinstance(ours, Optimized):
        told_hits(ours.compiled, hits)
    contenders = {n: {**row, **times.get(n, {})} for n, row in found.items()}
    return row_of(item, ours.compiled if isinstance(ours, Optimized) else None, contenders) | {"clocks": clocks}


def modelled(item: Subject, options: Options, hits: str | None = None) -> Row:
    """Compile one program where nothing can be timed."""
    fn, inputs = item.load()
    compiled = compile_program(fn, inputs, item.name, options)
    told_hits(compiled, hits)
    return row_of(item, compiled, {}) | {"clocks": {}}


def row_of(item: Subject, compiled: Compiled | None, contenders: Mapping[str, Row]) -> Row:
    """What is known of one program: its forms and schedules, its contenders, and the ratio to the best peer."""
    row: Row = {"program": item.name, "reference_us": item.reference_us, "contenders": contenders}
    row["regions"] = [*map(region_row, compiled.regions, compiled.names)] if compiled else []
    row["notes"] = [*item.notes, *(compiled.captured.program.notes if compiled else ())]
    row["best_peer"] = best_peer([row], PEERS, "cold")
    row["ratio"] = next(iter(against_best([row], PEERS, "cold")), None)
    return row


def region_row(region: Region, names: Sequence[str]) -> Row:
    """The forms with their costs, measured where that is known, and the schedules of the chosen one's kernels."""
    return {
        "forms": [
            {
                "id": n,
                "cost_us": f.cost_us,
                "measured_us": region.prices.form_us(f),
                "kernels": len(f.kernels),
                "chosen": f is region.chosen,
                "default": f is region.default,
            }
            for n, f in enumerate(region.listed)
        ],
        "laws": list(region.chosen.laws),
        "kernels": [
            {"name": name, "schedule": str(k.schedule), "fallback": k.fallback}
            for name, k in zip(names, region.kernels, strict=True)
        ],
    }


# ---- tables


def form_lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    """A line a form; the chosen one shows its schedules."""
    for row in rows:
        for region in row["regions"]:
            schedules = "\n".join(
                f"{k['name']}: {k['schedule']}{' (fall-back)' if k['fallback'] else ''}" for k in region["kernels"]
            )
            for f in region["forms"]:
                marks = [name for name in ("chosen", DEFAULT) if f[name]]
                times = number(f["cost_us"]), number(f["measured_us"])
                lines = schedules if f["chosen"] else ""
                yield [row["program"], " ".join([str(f["id"]), *marks]), *times, str(f["kernels"]), lines]


def time_lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    """A line a contender: times, error, its median over ours, and what went wrong."""
    for row in rows:
        ours = median_us([row], OURS, "cold")
        for name, found in row["contenders"].items():
            cold, hot = found.get("cold", {}), found.get("hot", {})
            spread = f"{number(cold['low_us'])} .. {number(cold['high_us'])}" if cold else ""
            over = cold["median_us"] / ours if cold and ours else None
            fault = found.get("error") or found.get("reason") or cold.get("note") or ""
            values = (cold.get("median_us"), hot.get("median_us"), found.get("max_rel_err"), over)
            shown = [number(v) for v in values]
            yield [row["program"], name, shown[0], spread, *shown[1:], number(row["reference_us"]), fault]


FORM_HEADER = ("program", "form", "cost, us", "measured, us", "kernels", "schedule")
TIME_HEADER = ("program", "contender", "cold, us", "quartiles", "hot, us", "error", "over ours", "reference", "")


def print_rows(rows: Sequence[Row]) -> None:
    """The tables, and the ratio to the best peer of every program that has one."""
    show("forms (* chosen)", FORM_HEADER, list(form_lines(rows)))
    timed = list(time_lines(rows))
    if timed:
        show("times, errors against float64", TIME_HEADER, timed)
    found = [row for row in rows if row["ratio"] is not None]
    for row in found:
        typer.echo(f"{row['program']}: {row['ratio']:.3f} against the best peer, {row['best_peer']}")
    if len(found) > 1:
        typer.echo(f"{geometric([[row['ratio']] for row in found]).value:.3f}, the geometric mean of {len(found)}")


def write(path: Path, value: Row) -> None:
    """One JSON object."""
    files.write(path, json.dumps(value, allow_nan=False, default=str) + "\n")


def wrong(rows: Sequence[Row]) -> bool:
    """Whether a contender of our own failed or gives wrong values."""
    return any(not row["contenders"][n].get("ok") for row in rows for n in OWN if n in row["contenders"])


# ---- the command


def bench(
    program: Program = None,
    code: Code = None,
    inputs: Inputs = None,
    against: Annotated[str, typer.Option(help="Contenders, separated by commas.")] = ",".join((DEFAULT, *PEERS)),
    json_: Annotated[Path | None, typer.Option("--json", help="Write one JSON object to this file.")] = None,
    form: FormNumber = None,
    schedule: ScheduleLines = None,
    numerics: Numerics = "default",
    rounds: Annotated[int, typer.Option(min=3, help="Samples of each contender.")] = ROUNDS,
    select: Select = "",
    tiny: Tiny = False,
    lines: Annotated[
        int | None, typer.Option("--tune", min=1, help="Tune first: distinct texts to measure of each kernel.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Tune first: seconds after which no further kernel is begun.")
    ] = None,
    store: Store = None,
    hits: Hits = None,
) -> None:
    """Time a program, or the CASES of a module, against the form as written, eager PyTorch and torch.compile."""
    device, target, why = place_at_hand()
    tunes = (lines or budget) is not None and not why
    options = options_of(
        numerics, target, form=form, schedule=schedule, explain=True, evidence=stores.opened(store, write=tunes)
    )
    names = list(asked(builders(options), against.split(",")))
    items, suite = subjects(program, code, inputs, select, tiny, device), is_suite(program, code)
    if tunes:
        with tuner_of(options, Limits(lines or LINES)) as tuner:
            for item in items:
                print_report(tuned(item, tuner, budget or BUDGET_S, device, suite))
    rows: list[Row] = []
    # what a user's program makes of its own, it makes where its inputs are
    with progress() as bar, nullcontext() if suite else torch.device(device):
        task = bar.add_task("measuring", total=len(items) * len(names))
        for item in items:
            bar.update(task, description=item.name, completed=len(rows) * len(names))
            step = partial(bar.advance, task)
            rows.append(
                modelled(item, options, hits) if why else measured(item, names, options, rounds, step, hits)
            )
            if json_:
                head = {**taken_on(), "numerics": numerics, "target": target}
                write(json_, head | ({"programs": rows} if suite else rows[0]))
    print_rows(rows)
    if why:
        raise RequestError(f"there is no CUDA device that can be timed ({why}); the costs above are the model's")
    raise typer.Exit(1 if wrong(rows) else 0)
