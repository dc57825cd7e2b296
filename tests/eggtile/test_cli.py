"""The command line: what it prints, and that bad requests get one sentence and exit code 2."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from codegen.compile import compile_text
from eggtile import cli
from eggtile.views import LEVELS

ROWS = "nn.RMSNorm(64)(torch.randn(2, 64))"


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    stdout: str
    stderr: str


def called(*args: str) -> Outcome:
    """What the command prints and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.called(args)
    return Outcome(code, out.getvalue(), err.getvalue())


def test_run_prints_one_json_object_with_the_verdict() -> None:
    result = called("run", "--on", "cpu", "--json", "-c", ROWS)
    verdict = json.loads(result.stdout)
    assert result.exit_code == 0
    assert verdict["ok"] is True
    assert verdict["on"] == "cpu"
    assert verdict["max_rel_err"] < 1e-6


@pytest.mark.parametrize("level", list(LEVELS))
def test_every_level_prints(level: str) -> None:
    result = called("compile", "--ir", level, "-c", ROWS)
    assert result.exit_code == 0
    assert len(result.stdout) > 40


def test_the_diff_names_the_pass_of_every_line() -> None:
    lines = called("compile", "--diff", "-c", ROWS).stdout.splitlines()
    assert len(lines) > 20
    assert all(line.split()[0].islower() and line.split()[1][0] in "+-" for line in lines)


def test_a_program_is_written_as_text_ptx_or_cubin(tmp_path: Path) -> None:
    for suffix, head in ((".cu", b'extern "C"'), (".ptx", b".target sm_80"), (".cubin", b"\x7fELF")):
        path = tmp_path / f"rows{suffix}"
        assert called("compile", "--target", "sm_80", "-o", str(path), "-c", ROWS).exit_code == 0
        assert head in path.read_bytes()


def test_kernels_of_one_program_share_a_file() -> None:
    two = "x, y = torch.randn(8, 6), torch.randn(4, 5)\n(x.exp() * x.amax(0), y.softmax(0), y.exp() * y.amax(0))"
    text = called("compile", "--ir", "cuda", "-c", two).stdout
    assert text.count("__global__") >= 2
    assert compile_text(text, "sm_90a").cubin


def test_explore_lists_forms_with_errors_and_marks_the_default() -> None:
    found = json.loads(called("explore", "-k", "4", "--json", "-c", "torch.softmax(torch.randn(4, 32), -1)").stdout)
    assert {"classes", "nodes", "stop", "phases"} <= set(found["egraph"])
    assert sum(f["default"] for f in found["forms"]) == 1
    assert sum(f["chosen"] for f in found["forms"]) == 1
    assert all(f["max_rel_err"] < 1e-12 for f in found["forms"])


def test_schedules_are_listed_and_a_bad_line_names_near_ones() -> None:
    rows = json.loads(called("schedules", "--json", "-c", ROWS).stdout)["kernels"]
    assert rows[0]["size"] == len(rows[0]["lines"]) > 5
    last = rows[0]["lines"][-1]
    assert called("compile", "--schedule", last, "--ir", "cuda", "-c", ROWS).exit_code == 0
    assert called("compile", "--schedule", "WORK=t100", "-c", ROWS).exit_code == 2
    assert f"by default {rows[0]['default']}" in " ".join(called("schedules", "-c", ROWS).stdout.split())
    texts = [
        called("compile", "--ir", "cuda", "-c", ROWS, *pinned)
        for pinned in ((), ("--schedule", rows[0]["default"]))
    ]
    assert texts[0].stdout == texts[1].stdout


def test_a_spent_budget_still_gives_forms_and_says_what_stopped() -> None:
    spent = called("explore", "--json", "--budget", "nodes=1, extract=0", "-c", ROWS).stdout
    found = json.loads(spent)
    assert found["egraph"]["stop"] == "nodes"
    assert {p["stop"] for p in found["egraph"]["phases"]} == {"nodes"}
    assert found["forms"] and all(f["max_rel_err"] < 1e-9 for f in found["forms"])


