"""Options that several commands share, and what they mean."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from eggtile.pipeline import Options, RequestError
from eggtile.source import Source, load

Program = Annotated[str | None, typer.Argument(help="file.py:name or module:name", show_default=False)]
Code = Annotated[
    str | None,
    typer.Option(
        "-c", help="The program as Python code. It runs as Python; the last expression is traced, not run."
    ),
]
Inputs = Annotated[list[str] | None, typer.Option("--input", help="An input as dtype[shape], like f32[1,32,2048].")]
Numerics = Annotated[str, typer.Option(help="Classes of laws that may be used: strict, default or fast.")]
FormNumber = Annotated[
    int | None, typer.Option("--form", help="Use the form with this number instead of the cheapest.")
]
ScheduleLine = Annotated[str | None, typer.Option("--schedule", help="Pin the schedule of every kernel.")]
NUMERICS = ("strict", "default", "fast")


def options_of(numerics: str, target: str = "sm_90a", **more: Any) -> Options:
    """Checked options."""
    if numerics not in NUMERICS:
        raise RequestError(f"unknown numerics {numerics}; it is one of {', '.join(NUMERICS)}")
    options = Options(numerics=numerics, target=target, **more)
    options.machine()
    return options


def source_of(program: str | None, code: str | None, inputs: list[str] | None) -> Source:
    """The program that the user names: -c code, a file or a module."""
    if (program is None) == (code is None):
        raise RequestError("give a program: either -c CODE, or file.py:name, or module:name")
    return load(code, program, inputs or [])
