"""The store of measurements: what was run where, how it went and how long it took.

A row is one kernel (by key) under one schedule line in one place (`Where`), or one whole form under the lines of its
kernels. Failures are kept as results are. The store is one SQLite file in WAL mode: a commit survives the death of the
process, readers and writers may be many. What comes with the project lies under it, and is never changed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from ir.node import IRError

STATUSES = ("ok", "wrong", "refused", "crashed", "hung", "spills")
SHIPPED = Path(__file__).with_name("evidence_h200.jsonl")
FORM = "form"
"""The family of rows that time a whole form: its key is the form's, `modelled_us` the sum of its kernels' times."""
_ROOT = Path(__file__).parents[1]
_WRITERS = ("extract/stages.py", "extract/tiling.py", "codegen/lower.py", "codegen/emit.py", "codegen/compile.py")
_IMPORT = re.compile(r"^from (\S+) import (.+)$", re.MULTILINE)


@cache
def code_version() -> str:
    """A hash of the sources that decide which binary a kernel and its line become: its writers and what they import."""
    return hashlib.blake2b(b"\0".join(p.encode() + b"\0" + t for p, t in sources()), digest_size=8).hexdigest()


def sources() -> list[tuple[str, bytes]]:
    """The files of which `code_version` is a hash, with their content."""
    found: dict[str, bytes] = {}
    open_ = list(_WRITERS)
    while open_:
        path = open_.pop()
        if path not in found and (_ROOT / path).exists():
            found[path] = (_ROOT / path).read_bytes()
            for module, names in _IMPORT.findall(found[path].decode()):
                folder = module.replace(".", "/")
                open_ += [f"{folder}.py", *(f"{folder}/{n.split()[0]}.py" for n in names.split(", "))]
    return sorted(found.items())


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
    """How a kernel under a schedule line did; `error` and `bound` are relative to float64, as `codegen.gate` says.

    `shapes` are the types and shapes of what it writes and reads.
    """

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
    shapes: str = ""
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


def _measurement(row: object) -> Measurement:
    """The measurement of a row; refuses rows with other columns."""
    if not isinstance(row, dict):
        raise IRError(f"evidence: {str(row)[:40]!r} is no row of names and values")
    if unknown := sorted({*row} ^ {*_COLUMNS}):
        raise IRError(f"evidence: {unknown[0]} is not in both the row and the table")
    if row["status"] not in STATUSES:
        raise IRError(f"evidence: {row['status']} is none of {', '.join(STATUSES)}")
    place = Where(**{k: row[k] for k in _PLACE})
    return Measurement(where=place, **{k: row[k] for k in _OWN})


def _given(where: Where) -> dict[str, object]:
    return {k: v for k, v in asdict(where).items() if v}


@cache
def _parsed(path: Path, _: int) -> tuple[tuple[object, ...], ...]:
    """The rows of a JSON-lines file, which is known to be the same while its time is."""
    try:
        new = [_measurement(json.loads(line)) for line in path.read_text().splitlines()]
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise IRError(f"{path} is not in JSON lines: {e}") from None
    return tuple(_values(m) for m in new)


def _values(m: Measurement) -> tuple[object, ...]:
    row = m.row()
    return tuple(row[c] for c in _COLUMNS)


class Evidence:
    """Measurements in one file, over those of `under`, JSON lines that are only read; `code` is the version that counts.

    Without a file it holds what it is given in memory.
    """

    def __init__(self, path: Path | str | None, code: str | None = None, under: Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.code = code_version() if code is None else code
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        table = f"({', '.join(_COLUMNS)}, primary key ({', '.join(_IDENTITY)}))"
        same = " and ".join(f"m.{c} = u.{c}" for c in _IDENTITY)
        try:
            self.base = sqlite3.connect(self.path or ":memory:", timeout=30.0, isolation_level=None)
            self.base.row_factory = sqlite3.Row
            self.base.execute("pragma journal_mode = wal")
            self.base.execute("pragma synchronous = normal")
            self.base.execute(f"create table if not exists main.measured {table}")
            found = [r["name"] for r in self.base.execute("pragma main.table_info(measured)")]
            if found != list(_COLUMNS):
                raise IRError(f"{self.path} is a store of evidence with other columns; remove it to begin anew")
            self.base.execute(f"create temp table under {table}")
            self.base.execute(
                "create temp view known as select * from main.measured union all select * from temp.under u"
                f" where not exists (select 1 from main.measured m where {same})"
            )
        except sqlite3.Error as e:
            raise IRError(f"{self.path} is no store of evidence: {e}") from None
        if under is not None and under.exists():
            self._insert("temp.under", "ignore", _parsed(under, under.stat().st_mtime_ns))

    def close(self) -> None:
        """Close the file."""
        self.base.close()

    # ---- rows

    def add(self, *measured: Measurement) -> None:
        """Store measurements in one transaction; each replaces what was known of the same kernel, line and place."""
        self._insert("main.measured", "replace", map(_values, measured))

    def _insert(self, table: str, conflict: str, rows: Iterable[tuple[object, ...]]) -> int:
        marks = ", ".join("?" * len(_COLUMNS))
        with self._whole(), self.base:
            self.base.execute("begin immediate" if table.startswith("main.") else "begin")
            before = self.base.total_changes
            self.base.executemany(f"insert or {conflict} into {table} values ({marks})", rows)
            return self.base.total_changes - before

    def rows(self, **wanted: object) -> list[Measurement]:
        """Measurements whose columns have these values, in the order of their identity."""
        where, values = self._where(wanted)
        query = f"select * from known where {where} order by {', '.join(_IDENTITY)}"
        with self._whole():
            found = self.base.execute(query, values).fetchall()
        return [_measurement(dict(r)) for r in found]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Say of which store the database complains."""
        try:
            yield
        except sqlite3.Error as e:
            raise IRError(f"{self.path}: the store of evidence cannot be used: {e}") from None

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
        return min(found, key=rank, default=None)

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
        """Forget the file's rows whose columns have these values; gives their number."""
        where, values = self._where(wanted)
        with self._whole():
            return self.base.execute(f"delete from main.measured where {where}", values).rowcount

    # ---- JSON lines

    def export(self, path: Path, **wanted: object) -> int:
        """Write rows as JSON lines, sorted by identity, keys sorted: equal stores give equal bytes."""
        lines = [json.dumps(m.row(), sort_keys=True, allow_nan=False) + "\n" for m in self.rows(**wanted)]
        path.write_text("".join(lines))
        return len(lines)

    def import_(self, path: Path) -> int:
        """Take in the rows of a JSON-lines file; what is known already stays. Gives the number of new rows."""
        return self._insert("main.measured", "ignore", _parsed(path, path.stat().st_mtime_ns))


def rank(m: Measurement) -> tuple[float, str]:
    """By time; what is not right comes last."""
    return math.inf if m.time_us is None or m.status != "ok" else m.time_us, m.schedule
