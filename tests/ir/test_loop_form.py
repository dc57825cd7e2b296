"""Forms run kernel by kernel, print and parse; verification refuses what breaks a rule, in one sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ir import tensor as X
from ir import term as T
from ir.loop import Buffer, Form, LoopProgram, Store, contiguous
from ir.loop_interp import run_form, run_loop
from ir.loop_text import parse_form, parse_loop, show_form, show_loop
from ir.lower import lower
from ir.node import IRError
from ir.tensor_text import parse_tensor
from ir.verify import verify_form, verify_loop, verify_tensor
from tests import programs as P
from tests import words as W

HEADER = """
axis i = 4
axis j = 9
axis e = 1
buffer x: f32[4, 9] input
buffer y0: f32[4, 9] output
buffer m: f32[4] scratch
"""
ROWS = f"""
form rows
law sums_move
cost 12.5 us
{HEADER}
buffer z: bf16[4] scratch strides [2] offset 1 align 4
kernel first
part i
store m[i] = max[j](x[i, j])
kernel second
t0 = exp(x[i, j] - m[i])
part i
store z[i] = bf16.op(add[j](t0))
kernel third
t0 = exp(x[i, j] - m[i])
part i, j
store y0[i, j] = t0 / z[i]
"""


def test_a_form_runs_kernel_by_kernel() -> None:
    form = parse_form(ROWS)
    verify_form(form)
    p = P.softmax()
    inputs = W.random_inputs(p, 0)
    (loop,) = lower(p).steps
    assert isinstance(loop, LoopProgram)
    want = run_loop(loop, inputs, True)["y0"]
    got = run_form(form, inputs, True)
    np.testing.assert_allclose(got["y0"], want, rtol=1e-12)
    assert got.keys() == {"m", "z", "y0"}


def test_scratch_is_rounded_where_it_is_stored() -> None:
    form = parse_form(ROWS)
    inputs = W.random_inputs(P.softmax(), 0)
    got = run_form(form, inputs, False)
    exact = run_form(form, inputs, True)
    error = np.abs(got["y0"] / exact["y0"] - 1).max()
    assert 2**-12 < error < 2**-7


def test_scratch_holds_nan_before_it_is_made() -> None:
    form = parse_form(ROWS)
    late = replace(form, kernels=(form.kernels[1], form.kernels[0], form.kernels[2]))
    assert np.isnan(run_form(late, W.random_inputs(P.softmax(), 0), True)["y0"]).all()
    with pytest.raises(IRError, match="second reads m before it is made"):
        verify_form(late)


def test_a_form_prints_and_parses_back() -> None:
    form = parse_form(ROWS)
    assert parse_form(show_form(form)) == form
    free = replace(form, laws=(), cost_us=float("nan"))
    assert show_form(parse_form(show_form(free))) == show_form(free)
    assert (form.buffer("z").offset, form.buffer("z").strides, form.buffer("z").alignment) == (1, (2,), 4)


def test_stores_with_a_monoid_combine_with_what_is_there() -> None:
    text = """
