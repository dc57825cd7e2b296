"""Kernels written by hand, and short constructors for their terms."""

from __future__ import annotations

from ir.dtype import DType
from ir.kernel import (
    BLOCK,
    THREAD,
    Array,
    Assign,
    Barrier,
    For,
    If,
    KernelProgram,
    Let,
    LoadGlobal,
    LoadShared,
    Shared,
    Shuffle,
    Statement,
    StoreGlobal,
    StoreShared,
)
from ir.loop import Buffer
from ir.term import Load, Term, Var, binary, const, round_to, unary


def i32(value: int) -> Term:
    return const(value, "i32")


def scalar(name: str, dtype: DType = "i32") -> Var:
    return Var(name, dtype, ())


def register(array: str, dtype: DType, index: Term | int = 0) -> Term:
    return Load(array, dtype, (i32(index) if isinstance(index, int) else index,))


def add(x: Term, *rest: Term) -> Term:
    for y in rest:
        x = binary("add", x, y)
    return x


def mul(x: Term, y: Term | int) -> Term:
    return binary("mul", x, i32(y) if isinstance(y, int) else y)


def buffer(name: str, dtype: DType, *shape: int, role: str = "input", alignment: int = 16) -> Buffer:
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    return Buffer(name, dtype, shape, tuple(strides), role=role, alignment=alignment)


def load(array: str, source: str, offset: Term, width: int = 1, dtype: DType = "f32", **more: object) -> LoadGlobal:
    more = {"pred": None, "other": const(0, dtype), "index": i32(0)} | more
    return LoadGlobal(array=array, buffer=source, offset=offset, width=width, **more)  # type: ignore[arg-type]


def store(target: str, offset: Term, array: str, width: int = 1, **more: object) -> StoreGlobal:
    more = {"pred": None, "index": i32(0)} | more
    return StoreGlobal(buffer=target, offset=offset, array=array, width=width, **more)  # type: ignore[arg-type]


def pointwise(
    name: str, inputs: dict[str, DType], outputs: list[tuple[str, Term]], count: int, threads: int = 32
) -> KernelProgram:
    """Every thread loads element `block * threads + thread` of the inputs and stores one value to each output."""
    at = scalar("at")
    body: list[Statement] = [Let("at", add(mul(BLOCK, threads), THREAD))]
    for source, dtype in inputs.items():
        body += [Array(f"{source}_", dtype, 1), load(f"{source}_", source, at, dtype=dtype)]
    for target, value in outputs:
        body += [
            Array(f"{target}_", value.dtype, 1),
            Assign(f"{target}_", i32(0), value),
            store(target, at, f"{target}_"),
        ]
    buffers = [buffer(n, d, count) for n, d in inputs.items()]
    buffers += [buffer(n, v.dtype, count, role="output") for n, v in outputs]
    return KernelProgram(name, tuple(buffers), threads, -(-count // threads), tuple(body))


def row_scale(rows: int = 8, threads: int = 64) -> KernelProgram:
    """y[r, :] = bf16(x[r, :] * rsqrt(mean(x[r, :] ** 2) + 1e-6)), a row a block, four elements a thread."""
    n, warps = 4 * threads, threads // 32
    at, i = add(scalar("row"), mul(THREAD, 4)), scalar("i")
    square = mul(register("v", "f32", i), register("v", "f32", i))
    body: tuple[Statement, ...] = (
        Let("row", mul(BLOCK, n)),
        Array("v", "f32", 4),
        load("v", "x", at, 4, cache="stream"),
        Array("other", "f32", 1),
        Array("sum", "f32", 1),
        Assign("sum", i32(0), const(0.0, "f32")),
        For("i", i32(0), i32(4), 1, True, (Assign("sum", i32(0), add(register("sum", "f32"), square)),)),
    )
    for mask in (16, 8, 4, 2, 1):
        body += (
            Shuffle("other", i32(0), register("sum", "f32"), mask),
            Assign("sum", i32(0), add(register("sum", "f32"), register("other", "f32"))),
        )
    total = add(*(register("parts", "f32", k) for k in range(warps)))
    mean = binary("div", total, const(float(n), "f32"))
    body += (
        Shared("part", "f32", warps),
        If(
            binary("eq", binary("mod", THREAD, i32(32)), i32(0)),
            (StoreShared("part", binary("floordiv", THREAD, i32(32)), "sum", i32(0), 1),),
        ),
        Barrier(),
        Array("parts", "f32", warps),
        LoadShared("parts", i32(0), "part", i32(0), warps),
        Let("scale", unary("rsqrt", add(mean, const(1e-6, "f32")))),
        Array("out", "bf16", 4),
        For(
            "i",
            i32(0),
            i32(4),
            1,
            True,
            (Assign("out", i, round_to("bf16", "op", mul(register("v", "f32", i), scalar("scale", "f32")))),),
        ),
        store("y", at, "out", 4, cache="stream"),
    )
    buffers = (buffer("x", "f32", rows, n), buffer("y", "bf16", rows, n, role="output"))
    return KernelProgram("row_scale", buffers, threads, rows, body)
