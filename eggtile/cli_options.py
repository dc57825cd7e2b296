"""Options that several commands share, and what they mean."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from eggtile import STARTED, stores
from eggtile.clock import Clock
from eggtile.echo import cut
from eggtile.pins import pins_of
from eggtile.pipeline import LISTED, Compiled, Options, RequestError, capture_and_lower
from eggtile.source import Source, load
from egraph.graph import Budget

Program = Annotated[
    str | None, typer.Argument(metavar="PROGRAM", help="file.py:name or module:name", show_default=False)
]
Code = Annotated[
    str | None,
    typer.Option(
        "-c",
        help="The program as Python code. It runs as Python, but for the last expression, which alone is traced.",
    ),
]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", help="An input as dtype\\[shape], like f32[1,32,2048].")
]
Numerics = Annotated[str, typer.Option(help="Classes of laws that may be used: strict, default or fast.")]
FormNumber = Annotated[
    int | None, typer.Option("--form", min=0, help="Use the form with this number instead of the cheapest.")
]
FormCount = Annotated[
    int | None,
    typer.Option("-k", min=1, help="How many forms are numbered, as for explore.", show_default=str(LISTED)),
]
ScheduleLines = Annotated[
    list[str] | None,
    typer.Option(
        "--schedule",
        metavar="LINE",
        help="Pin the schedule of a kernel, like 'k1: WORK=t256 TILE=x0:4', as `eggtile schedules` lists names and lines; "
        "once for each kernel. A line without a name is that of every kernel that no other names.",
    ),
]
Target = Annotated[str, typer.Option(help="The GPU architecture to compile for, like sm_90a.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--evidence",
        help="What was measured: a store, a .jsonl file, or none.",
        show_default="$EGGTILE_EVIDENCE, or the user's store over what comes with the project",
    ),
]
Hits = Annotated[
    str | None,
    typer.Option(
        "--hits",
        help="explain: say which kernels are measured, and why others are not; demand: refuse unless all are.",
    ),
]
Select = Annotated[str, typer.Option(help="A regular expression over the names of a suite.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="The tiny sizes of a suite.")]
BudgetText = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="Bounds of each e-graph (nodes, iterations a phase, seconds), of the choice of its forms (extract seconds), "
        "and of what is told of them (report seconds), like nodes=5000,seconds=2,iterations=9,extract=3,report=5.",
        show_default=f"nodes={Budget.nodes},seconds={Budget.seconds:g},iterations={Budget.iterations},"
        f"extract={Options.extract_s:g},report={Options.report_s:g}",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
BOUNDS: dict[str, Callable[[str], float]] = {
    "nodes": int, "seconds": float, "iterations": int, "extract": float, "report": float,
}  # fmt: skip


def options_of(numerics: str, target: str = "sm_90a", schedule: list[str] | None = None, **more: Any) -> Options:
    """Checked options; `schedule` are lines as the user writes them."""
    options = Options(numerics=numerics, target=target, **pins_of(schedule or ()), **more)
    options.machine()
    return options


def budget_of(text: str | None) -> dict[str, Any]:
    """The bounds named in the text, as options."""
    bounds: dict[str, float] = {}
    for word in (text or "").replace(" ", "").split(",") if text else ():
        name, _, value = word.partition("=")
        if name not in BOUNDS:
            raise RequestError(f"--budget {cut(word)}: give {', '.join(f'{n}=NUMBER' for n in BOUNDS)}")
        if name in bounds:
            raise RequestError(f"--budget gives {name} twice; give it once")
        whole = BOUNDS[name] is int
        if not re.fullmatch(r"\d{1,18}" if whole else r"\d{1,18}(\.\d+)?", value, re.ASCII):
            kind = "a whole number from 0" if whole else "a number of seconds from 0, like 2 or 0.5"
            raise RequestError(
                f"--budget {cut(word)}: {name} is {kind}, written in digits, not {cut(value) or 'nothing'}"
            )
        bounds[name] = BOUNDS[name](value)
    seconds = {f"{name}_s": bounds.pop(name) for name in ("extract", "report") if name in bounds}
    return {"budget": Budget(**bounds), **seconds}  # type: ignore[arg-type]


def told_hits(compiled: Compiled, asked: str | None) -> None:
    """Say on standard error what is measured of the kernels, or refuse where a hit is demanded and one is not."""
    if asked not in (None, "explain", "demand"):
        raise RequestError(f"--hits is explain or demand, not {cut(asked)}")
    found = stores.hits(compiled) if asked else []
    lines = [
        f"{h.key[:12]} {h.line}: " + (h.why if h.time_us is None else f"{h.time_us:.3g} us {h.why}") for h in found
    ]
    missed = [line for line, h in zip(lines, found, strict=True) if h.time_us is None]
    if asked == "demand" and missed:
        raise RequestError("a hit is demanded of every kernel: " + "; ".join(missed))
    for line in lines:
        typer.echo(line, err=True)


def source_of(program: str | None, code: str | None, inputs: list[str] | None) -> Source:
    """The program that the user names: -c code, a file or a module."""
    if (program is None) == (code is None):
        raise RequestError("give a program: either -c CODE, or file.py:name, or module:name")
    return load(code, program, inputs or [])


def started(
    program: str | None, code: str | None, inputs: list[str] | None, options: Options
) -> tuple[Source, Compiled]:
    """Load, capture and lower the user's program."""
    clock = Clock()
    clock.add("imports", time.perf_counter() - STARTED)
    with clock.span("program"):
        source = source_of(program, code, inputs)
    compiled = capture_and_lower(source.fn, source.inputs, source.name, options, clock, source.notes)
    gc.freeze()  # what the capture imported and made stays: each full collection would walk it for 0.2 s
    return source, compiled


def emit_json(value: Any) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(value, allow_nan=False, default=str))
