"""Runs emitted kernels on the CPU: g++ compiles their text against `host_prelude.h`, and a worker process runs launches.

Declarations are replaced by checked ones (parameters, shared arrays, poisoned registers); statements stay as they are.
Programs are cached by their text under the user's cache directory, each with a digest behind it. A fault names kernel,
block, thread and reason.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from codegen.cuda_ops import STORAGE
from ir.dtype import DTYPES, Array
from ir.kernel import KernelProgram
from ir.node import IRError

PRELUDE = Path(__file__).with_name("host_prelude.h")
_FLAGS = """-std=c++17 -O1 -w -fwrapv -fno-strict-aliasing -fno-exceptions -fno-rtti -ffp-contract=off
-fno-threadsafe-statics -fsanitize=bounds -fsanitize-undefined-trap-on-error"""
FLAGS = tuple(_FLAGS.split())
ORDERS = {"forward": 0, "reverse": 1, "random": 2}
FAULT = 3
PAGE_BYTES = 4096
DIGEST_BYTES = 16
_CTYPE = "|".join(sorted(set(STORAGE.values()), key=len, reverse=True))


class CpuCompileError(IRError):
    """Emitted text that is not C++; the message has the compiler's first error."""


class CpuRunError(IRError):
    """A launch that broke a rule of the machine; says where and why."""

    def __init__(self, kernel: str, block: int, thread: int, reason: str) -> None:
        super().__init__(f"{kernel}, block {block}, thread {thread}: {reason}")
        self.kernel, self.block, self.thread, self.reason = kernel, block, thread, reason


@dataclass(frozen=True)
class Launch:
    """One kernel of a program, and for each of its buffers which of the arrays it is."""

    kernel: int
    arrays: tuple[int, ...]


class Program:
    """Kernels compiled together for the CPU; compiled when made, or found in the cache."""

    def __init__(self, kernels: Sequence[tuple[KernelProgram, str]], cache: Path | None = None) -> None:
        self.kernels = tuple(kernel for kernel, _ in kernels)
        self.executable = _compiled(host_text(kernels), cache or cache_directory())

    def run(
        self,
        k: int,
        arrays: Sequence[Array],
        order: str = "forward",
        seed: int = 0,
        filled: Sequence[bool] | None = None,
        limit_s: int = 60,
    ) -> None:
        """One launch of kernel `k` on one storage array a buffer, changed in place. See `run_all`."""
        self.run_all([Launch(k, tuple(range(len(arrays))))], arrays, order, seed, filled, limit_s)

    def run_all(
        self,
        launches: Sequence[Launch],
        arrays: Sequence[Array],
        order: str = "forward",
        seed: int = 0,
        filled: Sequence[bool] | None = None,
        limit_s: int = 60,
    ) -> None:
        """Run launches one after another on storage arrays, which are changed in place.

        A storage array is the whole memory of a buffer, flat or not, in `storage_type`; element 0 of the buffer stands
        at `Buffer.offset`. Reading an element that is neither in a `filled` array (by default those of input buffers)
        nor written before is a fault. Orders are forward, reverse and random (by `seed`). Raises `CpuRunError`.
        """
        if order not in ORDERS:
            raise IRError(f"no thread order is named {order}; there are {', '.join(ORDERS)}")
        uses = {a: b for lch in launches for a, b in zip(lch.arrays, self.kernels[lch.kernel].buffers, strict=True)}
        size, places, lines = PAGE_BYTES, [], []
        for k, array in enumerate(arrays):
            buffer = uses.get(k)
            if buffer is not None and array.itemsize != DTYPES[buffer.dtype].bytes:
                raise IRError(f"{buffer.name} holds {buffer.dtype}, but its array {array.dtype}")
            size += _gap(
                size,
                1 if buffer is None else buffer.alignment,
                0 if buffer is None else buffer.offset * array.itemsize,
            )
            full = filled[k] if filled is not None else buffer is None or buffer.role == "input"
            lines.append(f"{size} {array.itemsize} {array.size} {int(full)} {buffer.name[:63] if buffer else k}")
            places.append(size)
            size += array.nbytes
        for lch in launches:
            buffers = self.kernels[lch.kernel].buffers
            pointers = " ".join(f"{a} {b.offset}" for a, b in zip(lch.arrays, buffers, strict=True))
            lines.append(f"{lch.kernel} {ORDERS[order]} {seed} {len(buffers)} {pointers}")
        with tempfile.NamedTemporaryFile(prefix="eggtile-") as file:
            file.truncate(size)
            with mmap.mmap(file.fileno(), size) as memory:
                for at, array in zip(places, arrays, strict=True):
                    memory[at : at + array.nbytes] = np.ascontiguousarray(array).tobytes()
                head = f"{limit_s} {size} {len(arrays)} {len(launches)}"
                self._serve(file.name, "\n".join([head, *lines, ""]), limit_s)
                for at, array in zip(places, arrays, strict=True):
                    array[...] = np.frombuffer(memory[at : at + array.nbytes], array.dtype).reshape(array.shape)

    def _serve(self, path: str, request: str, limit_s: int) -> None:
        names = ", ".join(k.name for k in self.kernels)
        try:
            done = subprocess.run(
                [self.executable, path], input=request, capture_output=True, text=True, timeout=limit_s + 5
            )
        except subprocess.TimeoutExpired:
            raise CpuRunError(names, -1, -1, f"the worker did not end within {limit_s} s") from None
        if done.returncode == FAULT:
            kernel, block, thread, reason = done.stdout.rstrip("\n").split("\t", 3)
            raise CpuRunError(kernel, int(block), int(thread), reason)
        if done.returncode:
            raise CpuRunError(names, -1, -1, f"the worker ended with code {done.returncode}")


