"""What is measured: one program that the user names, or the cases of a suite."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from codegen import gpu
from eggtile.cli_options import source_of
from eggtile.echo import cut
from eggtile.pipeline import Options, RequestError
from eggtile.source import imported
from eggtile.timing import Function, Tensors


@dataclass(frozen=True)
class Subject:
    """A program to measure; `load` makes it with its inputs, reports say the notes.

    `tf32` None leaves PyTorch's setting alone.
    """

    name: str
    load: Callable[[], tuple[Function, Tensors]]
    max_autotune: bool = True
    tf32: bool | None = None
    reference_us: float | None = None
    notes: tuple[str, ...] = ()


def place_at_hand() -> tuple[str, str, str]:
    """The device and target to measure on, and empty words; without a GPU the CPU, and the reason."""
    usable, why = gpu.available()
    if usable and torch.cuda.is_available():
        return "cuda", gpu.device_target(), ""
    return "cpu", Options.target, why or "torch sees none"


def suite(place: str, pattern: str, tiny: bool, device: str) -> list[Subject]:
    """The cases of a module whose names match; its `baseline()`, where it has one, gives reference times."""
    module = imported(place)
    cases = getattr(module, "CASES", None)
    if cases is None:
        raise RequestError(f"{place} defines no CASES; a single program is {place}:name")
    try:
        wanted = [c for c in cases if re.search(pattern, c.name)]
    except re.error as e:
        raise RequestError(f"{cut(pattern)} is no regular expression: {e}") from None
    if not wanted:
        raise RequestError(f"no case of {place} matches {cut(pattern)}")
    recorded: Mapping[str, Mapping[str, Any]] = {} if tiny or not hasattr(module, "baseline") else module.baseline()
    return [
        Subject(
            c.name,
            partial(c.program, tiny, device),
            getattr(c, "max_autotune", True),
            getattr(c, "tf32", None),
            recorded.get(c.name, {}).get("reference_us"),
        )
        for c in wanted
    ]


def single(program: str | None, code: str | None, inputs: list[str] | None, device: str) -> Subject:
    """The one program that the user names, moved to the device."""
    source = source_of(program, code, inputs)
    fn = source.fn.to(device) if isinstance(source.fn, torch.nn.Module) else source.fn
    return Subject(source.name, lambda: (fn, [t.to(device) for t in source.inputs]), notes=source.notes)


def is_suite(program: str | None, code: str | None) -> bool:
    """Whether a module with cases is named, not one program."""
    return code is None and program is not None and ":" not in program


def subjects(
    program: str | None, code: str | None, inputs: list[str] | None, select: str, tiny: bool, device: str
) -> list[Subject]:
    """What the user names; options that are for the other kind are refused."""
    if is_suite(program, code):
        if inputs:
            raise RequestError("inputs are given, but a suite makes its own")
        return suite(program or "", select, tiny, device)
    if select or tiny:
        raise RequestError("--select and --tiny are for a suite, a module that defines CASES")
    return [single(program, code, inputs, device)]
