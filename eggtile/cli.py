"""The command line: compile, explore, dump, schedules, run, bench, laws, doctor."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import rich
import typer
from rich.table import Table

from codegen import gpu
from codegen.compile import CompileError, compile_text
from eggtile import cli_evidence, cli_explain, cli_tune, stores
from eggtile.capture import CaptureError
from eggtile.check import check_compiled
from eggtile.cli_bench import bench
from eggtile.cli_options import (
    BudgetText,
    Code,
    FormCount,
    FormNumber,
    Hits,
    Inputs,
    Json,
    Numerics,
    Program,
    ScheduleLines,
    Store,
    Target,
    budget_of,
    emit_json,
    options_of,
    started,
    told_hits,
)
from eggtile.clock import Clock
from eggtile.deadline import Deadline, left_out, said
from eggtile.doctor import diagnose
from eggtile.echo import cut, echoed
from eggtile.files import write
from eggtile.pipeline import (
    Compiled,
    Options,
    RequestError,
    choose_forms,
    choose_schedule,
    compile_kernels,
    space_of,
)
from eggtile.source import SourceError
from eggtile.tables import number, show
from eggtile.views import EARLY, LEVELS, PassLog, cut_short, dump_levels, idle, show_level
from extract.key import Canonical, canonical
from extract.measurement import verdicts
from extract.prices import spelled_shapes
from ir.node import IRError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.command()(bench)
app.add_typer(cli_tune.app)
app.add_typer(cli_evidence.app, name="evidence")
app.add_typer(cli_explain.app)

REFUSALS = (RequestError, SourceError, CaptureError, CompileError, IRError)
MISUSE, STOPPED = 2, 130
# Newer releases of typer carry click inside them, older ones import it: the class is the same by its place.
Misuse: type[typer.BadParameter] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


@app.command("compile")
def compile_command(
    program: Program = None,
    code: Code = None,
    inputs: Inputs = None,
    ir: Annotated[str | None, typer.Option("--ir", help="Print one level: torch, tensor, loop, ..., sass.")] = None,
    form: FormNumber = None,
    k: FormCount = None,
    schedule: ScheduleLines = None,
    target: Target = "sm_90a",
    numerics: Numerics = "default",
    output: Annotated[Path | None, typer.Option("-o", help="Write FILE.cu, .ptx or .cubin.")] = None,
    dump: Annotated[Path | None, typer.Option(help="Write every level and every pass to this folder.")] = None,
    print_before: Annotated[str | None, typer.Option(help="Print the kernel before this pass (or all).")] = None,
    print_after: Annotated[str | None, typer.Option(help="Print the kernel after this pass (or all).")] = None,
    diff: Annotated[bool, typer.Option(help="Print what each pass changes, every line with its pass.")] = False,
    times: Annotated[bool, typer.Option(help="Print where the time went.")] = False,
    store: Store = None,
    hits: Hits = None,
) -> None:
    """Compile a program and print a level of it, or write the result."""
    wants_passes = bool(print_before is not None or print_after is not None or diff or dump)
    summed_up = ir is None and output is None and not wants_passes
    if ir is not None and ir not in LEVELS:
        raise RequestError(f"unknown level {echoed(ir)}; levels are {', '.join(LEVELS)}")
    if output is not None and output.suffix not in SUFFIXES:
        raise RequestError(f"cannot write {str(output)!r}: the suffix is one of {', '.join(SUFFIXES)}")
    options = options_of(
        numerics, target, form=form, k=k, schedule=schedule, explain=summed_up, evidence=stores.opened(store)
    )
    _, compiled = started(program, code, inputs, options)
    passes = PassLog()
    if ir not in EARLY:
        choose_forms(compiled)
        compile_kernels(compiled, passes if wants_passes else None)
        if not summed_up and (why := idle(compiled)):
            typer.echo(why, err=True)
    told_hits(compiled, hits)
    for asked, before in ((print_before, True), (print_after, False)):
        if asked is not None:
            typer.echo(passes.text(asked, before))
    if diff:
        typer.echo(passes.diff())
    if dump:
        typer.echo(f"{len(dump_levels(compiled, dump, passes))} files in {dump}", err=True)
    if ir is not None:
        typer.echo(show_level(compiled, ir))
    if output is not None:
        write_output(compiled, output)
    if summed_up:
        summary(compiled)
    if times:
        print_times(compiled.clock)


SUFFIXES: dict[str, Callable[[Compiled], bytes]] = {
    ".cu": lambda c: c.text.encode(),
    ".ptx": lambda c: compile_text(c.text, c.options.target).ptx.encode(),
    ".cubin": lambda c: compile_text(c.text, c.options.target).cubin,
}


def write_output(compiled: Compiled, path: Path) -> None:
    """Write the program's kernels as one file, its kind told by the suffix."""
    with compiled.clock.span("nvrtc"):
        content = SUFFIXES[path.suffix](compiled)
    write(path, content)


