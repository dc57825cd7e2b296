"""The emitted text on a CPU: meanings of operators and statements, and faults that must be found."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codegen.cpu import DIGEST_BYTES, CpuCompileError, CpuRunError, Launch, Program, _digest
from codegen.emit import emit
from codegen.resources import dynamic_shared_bytes
from ir.dtype import DTYPES, compute_type, from_storage, is_float, numpy_type, rounded, storage_type, to_storage
from ir.dtype import Array as Values
from ir.kernel import BLOCK, THREAD, Array, Barrier, For, KernelProgram, Let, LoadShared, Shared, StoreShared
from ir.node import IRError
from ir.ops import BINARY, MONOIDS, UNARY
from ir.term import Round, Term, binary, const, unary
from tests.codegen.hand_built import add, buffer, i32, load, mul, pointwise, register, row_scale, scalar, store

ALL = [name for name in DTYPES if name != "any"]
# Operators whose last bits depend on the library; all others must agree bit for bit.
_LOOSE = """
    exp exp_coarse exp2 expm1 log log2 log1p rsqrt sin cos tan asin acos atan sinh cosh tanh sigmoid sigmoid_coarse erf
    pow atan2
"""
LOOSE = frozenset(_LOOSE.split())
ULPS = 4


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cpu")


def samples(dtype: str) -> Values:
    """Values at the edges of a type and some in its middle, all exact in it."""
    rng = np.random.default_rng(7)
    if dtype == "bool":
        return np.array([False, True])
    if not is_float(dtype):
        least, most = np.iinfo(numpy_type(dtype)).min, np.iinfo(numpy_type(dtype)).max
        near = [v for v in (-70, -33, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 31, 40, 100) if v >= least]
        return np.array([*near, least, least + 1, most, most - 1], numpy_type(dtype))
    edge = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.75, 100.0, np.inf, -np.inf, np.nan]
    edge += [6e-8, -1e-40, 1e-310, 65504.0, 3e38, -3e38, 1e300, 2.0**31, 255.0, -129.0, 1 + 2**-9, 1 + 2**-12]
    return rounded(np.concatenate([np.array(edge), rng.standard_normal(12) * 3]), dtype)


def expected(op: str, *operands: Values, dtype: str, result: str) -> Values:
    held = [x.astype(numpy_type(compute_type(dtype))) for x in operands]
    rows = UNARY if op in UNARY else BINARY
    with np.errstate(all="ignore"):
        return np.asarray(rows[op].meaning(*held)).astype(numpy_type(result))


def check(name: str, got: Values, want: Values, loose: bool) -> None:
    if want.dtype.kind != "f":
        wrong = got != want
    else:
        with np.errstate(all="ignore"):
            room = ULPS * np.spacing(np.abs(np.where(np.isfinite(want), want, 1.0))) if loose else 0.0
            wrong = ~((got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= room))
    assert not wrong.any(), f"{name}: {got[wrong][:4]} should be {want[wrong][:4]}"


def term_or_none(make: Callable[[], Term]) -> Term | None:
    try:
        return make()
    except IRError:
        return None


def run_pointwise(
    cache: Path, dtype: str, terms: dict[str, Term], inputs: dict[str, Values], order: str
) -> dict[str, Values]:
    kernel = pointwise(f"ops_{dtype}", dict.fromkeys(inputs, dtype), list(terms.items()), len(inputs["a"]))
    arrays = [to_storage(v, dtype) for v in inputs.values()]
    arrays += [np.zeros(len(inputs["a"]), storage_type(t.dtype)) for t in terms.values()]
    Program([(kernel, emit(kernel))], cache).run(0, arrays, order)
    outs = arrays[len(inputs) :]
    return {n: from_storage(out, t.dtype) for (n, t), out in zip(terms.items(), outs, strict=True)}


def padded(values: Values) -> Values:
    return np.concatenate([values, np.repeat(values[:1], -len(values) % 32)])


@pytest.mark.parametrize("dtype", ALL)
def test_every_operator_means_what_numpy_says(dtype: str, cache: Path) -> None:
    one = padded(samples(dtype))
    pairs = np.array(list(itertools.product(samples(dtype), repeat=2)), dtype=one.dtype)
    inputs = {"a": padded(pairs[:, 0]), "b": padded(pairs[:, 1])}
    x, y = register("a_", dtype), register("b_", dtype)
    found = {f"u_{op}": term_or_none(lambda op=op: unary(op, x)) for op in UNARY}
    found |= {f"b_{op}": term_or_none(lambda op=op: binary(op, x, y)) for op in BINARY}
    found |= {
        "b_sub": term_or_none(lambda: binary("sub", x, y)),
        "b_div": term_or_none(lambda: binary("div", x, y)),
    }
    if dtype == "bool":  # numpy has no meaning for these
        found = {
            n: t
            for n, t in found.items()
            if n[2:] not in ("neg", "sub", "div", "pow", "floordiv", "mod", "fmod", "truncdiv", "shl", "shr")
        }
    terms = {n: t for n, t in found.items() if t is not None}
    assert len(terms) >= 15
    got = {order: run_pointwise(cache, dtype, terms, inputs, order) for order in ("forward", "random")}
    for name, t in terms.items():
        op, operands = name[2:], [inputs["a"]] if name[0] == "u" else [inputs["a"], inputs["b"]]
        if op == "sub":
            want = expected("add", operands[0], -operands[1], dtype=dtype, result=t.dtype)
        elif op == "div":
            with np.errstate(all="ignore"):
                want = np.asarray(operands[0].astype(numpy_type(t.dtype)) / operands[1].astype(numpy_type(t.dtype)))
        elif op == "pow" and not is_float(dtype):
            base, power = (v.astype(object) for v in operands)
            size = 1 << 8 * DTYPES[dtype].bytes
            exact = [
                pow(int(b), int(p) if p >= 0 else int(p) & 1, size) if p >= 0 or abs(int(b)) == 1 else 0
                for b, p in zip(base, power, strict=True)
            ]
            want = np.array([v % size for v in exact], np.uint64).astype(numpy_type(dtype))
        else:
            want = expected(op, *operands, dtype=dtype, result=t.dtype)
        for order in got:
            check(f"{op} {dtype} {order}", got[order][name], want, op in LOOSE)


@pytest.mark.parametrize("dtype", ALL)
def test_every_conversion_rounds_as_the_cast_does(dtype: str, cache: Path) -> None:
    values = padded(samples(dtype))
    x = register("a_", dtype)
    terms: dict[str, Term] = {f"to_{t}": Round(t, "cast", x) for t in ALL}
    got = run_pointwise(cache, dtype, terms, {"a": values}, "forward")
    for target in ALL:
        inside = np.ones(len(values), bool)
        if is_float(dtype) and DTYPES[target].kind in ("int", "uint"):  # outside, targets saturate or wrap
            inside = np.isfinite(values) & (np.abs(values) < 2.0 ** (8 * DTYPES[target].bytes - 1))
        check(f"{dtype} to {target}", got[f"to_{target}"][inside], rounded(values, target)[inside], False)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_a_row_kernel_gives_its_result_in_every_order(order: str, cache: Path) -> None:
    kernel = row_scale()
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    y = np.zeros((8, 256), np.uint16)
    Program([(kernel, emit(kernel))], cache).run(0, [x, y], order, seed=3)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)
    assert np.abs(from_storage(y, "bf16") - want).max() <= 2.0**-8 * np.abs(want).max()


VECTORS = [(d, w) for d in ALL for w in (1, 2, 4, 8, 16) if w * DTYPES[d].bytes <= 16]


def copy_kernel(dtype: str, width: int, cache_hint: str) -> KernelProgram:
    """y = x through shared memory, `width` elements at a time; threads whose elements are past 32 write zeros."""
    threads, n = 32, 32 * width
    at = mul(THREAD, width)
    mirrored = mul(binary("sub", i32(threads - 1), THREAD), width)
    inside = binary("lt", THREAD, i32(24))
    zeros = const(0, dtype)
    name = f"copy_{dtype}_{width}"
    body = (
        Shared("tile", dtype, n),
        Array("v", dtype, width),
        load("v", "x", at, width, dtype, cache=cache_hint, pred=inside),
        StoreShared("tile", at, "v", i32(0), width),
        Barrier(),
        LoadShared("v", i32(0), "tile", mirrored, width, binary("lt", THREAD, i32(28)), zeros),
        store("y", at, "v", width, cache=cache_hint),
    )
    return KernelProgram(name, (buffer("x", dtype, n), buffer("y", dtype, n, role="output")), threads, 1, body)


@pytest.mark.parametrize("hint", ["default", "stream", "keep"])
def test_vectors_of_every_type_pass_through_shared_memory(hint: str, cache: Path) -> None:
    kernels = [copy_kernel(d, w, hint) for d, w in VECTORS]
    program = Program([(k, emit(k)) for k in kernels], cache)
    for number, (dtype, width) in enumerate(VECTORS):
        x = to_storage(np.resize(samples(dtype), 32 * width), dtype)
        y = np.ones_like(x)
        program.run(number, [x, y], "random", seed=number)
        want = np.where(np.arange(32)[:, None] < 24, x.reshape(32, width), np.zeros_like(x[:1]))[::-1]
        want = np.where(np.arange(32)[:, None] < 28, want, np.zeros_like(x[:1])).reshape(-1)
        assert y.tobytes() == want.tobytes(), f"{dtype} x {width}"


def scatter_kernel(monoid: str, dtype: str) -> KernelProgram:
    """y[t % 5] (+)= x[t] over 64 threads of two blocks."""
    at = add(mul(BLOCK, 32), THREAD)
    body = (
        Let("at", at),
        Array("v", dtype, 1),
        load("v", "x", scalar("at"), dtype=dtype),
        store("y", binary("mod", scalar("at"), i32(5)), "v", monoid=monoid),
    )
    buffers = (buffer("x", dtype, 64), buffer("y", dtype, 5, role="output"))
    return KernelProgram(f"scatter_{monoid}_{dtype}", buffers, 32, 2, body)


SCATTERS = [(m, d) for m in ("add", "mul", "max", "min") for d in ALL if d != "bool"]
SCATTERS += [(m, d) for m in ("and", "or") for d in ("bool", "u8", "i16", "i32", "i64")]


def test_scatters_of_every_monoid_and_type_combine_all_updates(cache: Path) -> None:
    kernels = [scatter_kernel(m, d) for m, d in SCATTERS]
    program = Program([(k, emit(k)) for k in kernels], cache)
    rng = np.random.default_rng(5)
    for number, (monoid, dtype) in enumerate(SCATTERS):
        small = rng.integers(0 if dtype in ("u8", "bool") else -2, 3, 64)
        x, start = rounded(np.where(small == 0, 1, small), dtype), rounded(np.ones(5), dtype)
        y = to_storage(start.copy(), dtype)
        program.run(number, [to_storage(x, dtype), y], "random", seed=number, filled=[True, True])
        meaning = BINARY[MONOIDS[monoid].combine].meaning
        want = start.copy()
        for k, value in enumerate(x):
            want[k % 5] = rounded(np.asarray(meaning(want[k % 5], value)), dtype)
        check(f"{monoid} {dtype}", from_storage(y, dtype), want, False)


def test_a_large_shared_array_is_dynamic_and_a_loop_that_is_not_unrolled_runs(cache: Path) -> None:
    n, i = 20_000, scalar("i")
    body = (
        Shared("big", "f32", n),
        Shared("small", "f64", 3),
        Array("v", "f32", 1),
        For("i", THREAD, i32(n), 32, False, (load("v", "x", i), StoreShared("big", i, "v", i32(0), 1))),
        Barrier(),
        Let("from", binary("sub", i32(n - 1), THREAD)),
        For(
            "i",
            i32(0),
            i32(n // 32),
            1,
            False,
            (
                LoadShared("v", i32(0), "big", binary("sub", scalar("from"), mul(i, 32)), 1),
                store("y", add(THREAD, mul(i, 32)), "v"),
            ),
        ),
    )
    kernel = KernelProgram("mirror", (buffer("x", "f32", n), buffer("y", "f32", n, role="output")), 32, 1, body)
    text = emit(kernel)
    assert "extern __shared__" in text and dynamic_shared_bytes(kernel) == 4 * n + 24
    x, y = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    Program([(kernel, text)], cache).run(0, [x, y])
    assert (y == x[::-1]).all()


def test_launches_share_arrays_in_their_order_and_strided_bases_keep_their_offset(cache: Path) -> None:
    x, s, y = "f32", "f32", "f32"
    first = pointwise("first", {"x": x}, [("s", unary("neg", register("x_", x)))], 64)
    second = pointwise("second", {"s": s}, [("y", add(register("s_", s), const(1.0, y)))], 64)
    first = replace(first, buffers=(replace(first.buffers[0], offset=7, alignment=4), first.buffers[1]))
    second = replace(second, buffers=(replace(second.buffers[0], role="scratch"), second.buffers[1]))
    program = Program([(first, emit(first)), (second, emit(second))], cache)
    base = np.arange(71, dtype=np.float32)
    arrays = [base, np.zeros(64, np.float32), np.zeros(64, np.float32)]
    program.run_all([Launch(0, (0, 1)), Launch(1, (1, 2))], arrays)
    assert (arrays[2] == 1 - base[7:]).all()
    with pytest.raises(CpuRunError, match="reads element 0 of s, which nothing has written"):
        program.run_all([Launch(1, (1, 2)), Launch(0, (0, 1))], arrays)


# Bugs sown into the text of `row_scale`, and what the run must say of them.
SOWN = {
    "an offset past the end": ("x + row", "x + 64 + row", r"reads element 20\d\d of x, which has 2048"),
    "an offset before the start": ("x + row", "x - 4 + row", "reads element -4 of x"),
    "a missing barrier": ("  __syncthreads();\n", "", r"race: reads element \d of part|nothing has written"),
    "a barrier that half of the threads meet": (
        "__syncthreads();",
        "if (thread < 32) __syncthreads();",
        r"deadlock|race|nothing has written",
    ),
    "two barriers in two branches": (
        "__syncthreads();",
        "if (thread < 32) __syncthreads();\n  else __syncthreads();",
        r"divergent: arrives at the barrier of line \d+ while others wait at the barrier of line \d+",
    ),
    "a shuffle that half of the lanes meet": (
        "other = __shfl_xor_sync(0xffffffffu, sum, 8);",
        "if (thread % 2) other = __shfl_xor_sync(0xffffffffu, sum, 8);",
        "divergent: arrives at the shuffle",
    ),
    "a misaligned vector": ("x + row + thread * 4", "x + row + thread * 3", "misaligned: loads 4 elements"),
    "shared memory that nothing has written": (
        "thread % 32 == 0",
        "thread == 0",
        "reads element 1 of part, which nothing has written",
    ),
    "a thread that never ends": (
        "__syncthreads();",
        "while (thread == 5) ;\n  __syncthreads();",
        "over the time limit",
    ),
    "a thread that waits for all others, which have ended": (
        "store4_stream(y",
        "if (thread == 9) __syncthreads();\n  store4_stream(y",
        "deadlock: 1 threads wait at the barrier of line",
    ),
    "an output read before it is written": ("v[i] * v[i]", "v[i] * y[i]", "reads element 0 of y, which nothing"),
    "two threads that write one element": (
        "part[thread / 32] = sum;",
        "part[0] = sum;\n    part[1] = sum;",
        r"race: writes element \d of part",
    ),
    "a write over what another thread still reads": (
        "const float scale",
        "if (thread == 0) part[1] = 3.0f;\n  const float scale",
        "race: writes element 1 of part",
    ),
    "a register past the end of its array": (
        "out[i] =",
        "out[i + 1] =",
        "register array is indexed out of its bounds",
    ),
    "memory of nobody": ("__syncthreads();", "*(volatile int*)8 = 1;", "memory that is not mapped"),
}


@pytest.mark.parametrize("order", ["forward", "random"])
@pytest.mark.parametrize("bug", SOWN)
def test_a_sown_bug_is_reported(bug: str, order: str, cache: Path) -> None:
    kernel = row_scale()
    right, wrong, message = SOWN[bug]
    text = emit(kernel)
    assert right in text
    x, y = np.ones((8, 256), np.float32) * np.arange(256, dtype=np.float32), np.zeros((8, 256), np.uint16)
    program = Program([(kernel, text.replace(right, wrong, 1))], cache)
    with pytest.raises(CpuRunError, match=message) as caught:
        program.run(0, [x, y], order, limit_s=1)
    assert caught.value.kernel == "row_scale" and caught.value.block >= 0


def test_a_write_to_an_input_does_not_compile(cache: Path) -> None:
    kernel = row_scale()
    with pytest.raises(CpuCompileError, match=r"row_scale:\d+"):
        Program([(kernel, emit(kernel).replace("  __syncthreads();", "  x[0] = 1.0f;"))], cache)


def test_fresh_registers_hold_no_number(cache: Path) -> None:
    kernel = pointwise("sum", {"x": "f32"}, [("y", register("x_", "f32"))], 32)
    text = emit(kernel).replace("x_ = x[at];", "x_;")
    y = np.zeros(32, np.float32)
    Program([(kernel, text)], cache).run(0, [np.ones(32, np.float32), y])
    assert np.isnan(y).all()


def test_programs_are_compiled_once(cache: Path) -> None:
    kernel = pointwise("once", {"x": "f32"}, [("y", unary("neg", register("x_", "f32")))], 32)
    path = Program([(kernel, emit(kernel))], cache).executable
    before = path.stat().st_mtime_ns
    assert Program([(kernel, emit(kernel))], cache).executable.stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b[:99] + b"\0" + b[100:]])
def test_a_damaged_program_in_the_cache_is_made_anew(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    kernel = row_scale()
    made = Program([(kernel, emit(kernel))], tmp_path).executable
    whole = made.read_bytes()
    made.write_bytes(damage(whole))
    assert Program([(kernel, emit(kernel))], tmp_path).executable == made
    assert made.read_bytes()[-DIGEST_BYTES:] == _digest(made.read_bytes()[:-DIGEST_BYTES])
    made.chmod(0o600)
    Program([(kernel, emit(kernel))], tmp_path)
    assert os.access(made, os.X_OK) and [p.name for p in tmp_path.iterdir()] == [made.name]
