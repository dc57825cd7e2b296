"""`python -m bench`: check the suite on the CPU, measure it on a GPU, and hold the figures to the targets."""

from __future__ import annotations

import gc
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer

from bench import emmy, layers, model, results, sweep, targets
from bench.cases import CASES, SWEEP, case, select
from bench.check import check, check_one, part
from bench.flight import ALONE, Flight, fly
from bench.seconds import KINDS, measure_seconds
from bench.worker import measure
from bench.workers import Worker, serve
from eggtile import tables
from eggtile.measure import PEERS
from eggtile.provenance import commit as tree_commit
from eggtile.ratios import OURS, against_best, best_peer, geometric, median_us

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


def regular(pattern: str) -> str:
    """The pattern, which must be a regular expression."""
    try:
        re.compile(pattern)
    except re.error as e:
        raise typer.BadParameter(f"no regular expression: {e}") from None
    return pattern


Pattern = Annotated[
    str, typer.Argument(help="A regular expression over case names.", show_default=False, callback=regular)
]
Lock = Annotated[Path | None, typer.Option(help="The file that whoever times holds, to measure side by side.")]
Against = Annotated[str, typer.Option(help="Contenders, separated by commas.")]
EVERYONE = "eggtile,eager,compile,max-autotune,plain,flash,cudnn"


def here() -> str:
    """The commit of the tree, or that it is unknown."""
    return tree_commit() or "unknown"


def needs_card() -> None:
    """End with code 2 where no kernel can be timed."""
    if not torch.cuda.is_available():
        typer.echo("bench: torch sees no CUDA device here; `check` needs none", err=True)
        raise typer.Exit(2)


@app.command("targets")
def targets_command(
    area: Annotated[str, typer.Argument(help="One area of the table.", show_default=False)] = "",
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a markdown table.")] = False,
) -> None:
    """Each promise with the last recorded figure, machine and commit: met, not met or not measured."""
    areas = dict.fromkeys(t.area for t in targets.TARGETS)
    if area and area not in areas:
        typer.echo(f"bench: no area is named {area}; areas are {', '.join(areas)}", err=True)
        raise typer.Exit(2)
    header, rows = targets.table(results.latest(results.load()), area)
    if as_markdown:
        typer.echo(tables.markdown(header, rows))
    else:
        tables.show("targets", header, rows)


@app.command("check")
def check_command(
    pattern: Pattern = "",
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 2,
    seconds: Annotated[float, typer.Option(help="Time limit of one case.")] = 120.0,
    seeded_part: Annotated[
        int | None, typer.Option(help="Only a quarter of the cases, chosen by this number.")
    ] = None,
) -> None:
    """Run every case at tiny sizes through the emitted text on the CPU; exit 1 where a value is wrong."""
    cases = select(pattern)
    if seeded_part is not None:
        cases = part(cases, seeded_part)
    outcomes = check(cases, jobs, seconds)
    rows = [
        [
            o.name,
            tables.number(o.max_rel_err),
            tables.number(o.eager_rel_err),
            "ok" if o.ok else "WRONG",
            o.reason[:100],
        ]
        for o in outcomes
    ]
    tables.show(
        "tiny sizes on the CPU, against float64", ["case", "max_rel_err", "eager_rel_err", "", "notes"], rows
    )
    wrong = sum(not o.ok for o in outcomes)
    typer.echo(f"{len(outcomes) - wrong} ok, {wrong} wrong")
    raise typer.Exit(1 if wrong or not outcomes else 0)


@app.command("work", hidden=True)
def work_command(kind: str) -> None:
    """A worker: questions as JSON on standard input, a line each, and their answers on standard output."""
    serve({"check": check_one, "measure": measure, "model": model.measure_lines}[kind])


@app.command("measure")
def measure_command(
    pattern: Pattern = "",
    out: Annotated[Path, typer.Option(help="Folder for rows.jsonl.")] = Path("build/bench"),
    limit: Annotated[float, typer.Option(help="Seconds for all of it.")] = 480.0,
    case_limit: Annotated[float, typer.Option(help="Seconds for one case in one process.")] = 120.0,
    processes: Annotated[int, typer.Option(min=1, help="Processes per case.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time; only one times kernels.")] = 5,
    against: Against = EVERYONE,
    modes: Annotated[str, typer.Option(help="cold, hot or both.")] = "cold,hot",
    rounds: Annotated[int, typer.Option(min=2, help="Samples of every contender.")] = 15,
    lock: Lock = None,
    tiny: Annotated[bool, typer.Option(help="Tiny sizes, to try the way.")] = False,
    commit: Annotated[str, typer.Option(help="The commit, where the tree has no repository.")] = "",
) -> None:
    """Gate and time cases on the GPU of this machine; rows are appended to rows.jsonl as they come."""
    needs_card()
    flight = Flight(
        against.split(","),
        out / "rows.jsonl",
        commit or here(),
        limit,
        case_limit,
        processes,
        jobs,
        tiny,
        modes.split(","),
        rounds,
        lock,
    )
    fly([c for c in select(pattern) if pattern or c in CASES], flight)
    show_rows([out / "rows.jsonl"])


