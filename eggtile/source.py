"""The program a user names: code on the command line, a function or module in a file, or one in an importable module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from eggtile.capture.types import TORCH_DTYPES
from eggtile.echo import cut
from eggtile.expression import Placed, SourceError, from_code, raised, syntax
from ir.dtype import is_float

__all__ = ["Source", "SourceError", "imported", "load", "parse_input"]

SEED = 0
LARGEST_INPUT_BYTES = 64 << 30
Program = Callable[..., Any] | torch.nn.Module


@dataclass(frozen=True)
class Source:
    """A program to capture: fn(*inputs), its name, and what its user should know of how it is read."""

    fn: Program
    inputs: list[torch.Tensor]
    name: str
    notes: tuple[str, ...] = ()


def load(code: str | None, path: str | None, inputs: Sequence[str]) -> Source:
    """The program in `code`, or at `path` (file.py:name or module:name) with inputs by specification or by function."""
    torch.manual_seed(SEED)
    if code is not None:
        if inputs:
            raise SourceError("inputs are given, but code makes its own inputs")
        expression, tensors, notes = from_code(code)
        return Source(expression, tensors, "program", notes)
    if path is None or ":" not in path:
        raise SourceError(f"a program is file.py:name or module:name, not {cut(path or 'nothing')}")
    return from_path(path, inputs)


# ---- files and modules


def from_path(path: str, inputs: Sequence[str]) -> Source:
    """The function or module of a file or an importable module."""
    place, _, name = path.rpartition(":")
    if not place or not name:
        raise SourceError(f"a program is file.py:name or module:name, not {cut(path)}")
    module = imported(place)
    program = getattr(module, name, None)
    if program is None:
        raise SourceError(f"{place} defines no {cut(name)}")
    if not callable(program) or inspect.isclass(program):
        raise SourceError(f"{name} in {place} is a {type(program).__name__}, not a function or a Module")
    return Source(program, _inputs_of(module, place, name, inputs), name)


def imported(place: str) -> ModuleType:
    """The module at file.py, or the importable one of that name."""
    try:
        if not place.endswith(".py"):
            if not all(part.isidentifier() for part in place.split(".")):
                raise SourceError(f"{cut(place) or 'an empty text'} names no module and no file that ends in .py")
            return importlib.import_module(place)
        if not Path(place).is_file():
            raise SourceError(f"there is no file {place}")
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(Path(place).resolve().parent))
        sys.modules[spec.name] = module
        with Placed():
            spec.loader.exec_module(module)
        return module
    except SourceError:
        raise
    except SyntaxError as error:
        raise SourceError(syntax(error)) from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise SourceError(raised(error)) from error
        raise SourceError(f"there is no module {cut(error.name)}") from None
    except (Exception, SystemExit) as error:  # whatever the user's own statements raise
        raise SourceError(raised(error)) from error


def _inputs_of(module: ModuleType, place: str, name: str, specs: Sequence[str]) -> list[torch.Tensor]:
    if specs:
        return [parse_input(s) for s in specs]
    make = getattr(module, f"{name}_inputs", None)
    if make is None:
        raise SourceError(f"{name} needs inputs: define {name}_inputs() in {place}, or give --input f32[1,32,2048]")
    try:
        with Placed():
            made = list(make())
    except (Exception, SystemExit) as error:  # whatever the user's own statements raise
        raise SourceError(raised(error)) from error
    if not all(isinstance(t, torch.Tensor) for t in made):
        raise SourceError(f"{name}_inputs() in {place} gives values that are no tensors")
    return made


def parse_input(text: str) -> torch.Tensor:
    """A random tensor by its specification: f32[1,32,2048], or i64[8]<50 for integers below 50 (2 where none is said)."""
    match = re.fullmatch(r"(\w+)\[((?:\d+(?:\s*,\s*\d+)*)?)\](?:<(\d+))?", text.strip(), re.ASCII)
    if match is None or match[1] not in TORCH_DTYPES:
        raise SourceError(f"{cut(text)} is no input; write f32[1,32,2048] with one of {', '.join(TORCH_DTYPES)}")
    dtype, shape = TORCH_DTYPES[match[1]], [int(e) for e in match[2].split(",") if e.strip()]
    if math.prod(shape) * dtype.itemsize > LARGEST_INPUT_BYTES:
        raise SourceError(f"{cut(text)} is larger than {LARGEST_INPUT_BYTES >> 30} GiB")
    if is_float(match[1]):
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, int(match[3] or 2), shape).to(dtype)
