"""Exponentials are coarse where a rounding to 16 bits or a logarithm hides it, and nowhere else."""

import numpy as np
import pytest

from extract.tiling import tile_program
from ir import tile
from ir.loop import Buffer, KernelForm, Part, Store, contiguous
from ir.schedule import parse_schedule
from ir.text import Scope, parse_term, show_term

AXES = {"i": 4, "j": 64}
STREAMED = (
    "log(stream[j](d=carry(add, f32, [i], mulz(old.d, exp(old.m - max(old.m, x[i, j]))) + exp(x[i, j] - "
    "max(old.m, x[i, j]))), m=carry(max, f32, [i], max(old.m, x[i, j]))).d)"
)


def written(text: str, tiles: str = "j:64", strict: bool = False) -> str:
    """The terms of the tile program of `text` over x[i, j]."""
    value = parse_term(text, Scope({"x": "f32"}, AXES))
    out = tuple(sorted(value.free))
    shape = tuple(AXES[a] for a in out)
    buffers = [
        Buffer("x", "f32", (4, 64), (64, 1)),
        Buffer("o", value.dtype, shape, contiguous(shape), role="output"),
    ]
    index = tuple(parse_term(a, Scope({}, AXES)) for a in out)
    kernel = KernelForm("k", (Part(out, (Store("o", index, value),)),))
    p = tile_program(kernel, buffers, AXES, parse_schedule(f"WORK=t64 TILE={tiles}"), strict)
    return "; ".join(show_term(s.term) for s in tile.walk(p.parts[0].body) if isinstance(s, tile.Map))


QUOTIENT = "exp(x[i, j] - max[j](x[i, j])) / add[j](exp(x[i, j] - max[j](x[i, j])))"


@pytest.mark.parametrize(
    ("text", "tiles"),
    [
        (f"bf16.op({QUOTIENT})", "j:64"),
        (f"f16.cast({QUOTIENT})", "j:16"),
        ("log(add[j](exp(x[i, j])))", "j:64"),
        (STREAMED, "j:16"),
        ("bf16.op(x[i, j] * sigmoid(x[i, j]))", "j:64"),
        ("bf16.op(recip(f32(1.0) + exp(x[i, j])))", "j:64"),
        ("f32(2.0) - bf16.op(exp(x[i, j]))", "j:64"),
        ("bf16.op(x[i, j] * (f32(1.0) + tanh(x[i, j])))", "j:64"),
    ],
)
def test_an_exponential_whose_error_nobody_sees_is_coarse(text: str, tiles: str) -> None:
    found = written(text, tiles)
    assert "_coarse(" in found and not any(f"{op}(" in found for op in ("exp", "sigmoid", "tanh"))


@pytest.mark.parametrize(
    "text",
    [
        QUOTIENT,
        "bf16.op(exp(x[i, j]) - exp(x[i, j] * f32(2.0)))",
        "bf16.op(exp(x[i, j]) - f32(1.0))",
        "bf16.op(exp(exp(x[i, j])))",
        "log(add[j](exp(x[i, j]))) + add[j](exp(x[i, j]))",
        "bf16.op(f32(0.5) if exp(x[i, j]) < f32(1.0) else f32(2.0))",
        "bf16.op(tanh(x[i, j]) + x[i, j])",
    ],
)
def test_an_exponential_whose_error_shows_stays(text: str) -> None:
    found = written(text)
    assert found.count("exp(") + found.count("tanh(") >= 1
    assert "_coarse(" not in found or text.startswith("bf16.op(exp(exp")


def test_strict_numerics_have_exact_exponentials() -> None:
    assert "_coarse" not in written(f"bf16.op({QUOTIENT})", strict=True)


def test_a_coarse_exponential_is_off_by_its_argument_and_a_few_roundoffs() -> None:
    x = np.linspace(-103, 88, 100001).astype(np.float32)
    r = np.exp2((x * np.float32(0.72134752)).astype(np.float64)).astype(np.float32)
    right = np.exp(x.astype(np.float64))
    off = np.abs((r * r).astype(np.float64) - right)
    assert (off <= right * (1.3 * np.abs(x) + 4) * 2.0**-24 + 2.0**-149).all()
