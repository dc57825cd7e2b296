"""The store of measurements: what was run where, how it went and how long it took; prices for extraction.

A row is one kernel (by key) under one schedule line in one place (`Where`). Failures are kept as results are. The
store is one SQLite file in WAL mode: a commit survives the death of the process, readers and writers may be many.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from extract.cost import Cost, kernel_cost
from extract.key import canonical
from ir import term as T
from ir.loop import Form, KernelForm
from ir.machine import Machine
from ir.node import IRError, postorder
from ir.schedule import Schedule

STATUSES = ("ok", "wrong", "refused", "crashed", "hung", "spills")
OPTIMISM = 0.1  # the quantile of measured / modelled at which a family's unmeasured kernels are priced
HOPELESS_US = 1e7  # the price of a kernel none of whose measured lines is right
SHIPPED = Path(__file__).with_name("evidence_h200.jsonl")
_ROOT = Path(__file__).parents[1]
_SOURCES = ("codegen/**/*.py", "extract/tiling.py", "ir/*.py")


@cache
def code_version() -> str:
    """A hash of the sources that decide which text a kernel and its line become."""
    made = hashlib.blake2b(digest_size=8)
    for pattern in _SOURCES:
        for path in sorted(_ROOT.glob(pattern)):
            made.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return made.hexdigest()


def source_hash(text: str) -> str:
    """The identity of an emitted text."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Where:
    """What a time depends on besides kernel and line; `inputs` cold: program inputs come from DRAM, others are warm."""

    machine: str
    target: str
    nvrtc: str = ""
    driver: str = ""
    code: str = ""
    inputs: str = "cold"


@dataclass(frozen=True)
class Measurement:
    """How a kernel under a schedule line did; `error` and `bound` are relative to float64, as `codegen.gate` says."""

    key: str
    schedule: str
    where: Where
    status: str
    time_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    rounds: int = 0
    error: float | None = None
    bound: float | None = None
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    clocks: str = ""
    source: str = ""
    family: str = ""
    modelled_us: float | None = None
    reason: str = ""
    taken: str = ""

    def row(self) -> dict[str, object]:
        """Its columns by name."""
        own: dict[str, Any] = asdict(self)
        place: dict[str, object] = own.pop("where")
        return own | place


_PLACE = tuple(f.name for f in fields(Where))
_OWN = tuple(f.name for f in fields(Measurement) if f.name != "where")
_COLUMNS = (*_OWN, *_PLACE)
_IDENTITY = ("key", "schedule", *_PLACE)
_LABELS = {
    "machine": "on another machine", "target": "for another target", "nvrtc": "by another NVRTC",
    "driver": "under another driver", "code": "by another version of the laws and the code generator",
    "inputs": "with other caches",
}  # fmt: skip


def _measurement(row: Mapping[str, object]) -> Measurement:
    """The measurement of a row; refuses rows with other columns."""
    if unknown := sorted({*row} ^ {*_COLUMNS}):
        raise IRError(f"evidence: {unknown[0]} is not in both the row and the table")
    if row["status"] not in STATUSES:
        raise IRError(f"evidence: {row['status']} is none of {', '.join(STATUSES)}")
    place = Where(**{k: row[k] for k in _PLACE})  # type: ignore[arg-type]
    return Measurement(where=place, **{k: row[k] for k in _OWN})  # type: ignore[arg-type]


def _given(where: Where) -> dict[str, object]:
    return {k: v for k, v in asdict(where).items() if v}


