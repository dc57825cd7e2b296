"""The measuring loop on a GPU: a row kernel tuned, tuned again for nothing, and planted faults named.

Run as `python -m tests.gpu.tune_smoke`; prints one line a check and exits with the number of failures.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from codegen import gpu
from eggtile.candidates import Limits
from eggtile.cli_tune import print_report
from eggtile.pipeline import Options, compile_program
from eggtile.tuner import Build, Built, build
from eggtile.tuning import Report, tune, tuner_of
from extract.evidence import Evidence
from extract.key import Canonical
from extract.measurement import FORM, Measurement
from extract.spaces import space
from ir.loop import Buffer
from ir.machine import Machine
from ir.schedule import Schedule

COLUMNS = 2048
LIMITS = Limits(candidate_s=10.0)
KILLED_LINES = 6
PLANTED: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "wrong": ("wrong", lambda body: body.replace("rsqrtf(", "sqrtf(")),
    "hanging": ("hung", lambda body: "while (true) __nanosleep(1000);\n" + body),
    "far outside": ("crashed", lambda body: "b0[1ull << 40] = 1;\n" + body),
    "just outside": ("wrong", lambda body: "if (threadIdx.x == 0) b0[-1] = 1;\n" + body),
}
"""What goes wrong in a kernel, the status that it must get, and the change of its body; b0 is what it writes.

A loop without an effect may be left out by a compiler; one that sleeps stays.
"""
_PARAMETERS = re.compile(r"(extern \"C\" __global__[^{]*\{\n)")


def normal(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A row kernel: one fold, and a map that reads the row again."""
    return torch.nn.functional.rms_norm(x, (COLUMNS,), w)


def planted(lines: Sequence[str]) -> Build:
    """A build that spoils the text of the first lines, one fault each."""
    faults = dict(zip(lines, PLANTED, strict=False))

    def made(known: Canonical, buffers: Sequence[Buffer], line: Schedule, machine: Machine) -> Built:
        (program, text), *later = build(known, buffers, line, machine)
        if str(line) in faults:
            text = spoiled(text, faults[str(line)])
        return ((program, text), *later)

    return made


def spoiled(text: str, fault: str) -> str:
    """The text of a kernel with a planted fault."""
    head, signature, body = _PARAMETERS.split(text, maxsplit=1)
    return head + signature + PLANTED[fault][1](body)


def lines_of(inputs: Sequence[torch.Tensor], options: Options) -> list[str]:
    """The space of the one kernel, best first by the model."""
    (k,) = compile_program(normal, inputs, options=options).kernels
    found = space(k.canonical.kernel, k.buffers, k.canonical.axes, options.machine())
    print(f"     {found.size} lines, the first is {found.lines[0]}")
    return [str(line) for line in found.lines]


def exponentials(x: torch.Tensor) -> torch.Tensor:
    """A program of several forms, so of several kernels to measure one after the other."""
    return torch.softmax(x, -1)


def tuned(
    path: Path, faults: Sequence[str] = (), fn: Callable[..., torch.Tensor] = normal, lines: int = 12
) -> Report:
    """One tuning run on a store."""
    evidence = Evidence(path)
    options = Options(target=gpu.device_target(), evidence=evidence)
    inputs = [torch.randn(1, 32, COLUMNS), torch.randn(COLUMNS)]
    try:
        with tuner_of(options, replace(LIMITS, lines=lines)) as tuner:
            tuner.build = planted(faults) if faults else build
            return tune(fn, inputs if fn is normal else inputs[:1], "rows", tuner)
    finally:
        evidence.close()


def killed(path: Path) -> tuple[list[Measurement], Report]:
    """What a tuning run had stored when it was killed in the middle, and the run after it."""
    process = subprocess.Popen([sys.executable, "-m", __spec__.name, str(path)])
    store, deadline = Evidence(path), time.monotonic() + 90
    while len(store.rows(status="ok")) < KILLED_LINES and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    stored = store.rows()
    store.close()
    return stored, tuned(path, fn=exponentials, lines=KILLED_LINES)


def check_rows(folder: Path, lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """A row kernel is tuned, and tuned again for nothing."""
    start = time.monotonic()
    first = tuned(folder / "evidence.sqlite")
    seconds = time.monotonic() - start
    print_report(first)
    row = next(k for k in first.kernels if k.key in first.chosen)
    yield "twelve lines are measured, none fails", row.measured == 12 and not row.failures
    yield f"in under 60 s ({seconds:.1f} s)", seconds < 60
    fastest = bool(row.best_us and row.default_us and row.best_us <= row.default_us)
    yield "the best is no slower than the default", fastest
    again = tuned(folder / "evidence.sqlite")
    yield "a second run measures nothing", again.measured == again.forms_timed == 0


def check_planted(folder: Path, lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Planted faults are named, and none wins."""
    report = tuned(folder / "planted.sqlite", lines)
    print_report(report)
    row = next(k for k in report.kernels if k.default == lines[0])
    status = {f.line: f.status for f in row.failures}
    for line, (name, (wanted, _)) in zip(lines, PLANTED.items(), strict=False):
        yield f"a {name} kernel is {wanted}", status.get(line) == wanted
    yield "no planted line wins", row.best is not None and row.best not in lines[: len(PLANTED)]


def check_killed(folder: Path, lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """A run that is killed loses nothing, and the next one goes on from there."""
    before, report = killed(folder / "killed.sqlite")
    store = Evidence(folder / "killed.sqlite")
    after = store.rows()
    store.close()
    kernels = [m for m in before if m.family != FORM]
    print(f"     killed with {len(kernels)} lines stored; {report.measured} measured after that")
    yield "a killed run was in the middle", bool(kernels) and report.measured > 0
    yield "nothing that it had stored is lost", set(kernels) <= set(after)
    yield "the next run takes it over", sum(k.known for k in report.kernels) >= len(kernels)


def main() -> int:
    """Run every check; the number that failed."""
    usable, why = gpu.available()
    if not usable:
        print(why)
        return 1
    results: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as folder:
        inputs = [torch.randn(1, 32, COLUMNS), torch.randn(COLUMNS)]
        lines = lines_of(inputs, Options(target=gpu.device_target()))
        for check in (check_rows, check_planted, check_killed):
            results |= dict(check(Path(folder), lines))
    for name, fine in results.items():
        print(f"{'ok' if fine else 'fail':4} {name}")
    return sum(not fine for fine in results.values())


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the run that is killed
        tuned(Path(sys.argv[1]), fn=exponentials, lines=KILLED_LINES)
    sys.exit(main() if len(sys.argv) == 1 else 0)
