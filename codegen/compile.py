"""CUDA text to cubin and PTX by NVRTC, which needs neither a GPU nor a driver.

Products and sums contract into fused multiply-adds, as nvcc does by default; nothing else departs from IEEE: true
division and square root, subnormals kept.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

from cuda.bindings import nvrtc

from codegen.resources import read_log
from ir.machine import TARGETS
from ir.node import IRError

OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--diag-suppress=177")
_PLACE = re.compile(r"^\S*?\((\d+)\): (?:catastrophic )?error: (.*)$", re.MULTILINE)


class CompileError(IRError):
    """A text that does not compile; the message has the compiler's first sentence and the line it speaks of."""


@dataclass(frozen=True)
class Binary:
    """What NVRTC makes of one text, and the resources that ptxas reports: the maximum over the text's kernels."""

    name: str
    target: str
    cubin: bytes
    ptx: str
    log: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    seconds: float


def compile_text(text: str, target: str, name: str = "kernel", contract: bool = True) -> Binary:
    """Compile `text` for a target such as sm_90a; `contract` lets a * b + c round once. Raises `CompileError`."""
    check_target(target)
    start = time.perf_counter()
    program = _created(text, f"{name}.cu")
    options = [f"--gpu-architecture={target}", f"--fmad={str(contract).lower()}", *OPTIONS]
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _read(program, "ProgramLog").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(_explain(name, target, text, log.strip("\0\n")))
        cubin = _read(program, "CUBIN")
        ptx = _read(program, "PTX").rstrip(b"\0").decode()
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    used = read_log(log)
    seconds = time.perf_counter() - start
    return Binary(name, target, cubin, ptx, log, used.registers, used.spill_bytes, used.shared_bytes, seconds)


def compile_all(texts: Sequence[tuple[str, str]], target: str, threads: int = 2) -> list[Binary]:
    """Compile (text, name) pairs side by side; NVRTC releases the interpreter while it works."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda named: compile_text(named[0], target, named[1]), texts))


def to_ptx(text: str, target: str) -> str:
    """The PTX of `text`."""
    return compile_text(text, target).ptx


@cache
def supported() -> tuple[str, ...]:
    """The targets that this NVRTC compiles for, with the architecture-specific form of each machine's."""
    _, archs = nvrtc.nvrtcGetSupportedArchs()
    numbers = {int(a) for a in archs}
    known = {t for t in TARGETS if int(re.sub(r"\D", "", t)) in numbers}
    return tuple(sorted(known | {f"sm_{n}" for n in numbers}, key=lambda t: (int(re.sub(r"\D", "", t)), t)))


def check_target(target: str) -> None:
    """Refuse a target for which no code can be made, naming the nearest that exists."""
    if target not in supported():
        nearest = difflib.get_close_matches(target, supported(), n=1, cutoff=0)[0]
        raise CompileError(f"no code can be made for target {target}; the nearest that NVRTC knows is {nearest}")


def _created(text: str, file: str) -> nvrtc.nvrtcProgram:
    status, program = nvrtc.nvrtcCreateProgram(text.encode(), file.encode(), 0, [], [])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC could not take up {file}: {status}")
    return program


def _read(program: nvrtc.nvrtcProgram, what: str) -> bytes:
    """One of the program's outputs: PTX, CUBIN or ProgramLog."""
    _, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    buffer = b" " * int(size)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer


def _explain(name: str, target: str, text: str, log: str) -> str:
    found = _PLACE.search(log)
    if not found:
        return f"{name} does not compile for {target}:\n{log}"
    number = int(found[1])
    lines = text.splitlines()
    around = [
        f"{'>' if n == number else ' '}{n:5} {lines[n - 1]}"
        for n in range(max(1, number - 2), min(len(lines), number + 2) + 1)
    ]
    return "\n".join([f"{name} does not compile for {target}: line {number}: {found[2]}", *around, log])
