"""`eggtile tune` measures the schedules of a program's best forms; `eggtile evidence` looks at what was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from codegen import gpu
from codegen.worker import Worker
from eggtile.cli_options import Code, Inputs, Numerics, Program, options_of, source_of
from eggtile.pipeline import Options, RequestError
from eggtile.provenance import CLOCKS, machine_name, query
from eggtile.tables import number, show
from eggtile.tuner import KernelReport, Limits, Report, Tuner, tune
from extract.evidence import Evidence, Measurement, Where, code_version
from ir.machine import Machine

Store = Annotated[
    Path | None,
    typer.Option("--evidence", envvar="EGGTILE_EVIDENCE", help="The store of measurements.", show_default=False),
]
Key = Annotated[str | None, typer.Option(help="Only this kernel; the beginning of its key is enough.")]
OnMachine = Annotated[str | None, typer.Option("--machine", help="Only this machine.")]

evidence_app = typer.Typer(no_args_is_help=True, help="Look at, move and forget measurements.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the program's."""
    app.command("tune")(tune_command)
    app.add_typer(evidence_app, name="evidence")


def default_store() -> Path:
    """$XDG_DATA_HOME/eggtile/evidence.sqlite."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "eggtile" / "evidence.sqlite"


@contextmanager
def opened(path: Path | None) -> Iterator[Evidence]:
    """The user's store, or the default one, which also holds what comes with the project."""
    evidence = Evidence(path or default_store())
    try:
        if path is None:
            evidence.import_shipped()
        yield evidence
    finally:
        evidence.close()


def here(machine: Machine, usable: bool) -> Where:
    """The place at hand; without a GPU any toolchain that measured on the machine of the target."""
    if not usable:
        return Where(machine.name, machine.target, code=code_version())
    driver = query("driver_version").get("driver_version", "")
    return Where(machine_name(), machine.target, version("nvidia-cuda-nvrtc"), driver, code_version())


# ---- tune


def tune_command(
    program: Program = None,
    code: Code = None,
    inputs: Inputs = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Schedule lines to measure of each kernel.")] = 12,
    k: Annotated[int, typer.Option("-k", min=1, help="Forms whose kernels are measured in each round.")] = 3,
    budget: Annotated[float, typer.Option(help="Seconds after which no further kernel is begun.")] = 600.0,
    limit: Annotated[float, typer.Option(help="Seconds after which one candidate counts as hung.")] = 30.0,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Measure nothing; keep the times of kernels whose text is the same.")
    ] = False,
    numerics: Numerics = "default",
    store: Store = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the best schedules of the best forms on the GPU at hand, and keep what was measured."""
    usable, why = gpu.available()
    if not usable and not adopt:
        raise RequestError(f"there is no GPU to measure on ({why}); --adopt keeps the times of equal texts")
    source = source_of(program, code, inputs)
    with opened(store) as evidence:
        options = options_of(numerics, gpu.device_target() if usable else Options.target, k=k, evidence=evidence)
        machine = options.machine()
        worker = None if adopt else Worker()
        where = here(machine, usable)
        tuner = Tuner(machine, evidence, where, worker, Limits(lines=n, candidate_s=limit), clocks)
        try:
            report = tune(source.fn, source.inputs, source.name, options, tuner, budget)
        finally:
            if worker is not None:
                worker.close()
    if json_:
        typer.echo(json.dumps(report.json(), allow_nan=False))
    else:
        print_report(report)
        if where.machine != machine.name:
            typer.echo(
                f"times are kept under {where.machine}; extraction for {machine.target} knows {machine.name}"
            )
    raise typer.Exit(0 if all(r.best for r in report.kernels if r.key in report.chosen) else 1)


def clocks() -> str:
    """The card's clocks, power and temperature as they are now."""
    return json.dumps(query(*CLOCKS), sort_keys=True)


HEADER = (
    "kernel",
    "chosen",
    "measured",
    "known",
    "failed",
    "model, us",
    "default, us",
    "best, us",
    "gain",
    "best line",
)


