"""The store of measurements: what was run where, how it went and how long it took.

A row is one kernel (by key) under one schedule line in one place (`Where`), or one whole form under the lines of its
kernels. Failures are kept as results are; rows that mean nothing are left out. The store is one SQLite file in WAL
mode: a commit survives the death of the process, readers and writers may be many. What comes with the project lies under
it, and is never changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any, Self

from extract.measurement import (
    COLUMNS,
    FAILURES,
    FORM,
    IDENTITY,
    Measurement,
    Where,
    latest,
    rank,
    read,
    read_line,
    verdicts,
)
from ir.machine import Machine
from ir.node import IRError

SHIPPED = Path(__file__).with_name("evidence_h200.jsonl")
_ROOT = Path(__file__).parents[1]
_WRITERS = ("extract/stages.py", "extract/tiling.py", "codegen/lower.py", "codegen/emit.py", "codegen/compile.py")
_IMPORT = re.compile(r"^from (\S+) import (.+)$", re.MULTILINE)
_SIDES = ("", "-wal", "-shm", "-journal")
_LABELS = {
    "machine": "on another machine", "target": "for another target", "nvrtc": "by another NVRTC",
    "driver": "under another driver", "code": "by another version of the laws and the code generator",
    "inputs": "with other caches",
}  # fmt: skip


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


def _given(where: Where) -> dict[str, object]:
    return {k: v for k, v in asdict(where).items() if v}


def lines_of(path: Path) -> tuple[Measurement, ...]:
    """The rows of a JSON-lines file, of equal identities the latest; refuses a file with a row that means nothing."""
    try:
        return _lines_of(path, path.stat().st_mtime_ns)
    except OSError as e:
        raise IRError(f"{path} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError:
        raise IRError(f"{path} is not in JSON lines: it is no text") from None


@cache
def _lines_of(path: Path, _: int) -> tuple[Measurement, ...]:
    """The file is known to be the same while its time is."""
    found = []
    *lines, last = path.read_text("utf-8").split("\n")
    for n, line in enumerate([*lines, last] if last else lines, 1):
        if isinstance(m := read_line(line), str):
            raise IRError(f"{path}, line {n}: {m}")
        found.append(m)
    return tuple(latest(found, lambda m: m.identity))


class Evidence:
    """Measurements in one file, over those of `under`, JSON lines that are only read; `code` is the version that counts.

    Without a file it holds what it is given in memory. A store that is `read_only` is there and is not changed. `odd`
    has the rows of the file that mean nothing, by number, and why. Threads may share it; a copy opens the file again.
    """

    def __init__(
        self, path: Path | str | None, code: str | None = None, under: Path | None = None, read_only: bool = False
    ) -> None:
        self.path = None if path is None else Path(path)
        self.code = code_version() if code is None else code
        self.under, self.read_only = under, read_only
        self.below = lines_of(under) if under is not None and under.exists() else ()
        self._open()

    def __getstate__(self) -> dict[str, Any]:
        kept = {c: getattr(self, c) for c in ("path", "code", "under", "read_only", "below")}
        return kept | {"own": self._own() if self.path is None else []}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update({c: v for c, v in state.items() if c != "own"})
        self._open()
        if self.path is None:
            self._insert("main.measured", state["own"])

    def __deepcopy__(self, _: object) -> Self:
        made = object.__new__(type(self))
        made.__setstate__(self.__getstate__())
        return made

    def _open(self) -> None:
        self._lock = RLock()
        self.odd: dict[int, str] = {}
        table = f"({', '.join(COLUMNS)}, primary key ({', '.join(IDENTITY)}))"
        same = " and ".join(f"m.{c} = u.{c}" for c in IDENTITY)
        means = "rowid not in (select number from temp.odd)"
        try:
            self.base = self._connected()
            self.base.text_factory = lambda b: b.decode("utf-8", "surrogateescape")
            if not self._has_table():
                self.base.execute(f"create table if not exists main.measured {table}")
            if not self.read_only:
                self.base.execute("pragma journal_mode = wal")
                self.base.execute("pragma synchronous = normal")
            self.base.execute(f"create temp table under {table}")
            self.base.execute("create temp table odd (number integer primary key)")
            self.base.execute(
                f"create temp view known as select * from main.measured where {means} union all"
                f" select * from temp.under u"
                f" where not exists (select 1 from main.measured m where {same} and m.{means})"
            )
        except (sqlite3.Error, OSError, ValueError) as e:
            raise IRError(f"{self.path} is no store of evidence: {getattr(e, 'strerror', '') or e}") from e
        self._insert("temp.under", self.below)
        self._find_odd()

    def _connected(self) -> sqlite3.Connection:
        if str(self.path) == ":memory:":
            raise IRError(":memory: is no file, and what it is given is lost")
        if self.path is not None and self.path.is_dir():
            raise IRError(f"{self.path} is a folder, no store of evidence")
        name = (
            ":memory:" if self.path is None else str(self.path.absolute())
        )  # a name like file:x is none of SQLite's
        if self.path is not None and self.read_only:
            name = f"{self.path.absolute().as_uri()}?mode=ro"
        elif self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        uri = self.path is not None and self.read_only
        return sqlite3.connect(name, timeout=30.0, isolation_level=None, check_same_thread=False, uri=uri)

    def _has_table(self) -> bool:
        """Whether the table is there; refuses what belongs to something else, and what an older version made."""
        columns = [(c, IDENTITY.index(c) + 1 if c in IDENTITY else 0) for c in COLUMNS]
        found = [(name, key) for _, name, *_, key in self.base.execute("pragma main.table_info(measured)")]
        if found and found != columns:
            raise IRError(f"{self.path} is a store of evidence with other columns")
        if not found and (self.read_only or self.base.execute("select 1 from main.sqlite_master").fetchone()):
            raise IRError(f"{self.path} is no store of evidence: it has no table of measurements")
        return bool(found)

    def _find_odd(self) -> None:
        with self._whole():
            rows = self.base.execute("select rowid, * from main.measured").fetchall()
            self.odd = {n: why for n, *values in rows if isinstance(why := read(*values), str)}
            self.base.execute("delete from temp.odd")
            self.base.executemany("insert into temp.odd values (?)", [(n,) for n in self.odd])

    def close(self) -> None:
        """Close the file."""
        self.base.close()

    # ---- rows

    def add(self, *measured: Measurement) -> None:
        """Store measurements in one transaction; each replaces what was known of the same kernel, line and place."""
        self._insert("main.measured", measured)

    def _insert(self, table: str, rows: Iterable[Measurement]) -> None:
        with self._whole(), self.base:
            self.base.execute("begin immediate" if table.startswith("main.") else "begin")
            self._put(table, rows)

    def _put(self, table: str, rows: Iterable[Measurement]) -> None:
        marks = ", ".join("?" * len(COLUMNS))
        self.base.executemany(f"insert or replace into {table} values ({marks})", (m.values() for m in rows))
        if self.odd:
            self._find_odd()

    def rows(self, **wanted: object) -> list[Measurement]:
        """Measurements whose columns have these values, in the order of their identity."""
        where, values = self._where(wanted)
        found = self._all(f"select * from known where {where} order by {', '.join(IDENTITY)}", values)
        return [m for r in found if isinstance(m := read(*r), Measurement)]

    def _own(self) -> list[Measurement]:
        """The rows of the file alone."""
        return [m for r in self._all("select * from main.measured") if isinstance(m := read(*r), Measurement)]

    def _all(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._whole():
            return self.base.execute(query, tuple(values)).fetchall()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Keep other threads out, and say of which store the database complains."""
        try:
            with self._lock:
                yield
        except sqlite3.Error as e:
            raise IRError(f"{self.path}: the store of evidence cannot be used: {e}") from e

    def _where(self, wanted: Mapping[str, object]) -> tuple[str, tuple[object, ...]]:
        if unknown := [c for c in wanted if c not in COLUMNS]:
            raise IRError(f"evidence has no column {unknown[0]}; columns are {', '.join(COLUMNS)}")
        return " and ".join(f"{c} = ?" for c in wanted) or "1", tuple(wanted.values())

    def current(self, machine: Machine, **wanted: object) -> list[Measurement]:
        """What this version of the code measured on a machine, by any toolchain."""
        return self.rows(machine=machine.name, target=machine.target, code=self.code, **wanted)

    def right(self, key: str, machine: Machine, **wanted: object) -> list[Measurement]:
        """The right lines of a kernel on a machine, the fastest first."""
        found = verdicts(m for m in self.current(machine, key=key, **wanted) if m.family != FORM)
        return sorted((m for m in found if m.status == "ok"), key=rank)

    def lines(self, key: str, where: Where, **wanted: object) -> dict[str, Measurement]:
        """What is known of a kernel in this place, by schedule line, and the lines that fail under another toolchain.

        An empty column of the place stands for any.
        """
        found = self.rows(key=key, **_given(replace(where, nvrtc="", driver="")), **wanted)
        here = verdicts(m for m in found if all(getattr(m.where, c) == v for c, v in _given(where).items()))
        return {m.schedule: m for m in (*here, *(m for m in verdicts(found) if m.status in FAILURES))}

    def same_text(self, key: str, source: str, where: Where, **wanted: object) -> list[Measurement]:
        """What is known of this very text of a kernel on the machine, by any code or line: the latest by each toolchain."""
        any_code = replace(where, code="", nvrtc="", driver="")
        found = self.rows(key=key, source=source, **_given(any_code), **wanted)
        return latest(found, lambda m: (m.where.nvrtc, m.where.driver))

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
        here = {m.status for m in verdicts(m for m in found if not differs[m])}
        return "measured here" if "ok" in here else f"no line is right here: {', '.join(sorted(here))}"

    def clear(self, **wanted: object) -> int:
        """Forget the file's rows whose columns have these values; gives their number."""
        where, values = self._where(wanted)
        with self._whole():
            return self.base.execute(f"delete from main.measured where {where}", values).rowcount

    # ---- JSON lines

    def export(self, path: Path, **wanted: object) -> int:
        """Write rows as JSON lines, sorted by identity, keys sorted: equal stores give equal bytes."""
        own = [p.resolve() for p in (self.path, self.under) if p is not None]
        if path.resolve() in (Path(f"{p}{side}") for p in own for side in _SIDES):
            raise IRError(f"{path} is the store itself")
        lines = [json.dumps(m.row(), sort_keys=True, allow_nan=False) + "\n" for m in self.rows(**wanted)]
        _write(path, "".join(lines))
        return len(lines)

    def import_(self, path: Path) -> int:
        """Take in the rows of a JSON-lines file, of equal identities the latest. Gives the number of new rows."""
        given = lines_of(path)
        with self._whole(), self.base:
            self.base.execute("begin immediate")
            known = {m.identity: m for m in self._own()}
            new = [m for m in given if (old := known.get(m.identity)) is None or m.moment > old.moment]
            self._put("main.measured", new)
        return len(new)


def _write(path: Path, text: str) -> None:
    """Write a whole file or none; what is no file, such as a pipe, is written to."""
    if path.exists() and not path.is_file():
        path.write_text(text, "utf-8")
        return
    path = path.resolve()
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        made.write_text(text, "utf-8")
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