def summary(compiled: Compiled) -> None:
    """A kernel's name and line, the registers and spills of each of its launches; and what became a call."""
    table = Table(
        "kernel", "schedule", "threads", "blocks", "registers", "spills", title=compiled.captured.program.name
    )
    for name, kernel in zip(chain(*compiled.names), compiled.kernels, strict=True):
        for n, k in enumerate(kernel.launches):
            with compiled.clock.span("nvrtc"):
                binary = compile_text(k.text, compiled.options.target)
            row = (k.kernel.block_threads, k.kernel.grid, binary.registers, binary.spill_bytes)
            table.add_row(*("", "+") if n else (name, str(kernel.schedule)), *map(str, row))
    rich.print(table)
    for r in compiled.regions:
        typer.echo(f"laws: {', '.join(r.chosen.laws) or 'none'}")
    for note in compiled.captured.program.notes:
        typer.echo(note)


def print_times(clock: Clock) -> None:
    """The split of the time, on standard error."""
    for stage, seconds in clock.seconds.items():
        typer.echo(f"{stage:>10} {seconds * 1e3:9.1f} ms", err=True)


@app.command()
def schedules(
    program: Program = None,
    code: Code = None,
    inputs: Inputs = None,
    numerics: Numerics = "default",
    target: Target = "sm_90a",
    store: Store = None,
    budget: BudgetText = None,
    json_: Json = False,
) -> None:
    """List the schedule space of every kernel of the chosen form, the model's best first, and what is measured of it."""
    options = options_of(numerics, target, evidence=stores.opened(store), **budget_of(budget))
    _, compiled = started(program, code, inputs, options)
    choose_forms(compiled)
    rows, lacks = listed_spaces(compiled, Deadline(options.report_s))
    if json_:
        found = {"kernels": rows, "left_out": lacks, "times": compiled.clock.seconds}
        notes = [*compiled.captured.program.notes, *cut_short(compiled)]
        return emit_json({"program": compiled.captured.program.name, "notes": notes} | found)
    if why := idle(compiled):
        typer.echo(why)
    for row in lacks:
        typer.echo(said(row))
    for row in rows:
        columns = (row["lines"], row["model_us"], row["measured_us"], row["status"])
        lines = [[line, number(a), number(b), status] for line, a, b, status in zip(*columns, strict=True)]
        title = f"{row['kernel']}: {row['size']} schedules, by default {row['default']}"
        show(title, ("line", "model, us", "measured, us", ""), lines)
    for note in cut_short(compiled):
        typer.echo(note)
    return None


