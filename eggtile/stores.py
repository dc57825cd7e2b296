"""Where measurements lie: the user's store over what comes with the project, or a file; and what of a program is in it."""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from eggtile.pipeline import Compiled, RequestError
from eggtile.provenance import machine_name, query
from extract.evidence import SHIPPED, Evidence, code_version
from extract.measurement import IDENTITY, Measurement, Where
from extract.prices import spelled_shapes
from ir.machine import Machine
from ir.node import IRError

NONE = "none"
VARIABLE = "EGGTILE_EVIDENCE"


def default_store() -> Path:
    """$XDG_CACHE_HOME/eggtile/evidence.sqlite."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eggtile" / "evidence.sqlite"


def opened(given: str | Path | None = None, write: bool = False) -> Evidence | None:
    """The store that the user gives, a file of JSON lines to read, `none`; or the default one, over what is shipped.

    Where nothing is given, $EGGTILE_EVIDENCE is. A default store that is not there yet is made only to `write` to it;
    None where there is nothing to read.
    """
    given = str(given or os.environ.get(VARIABLE, ""))
    if "\0" in given:
        raise RequestError(f"{given!r} is no path")
    if given == NONE or given.lower().endswith(".jsonl"):
        if write:
            raise RequestError(f"what is measured needs a store to go to, and --evidence is {given}")
        if given == NONE:
            return None
        if not Path(given).exists():
            raise RequestError(f"there is no file {given}")
        return Store(None, Path(given))
    if given and not write and not Path(given).exists():
        raise RequestError(f"there is no store {given}; eggtile tune --evidence {given} makes one")
    if given:
        return Store(Path(given), read_only=not write)
    path = default_store()
    if not (write or path.exists() or SHIPPED.exists()):
        return None
    return Store(path, SHIPPED, not write) if write or path.exists() else Store(None, SHIPPED)


class Store(Evidence):
    """A store of the user's: says what is left out of it, and of one that cannot be read what to do."""

    def __init__(self, path: Path | None, under: Path | None = None, read_only: bool = False) -> None:
        with _way_out(path):
            super().__init__(path, under=under, read_only=read_only)
        for number, why in [*self.odd.items()][:1]:
            told = f"{len(self.odd)} of its rows mean nothing and are left out; the first: {why}"
            warnings.warn_explicit(told, UserWarning, str(path), number)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        with _way_out(state["path"]):
            super().__setstate__(state)

    def rows(self, **wanted: object) -> list[Measurement]:
        """Measurements whose columns have these values, in the order of their identity."""
        with _way_out(self.path):
            return super().rows(**wanted)


@contextmanager
def _way_out(path: Path | None) -> Iterator[None]:
    """Say of a store that cannot be read what to do."""
    try:
        yield
    except IRError as e:
        spoilt = path is not None and not isinstance(e.__cause__, sqlite3.OperationalError) and _is_store(path)
        advice = f"remove {path} to begin anew, or " if spoilt else ""
        raise RequestError(f"{e}; {advice}read none of it with --evidence none") from None


def _is_store(path: Path) -> bool:
    """Whether a file is a store of evidence, as far as its begin shows, or lies where nothing else does."""
    if not path.is_file():
        return False
    with path.open("rb") as f:
        begin = f.read(1 << 12)
    table = f"TABLE measured ({IDENTITY[0]}, {IDENTITY[1]}".encode()
    return path == default_store() or (begin.startswith(b"SQLite format 3\0") and table in begin)


def here(machine: Machine, usable: bool) -> Where:
    """The place at hand; without a GPU any toolchain that measured on the machine of the target."""
    if not usable:
        return Where(machine.name, machine.target, code=code_version())
    driver = query("driver_version").get("driver_version", "")
    return Where(machine_name(), machine.target, version("nvidia-cuda-nvrtc"), driver, code_version())


@dataclass(frozen=True)
class Hit:
    """A kernel of the chosen forms: its line, its measured time, or why there is none."""

    kernel: str
    key: str
    line: str
    time_us: float | None
    why: str


def hits(compiled: Compiled) -> list[Hit]:
    """What is measured of the kernels that a compiled program launches."""
    store, machine = compiled.options.evidence, compiled.options.machine()
    place, out = here(machine, usable=False), []
    for k in compiled.kernels:
        key, line = k.canonical.key, str(k.schedule)
        if store is None:
            out.append(Hit(k.name, key, line, None, "no evidence is read"))
            continue
        rows = store.right(key, machine, shapes=spelled_shapes(k.canonical))
        if found := next((m for m in rows if m.schedule == line), None):
            w = found.where
            out.append(Hit(k.name, key, line, found.time_us, f"on {w.machine}, NVRTC {w.nvrtc}, driver {w.driver}"))
        elif rows:
            out.append(Hit(k.name, key, line, None, "this line is not measured, others are"))
        else:
            out.append(Hit(k.name, key, line, None, store.explain_miss(key, place)))
    return out
