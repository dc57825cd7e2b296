"""Recorded rows are read or refused, and reading changes none."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.results import RESULTS


@pytest.mark.parametrize("content", [None, b"\xff", b"{", b"3\n", b"1" * 6000])
@pytest.mark.parametrize("command", [("show", "FILE"), ("model", "judge", "FILE"), ("record", "FILE", "none")])
def test_files_that_hold_no_rows_are_refused(
    tmp_path: Path, command: tuple[str, ...], content: bytes | None
) -> None:
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_bytes(content)
    outcome = CliRunner().invoke(app, [str(path) if word == "FILE" else word for word in command])
    assert outcome.exit_code == 2 and isinstance(outcome.exception, SystemExit)
    assert not (RESULTS / "none.jsonl").exists()


@pytest.mark.parametrize("command", [("check",), ("measure",), ("sweep",), ("model", "measure"), ("emmy",)])
def test_patterns_that_are_no_regular_expressions_are_refused(command: tuple[str, ...]) -> None:
    outcome = CliRunner().invoke(app, [*command, "("])
    assert outcome.exit_code == 2 and isinstance(outcome.exception, SystemExit)
    assert "no regular expression" in outcome.output


def test_judging_writes_only_where_it_is_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "model.jsonl"
    shutil.copy(RESULTS / "model_h200.jsonl", path)
    (row, *_) = [r for r in map(json.loads, path.read_text().splitlines()) if r["of"].startswith("held.unit")]
    path.write_text(json.dumps(row | {"spearman": -1.0}) + "\n")
    for options, kept in (([], True), (["--write"], False)):
        assert CliRunner().invoke(app, ["model", "judge", str(path), *options]).exit_code == 0
        assert (json.loads(path.read_text())["spearman"] == -1.0) == kept
