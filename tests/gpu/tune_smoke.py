"""The measuring loop on a GPU: a row kernel tuned, tuned again for nothing, and planted faults named.

Run as `python -m tests.gpu.tune_smoke`; prints one line a check and exits with the number of failures.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from codegen import gpu
from codegen.worker import Worker
from eggtile.cli_tune import clocks, here, print_report
from eggtile.pipeline import Options, compile_program
from eggtile.tuner import Build, Built, Limits, Report, Tuner, build, tune
from extract.evidence import Evidence
from extract.key import Canonical
from extract.spaces import space
from ir.loop import Buffer
from ir.machine import Machine
from ir.schedule import Schedule

COLUMNS = 2048
LIMITS = Limits(lines=12, candidate_s=10.0)
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


def tuned(path: Path, faults: Sequence[str] = ()) -> Report:
    """One tuning run on a store."""
    evidence = Evidence(path)
    options = Options(target=gpu.device_target(), evidence=evidence)
    worker = Worker()
    tuner = Tuner(options.machine(), evidence, here(options.machine(), True), worker, LIMITS, clocks)
    tuner.build = planted(faults) if faults else build
    try:
        return tune(normal, [torch.randn(1, 32, COLUMNS), torch.randn(COLUMNS)], "rows", options, tuner)
    finally:
        worker.close()
        evidence.close()


def main() -> int:
    """Run every check; the number that failed."""
    usable, why = gpu.available()
    if not usable:
        print(why)
        return 1
    results: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "evidence.sqlite"
        inputs = [torch.randn(1, 32, COLUMNS), torch.randn(COLUMNS)]
        lines = lines_of(inputs, Options(target=gpu.device_target()))
        first = tuned(path)
        print_report(first)
        row = next(k for k in first.kernels if k.key in first.chosen)
        results["twelve lines are measured, none fails"] = row.measured >= 1 and not row.failures
        results["the best is no slower than the default"] = bool(
            row.best_us and row.default_us and row.best_us <= row.default_us
        )
        again = tuned(path)
        results["a second run measures nothing"] = again.measured == 0
        third = tuned(Path(folder) / "planted.sqlite", lines)
        print_report(third)
        row = next(k for k in third.kernels if k.default == lines[0])
        status = {f.line: f.status for f in row.failures}
        for line, (name, (wanted, _)) in zip(lines, PLANTED.items(), strict=False):
            results[f"a {name} kernel is {wanted}"] = status.get(line) == wanted
        results["no planted line wins"] = row.best not in lines[: len(PLANTED)]
    for name, fine in results.items():
        print(f"{'ok' if fine else 'fail':4} {name}")
    return sum(not fine for fine in results.values())


if __name__ == "__main__":
    sys.exit(main())
