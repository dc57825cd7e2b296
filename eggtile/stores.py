"""Where measurements lie: the user's store over what comes with the project, or a file; and what of a program is in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from eggtile.evidence_rows import Store, check
from eggtile.pipeline import Compiled, RequestError
from eggtile.provenance import machine_name, query
from extract.evidence import SHIPPED, Evidence, Where, code_version
from ir.machine import Machine

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
    if given == NONE or given.endswith(".jsonl"):
        if write:
            raise RequestError(f"what is measured needs a store to go to, and --evidence is {given}")
        if given == NONE:
            return None
        if not Path(given).exists():
            raise RequestError(f"there is no file {given}")
        check(Path(given))
        return Store(None, Path(given))
    if given and not write and not Path(given).exists():
        raise RequestError(f"there is no store {given}; eggtile tune --evidence {given} makes one")
    if given:
        return Store(given)
    path = default_store()
    if not (write or path.exists() or SHIPPED.exists()):
        return None
    return Store(path, SHIPPED) if write or path.exists() else Evidence(None, under=SHIPPED)


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
        rows = store.rows(key=key, machine=machine.name, code=store.code, status="ok", schedule=line)
        if rows:
            w = rows[0].where
            out.append(
                Hit(k.name, key, line, rows[0].time_us, f"on {w.machine}, NVRTC {w.nvrtc}, driver {w.driver}")
            )
        elif store.best(key, machine.name):
            out.append(Hit(k.name, key, line, None, "this line is not measured, others are"))
        else:
            out.append(Hit(k.name, key, line, None, store.explain_miss(key, place)))
    return out
