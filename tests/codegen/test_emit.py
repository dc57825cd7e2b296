"""The text of kernels: a golden that a person reviews, exact constants, and refusals."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from codegen.compile import compile_text
from codegen.emit import emit
from codegen.expr import EmitError, literal
from ir.dtype import bits_of, value_of
from ir.kernel import THREAD, Array, Assign, If, KernelProgram, Let, Shuffle
from ir.term import Const, Identity, Round, Select, Term, const, unary
from tests.codegen.hand_built import (
    add,
    binary,
    buffer,
    i32,
    load,
    mul,
    pointwise,
    register,
    row_scale,
    scalar,
    store,
)

GOLDEN = Path(__file__).with_name("row_scale.cu")


def body_of(value: Term, dtype: str = "f32") -> list[str]:
    """The lines that compute `value` of one loaded element `x_` and store it."""
    lines = emit(pointwise("k", {"x": dtype}, [("y", value)], 32)).splitlines()
    first = next(n for n, line in enumerate(lines) if "x_ = x[at];" in line)
    return [re.sub(r"^.* y_ =", "y_ =", line.strip()) for line in lines[first + 1 : -2]]


def test_a_row_kernel_reads_as_a_person_would_write_it() -> None:
    assert emit(row_scale()) == GOLDEN.read_text()


def test_text_is_equal_in_another_process() -> None:
    code = "from tests.codegen.hand_built import row_scale; from codegen.emit import emit; print(emit(row_scale()), end='')"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout == emit(row_scale())


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_constants_are_exact_by_their_bits(dtype: str) -> None:
    rng = np.random.default_rng(3)
    size = {"f32": 32, "f64": 64, "f16": 16, "bf16": 16}[dtype]
    edge = [bits_of(dtype, v) for v in (0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 0.1, 1e-7, 65504.0, 2.0**24)]
    for bits in edge + [int(b) for b in rng.integers(0, 2 ** (size - 1), 300, np.uint64)]:
        text = literal(Const(dtype, bits)).text
        wide = "f64" if dtype == "f64" else "f32"
        want = bits_of(wide, value_of(dtype, bits))
        if "as_float(" in text or "as_double(" in text:
            assert int(text.split("(")[1].rstrip("l)"), 16) == want
        else:  # read as a double first and rounded after, the worst that a compiler may do
            assert bits_of(wide, float(text.rstrip("f"))) == want


def test_least_integers_are_not_written_as_negated_literals_that_overflow() -> None:
    assert literal(const(-(2**31), "i32")).text == "-2147483647 - 1"
    assert literal(const(-(2**63), "i64")).text == "-9223372036854775807ll - 1"


def test_differences_and_quotients_are_printed_as_such() -> None:
    x = register("x_", "f32")
    assert body_of(binary("sub", x, unary("exp", x))) == ["y_ = x_ - expf(x_);"]
    assert body_of(binary("div", const(1.0, "f32"), add(x, const(-2.0, "f32")))) == ["y_ = 1.0f / (x_ - 2.0f);"]
    assert body_of(unary("neg", unary("neg", unary("recip", x)))) == ["y_ = 1.0f / x_;"]


def test_shared_subterms_are_computed_once() -> None:
    x = register("x_", "f32")
    e = unary("exp", x)
    first, last = body_of(mul(e, add(e, const(1.0, "f32"))))
    assert first == "const float t0 = expf(x_);" and last.count("t0") == 2


def test_a_term_of_depth_ten_thousand_is_printed_in_short_lines() -> None:
    t = register("x_", "f32")
    for k in range(10_000):
        t = binary("add", unary("sin", t), const(float(k), "f32"))
    lines = body_of(t)
    assert len(lines) > 500 and max(map(len, lines)) < 160


def test_index_arithmetic_is_plain_and_data_wraps() -> None:
    x = register("x_", "i32")
    assert body_of(add(x, x), "i32") == ["y_ = wrap_add(x_, x_);"]
    assert body_of(mul(add(THREAD, i32(1)), 3), "i32") == ["y_ = (thread + 1) * 3;"]
    assert body_of(binary("mod", THREAD, i32(8)), "i32") == ["y_ = thread % 8;"]
    assert body_of(binary("mod", add(THREAD, i32(-9)), i32(8)), "i32") == ["y_ = floor_mod(thread - 9, 8);"]


def test_halves_are_rounded_once_where_they_are_stored() -> None:
    h, x = register("x_", "bf16"), register("x_", "f64")
    assert body_of(h, "bf16") == ["y_ = x_;"]
    assert body_of(Round("bf16", "op", unary("exp", h)), "bf16") == ["y_ = to_bf16(expf(from_bf16(x_)));"]
    assert body_of(Round("f16", "op", x), "f64") == ["y_ = to_f16(to_odd(x_));"]
    assert body_of(Select(binary("lt", h, h), h, const(1.0, "bf16")), "bf16")[-1].startswith("y_ = to_bf16(")


def test_an_input_that_is_written_is_neither_const_nor_restrict() -> None:
    body = (Array("v", "f32", 1), load("v", "x", THREAD), store("x", THREAD, "v"), store("y", THREAD, "v"))
    buffers = (buffer("x", "f32", 32), buffer("y", "f32", 32, role="output"))
    assert "k(float* x, float* __restrict__ y)" in emit(KernelProgram("k", buffers, 32, 1, body))


def test_names_that_c_has_taken_are_changed() -> None:
    kernel = pointwise("k", {"int": "f32", "floor_mod": "f32"}, [("new", register("int_", "f32"))], 32)
    assert "const float* __restrict__ floor_mod_" in emit(kernel) and "* __restrict__ new_" in emit(kernel)
    assert compile_text(emit(kernel), "sm_80").registers > 0


REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "an identity without a type": (
        (Array("v", "f32", 1), Assign("v", i32(0), binary("add", Identity("add"), const(1.0, "f32")))),
        "a Identity has no place in Kernel IR",
    ),
    "a value of another type": (
        (Array("v", "f32", 1), Assign("v", i32(0), const(1, "i32"))),
        "a value of type i32 is put where f32 stands",
    ),
    "an array that nothing makes": ((Let("a", register("w", "f32")),), "no Array statement makes it"),
    "a load into another type": (
        (Array("v", "f16", 1), load("v", "x", THREAD)),
        "v holds f16, but x holds f32",
    ),
    "an access of 32 bytes": ((Array("v", "f32", 8), load("v", "x", THREAD, 8)), "at most 16 bytes"),
    "an unknown hint": ((Array("v", "f32", 1), load("v", "x", THREAD, cache="l3")), "cache hint l3"),
    "a shuffle of another type": (
        (Array("v", "f32", 1), Shuffle("v", i32(0), scalar("thread"), 1)),
        "the value is i32, the array f32",
    ),
    "a condition that is an unknown buffer": (
        (Array("v", "f32", 1), If(binary("lt", THREAD, i32(1)), (load("v", "z", THREAD),))),
        "no parameter is named z",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_text_is_refused_in_a_sentence(case: str) -> None:
    body, message = REFUSED[case]
    kernel = KernelProgram("k", (buffer("x", "f32", 64),), 32, 1, body)  # type: ignore[arg-type]
    with pytest.raises(Exception, match=message) as caught:
        emit(kernel)
    assert isinstance(caught.value, EmitError) or "16 bytes" in message
