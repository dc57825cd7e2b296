"""What only a GPU can show: emitted kernels against numpy and the CPU run, graphs, and a copy kernel's bandwidth.

Run as `python -m tests.gpu.smoke`; prints one line a check and exits with the number of failures.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from codegen import cpu, gpu
from codegen.compile import compile_text
from codegen.emit import emit
from ir.dtype import Array, from_storage, is_float, storage_type, to_storage
from ir.kernel import BLOCK, THREAD, KernelProgram, Let
from ir.kernel import Array as Registers
from ir.machine import H200
from tests.codegen.hand_built import add, buffer, load, mul, row_scale, scalar, store
from tests.codegen.test_compile import every_operator
from tests.codegen.test_cpu import ALL, SCATTERS, VECTORS, copy_kernel, padded, samples, scatter_kernel

ULPS = 8  # of CUDA's library against the C library's
# Their arguments are reduced, or their results cancel, in ways that the libraries do not share.
WIDE = frozenset({"o_pow", "o_tan", "o_sigmoid", "o_exp2", "o_mod", "o_floordiv", "o_fmod"})


def loaded(kernel: KernelProgram, target: str) -> gpu.Kernel:
    """The kernel compiled and loaded."""
    return gpu.Kernel(kernel, compile_text(emit(kernel), target, kernel.name))


def close(got: Array, want: Array, ulps: int) -> bool:
    """Equal, or within `ulps` of each other; NaN with NaN."""
    if got.dtype.kind != "f":
        return bool((got == want).all())
    with np.errstate(all="ignore"):
        room = ulps * np.spacing(np.abs(np.where(np.isfinite(want), want, 1)))
        fine = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= room)
    return bool(fine.all())


def operators(dtype: str, target: str, cache: Path) -> str:
    """Every operator and conversion of a type, GPU against CPU; the names of those that differ."""
    values = padded(samples(dtype))
    kernel = every_operator(dtype)
    pairs = [to_storage(np.resize(v, 32), dtype) for v in (values, values[::-1])]
    runs = []
    for _ in range(2):
        outs = [np.zeros(32, storage_type(b.dtype)) for b in kernel.buffers[2:]]
        runs.append([*(p.copy() for p in pairs), *outs])
    cpu.Program([(kernel, emit(kernel))], cache).run(0, runs[0])
    gpu.run(loaded(kernel, target), runs[1])
    wrong = []
    for b, host, device in zip(kernel.buffers[2:], *(r[2:] for r in runs), strict=True):
        ulps = 4 * ULPS if b.name in WIDE else ULPS if is_float(b.dtype) else 0
        if not close(from_storage(device, b.dtype), from_storage(host, b.dtype), ulps):
            wrong.append(b.name)
    return ", ".join(wrong)


def bytes_equal(kernels: list[KernelProgram], target: str, cache: Path) -> str:
    """Kernels of one input and one output whose bytes must equal those of the CPU run; the names that differ."""
    wrong = []
    program = cpu.Program([(k, emit(k)) for k in kernels], cache)
    for number, kernel in enumerate(kernels):
        x, y = kernel.buffers
        values = to_storage(np.resize(np.array([1, 1, 0, 1]), x.size).astype(storage_type(x.dtype)), x.dtype)
        ones = np.ones(y.size, storage_type(y.dtype))
        runs = [[values.copy(), ones.copy()], [values.copy(), ones.copy()]]
        program.run(number, runs[0], filled=[True, True])
        gpu.run(loaded(kernel, target), runs[1])
        if runs[0][1].tobytes() != runs[1][1].tobytes():
            wrong.append(kernel.name)
    return ", ".join(wrong)


def rows(target: str) -> str:
    """The row kernel against float64."""
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    y = np.zeros((8, 256), np.uint16)
    gpu.run(loaded(row_scale(), target), [x, y])
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)
    error = np.abs(from_storage(y, "bf16") - want).max() / np.abs(want).max()
    return "" if error <= 2.0**-8 else f"error {error:.1e}"


def stream_copy(blocks: int, threads: int = 256) -> KernelProgram:
    """y = x, 16 bytes a thread, streamed."""
    n = blocks * threads * 4
    at = mul(scalar("at"), 4)
    body = (
        Let("at", add(mul(BLOCK, threads), THREAD)),
        Registers("v", "f32", 4),
        load("v", "x", at, 4, cache="stream"),
        store("y", at, "v", 4, cache="stream"),
    )
    buffers = (buffer("x", "f32", n), buffer("y", "f32", n, role="output"))
    return KernelProgram("stream_copy", buffers, threads, blocks, body)


def graphs(target: str) -> str:
    """A graph replayed after its launches lost their last other reference; times hot and cold."""
    kernel = loaded(stream_copy(16384), target)
    size = gpu.span_bytes(kernel.kernel.buffers[0])
    x = np.random.default_rng(1).standard_normal(size // 4).astype(np.float32)
    source, out = gpu.upload(x), gpu.Memory(size)
    launch = kernel.bind([source, out])
    graph = gpu.Graph([launch])
    cold, hot = gpu.times([gpu.rotated([launch], {source.data_ptr(): size}), [[launch]]])
    del launch, source
    graph.replay()
    y = np.zeros_like(x)
    gpu.download(out, y)
    share = 2 * size / (cold.median_us * 1e-6) / H200.copy_bytes_per_s
    print(
        f"     cold {cold.median_us:.2f} us (spread {cold.spread:.1%}), hot {hot.median_us:.2f} us, {share:.0%} of copy"
    )
    return "" if (x == y).all() else "the copy differs"


def main() -> int:
    """Run every check; the number that failed."""
    usable, why = gpu.available()
    if not usable:
        print(why)
        return 1
    target = gpu.device_target()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        vectors = [copy_kernel(d, w, h) for d, w in VECTORS for h in ("default", "stream", "keep")]
        scatters = [scatter_kernel(m, d) for m, d in SCATTERS]
        checks: dict[str, Callable[[], str]] = {
            f"operators and conversions of {d}": lambda d=d: operators(d, target, cache)  # type: ignore[misc]
            for d in ALL
        }
        checks["vectors through shared memory"] = lambda: bytes_equal(vectors, target, cache)
        checks["scatters"] = lambda: bytes_equal(scatters, target, cache)
        checks["rows"] = lambda: rows(target)
        checks["graphs and times"] = lambda: graphs(target)
        for name, check in checks.items():
            wrong = check()
            failures += bool(wrong)
            print(f"{'fail' if wrong else 'ok':4} {name}{': ' + wrong if wrong else ''}")
    return failures


if __name__ == "__main__":
    sys.exit(main())
