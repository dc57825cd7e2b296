"""The emitted text on a CPU: meanings of operators and statements, and faults that must be found."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from codegen.cpu import CpuCompileError, CpuRunError, Launch, Program
from codegen.emit import emit
from ir.dtype import Array as Values
from ir.dtype import DTYPES, compute_type, from_storage, is_float, numpy_type, rounded, storage_type, to_storage
from ir.node import IRError
from ir.ops import BINARY, UNARY
from ir.term import Round, Term, binary, unary
from tests.codegen.hand_built import pointwise, register, row_scale

ALL = [name for name in DTYPES if name != "any"]
# Operators whose last bits depend on the library; all others must agree bit for bit.
LOOSE = set("exp exp2 expm1 log log2 log1p rsqrt sin cos tan asin acos atan sinh cosh tanh sigmoid erf pow atan2".split())
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
    found |= {"b_sub": term_or_none(lambda: binary("sub", x, y)), "b_div": term_or_none(lambda: binary("div", x, y))}
    if dtype == "bool":  # numpy has no meaning for these
        found = {n: t for n, t in found.items() if n[2:] not in ("neg", "sub", "div", "pow", "floordiv", "mod", "fmod", "truncdiv", "shl", "shr")}
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
            exact = [pow(int(b), int(p) if p >= 0 else int(p) & 1, size) if p >= 0 or abs(int(b)) == 1 else 0 for b, p in zip(base, power)]
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
