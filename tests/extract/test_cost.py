"""The model: counts that are exact, and comparisons that keep it from silly choices."""

from __future__ import annotations

import pytest

from egraph.saturate import saturate
from extract.cost import Cost, kernel_cost, sweeps
from extract.forms import forms
from ir import term as T
from ir.loop import Buffer, Form, KernelForm, Part, Store, contiguous
from ir.machine import H200
from ir.text import Scope, parse_term
from tests.extract.programs import Inputs, program


def kernel(axes: dict[str, int], inputs: Inputs, text: str, out: tuple[str, ...]) -> tuple[KernelForm, Form]:
    value = parse_term(text, Scope({n: d for n, (d, _) in inputs.items()}, axes))
    buffers = []
    for name, (dtype, dims) in inputs.items():
        shape = tuple(axes[d] for d in dims if isinstance(d, str))
        buffers.append(Buffer(name, dtype, shape, contiguous(shape)))
    shape = tuple(axes[a] for a in out)
    buffers.append(Buffer("o", value.dtype, shape, contiguous(shape), role="output"))
    k = KernelForm("k", (Part(out, (Store("o", tuple(map(T.Index, out)), value),)),))
    return k, Form("f", axes, tuple(buffers), (k,))


def cost(axes: dict[str, int], inputs: Inputs, text: str, out: tuple[str, ...]) -> Cost:
    k, form = kernel(axes, inputs, text, out)
    return kernel_cost(k, form, H200)


def product(n: int, m: int, k: int) -> Cost:
    inputs: Inputs = {"a": ("bf16", ("i", "k")), "b": ("bf16", ("k", "j"))}
    return cost({"i": n, "j": m, "k": k}, inputs, "bf16.op(add[k](a[i, k] * b[k, j]))", ("i", "j"))


ROWS: Inputs = {"x": ("bf16", ("i", "c")), "w": ("bf16", ("c",))}
NORMALISED = "bf16.op(x[i, c] * rsqrt(add[c](x[i, c] * x[i, c]) / f32(4096.0) + f32(1e-05)) * w[c])"


def test_operations_bytes_and_loops_are_counted() -> None:
    c = product(64, 32, 16)
    assert c.flops == 2 * 64 * 32 * 16
    assert c.bytes == 2 * (64 * 16 + 16 * 32 + 64 * 32)
    assert (c.sweeps, c.contractions, c.states) == ({"k": 1}, 1, 0)


def test_a_last_loop_that_only_writes_is_no_sweep() -> None:
    k, _ = kernel({"i": 8, "c": 16}, ROWS, NORMALISED, ("i", "c"))
    assert sweeps(k) == {"c": 1}


def test_a_stream_of_states_is_one_sweep() -> None:
    text = (
        "stream[c](d=carry(add, f32, [i], mulz(old.d, exp(old.m - max(old.m, x[i, c]))) + exp(x[i, c] - "
        "max(old.m, x[i, c]))), m=carry(max, f32, [i], max(old.m, x[i, c]))).d"
    )
    k, form = kernel({"i": 8, "c": 16}, {"x": ("f32", ("i", "c"))}, text, ("i",))
    assert sweeps(k) == {"c": 1}
    assert kernel_cost(k, form, H200).states == 2


@pytest.mark.parametrize(("n", "measured_us"), [(2048, 24.7), (4096, 205.7), (8192, 1571.0)])
def test_a_large_product_takes_what_it_takes_on_the_card(n: int, measured_us: float) -> None:
    assert 0.8 < product(n, n, n).us / measured_us < 1.25


def test_a_row_kernel_takes_what_it_takes_on_the_card() -> None:
    c = cost({"i": 16384, "c": 4096}, ROWS, NORMALISED, ("i", "c"))
    assert 0.8 < c.us / 68.7 < 1.25


def test_work_repeated_for_every_tile_is_charged() -> None:
    axes = {"i": 2048, "k": 2048, "l": 2048, "j": 2048}
    inputs: Inputs = {"a": ("bf16", ("i", "l")), "b": ("bf16", ("l", "k")), "c": ("bf16", ("k", "j"))}
    together = "bf16.op(add[k](bf16.op(add[l](a[i, l] * b[l, k])) * c[k, j]))"
    assert cost(axes, inputs, together, ("i", "j")).us > 2 * product(2048, 2048, 2048).us


def test_skipped_blocks_are_not_charged() -> None:
    axes = {"b": 64, "i": 4096, "j": 4096, "d": 64}
    inputs: Inputs = {"q": ("bf16", ("b", "i", "d")), "k": ("bf16", ("b", "j", "d"))}
    scores = "add[d](q[b, i, d] * k[b, j, d])"
    whole = cost(axes, inputs, f"max[j]({scores})", ("b", "i"))
    half = cost(axes, inputs, f"max[j]({scores} if j <= i else f32(-inf))", ("b", "i"))
    assert 0.45 < half.compute_us / whole.compute_us < 0.65


def test_few_blocks_leave_multiprocessors_idle() -> None:
    few = product(128, 128, 65536)
    many = product(4096, 4096, 64)
    assert few.flops == many.flops
    assert few.blocks < 132 <= many.blocks


def test_an_exponential_out_of_range_is_never_chosen() -> None:
    value = "exp(x[i, c] - max[c](x[i, c])) / add[c](exp(x[i, c] - max[c](x[i, c])))"
    p = program({"i": 512, "c": 512}, {"x": ("f32", ("i", "c"))}, [("o", ("i", "c"), value)])
    for f in forms(saturate(p), H200, k=8):
        assert f.cost_us < 1000