def print_report(report: Report) -> None:
    """The best line of every kernel against the model's first one, and every line that failed."""
    show(f"{report.program}: kernels of the best forms", HEADER, [report_line(k, report) for k in report.kernels])
    for k in report.kernels:
        for f in k.failures:
            typer.echo(f"{k.key[:8]} {f.line}: {f.status}: {f.reason}")
    end = "the choice is stable" if report.complete else "the budget is spent"
    typer.echo(f"{report.measured} measured in {report.seconds:.1f} s and {report.rounds} rounds; {end}")


def report_line(k: KernelReport, report: Report) -> list[str]:
    """One row of the table."""
    gain = k.default_us / k.best_us if k.default_us and k.best_us else None
    counts = (k.measured, k.known + k.adopted, len(k.failures))
    numbers = (k.modelled_us, k.default_us, k.best_us, gain)
    chosen = "*" if k.key in report.chosen else ""
    return [k.key[:8], chosen, *map(str, counts), *map(number, numbers), k.best or "none is right"]


# ---- evidence


def selected(evidence: Evidence, key: str | None, machine: str | None) -> dict[str, object]:
    """The columns that the user fixes; a key may be cut short where that leaves one."""
    wanted: dict[str, object] = {} if machine is None else {"machine": machine}
    if key is not None:
        keys = {m.key for m in evidence.rows(**wanted) if m.key.startswith(key)}
        if len(keys) != 1:
            raise RequestError(f"{len(keys)} kernels have a key that begins with {key}")
        wanted["key"] = keys.pop()
    return wanted


@evidence_app.command("list")
def list_command(machine: OnMachine = None, store: Store = None) -> None:
    """A line a kernel: where it was measured, how many lines, and the best."""
    with opened(store) as evidence:
        groups: dict[tuple[str, str, str], list[Measurement]] = {}
        for m in evidence.rows(**selected(evidence, None, machine)):
            groups.setdefault((m.key, m.where.machine, m.where.code), []).append(m)
    rows = []
    for (key, where, code), found in groups.items():
        best = min((m for m in found if m.status == "ok"), key=lambda m: m.time_us or 0.0, default=None)
        counts = (len(found), sum(m.status != "ok" for m in found))
        current = "" if code == code_version() else "older code"
        shown = (number(best.time_us if best else None), best.schedule if best else "none is right")
        rows.append([key[:8], where, current, found[0].family, *map(str, counts), *shown])
    show("kernels", ("kernel", "machine", "", "family", "lines", "failed", "best, us", "best line"), rows)


@evidence_app.command("show")
def show_command(
    key: Annotated[str, typer.Argument(help="A kernel's key, or its beginning.")],
    machine: OnMachine = None,
    store: Store = None,
) -> None:
    """Every line of one kernel, and whether it counts on the machine of the default target."""
    with opened(store) as evidence:
        found = evidence.rows(**selected(evidence, key, machine))
        place = here(Options().machine(), usable=False)
        why = evidence.explain_miss(found[0].key, place)
    rows = [
        [m.schedule, m.status, number(m.time_us), number(m.error), number(m.bound), str(m.registers), m.reason]
        for m in sorted(found, key=lambda m: (m.status != "ok", m.time_us or 0.0))
    ]
    show(found[0].key, ("line", "status", "us", "error", "bound", "registers", ""), rows)
    typer.echo(f"on {place.machine}: {why}")


@evidence_app.command("export")
def export_command(path: Path, machine: OnMachine = None, store: Store = None) -> None:
    """Write measurements as sorted JSON lines."""
    with opened(store) as evidence:
        typer.echo(f"{evidence.export(path, **selected(evidence, None, machine))} rows in {path}", err=True)


@evidence_app.command("import")
def import_command(path: Path, store: Store = None) -> None:
    """Take in JSON lines; what is known already stays."""
    if not path.exists():
        raise RequestError(f"there is no file {path}")
    with opened(store) as evidence:
        typer.echo(f"{evidence.import_(path)} new rows", err=True)


@evidence_app.command("clear")
def clear_command(key: Key = None, machine: OnMachine = None, store: Store = None) -> None:
    """Forget measurements: all of them, or those of a kernel or a machine."""
    with opened(store) as evidence:
        typer.echo(f"{evidence.clear(**selected(evidence, key, machine))} rows forgotten", err=True)