def listed_spaces(compiled: Compiled, deadline: Deadline) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The spaces of the kernels of the chosen forms, equal kernels sharing one, and what is left out at the deadline."""
    options, known = compiled.options, dict[str, dict[str, Any]]()
    rows, lacking = [], 0
    with compiled.clock.span("schedule"):
        kernels = ((k, r.chosen) for r in compiled.regions for k in r.chosen.kernels)
        for name, (kernel, form) in zip(chain(*compiled.names), kernels, strict=True):
            own = canonical(kernel, form, options.quotients)
            if own.key not in known and deadline.spent:
                lacking += 1
                continue
            if own.key not in known:
                known[own.key] = space_row(own, options)
            rows.append({"kernel": name, **known[own.key]})
    return rows, [left_out(f"the schedules of {lacking} kernels", deadline.why())] if lacking else []


def space_row(known: Canonical, options: Options) -> dict[str, Any]:
    """The space of a kernel: its lines, the times that the model gives them, and what is measured of each."""
    machine, store = options.machine(), options.evidence
    listed = space_of(known, machine)
    rows = [] if store is None else store.current(machine, key=known.key, shapes=spelled_shapes(known))
    measured = {m.schedule: m for m in verdicts(rows)}
    found = [measured.get(str(line)) for line in listed.lines]
    return {
        "key": known.key,
        "size": listed.size,
        "default": str(choose_schedule(known, options, machine)),
        "lines": [*map(str, listed.lines)],
        "model_us": [*listed.us, None],
        "measured_us": [m and m.time_us for m in found],
        "status": [m.status if m else "" for m in found],
    }


@app.command()
def run(
    program: Program = None,
    code: Code = None,
    inputs: Inputs = None,
    on: Annotated[str, typer.Option(help="Where to run: cuda or cpu.")] = "cuda",
    form: FormNumber = None,
    k: FormCount = None,
    schedule: ScheduleLines = None,
    numerics: Numerics = "default",
    store: Store = None,
    hits: Hits = None,
    json_: Json = False,
) -> None:
    """Run the emitted text and compare it with float64 and eager PyTorch."""
    if on not in ("cuda", "cpu"):
        raise RequestError(f"cannot run on {cut(on)}; it is cuda or cpu")
    options = options_of(numerics, form=form, k=k, schedule=schedule, evidence=stores.opened(store))
    usable, why = gpu.available()
    if on == "cuda" and not usable:
        raise RequestError(f"there is no GPU to run on ({why}); use --on cpu")
    source, compiled = started(program, code, inputs, options)
    compile_kernels(choose_forms(compiled))
    told_hits(compiled, hits)
    verdict = check_compiled(compiled, source.fn, source.inputs, on)
    if json_:
        emit_json(verdict.json())
    else:
        outcome = "ok" if verdict.ok else f"wrong: {verdict.reason}"
        typer.echo(
            f"{outcome}; error {verdict.max_rel_err:.3g}, eager {verdict.eager_rel_err:.3g} (against float64)"
        )
        for note in verdict.notes:
            typer.echo(note)
    raise typer.Exit(0 if verdict.ok else 1)


@app.command()
def doctor() -> None:
    """Say what this machine lacks and how to get it."""
    table = Table("part", "state", "what to do")
    for row in diagnose():
        table.add_row(row.part, row.state, row.remedy)
    rich.print(table)


def called(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code; whatever is refused is one sentence on standard error and code 2."""
    try:
        return int(app(args=arguments, standalone_mode=False) or 0)
    except Misuse as e:
        typer.echo(
            f"eggtile: {' '.join(map(cut, e.format_message().split())) or 'give a command; see eggtile --help'}",
            err=True,
        )
    except REFUSALS as e:
        typer.echo(f"eggtile: {e}", err=True)
    except OSError as e:
        typer.echo(f"eggtile: {e.filename or 'the output'}: {e.strerror or e}", err=True)
    except SystemExit as e:
        if isinstance(e.__context__, BrokenPipeError):  # who reads the output has had enough
            return 1
        typer.echo(f"eggtile: the program ends itself, with {e.code}", err=True)
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("eggtile: stopped", err=True)
        return STOPPED
    return MISUSE


def main() -> None:
    """Entry point of the command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the package ends the process while it is imported
    gc.freeze()  # what was imported stays: each full collection would walk it for 0.3 s
    sys.exit(called())