loop counts
axis i = 6
buffer at: i64[6] input
buffer total: f32[3] input
store add total[at[i]] = f32(1.0)
"""
    loop = parse_loop(text)
    verify_loop(loop)
    assert parse_loop(show_loop(loop)) == loop
    total = np.array([10.0, 0.0, 0.0], np.float32)
    got = run_loop(loop, {"at": np.array([0, 0, 2, 0, 7, -1]), "total": total}, False)
    assert got["total"].tolist() == [13, 0, 1]
    assert total.tolist() == [10, 0, 0]


LOOP = "loop p\n" + HEADER


@pytest.mark.parametrize(
    ("stores", "why"),
    [
        ("store y0[i, j] = at(x[i, j], j=k)", "k is neither an axis nor a value"),
        ("store y1[i, j] = x[i, j]", "no buffer is named y1"),
        ("store y0[i, j] = q[i]", "no buffer is named q"),
        ("store y0[i] = x[i, 0]", "1 index terms for 2 dimensions"),
        ("store y0[i, 0] = x[i, j]", "points along j share an element"),
        ("store y0[i, j + i] = x[i, j]", None),
        ("store y0[0, j + i] = x[i, j]", "points along i, j share an element"),
        ("store y0[0, i * 2 + j] = x[i, j]", "points along i, j share an element"),
        ("store y0[e, j] = x[i, j]", "points along i share"),
        ("store y0[i, j // 2] = x[i, j]", "points along j share"),
        ("store add y0[i, 0] = x[i, j]", None),
        ("store y0[i, j] = m[i]", "m is scratch, and is read before it is made"),
        ("store y0[i, j] = f64.op(x[i, j])", "the value is f64, the buffer f32"),
        ("store y0[i, j] = f16.op(x[i, j])", None),
        ("store y0[i, j] = new[j](max[j](x[i, j]))", "holds the prefix new along j"),
        ("store y0[i, j] = x[i]", "1 index terms from f32[4, 9]"),
        ("store y0[x[i, j], j] = x[i, j]", "an index term is f32"),
        ("store y0[i, j] = stream[j](s=carry(add, f32, [i], old.s + x[i, j])).s", None),
        ("store y0[i, j] = stream[j](s=carry(add, f32, [], old.s + x[i, j])).s", "state s has axes"),
        ("store y0[i, j] = stream[j](s=carry(add, f16, [i], old.s + x[i, j])).s", "is read as f16 and becomes f32"),
    ],
)
def test_a_loop_program_is_verified(stores: str, why: str | None) -> None:
    def check() -> None:
        verify_loop(parse_loop(LOOP + stores))

    if why is None:
        check()
    else:
        with pytest.raises(IRError) as error:
            check()
        assert why in str(error.value)


def test_a_state_that_only_another_reads_keeps_its_type_in_text() -> None:
    index = (T.Index("i"), T.Index("j"))
    x = T.Load("x", "f32", index)
    last = T.Carry("last", "max", x)
    steps = T.Carry(
        "steps", "add", T.binary("add", T.State("steps", "f32", ("i",)), T.State("last", "f32", ("i",)))
    )
    stream = T.Stream("j", (last, steps), "steps")
    loop = replace(parse_loop(LOOP + "store y0[i, j] = x[i, j]"), results=(Store("y0", index, stream),))
    verify_loop(loop)
    assert parse_loop(show_loop(loop)) == loop


def test_states_and_tile_values_outside_their_place_are_refused() -> None:
    loop = parse_loop(LOOP + "store y0[i, j] = x[i, j]")
    index = (T.Index("i"), T.Index("j"))
    for value, why in (
        (T.State("s", "f32", ("i",)), "state s is read outside its stream"),
        (T.Var("v", "f32", ("i",)), "tile value v"),
        (T.Load("x", "f16", index), "load x: f16"),
        (T.Fold(("q",), "add", T.Load("x", "f32", index)), "axis q has no extent"),
    ):
        with pytest.raises(IRError, match=why):
            verify_loop(replace(loop, results=(Store("y0", index, value),)))
    twice = (*loop.buffers, Buffer("x", "f32", (1,), contiguous((1,))))
    with pytest.raises(IRError, match="two buffers are named x"):
        verify_loop(replace(loop, buffers=twice))
    with pytest.raises(IRError, match="extent -1"):
        verify_loop(replace(loop, axes={**loop.axes, "i": -1}))


def form(*kernels: str) -> Form:
    return parse_form(f"form p\n{HEADER}\n" + "\n".join(f"kernel k{n}\n{k}" for n, k in enumerate(kernels)))


@pytest.mark.parametrize(
    ("kernels", "why"),
    [
        (("part i\nstore m[i] = x[i, 0]", "part i, j\nstore y0[i, j] = m[i]"), None),
        (("part i\nstore m[i] = x[i, 0]\npart i, j\nstore y0[i, j] = m[i]",), "k0 reads m before it is made"),
        (("part i, j\nstore y0[i, j] = x[i, j]",), "scratch m is never made"),
        (("part i\nstore m[i] = at(max[j](x[i, j]), i=3 - i)",), "holds At along i"),
        (("part i\nstore y0[i, j] = x[i, j]",), "runs over j, not an axis of its part"),
        (
            (
                "part i, j\nstore x[i, j] = f32(0.0)",
                "part i\nstore m[i] = x[i, 0]\npart i, j\nstore y0[i, j] = m[i]",
            ),
            "k1 reads x after k0 has replaced it",
        ),
    ],
)
def test_a_form_is_verified(kernels: tuple[str, ...], why: str | None) -> None:
    if why is None:
        verify_form(form(*kernels))
    else:
        with pytest.raises(IRError) as error:
            verify_form(form(*kernels))
        assert why in str(error.value)


def test_a_tensor_program_is_verified() -> None:
    x = W.given("x", (3, 4))
    at = W.given("at", (3, 4), "i64")
    bad = {
        "two inputs are named x": X.TensorProgram("p", (x, W.given("x", (2,))), (X.Result("y", x, (4, 1)),)),
        "not among the program's inputs": X.TensorProgram("p", (), (X.Result("y", x, (4, 1)),)),
        "1 strides for 2 dimensions": X.TensorProgram("p", (x,), (X.Result("y", x, (4,)),)),
        "writes z, which is not an input": X.TensorProgram("p", (x,), (X.Result("y", x, (4, 1), "z"),)),
        "the input x that it replaces f32[3, 4]": W.program("p", (W.reduce("add", x, 0), "x")),
        "has the name of an input": X.TensorProgram("p", (x,), (X.Result("x", x, (4, 1)),)),
        "'a b' is not an identifier": X.TensorProgram("p", (x,), (X.Result("a b", x, (4, 1)),)),
        "[2] are not sorted dimensions": W.program("p", X.Reduce("add", (2,), x)),
        "goes along one dimension": W.program("p", X.Reduce("argmax", (0, 1), x)),
        "are not distinct labels": W.program("p", X.Contract(x, x, ("i", "k"), ("j", "k"), ("i", "i"))),
        "o2 is not a coordinate": W.program("p", W.view(x, (3, 4), [W.o(0), W.o(2)])),
        "g1 of type i64 is not a source": W.program(
            "p", W.view(x, (3, 4), [W.source(1, 2), W.o(1)], sources=(at,))
        ),
        "an index term is f32": W.program("p", W.view(x, (3, 4), [T.const(0.0, "f32"), W.o(1)])),
        "the validity is i64": W.program("p", W.view(x, (3, 4), [W.o(0), W.o(1)], W.o(0))),
        "Load does not stand in index terms": W.program(
            "p", W.view(x, (3, 4), [T.Load("at", "i64", (W.o(0),)), W.o(1)])
        ),
        "origin 'guess'": W.program("p", X.Convert("bf16", "guess", x)),
    }
    for why, p in bad.items():
        with pytest.raises(IRError) as error:
            verify_tensor(p)
        assert why in str(error.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("loop p\naxis i = 4\nstore y[i] = 1", "line 3: no buffer is named y"),
        ("loop p\naxis i = 4\nbuffer y: f32[4] output\nstore y[i] = 1 +", "line 4"),
        ("loop p\nhello", "line 2: the line is not understood"),
        ("", "the text is empty"),
    ],
)
def test_errors_of_a_loop_text_name_the_line(text: str, why: str) -> None:
    with pytest.raises(IRError) as error:
        parse_loop(text)
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tensor p\n%0 = input x : f32[4]\n%1 = map exp of %2 : f32[4]", "line 3: %2 is used before it is made"),
        ("tensor p\n%0 = input x : f32[4]\n%1 = map exp of %0 : f32[5]", "line 3: the tensor is f32[4]"),
        ("tensor p\n%0 = input x : f32[4]\n%1 = map exp of %0, %0 : f32[4]", "line 3: exp: 2 operands, not 1"),
        ("tensor p\n%0 = input x : f32[4]\n%1 = scan add 0 : f32[4]", "line 3: scan has 1 operands, not 0"),
        ("tensor p\n%0 = dance x : f32[4]", "line 2: dance x is not a tensor"),
        ("tensor p\nresult y = %0 strides [1]", "line 2: %0 is not made"),
    ],
)
def test_errors_of_a_tensor_text_name_the_line(text: str, why: str) -> None:
    with pytest.raises(IRError) as error:
        parse_tensor(text)
    assert why in str(error.value)