def _gap(at: int, alignment: int, offset: int) -> int:
    """Bytes to skip so that `at` + offset has the alignment and no higher one: a kernel may rely on no more."""
    return (alignment - at - offset) % (2 * alignment)


def cache_directory() -> Path:
    """Where compiled programs are kept: $XDG_CACHE_HOME/eggtile/cpu."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eggtile" / "cpu"


def host_text(kernels: Sequence[tuple[KernelProgram, str]]) -> str:
    """One C++ file with every kernel in its own namespace, a table of them, and main."""
    parts = [f'#include "{PRELUDE}"']
    rows = []
    for k, (kernel, text) in enumerate(kernels):
        parts.append(f'namespace k{k} {{\n#line 1 "{kernel.name}"\n{checked_declarations(text)}\n}}')
        arguments = [f"host::parameter<{t}>(views, {n})" for n, t in enumerate(_parameter_types(text))]
        rows.append(
            f'  {{"{kernel.name}", {kernel.threads}, {kernel.block_threads}, {kernel.blocks}, '
            f"[](void* views) {{ k{k}::{kernel.name}({', '.join(arguments)}); }}}},"
        )
    table = "\n".join(["static const host::Kernel kernels[] = {", *rows, "};"])
    return "\n".join([*parts, table, "int main(int, char** argv) { return host::serve(kernels, argv[1]); }", ""])


_SIGNATURE = re.compile(
    r'extern "C" __global__ void __launch_bounds__\([\d, ]+\)(?: __cluster_dims__\([\d, ]+\))?\n(\w+)\((.*)\) \{'
)
_PARAMETER = re.compile(rf"((?:const )?(?:{_CTYPE}))\* (?:__restrict__ )?(\w+)")
_SHARED = re.compile(rf"__shared__ (?:__align__\(\d+\) )?({_CTYPE}) (\w+)\[(\d+)\];")
_DYNAMIC = re.compile(rf"({_CTYPE})\* const (\w+) = \(\1\*\)\(smem \+ \d+\);  // (\d+) elements")
_STATIC_BARRIERS = re.compile(r"__shared__ unsigned long long (\w+)\[(\d+)\];")
_DYNAMIC_BARRIERS = re.compile(
    r"unsigned long long\* const (\w+) = \(unsigned long long\*\)\(smem \+ \d+\);  // (\d+) barriers"
)
_ALIAS = re.compile(rf"({_CTYPE})\* const (\w+) = \(\1\*\)(\w+);  // (\d+) elements there")
_REGISTERS = re.compile(rf"^( +(?:{_CTYPE}) (\w+)(?:\[\d+\])?;)$", re.MULTILINE)


def checked_declarations(text: str) -> str:
    """The text with checked parameters and shared arrays, and with poison in fresh registers, line by line."""
    parameters = _PARAMETER.sub(r"host::View<\1> \2", _signature(text)[2])
    head, body = _SIGNATURE.split(text, maxsplit=1)[0], text[_signature(text).end() :]
    body = re.sub(r"extern __shared__ .*;", "", body)
    several = {m[3] for m in _ALIAS.finditer(body)}

    def shared(m: re.Match[str]) -> str:
        return f'static host::Shared<{m[1]}, {m[3]}> {m[2]}("{m[2]}"{", true" if m[2] in several else ""});'

    body = _DYNAMIC.sub(shared, _SHARED.sub(shared, body))
    body = _ALIAS.sub(r'static host::Alias<\1, \4> \2("\2", \3);', body)
    for barriers in (_STATIC_BARRIERS, _DYNAMIC_BARRIERS):
        body = barriers.sub(r'static host::Barriers<\2> \1("\1");', body)
    body = _REGISTERS.sub(r"\1 host::poison(\2);", body)
    return f"{head}void\n{_signature(text)[1]}({parameters}) {{{body}"


def _parameter_types(text: str) -> list[str]:
    return [m[1] for m in _PARAMETER.finditer(_signature(text)[2])]


def _signature(text: str) -> re.Match[str]:
    found = _SIGNATURE.search(text)
    if found is None:
        raise CpuCompileError("the text has no kernel signature")
    return found


def _compiled(source: str, cache: Path) -> Path:
    key = hashlib.blake2b(digest_size=12)
    for part in (source.encode(), PRELUDE.read_bytes(), " ".join(FLAGS).encode()):
        key.update(part)
    executable = cache / key.hexdigest()
    if _whole(executable):
        return executable
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        made = Path(folder) / "program"
        command = ["g++", *FLAGS, "-x", "c++", "-", "-o", str(made)]
        done = subprocess.run(command, input=source, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error:" in line]
            raise CpuCompileError(f"g++: {errors[0] if errors else done.stderr.strip()}")
        with made.open("ab") as file:
            file.write(_digest(made.read_bytes()))
        made.replace(executable)
    return executable


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def _whole(executable: Path) -> bool:
    """Whether a cached program is there and is what was written."""
    if not os.access(executable, os.X_OK):
        return False
    content = executable.read_bytes()
    return _digest(content[:-DIGEST_BYTES]) == content[-DIGEST_BYTES:]