@app.command("sweep")
def sweep_command(
    pattern: Pattern = "",
    out: Annotated[Path, typer.Option(help="Folder for sweep.jsonl.")] = Path("build/bench"),
    limit: Annotated[float, typer.Option(help="Seconds for all of it.")] = 150.0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time; only one times kernels.")] = 10,
    rounds: Annotated[int, typer.Option(min=2, help="Samples of every contender.")] = 9,
    lock: Lock = None,
    tiny: Annotated[bool, typer.Option(help="Tiny sizes, to try the way.")] = False,
    commit: Annotated[str, typer.Option(help="The commit, where the tree has no repository.")] = "",
) -> None:
    """Time row programs over row lengths and row counts, each point in one process, against torch.compile and a copy."""
    needs_card()
    rows = out / "sweep.jsonl"
    cases = [c for c in SWEEP if re.search(pattern, c.name)]
    fly(
        cases, Flight(sweep.CONTENDERS, rows, commit or here(), limit, 60.0, 1, jobs, tiny, ("cold",), rounds, lock)
    )
    sweep.show(results.latest(results.load([rows])))


model_app = typer.Typer(no_args_is_help=True, help="The schedule model: measure lines, judge it by them, fit it.")
app.add_typer(model_app, name="model")
Recorded = Annotated[Path, typer.Argument(help="Rows of `model measure`.")]


@model_app.command("measure")
def model_measure_command(
    pattern: Pattern = "",
    out: Annotated[Path, typer.Option(help="Folder for model.jsonl.")] = Path("build/bench"),
    limit: Annotated[float, typer.Option(help="Seconds for all of it.")] = 150.0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time; only one times kernels.")] = 8,
    lock: Lock = None,
    commit: Annotated[str, typer.Option(help="The commit, where the tree has no repository.")] = "",
) -> None:
    """Gate and time many schedule lines of every case of the fit and of its check."""
    needs_card()
    rows = out / "model.jsonl"
    cases = [case(n) for n in (*model.FITTED, *model.HELD_OUT) if re.search(pattern, n)]
    fly(cases, Flight((), rows, commit or here(), limit, 100.0, 1, jobs, lock=lock), lambda: Worker("model", ALONE))
    show_model(results.load([rows]))


@model_app.command("judge")
def model_judge_command(
    source: Recorded, write: Annotated[bool, typer.Option("--write", help="Put the new prices into FILE.")] = False
) -> None:
    """Price the measured lines by the model as it is now."""
    rows = [model.judged(r, model.scheduled(case(r["of"]))) for r in results.load([source]) if "us" in r]
    if write:
        source.write_text("".join(json.dumps(r) + "\n" for r in rows))
    show_model(rows)


@model_app.command("fit")
def model_fit_command(
    source: Recorded, steps: Annotated[int, typer.Option(help="Evaluations of the search.")] = 800
) -> None:
    """Fit the weights to the cases that are not held out; print them, and what they would give."""
    rows = [(r, model.scheduled(case(r["of"]))) for r in results.load([source]) if "us" in r]
    start = model.MACHINE.rates
    found = model.fit([(r, own) for r, own in rows if r["of"] in model.FITTED], start, steps)
    typer.echo("\n".join(f"{n} {getattr(start, n):g} -> {v:g}" for n, v in vars(found).items()))
    show_model([model.judged(r, own.under(found)) for r, own in rows])


def show_model(rows: list[dict[str, Any]]) -> None:
    """The table of the model, and the correlations of the held-out cases."""
    good = [r for r in rows if "us" in r]
    tables.show("model against measured, cold", *model.table(good))
    held = [r["spearman"] for r in good if r["of"] in model.HELD_OUT]
    if held:
        typer.echo(f"held out: median {median(held):.3f}, least {min(held):.3f} over {len(held)} cases")
    for r in rows:
        if "error" in r:
            typer.echo(f"{r['case']}: {r['error']}")


