"""`eggtile evidence`: look at what was measured, move it, and forget it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eggtile import stores
from eggtile.cli_options import Store
from eggtile.echo import cut
from eggtile.files import writing
from eggtile.pipeline import Options, RequestError
from eggtile.tables import number, show
from extract.evidence import Evidence, code_version, lines_of
from extract.measurement import Measurement, rank, verdicts

Key = Annotated[str | None, typer.Option(help="Only this kernel; the beginning of its key is enough.")]
OnMachine = Annotated[str | None, typer.Option("--machine", help="Only this machine.")]

app = typer.Typer(no_args_is_help=True, help="Look at, move and forget measurements.")


def store_of(given: str | None, write: bool = False) -> Evidence:
    """The store that the user gives, or the default one."""
    found = stores.opened(given, write)
    if found is None:
        raise RequestError("there is nothing to look at with --evidence none")
    return found


def selected(evidence: Evidence, key: str | None, machine: str | None) -> dict[str, object]:
    """The columns that the user fixes; a key may be cut short where that leaves one."""
    wanted: dict[str, object] = {} if machine is None else {"machine": machine}
    if key is not None:
        keys = {m.key for m in evidence.rows(**wanted) if m.key.startswith(key)}
        if len(keys) != 1:
            raise RequestError(f"{len(keys)} kernels have a key that begins with {cut(key)}")
        wanted["key"] = keys.pop()
    return wanted


@app.command("list")
def list_command(machine: OnMachine = None, store: Store = None) -> None:
    """A line a kernel or form: what it makes of what, where it was measured, how many lines, and the best."""
    evidence = store_of(store)
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for m in evidence.rows(**selected(evidence, None, machine)):
        groups.setdefault((m.key, m.where.machine, m.where.code), []).append(m)
    rows = []
    for (key, where, code), found in groups.items():
        best = min((m for m in verdicts(found) if m.status == "ok"), key=rank, default=None)
        counts = (len(found), sum(m.status != "ok" for m in found))
        current = "" if code == code_version() else "other code"
        shown = (number(best.time_us if best else None), best.schedule if best else "none is right")
        rows.append([key[:8], found[0].shapes, where, current, found[0].family, *map(str, counts), *shown])
    header = ("key", "makes <- reads", "machine", "", "family", "lines", "failed", "best, us", "best line")
    show("kernels and forms", header, rows)


@app.command("show")
def show_command(
    key: Annotated[str, typer.Argument(help="A kernel's key, or its beginning.")],
    machine: OnMachine = None,
    store: Store = None,
) -> None:
    """Every line of one kernel, and whether it counts on the machine of the default target."""
    evidence = store_of(store)
    found = evidence.rows(**selected(evidence, key, machine))
    place = stores.here(Options().machine(), usable=False)
    rows = [
        [m.schedule, m.status, number(m.time_us), number(m.error), number(m.bound), str(m.registers), m.reason]
        for m in sorted(found, key=rank)
    ]
    typer.echo(found[0].shapes)
    show(found[0].key, ("line", "status", "us", "error", "bound", "registers", ""), rows)
    typer.echo(f"on {place.machine}: {evidence.explain_miss(found[0].key, place)}")


@app.command("export")
def export_command(
    path: Path,
    machine: OnMachine = None,
    current: Annotated[
        bool, typer.Option("--current", help="Only what this version of the code measured.")
    ] = False,
    store: Store = None,
) -> None:
    """Write measurements as sorted JSON lines."""
    evidence = store_of(store)
    wanted = selected(evidence, None, machine) | ({"code": evidence.code} if current else {})
    with writing(path):
        count = evidence.export(path, **wanted)
    typer.echo(f"{count} rows in {path}", err=True)


@app.command("import")
def import_command(path: Path, store: Store = None) -> None:
    """Take in JSON lines; of the same kernel, line and place what was taken last stays."""
    if not path.exists():
        raise RequestError(f"there is no file {path}")
    lines_of(path)  # a file that is refused makes no store
    typer.echo(f"{store_of(store, write=True).import_(path)} new rows", err=True)


@app.command("clear")
def clear_command(key: Key = None, machine: OnMachine = None, store: Store = None) -> None:
    """Forget measurements: all of them, or those of a kernel or a machine; what comes with the project stays."""
    evidence = store_of(store, write=True)
    typer.echo(f"{evidence.clear(**selected(evidence, key, machine))} rows forgotten", err=True)
