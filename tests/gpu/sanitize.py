"""compute-sanitizer over every distinct kernel of the memory-bound cases at reduced sizes, and over planted faults.

Run as `python -m tests.gpu.sanitize FILE`, FILE being what `python -m tests.gpu.kernels` wrote: prints a table of tools
by kernels, and exits with the number of kernels with reports and of planted faults that their tool has not found.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from codegen import gpu
from codegen.compile import compile_text
from ir.kernel import KernelProgram
from tests.codegen.hand_built import buffer
from tests.gpu.launches import Step, Subject, load, save

WIDE = 64
"""Threads of a planted kernel, and elements of its buffers."""
PLANTED = {
    "memcheck": "y[threadIdx.x + 1] = x[threadIdx.x];",
    "racecheck": "__shared__ float s[64]; s[threadIdx.x] = x[threadIdx.x]; y[threadIdx.x] = s[63 - threadIdx.x];",
    "initcheck": "y[threadIdx.x] = y[63 - threadIdx.x] + x[threadIdx.x];",
    "synccheck": "if (threadIdx.x < 40) __syncthreads();\n"
    "  y[threadIdx.x] = x[threadIdx.x];\n"
    "  if (threadIdx.x >= 40) __syncthreads();\n"
    "  if (threadIdx.x <= 16) __syncwarp(0xffff);\n"
    "  y[threadIdx.x] += x[63 - threadIdx.x];",
}
"""What each tool must find: a write past the end, a missing barrier, a read of what nothing wrote, and barriers
that some threads of a warp pass by or that others have not named."""
SECONDS = 150
ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


@dataclass(frozen=True)
class Report:
    """What a tool says of the kernels of one file: reports by kernel, their number, and how the process ended."""

    by_kernel: dict[str, int]
    errors: int | None
    end: str


def planted(tool: str, target: str) -> Subject:
    """A kernel with the fault that a tool must find."""
    entry = f"planted_{tool}"
    text = f'extern "C" __global__ void {entry}(float* y, const float* x) {{\n  {PLANTED[tool]}\n}}\n'
    buffers = {"y": buffer("y", "f32", WIDE, role="output"), "x": buffer("x", "f32", WIDE)}
    program = KernelProgram(entry, tuple(buffers.values()), WIDE, 1, ())
    step = Step(program, compile_text(text, target, entry), ("y", "x"))
    return Subject(entry, (step,), buffers, ("x",), {}, () if tool == "memcheck" else ("y",))


def watched(tool: str, file: Path, names: list[str]) -> Report:
    """One process of compute-sanitizer that launches every kernel of a file once."""
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "10000", "--report-api-errors", "no"]
    command += ["--padding", "64"] if tool == "memcheck" else []
    command += [sys.executable, "-m", "tests.gpu.launches", str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as e:
        return Report({}, None, f"stopped after {SECONDS} s: {(e.stdout or b'')[-300:]!r}")
    said = done.stdout + done.stderr
    summary = [int(a or b) for a, b in ERRORS.findall(said)]
    found = {n: sum(n in line for line in said.splitlines() if line.startswith("=====")) for n in names}
    end = "" if summary and not done.returncode else f"exit {done.returncode}: {said.strip()[-500:]}"
    return Report(found, sum(summary) if summary else None, end)


def watch_all(subjects: list[Subject], target: str) -> tuple[dict[str, Report], dict[str, Report]]:
    """The reports of every tool on the subjects, and on the fault planted for it; all processes run side by side."""
    names = [s.program.name for subject in subjects for s in subject.steps]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        save(subjects, Path(folder) / "subjects")
        ours, faults = {}, {}
        for tool in PLANTED:
            save([planted(tool, target)], Path(folder) / tool)
            ours[tool] = pool.submit(watched, tool, Path(folder) / "subjects", names)
            faults[tool] = pool.submit(watched, tool, Path(folder) / tool, [f"planted_{tool}"])
        return {t: f.result() for t, f in ours.items()}, {t: f.result() for t, f in faults.items()}


def show(subjects: list[Subject], ours: dict[str, Report], faults: dict[str, Report]) -> int:
    """Print the table; the number of failures."""
    names = [s.program.name for subject in subjects for s in subject.steps]
    failures = 0
    for n in names:
        cells = ["ended" if r.errors is None else str(r.by_kernel[n] or "clean") for r in ours.values()]
        failures += any(c != "clean" for c in cells)
        print(f"{n:60} " + " ".join(f"{c:>10}" for c in cells))
    for tool, r in ours.items():
        failures += bool(r.errors) and not any(r.by_kernel.values())
        print(f"{tool}: {r.errors} reports on {len(names)} kernels {r.end}")
    for tool, r in faults.items():
        found = bool(r.errors) and bool(r.by_kernel[f"planted_{tool}"])
        failures += not found
        print(f"{'found' if found else 'MISSED':6} the planted fault for {tool}{'' if found else ': ' + r.end}")
    return failures


def main(path: Path) -> int:
    """Watch the kernels of the file; the number of failures."""
    usable, why = gpu.available()
    if not usable:
        print(why)
        return 1
    subjects = load(path)
    ours, faults = watch_all(subjects, gpu.device_target())
    print(f"{'kernel':60} " + " ".join(f"{t:>10}" for t in ours))
    failures = show(subjects, ours, faults)
    print(f"{failures} failures")
    return failures


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
