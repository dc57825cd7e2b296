"""A device without a GPU that computes a * 2 + 1 in numpy, and fails in planted ways for planted lines."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

from codegen import cpu
from codegen.gate import GUARD_BYTES
from codegen.gpu import Time
from codegen.worker import Code, Lap
from ir.dtype import Array, storage_type


def command(
    plan: Mapping[str, str], us: Mapping[str, float] | None = None, emulated: bool = False
) -> tuple[str, ...]:
    """The command of a worker on this device: what goes wrong by line, and times by line, or of any `form` of kernels."""
    arguments = ", ".join(repr(json.dumps(x)) for x in (plan, us or {}, emulated))
    made = f"from {__name__} import Fake; from codegen.worker import main; main(Fake({arguments}))"
    return sys.executable, "-c", made


class Fake:
    """Runs candidates right but for the lines of the plan; `emulated` runs their text on the CPU instead."""

    def __init__(self, plan: str, us: str, emulated: str) -> None:
        self.plan, self.us, self.emulated = json.loads(plan), json.loads(us), json.loads(emulated)

    def open(self, images: Sequence[Sequence[Array]], starts: Sequence[int]) -> None:
        self.images, self.starts = images, starts

    def load(self, code: Code) -> Code:
        return code

    def run(self, code: Code, trial: int, after: Sequence[Array]) -> None:
        planted = self.plan.get(code.line, "")
        if planted == "hang":
            time.sleep(1000)
        if planted == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if planted == "fault":
            raise RuntimeError("an illegal memory access was encountered")
        buffers = dict(x for k in code.launches for x in zip(k.arguments, k.kernel.buffers, strict=True))
        memory = []
        for n, (old, i, s) in enumerate(zip(self.images[trial], after, self.starts, strict=True)):
            np.copyto(i, old)
            memory.append(i[s:-GUARD_BYTES].view(storage_type(buffers[n].dtype)))
        if self.emulated:
            own = [np.zeros(b.size, storage_type(b.dtype)) for b in code.scratch]
            program = cpu.Program([(k.kernel, k.text) for k in code.launches])
            launches = [cpu.Launch(n, k.arguments) for n, k in enumerate(code.launches)]
            program.run_all(launches, [*memory, *own], filled=[True] * len(memory) + [False] * len(own))
        else:
            out, x = (next(n for n, b in buffers.items() if b.role == r) for r in ("output", "input"))
            memory[out][:] = memory[x] * np.float32(2) + np.float32(1)
            if planted == "one element":
                memory[out][77] += 1
            if planted == "outside":
                after[out][-GUARD_BYTES] = 0
            if planted == "input":
                memory[x][3] = 5
            if planted == "unwritten":
                memory[out][-1] = np.nan
            if planted == "racy":
                memory[out][0] = np.nextafter(memory[out][0], np.float32(time.perf_counter_ns() % 2 * 1e9))
        if planted == "wrong":
            memory[0][1:2] += 1

    def race(self, loaded: Sequence[Code], cold: Sequence[bool], rounds: int) -> list[Lap]:
        for code in loaded:
            if self.plan.get(code.line) == "hang in race":
                time.sleep(1000)
            if self.plan.get(code.line) == "crash in race":
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.us.get("seconds", 0.0))
        us = [self.us.get(code.line, self.us.get("form" if " | " in code.line else "", 9.0)) for code in loaded]
        return [Lap(Time(t, t * 0.99, t * 1.01, rounds), True) for t in us]