@app.command("emmy")
def emmy_command(
    pattern: Pattern = "",
    out: Annotated[Path, typer.Option(help="Folder for emmy.jsonl, and for what Emmy leaves.")] = Path(
        "build/emmy"
    ),
    lines: Annotated[int, typer.Option(help="Schedules that it tunes over.")] = 20,
    limit: Annotated[float, typer.Option(help="Seconds for its tuning.")] = 300.0,
    lock: Annotated[
        Path, typer.Option(help="Whoever times holds this file, to whose name Emmy adds the card's.")
    ] = Path("build/card.lock"),
    commit: Annotated[str, typer.Option(help="The commit, where the tree has no repository.")] = "",
) -> None:
    """Tune Emmy on its row programs, then time ours hot; needs emmy-ml 0.3.22, which is no dependency."""
    needs_card()
    out.mkdir(parents=True, exist_ok=True)
    started = {name: emmy.tuning(name, out, lines, lock) for name in emmy.PROGRAMS if re.search(pattern, name)}
    deadline = time.monotonic() + limit
    for name, process in started.items():
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            typer.echo(f"{name}: Emmy is not done within {limit:.0f} s")
    times, rows = emmy.figures(out), out / "emmy.jsonl"
    held = lock.with_name(f"{lock.name}.{torch.cuda.get_device_properties(0).uuid}")
    fly([case(n) for n in times], Flight((OURS, "eager"), rows, commit or here(), 200.0, modes=("hot",), lock=held))
    found = emmy.beside(results.load([rows]), times)
    rows.write_text("".join(json.dumps(r) + "\n" for r in found))
    table = [
        [name, *(tables.number(median_us(g, n, "hot")) for n in (OURS, emmy.NAME, "eager"))]
        for name, g in results.latest(found).items()
    ]
    tables.show("hot, us", ["case", OURS, emmy.NAME, "eager"], table)


@app.command("seconds")
def seconds_command(
    kind: Annotated[str, typer.Argument(help=f"What to time: {', '.join(KINDS)}.")],
    out: Annotated[Path, typer.Option(help="Folder for seconds.jsonl.")] = Path("build/bench"),
    runs: Annotated[int, typer.Option(min=1, help="Samples of each.")] = 5,
    commit: Annotated[str, typer.Option(help="The commit, where the tree has no repository.")] = "",
) -> None:
    """Time the command line or the compiler itself, nothing cached."""
    if kind not in KINDS:
        typer.echo(f"bench: {kind} is none of {', '.join(KINDS)}", err=True)
        raise typer.Exit(2)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "seconds.jsonl").open("a") as rows:
        for row in measure_seconds(kind, runs, commit or here()):
            rows.write(json.dumps(row) + "\n")
            typer.echo(json.dumps({row["case"]: row.get("sizes", {}) | row["seconds"]}))


@app.command("layers")
def layers_command(
    out: Annotated[Path | None, typer.Option(help="A file for the text.", show_default=False)] = None,
) -> None:
    """Kernels chosen for decoder layers of transformers, beside those by hand or greedy; at small sizes they run here."""
    found = []
    for line in layers.lines():
        typer.echo(line)
        found.append(line)
    if out is not None:
        out.write_text("\n".join(found) + "\n")
    raise typer.Exit(1 if any("WRONG" in line for line in found) else 0)


@app.command("record")
def record_command(
    source: Path, name: Annotated[str, typer.Argument(help="The name under bench/results.")]
) -> None:
    """Keep measured rows in bench/results/NAME.jsonl, where `targets` finds them."""
    results.load([source])  # or refused
    results.RESULTS.mkdir(exist_ok=True)
    shutil.copyfile(source, results.RESULTS / f"{name}.jsonl")


@app.command("show")
def show_command(files: Annotated[list[Path] | None, typer.Argument(show_default=False)] = None) -> None:
    """The last rows of every case as a table; without files, those of bench/results."""
    show_rows(files)


def show_rows(files: list[Path] | None) -> None:
    """One line a case: cold medians of every contender, our ratio to the best peer, our error."""
    found = results.load(files)
    groups = results.latest([r for r in found if "contenders" in r])
    timed = {n for rows in groups.values() for row in rows for n in row["contenders"]}
    names = [*EVERYONE.split(","), *sorted(timed - {*EVERYONE.split(",")})]
    lines = []
    for name, rows in groups.items():
        ratios = against_best(rows, PEERS, "cold")
        ratio = geometric([ratios]) if ratios else None
        ours = rows[-1]["contenders"].get(OURS, {})
        lines.append(
            [
                name,
                tables.number(rows[-1]["reference_us"]),
                *(tables.number(median_us(rows, n, "cold")) for n in names),
                best_peer(rows, PEERS, "cold") or "-",
                f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else "-",
                str(len(rows)),
                str(ours.get("fallbacks", "-")),
                tables.number(ours.get("max_rel_err")),
                ours.get("error") or ours.get("reason") or "",
            ]
        )
    header = ["case", "reference", *names, "best peer", "ratio", "processes", "fall-backs", "error", "notes"]
    tables.show("cold, us", header, lines)
    for row in found:
        if "error" in row:
            typer.echo(f"{row['case']} #{row['process']}: {row['error'].splitlines()[-1]}")


if __name__ == "__main__":
    gc.freeze()  # as the command line does
    app()