class Evidence:
    """Measurements in one file; `code` is the version of laws and generator whose rows count."""

    def __init__(self, path: Path | str, code: str | None = None) -> None:
        self.path, self.code = Path(path), code_version() if code is None else code
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.base = sqlite3.connect(self.path, timeout=30.0, isolation_level=None)
            self.base.row_factory = sqlite3.Row
            self.base.execute("pragma journal_mode = wal")
            self.base.execute("pragma synchronous = normal")
            self.base.execute(
                f"create table if not exists measured ({', '.join(_COLUMNS)}, primary key ({', '.join(_IDENTITY)}))"
            )
            self.base.execute("create table if not exists taken_in (digest primary key)")
        except sqlite3.Error as e:
            raise IRError(f"{self.path} is no store of evidence: {e}") from None

    def close(self) -> None:
        """Close the file."""
        self.base.close()

    # ---- rows

    def add(self, *measured: Measurement) -> None:
        """Store measurements in one transaction; each replaces what was known of the same kernel, line and place."""
        self._insert("replace", measured)

    def _insert(self, conflict: str, measured: Iterable[Measurement]) -> int:
        rows = [tuple(m.row()[c] for c in _COLUMNS) for m in measured]
        marks = ", ".join("?" * len(_COLUMNS))
        with self.base:
            self.base.execute("begin immediate")
            before = self.base.total_changes
            self.base.executemany(f"insert or {conflict} into measured values ({marks})", rows)
            return self.base.total_changes - before

    def rows(self, **wanted: object) -> list[Measurement]:
        """Measurements whose columns have these values, in the order of their identity."""
        where, values = self._where(wanted)
        query = f"select * from measured where {where} order by {', '.join(_IDENTITY)}"
        return [_measurement(dict(r)) for r in self.base.execute(query, values)]

    def _where(self, wanted: Mapping[str, object]) -> tuple[str, tuple[object, ...]]:
        if unknown := [c for c in wanted if c not in _COLUMNS]:
            raise IRError(f"evidence has no column {unknown[0]}; columns are {', '.join(_COLUMNS)}")
        return " and ".join(f"{c} = ?" for c in wanted) or "1", tuple(wanted.values())

    def lines(self, key: str, where: Where) -> dict[str, Measurement]:
        """What is known of a kernel in this place, by schedule line; an empty column of the place stands for any."""
        found = sorted(self.rows(key=key, **_given(where)), key=lambda m: m.taken)
        return {m.schedule: m for m in found}

    def best(self, key: str, machine: str) -> Measurement | None:
        """The fastest right line of a kernel on a machine, by any toolchain, for this version of the code."""
        found = self.rows(key=key, machine=machine, code=self.code, status="ok")
        return min(found, key=_rank, default=None)

    def same_text(self, key: str, source: str, where: Where) -> Measurement | None:
        """What is known of a kernel with this very text in this place, whatever version of the code or line made it."""
        found = self.rows(key=key, source=source, **_given(replace(where, code="")))
        return max(found, key=lambda m: m.taken, default=None)

    def explain_miss(self, key: str, where: Where) -> str:
        """Why no time of a kernel counts in this place: the columns in which the nearest row differs, or its failures."""
        given, found = _given(where), self.rows(key=key)
        if not found:
            return "never measured"
        differs = {m: [c for c, v in given.items() if getattr(m.where, c) != v] for m in found}
        nearest = min(found, key=lambda m: (len(differs[m]), differs[m]))
        if differs[nearest]:
            told = [f"{_LABELS[c]} ({getattr(nearest.where, c)}, not {given[c]})" for c in differs[nearest]]
            return f"measured {', '.join(told)}"
        here = {m.status for m in found if not differs[m]}
        return "measured here" if "ok" in here else f"no line is right here: {', '.join(sorted(here))}"

    def clear(self, **wanted: object) -> int:
        """Forget the rows whose columns have these values; gives their number."""
        where, values = self._where(wanted)
        return self.base.execute(f"delete from measured where {where}", values).rowcount

    # ---- JSON lines

    def export(self, path: Path, **wanted: object) -> int:
        """Write rows as JSON lines, sorted by identity, keys sorted: equal stores give equal bytes."""
        lines = [json.dumps(m.row(), sort_keys=True, allow_nan=False) + "\n" for m in self.rows(**wanted)]
        path.write_text("".join(lines))
        return len(lines)

    def import_(self, path: Path) -> int:
        """Take in the rows of a JSON-lines file; what is known already stays. Gives the number of new rows."""
        text = path.read_text()
        try:
            new = [_measurement(json.loads(line)) for line in text.splitlines()]
        except json.JSONDecodeError as e:
            raise IRError(f"{path} is not in JSON lines: {e}") from None
        return self._insert("ignore", new)

    def import_shipped(self, path: Path = SHIPPED) -> None:
        """Take in the evidence that comes with the project, once for each content of its file."""
        if not path.exists():
            return
        digest = hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()
        if not self.base.execute("select 1 from taken_in where digest = ?", (digest,)).fetchone():
            self.import_(path)
            self.base.execute("insert or ignore into taken_in values (?)", (digest,))

    # ---- prices

    def price(self, machine: Machine) -> Callable[[KernelForm, Form], float | None]:
        """What a kernel costs in us: its best measured time, or else the model's under its family's best ratios.

        None where neither is known. The store is read once, now.
        """
        known = _prices(self.rows(machine=machine.name, code=self.code))
        ratios = family_ratios(m for m in known.values() if m.status == "ok")

        def price(kernel: KernelForm, form: Form) -> float | None:
            found = known.get(canonical(kernel, form).key) if known else None
            if found is not None:
                return HOPELESS_US if found.time_us is None else found.time_us
            if not ratios:
                return None
            cost = kernel_cost(kernel, form, machine)
            ratio = ratios.get(shape_of(kernel, cost))
            return None if ratio is None else ratio * cost.us

        return price


def _rank(m: Measurement) -> tuple[float, str]:
    return math.inf if m.time_us is None or m.status != "ok" else m.time_us, m.schedule


def _prices(rows: Iterable[Measurement]) -> dict[str, Measurement]:
    """The best row of each kernel; one without a time where no line is right."""
    found: dict[str, Measurement] = {}
    for m in rows:
        m = m if m.status == "ok" else replace(m, time_us=None)
        if m.key not in found or _rank(m) < _rank(found[m.key]):
            found[m.key] = m
    return found


# ---- families


def shape_of(kernel: KernelForm, cost: Cost) -> str:
    """The part of a kernel's family that its schedule does not decide: contractions, states, gathers."""
    terms = [t for s in kernel.stores for t in (*s.index, s.value)]
    loads = [t for t in postorder(*terms) if isinstance(t, T.Load)]
    gathers = any(isinstance(x, T.Load) for t in loads for x in postorder(*t.index))
    streamed = "streamed" if cost.states else "plain"
    return f"c{cost.contractions}/{streamed}/{'gathers' if gathers else 'affine'}"


def family_of(kernel: KernelForm, cost: Cost, line: Schedule) -> str:
    """Kernels whose times the model misjudges alike: by the unit that multiplies, and by shape."""
    tile = line.get("TILE")
    unit = next((u for u in ("wgmma", "mma") if tile.startswith(u)), "scalar")
    return f"{unit}/{shape_of(kernel, cost)}"


def family_ratios(best: Iterable[Measurement]) -> dict[str, float]:
    """Measured over modelled time of each shape: a low quantile, of the unit in whose favour it is lowest."""
    taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for m in best:
        if m.time_us and m.modelled_us:
            unit, shape = m.family.split("/", 1)
            taken[shape][unit].append(m.time_us / m.modelled_us)
    return {shape: min(_low(ratios) for ratios in units.values()) for shape, units in taken.items()}


def _low(values: list[float]) -> float:
    return sorted(values)[int(OPTIMISM * (len(values) - 1))]
