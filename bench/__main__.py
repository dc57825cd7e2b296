"""`python -m bench`: check the suite on the CPU, measure it on a GPU, and hold the figures to the targets."""

from __future__ import annotations

import faulthandler
import json
import shutil
from pathlib import Path
from typing import Annotated

import torch
import typer

from bench import results, targets
from bench.cases import CASES, case, select
from bench.check import check, part, serve
from bench.flight import Flight, fly
from bench.seconds import KINDS, measure_seconds
from bench.worker import measure as measure_here
from eggtile import tables
from eggtile.measure import PEERS
from eggtile.provenance import commit as tree_commit
from eggtile.ratios import OURS, against_best, best_peer, geometric, median_us

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
Pattern = Annotated[str, typer.Argument(help="A regular expression over case names.", show_default=False)]
Against = Annotated[str, typer.Option(help="Contenders, separated by commas.")]
EVERYONE = "eggtile,eager,compile,max-autotune,plain,flash,cudnn"


def here() -> str:
    """The commit of the tree, or that it is unknown."""
    return tree_commit() or "unknown"


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


@app.command("check-cases", hidden=True)
def check_cases_command() -> None:
    """The worker of `check`: cases by name on standard input, verdicts as JSON on standard output."""
    serve()


@app.command("measure")
def measure_command(
    pattern: Pattern = "",
    out: Annotated[Path, typer.Option(help="Folder for rows.jsonl.")] = Path("build/bench"),
    limit: Annotated[float, typer.Option(help="Seconds for all of it.")] = 480.0,
    case_limit: Annotated[float, typer.Option(help="Seconds for one process of one case.")] = 120.0,
    processes: Annotated[int, typer.Option(min=1, help="Processes per case.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time; only one times kernels.")] = 4,
    against: Against = EVERYONE,
    tiny: Annotated[bool, typer.Option(help="Tiny sizes, to try the way.")] = False,
    commit: Annotated[str, typer.Option(help="The commit, where the tree has no repository.")] = "",
) -> None:
    """Gate and time cases on the GPU of this machine; rows are appended to rows.jsonl as they come."""
    if not torch.cuda.is_available():
        typer.echo("bench: torch sees no CUDA device here; `check` needs none", err=True)
        raise typer.Exit(2)
    flight = Flight(
        against.split(","),
        out / "rows.jsonl",
        commit or here(),
        limit,
        case_limit,
        processes,
        jobs,
        tiny,
    )
    cases = [c for c in select(pattern) if pattern or c in CASES]
    skipped = fly(cases, flight)
    show_rows([out / "rows.jsonl"])
    if skipped:
        typer.echo(f"no time left for {', '.join(skipped)}")


@app.command("one", hidden=True)
def one_command(
    name: str,
    against: Against = EVERYONE,
    tiny: bool = False,
    process: int = 0,
    commit: str = "unknown",
    lock: Path | None = None,
    report_after: Annotated[float, typer.Option(help="Say on stderr where it stands after these seconds.")] = 100.0,
) -> None:
    """One case of `measure`, in this process; prints its row as JSON."""
    faulthandler.dump_traceback_later(report_after)
    typer.echo(json.dumps(measure_here(case(name), against.split(","), tiny, lock, commit, process)))


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
            typer.echo(json.dumps({row["case"]: row["seconds"]}))


@app.command("record")
def record_command(
    source: Path, name: Annotated[str, typer.Argument(help="The name under bench/results.")]
) -> None:
    """Keep measured rows in bench/results/NAME.jsonl, where `targets` finds them."""
    results.RESULTS.mkdir(exist_ok=True)
    shutil.copyfile(source, results.RESULTS / f"{name}.jsonl")


@app.command("show")
def show_command(files: Annotated[list[Path] | None, typer.Argument(show_default=False)] = None) -> None:
    """The last rows of every case as a table; without files, those of bench/results."""
    show_rows(files)


def show_rows(files: list[Path] | None) -> None:
    """One line a case: cold medians of every contender, our ratio to the best peer, our error."""
    names = EVERYONE.split(",")
    lines = []
    found = results.load(files)
    for name, rows in results.latest([r for r in found if "contenders" in r]).items():
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
                tables.number(ours.get("max_rel_err")),
                ours.get("error") or ours.get("reason") or "",
            ]
        )
    header = ["case", "reference", *names, "best peer", "ratio", "processes", "error", "notes"]
    tables.show("cold, us", header, lines)
    for row in found:
        if "error" in row:
            typer.echo(f"{row['case']} #{row['process']}: {row['error'].splitlines()[-1]}")


if __name__ == "__main__":
    app()