BAD = {
    "no program": ("compile",),
    "a syntax error": ("compile", "-c", "torch.randn(2"),
    "no tensor": ("compile", "-c", "3 + 4"),
    "an unknown name": ("compile", "-c", "torch.relu(nothing)"),
    "an unknown operator": ("compile", "-c", "torch.banana(torch.randn(2))"),
    "mismatched shapes": ("compile", "-c", "torch.randn(2, 3) @ torch.randn(4, 5)"),
    "an unknown target": ("compile", "--target", "sm_banana", "-c", ROWS),
    "an unknown level": ("compile", "--ir", "banana", "-c", ROWS),
    "an unknown key": ("compile", "--schedule", "BANANA=1", "-c", ROWS),
    "a form that is not there": ("compile", "--form", "99", "-c", ROWS),
    "a missing file": ("compile", "nowhere.py:fn"),
    "an unknown numerics": ("explore", "--numerics", "sloppy", "-c", ROWS),
    "an unknown format": ("dump", "--format", "banana", "-c", ROWS),
    "an unknown law": ("laws", "banana"),
    "an unknown suffix": ("compile", "-o", "x.banana", "-c", ROWS),
    "an unknown place": ("run", "--on", "banana", "-c", ROWS),
    "no number": ("compile", "--form", "abc", "-c", ROWS),
    "a negative form": ("compile", "--form", "-1", "-c", ROWS),
    "an empty level": ("compile", "--ir", "", "-c", ROWS),
    "a program that exits": ("compile", "-c", "exit()"),
    "a program whose first statement exits": ("compile", "-c", "raise SystemExit(0)\n1"),
    "a program that eager refuses": ("run", "--on", "cpu", "-c", "torch.tensor([1, 2]) // 0"),
    "a folder that cannot be made": ("compile", "--dump", "/dev/null", "-c", ROWS),
    "a file that cannot be written": ("dump", "-o", "/nowhere/x.json", "-c", ROWS),
    "an input with a gap": ("compile", "--input", "f32[3,,4]", "math:sin"),
    "no command of that name": ("banana",),
    "a bound that is none": ("explore", "--budget", "nodes=few", "-c", ROWS),
    "a bound written otherwise": ("explore", "--budget", "nodes=1e9", "-c", ROWS),
    "a bound without a name": ("explore", "--budget", ",", "-c", ROWS),
    "a region for a format that holds all": ("dump", "--region", "0", "-c", ROWS),
    "a region that is not there": ("dump", "--format", "dot", "--region", "7", "-c", ROWS),
    "no law's name": ("explore", "--without", "", "-c", ROWS),
    "no module's name": ("explore", ":fn"),
    "no function's name": ("explore", "math:"),
    "a relative module": ("explore", ".math:sin"),
    "an unknown pass": ("compile", "--print-after", "banana", "-c", ROWS),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_is_refused_with_code_2(what: str) -> None:
    outcome = called(*BAD[what])
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("eggtile: ")
    assert "Traceback" not in outcome.stderr


def test_a_command_that_is_stopped_while_it_is_imported_ends_quietly() -> None:
    command = [sys.executable, "-m", "eggtile", "explore", "-c", ROWS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "") and process.returncode == 130


def test_a_command_that_is_stopped_ends_with_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "started", stopped)
    outcome = called("run", "--on", "cpu", "-c", ROWS)
    assert outcome.exit_code == 130 and outcome.stderr in ("", "eggtile: stopped\n")


BOUNDS = {
    "nodes=1e9": "nodes is a whole number from 0, written in digits, not 1e9",
    "nodes=-1": "nodes is a whole number from 0, written in digits, not -1",
    "iterations=1.5": "iterations is a whole number from 0, written in digits, not 1.5",
    "seconds=inf": "seconds is a number of seconds from 0, like 2 or 0.5, written in digits, not inf",
    "seconds": "seconds is a number of seconds from 0, like 2 or 0.5, written in digits, not nothing",
    "nodes=5,nodes=6": "gives nodes twice",
    "knots=5": "give nodes=NUMBER, seconds=NUMBER",
}


@pytest.mark.parametrize("text", BOUNDS)
def test_a_bound_that_is_refused_is_said_to_be_wrong_how(text: str) -> None:
    outcome = called("explore", "--budget", text, "-c", ROWS)
    assert outcome.exit_code == 2 and BOUNDS[text] in outcome.stderr


