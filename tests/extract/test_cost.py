"""The model: counts that are exact, and comparisons that keep it from silly choices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egraph.saturate import saturate
from extract.cost import Cost, kernel_cost, sweeps
from extract.forms import forms
from extract.work import STEP, Works
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


def together(*kernels: tuple[KernelForm, Form]) -> Cost:
    """The kernels as parts of one."""
    axes, buffers, parts = dict[str, int](), dict[str, Buffer](), list[Part]()
    for n, (k, form) in enumerate(kernels):
        axes |= form.axes
        buffers |= {b.name: b for b in form.buffers if b.name != "o"}
        (part,) = k.parts
        (s,) = part.stores
        buffers[f"o{n}"] = replace(form.buffer("o"), name=f"o{n}")
        parts.append(replace(part, stores=(replace(s, buffer=f"o{n}"),)))
    joined = KernelForm("k", tuple(parts))
    return kernel_cost(joined, Form("f", axes, tuple(buffers.values()), (joined,)), H200)


def a_product(n: int, m: int, k: int, of: str = "") -> tuple[KernelForm, Form]:
    """A product over axes and of a right operand with this suffix."""
    j = f"j{of}"
    inputs: Inputs = {"a": ("bf16", ("i", "k")), f"b{of}": ("bf16", ("k", j))}
    return kernel({"i": n, j: m, "k": k}, inputs, f"bf16.op(add[k](a[i, k] * b{of}[k, {j}]))", ("i", j))


def test_blocks_of_one_part_do_not_speed_up_another() -> None:
    few = a_product(128, 128, 65536)
    many = kernel({"r": 256, "c": 1024}, {"x": ("bf16", ("r", "c"))}, "bf16.op(exp(x[r, c]))", ("r", "c"))
    alone = kernel_cost(*few, H200)
    assert alone.blocks < H200.sms < kernel_cost(*many, H200).blocks
    assert together(few, many).us >= alone.us


def test_the_tile_is_that_of_the_contraction_over_most_free_axes() -> None:
    axes = {"b": 64, "i": 1024, "j": 1024, "d": 512, "e": 16}
    inputs: Inputs = {
        "q": ("bf16", ("b", "i", "d")),
        "k": ("bf16", ("b", "j", "d")),
        "v": ("bf16", ("b", "j", "e")),
    }
    scores = "bf16.op(add[d](q[b, i, d] * k[b, j, d]))"
    c = cost(axes, inputs, f"add[j]({scores} * v[b, j, e])", ("b", "i", "e"))
    rows, columns, rest = c.tile
    assert (columns, rest) == (16, 1)
    assert c.blocks == 64 * 1024 // rows


@pytest.mark.parametrize(("n", "m"), [(2, 4096), (4096, 2), (16, 512), (512, 48), (4096, 4096)])
def test_what_buffers_are_called_costs_nothing(n: int, m: int) -> None:
    def us(a: str, b: str) -> float:
        inputs: Inputs = {a: ("bf16", ("i", "k")), b: ("bf16", ("k", "j"))}
        text = f"bf16.op(add[k]({a}[i, k] * {b}[k, j]))"
        return cost({"i": n, "j": m, "k": 512}, inputs, text, ("i", "j")).us

    names = "abcdefgh"
    assert len({us(a, b) for a in names for b in names if a != b}) == 1


def test_parts_have_one_tile() -> None:
    wide, narrow = a_product(4096, 4096, 512), a_product(4096, 64, 512, "n")
    assert kernel_cost(*wide, H200).tile[1] > 64
    assert together(wide, narrow).tile[1] == 64
    assert together(wide, narrow).us >= kernel_cost(*wide, H200).us


def test_what_depends_on_states_alone_is_done_once_a_step() -> None:
    text = (
        "stream[c](d=carry(add, f32, [i], mulz(old.d, exp(old.m - max(old.m, x[i, c]))) + exp(x[i, c] - "
        "max(old.m, x[i, c]))), m=carry(max, f32, [i], max(old.m, x[i, c]))).d"
    )
    k, form = kernel({"i": 128, "c": 6400}, {"x": ("f32", ("i", "c"))}, text, ("i",))
    work = Works(form.axes).of([s.value for s in k.stores])
    special = sum(n for (_, unit, _), n in work.sums.items() if unit == "special")
    assert special == 128 * 6400 + 128 * 6400 / STEP


def test_tiles_fetch_their_operands_through_the_cache() -> None:
    c = product(4096, 2048, 512)
    rows, columns, _ = c.tile
    fetched = 2 * (4096 * 512 * (2048 // columns) + 512 * 2048 * (4096 // rows) + 4096 * 2048)
    assert c.cache_us == pytest.approx(1e6 * fetched / H200.l2_bytes_per_s)
