"""Recorded rows, one JSON object a line, and the last ones of every case."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

RESULTS = Path(__file__).parent / "results"


def load(paths: Iterable[Path] | None = None) -> list[dict[str, Any]]:
    """All rows, oldest first; by default those of bench/results."""
    files = sorted(RESULTS.glob("*.jsonl")) if paths is None else paths
    rows = [row for path in files for row in _read(path)]
    return sorted(rows, key=lambda row: str(row.get("time", "")))


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    except OSError as e:
        raise typer.BadParameter(f"cannot read {path}: {e.strerror}") from None
    except (ValueError, RecursionError):
        raise typer.BadParameter(f"{path} is no file of JSON lines") from None
    if not all(isinstance(row, dict) for row in rows):
        raise typer.BadParameter(f"{path} holds a line that is no row")
    return rows


def latest(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Each case's rows from the machine and commit that measured it last; tiny and failed rows are left out."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row.get("tiny") or "error" in row:
            continue
        group = groups[row["case"]]
        if group and (group[-1]["machine"], group[-1]["commit"]) != (row["machine"], row["commit"]):
            group.clear()
        group.append(row)
    return dict(groups)