IDLE = {
    "torch.randn(4, 8).tolist()": "a number or an extent of it depends on data",
    "x = torch.randn(4)\nx[x > 0]": "an extent of it depends on data",
    "torch.randn(4)": "every output is an input or a view of one, so nothing is computed",
}


@pytest.mark.parametrize("code", IDLE)
def test_a_program_without_a_kernel_is_told_why(code: str, tmp_path: Path) -> None:
    for command in (("explore",), ("schedules",)):
        outcome = called(*command, "-c", code)
        assert outcome.exit_code == 0 and IDLE[code] in outcome.stdout
    for command in (("compile", "--ir", "form"), ("compile", "--ir", "cuda"), ("dump", "--format", "text")):
        outcome = called(*command, "-c", code)
        assert outcome.exit_code == 0 and IDLE[code] in outcome.stderr and not outcome.stdout.strip()
    for asked in (
        ("compile", "--print-after", "all"),
        ("explore", "--why", "0", "default"),
        ("explore", "--without", "squares_about_a_mean"),
        ("dump", "--format", "dot"),
    ):
        outcome = called(*asked, "-c", code)
        assert outcome.exit_code == 2 and outcome.stderr
    dumped = json.loads(called("dump", "-c", code).stdout)
    assert dumped["notes"] == json.loads(called("schedules", "--json", "-c", code).stdout)["notes"]
    assert called("explore", "--html", str(tmp_path / "x.html"), "-c", code).exit_code == 0
    assert IDLE[code] in (tmp_path / "x.html").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("command", ["dump --format json -o", "compile --dump", "explore --html"])
def test_a_file_that_cannot_be_written_is_named(command: str, tmp_path: Path) -> None:
    path = tmp_path / "full" / "00_torch.txt"
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    place = path.parent if command == "compile --dump" else path
    outcome = called(*command.split(), str(place), "-c", ROWS)
    assert outcome.exit_code == 2
    assert f"eggtile: {path} cannot be written: No space left on device" in outcome.stderr


def test_odd_names_are_refused_as_such() -> None:
    said = {("explore", ":fn"): "a program is file.py:name or module:name, not :fn",
            ("explore", ".math:sin"): ".math names no module and no file that ends in .py",
            ("explore", "--without", "", "-c", ROWS): "no law is named by an empty text; "}  # fmt: skip
    for command, sentence in said.items():
        assert sentence in called(*command).stderr


def test_the_table_of_kernels_counts_the_blocks_of_clusters() -> None:
    code = "nn.RMSNorm(4096)(torch.randn(2, 4096))"
    shown = called("compile", "--schedule", "WORK=t512+c8 TILE=x1:4096", "-c", code).stdout
    (row,) = (line for line in shown.splitlines() if "+c8" in line)
    assert [cell.strip() for cell in row.split("│")][3:5] == ["512", "16"]


LONG = "z" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--on", LONG, "-c", ROWS), ("compile", "--ir", LONG, "-c", ROWS), ("compile", "--target", LONG, "-c", ROWS),
        ("compile", "--numerics", LONG, "-c", ROWS), ("explore", "--budget", LONG, "-c", ROWS), ("laws", LONG),
        ("explore", "--budget", f"nodes={LONG}", "-c", ROWS), ("explore", "--why", LONG, "0", "-c", ROWS),
        ("compile", "--form", LONG, "-c", ROWS), ("dump", "--format", LONG, "-c", ROWS), ("compile", LONG),
        ("run", "--on", "cpu", "--hits", LONG, "-c", ROWS), ("bench", "--against", LONG, "-c", ROWS),
        ("compile", "--print-after", LONG, "-c", ROWS), ("compile", "--input", LONG, "math:sin"), (LONG,),
        ("compile", "-c", f"torch.relu({LONG})"), ("compile", "-c", f"1 +* {LONG}"), ("compile", "-c", f"{LONG}\n1"),
        ("run", "--on", "cpu", "-c", f"torch.randn(3) @ torch.randn(4 + 0*len('{LONG}'))"),
    ],
)  # fmt: skip
def test_refusals_are_one_short_line_however_long_the_text_that_they_refuse(arguments: tuple[str, ...]) -> None:
    refused = called(*arguments)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("eggtile: ") and refused.stderr.count("\n") == 1
    assert len(refused.stderr) < 600, refused.stderr
