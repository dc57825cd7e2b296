"""Forms compute what their programs say, in as few loops and kernels as the machine rewards."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from egraph.saturate import saturate
from extract.facts import buffers_read
from extract.forms import default_form, forms
from extract.key import canonical
from ir import term as T
from ir.loop import Form, LoopProgram
from ir.loop_text import show_form
from ir.machine import H200, Machine
from ir.node import postorder
from tests.egraph import written
from tests.extract.programs import error, program

TOLERANCE = 1e-9
SLOW = replace(H200, copy_bytes_per_s=4e7, l2_bytes_per_s=8e7, tensor_flops_per_s=8e9, f32_flops_per_s=5e8, sms=1)
"""A machine on which small programs are chosen as large ones are."""


def best(p: LoopProgram, k: int = 1, machine: Machine = H200) -> list[Form]:
    found = forms(saturate(p), machine, k=k)
    for f in found:
        assert error(f, p) < TOLERANCE, f
        terms = list(postorder(*(t for kn in f.kernels for s in kn.stores for t in (*s.index, s.value))))
        assert not any(isinstance(t, T.At | T.Prefix) for t in terms)
    return found


def flops(f: Form) -> int:
    costs = f.details["kernels"]
    assert isinstance(costs, dict)
    return sum(c.flops for c in costs.values())


def loops(f: Form, axis: str) -> int:
    sweeps = f.details["sweeps"]
    assert isinstance(sweeps, dict)
    return int(sweeps.get(axis, 0))


X = {"x": ("f32", ("i", "c")), "y": ("f32", ("i", "c")), "w": ("f32", ("c",))}
IC = {"i": 6, "c": 10}
SCORES = {"q": ("bf16", ("b", "i", "d")), "k": ("bf16", ("b", "j", "d")), "v": ("bf16", ("b", "j", "e"))}
CHAIN = """s = add[d](q[b, i, d] * k[b, j, d]) * f32(0.125)
p = exp(s - max[j](s))"""


def chain(**axes: int) -> LoopProgram:
    """A product, a normalised exponential of it over j, and a product with that."""
    out = "bf16.op(add[j](bf16.op(p / add[j](p)) * v[b, j, e]))"
    return program(axes, SCORES, [("o", ("b", "i", "e"), out)], CHAIN)


def exponentials(i: int, j: int) -> LoopProgram:
    value = "exp(x[i, j] - max[j](x[i, j])) / add[j](exp(x[i, j] - max[j](x[i, j])))"
    return program({"i": i, "j": j}, {"x": ("f32", ("i", "j"))}, [("o", ("i", "j"), value)])


def test_a_map_is_one_kernel() -> None:
    p = program(IC, X, [("o", ("i", "c"), "exp(x[i, c]) * w[c] + y[i, c]")])
    (f,) = best(p)
    assert len(f.kernels) == 1
    assert f.cost_us > 0
    assert f.details["gap"] == 0


def test_a_row_fold_and_its_reader_are_one_kernel() -> None:
    value = "x[i, c] * rsqrt(add[c](x[i, c] * x[i, c]) / f32(10.0) + f32(1e-05)) * w[c]"
    (f,) = best(program(IC, X, [("o", ("i", "c"), value)]))
    assert len(f.kernels) == 1
    assert loops(f, "c") == 1


def test_a_normalised_exponential_takes_one_loop_or_two() -> None:
    found = best(exponentials(6, 10), k=8)
    assert {loops(f, "j") for f in found if len(f.kernels) == 1} == {1, 2}


def test_only_a_row_that_does_not_stay_is_streamed_to_save_a_loop() -> None:
    chosen = [forms(saturate(exponentials(64, row)), H200)[0] for row in (4096, 1 << 18)]
    assert [loops(f, "j") for f in chosen] == [2, 1]


def test_no_form_is_listed_twice_because_a_kernel_could_store_more() -> None:
    found = forms(saturate(written.program("u := add[d](X[i, d] * Y[d, e])\nadd[e](u * Z[e, c])")), H200, k=12)
    texts = ["\n".join(show_form(f).splitlines()[2:]) for f in found]
    assert len(texts) >= 4
    assert len(set(texts)) == len(texts)


def test_a_chain_of_contractions_has_forms_of_one_to_three_loops() -> None:
    small = chain(b=2, i=6, j=10, d=3, e=4)
    found = best(small, k=12)
    assert len(found) >= 6
    assert len({f.details["signature"] for f in found}) == len(found)
    assert {1, 2, 3} <= {loops(f, "j") for f in found}
    assert [f.cost_us for f in found] == sorted(f.cost_us for f in found)
    large = forms(saturate(chain(b=64, i=2048, j=2048, d=64, e=64)), H200)
    assert len(large[0].kernels) == 1
    assert loops(large[0], "j") == 1


def test_states_of_one_sweep_are_carried_together() -> None:
    (f,) = best(chain(b=2, i=6, j=10, d=3, e=4))
    streams = {t.carries for s in f.kernels[0].stores for t in postorder(s.value) if isinstance(t, T.Stream)}
    assert len(streams) == 1
    assert len(next(iter(streams))) == 3


def test_a_product_takes_its_maps_in() -> None:
    axes = {"i": 5, "j": 7, "k": 6}
    inputs = {"a": ("bf16", ("i", "k")), "b": ("bf16", ("k", "j")), "s": ("f32", ("j",))}
    value = "bf16.op(exp(add[k](bf16.op(exp(a[i, k])) * b[k, j]) * s[j]))"
    (f,) = best(program(axes, inputs, [("o", ("i", "j"), value)]))
    assert len(f.kernels) == 1


def test_a_chain_of_products_takes_the_cheap_order() -> None:
    axes = {"i": 512, "k": 4, "j": 512, "l": 4}
    inputs = {"a": ("f32", ("i", "k")), "b": ("f32", ("k", "j")), "c": ("f32", ("j", "l"))}
    p = program(axes, inputs, [("o", ("i", "l"), "add[j](add[k](a[i, k] * b[k, j]) * c[j, l])")])
    (f,) = best(p)
    assert flops(f) == 2 * 16_384
    assert flops(default_form(p, H200)) >= 2 * 2 * 512 * 4 * 512


def test_results_over_the_same_inputs_share_a_kernel() -> None:
    results = [
        ("a", ("i", "c"), "x[i, c] + y[i, c]"),
        ("b", ("i", "c"), "x[i, c] * y[i, c]"),
        ("d", ("i", "c"), "x[i, c]"),
    ]
    (f,) = best(program(IC, X, results))
    assert len(f.kernels) == 1


def test_one_value_is_stored_for_two_results() -> None:
    results = [
        ("a", ("i", "c"), "exp(x[i, c])"),
        ("b", ("c", "i"), "exp(x[i, c])"),
        ("d", ("i", "j"), "add[c](x[i, c])"),
    ]
    p = program({**IC, "j": 3}, X, results)
    best(p)


def test_a_constant_result_is_filled() -> None:
    best(program({"i": 4}, {"x": ("f32", ("i",))}, [("o", ("i",), "f32(2.0)"), ("s", (), "add[i](x[i])")]))


def test_a_shift_in_place_goes_through_a_copy() -> None:
    p = program({"i": 8}, {"x": ("f32", (9,))}, [("x", ("i + 1",), "x[i]")])
    (f,) = best(p)
    assert len(f.kernels) == 2


def test_an_update_in_place_is_one_kernel_after_all_readers() -> None:
    p = program({"i": 8}, {"x": ("f32", (8,))}, [("x", ("i",), "x[i] + f32(1.0)"), ("o", (), "add[i](x[i])")])
    (f,) = best(p)
    assert [s.buffer for k in f.kernels for s in k.stores] == ["o", "x"]


def test_two_inputs_exchange_their_values() -> None:
    inputs = {"x": ("f32", ("i",)), "y": ("f32", ("i",))}
    best(program({"i": 8}, inputs, [("x", ("i",), "y[i]"), ("y", ("i",), "x[i]")]))


def test_a_row_sum_subtracted_in_place_reads_all_before_it_writes() -> None:
    p = program(IC, X, [("x", ("i", "c"), "x[i, c] - add[c](x[i, c])")])
    (f,) = best(p)
    writer = next(k for k in f.kernels if any(s.buffer == "x" for s in k.stores))
    assert not any("x" in buffers_read(s.value) for s in writer.stores)


def test_a_gather_and_a_scatter_keep_their_places() -> None:
    inputs = {"x": ("f32", ("i", "c")), "n": ("i64", ("j",)), "z": ("f32", ("i", "c"))}
    p = program({"i": 6, "c": 4, "j": 5}, inputs, [("o", ("j", "c"), "exp(at(x[i, c], i=n[j]))")])
    best(p)


def test_a_scan_is_read_at_another_place_from_its_buffer() -> None:
    value = "scan.add[c](exp(x[i, c])) * at(scan.add[c](exp(x[i, c])), c=7)"
    best(program(IC, X, [("o", ("i", "c"), value)]))


def test_an_axis_bound_twice_is_renamed() -> None:
    lets = """m = max[c](x[i, c])
s = exp(x[i, c] - m) / add[c](exp(x[i, c] - m))"""
    best(program({"i": 6, "c": 6, "j": 6}, X, [("o", ("i", "j"), "add[c](s * at(s, i=j))")], lets))
    best(program({"i": 6, "c": 6, "j": 6}, X, [("o", ("i", "c"), "add[j](at(s, c=j) * at(s, i=j))")], lets))


def layers(n: int, table: bool = False) -> LoopProgram:
    """Blocks of a normalised row, four products around a normalised exponential, and a gated pair of products.

    With `table` every block multiplies its keys by one shared table of cosines.
    """
    axes = {"i": 6, "j": 6, "c": 8, "h": 4, "d": 2}
    inputs: dict[str, tuple[str, tuple[str | int, ...]]] = {"x": ("bf16", ("i", "c"))}
    lets, x = [], "x[i, c]"
    if table:
        inputs["angle"] = ("f32", ("i", "d"))
        lets.append("turn = bf16.op(cos(angle[i, d]))")
    for n_ in range(n):
        f = f"f{n_}"
        axes[f] = 12
        for name, dims in (("q", "chd"), ("k", "chd"), ("v", "chd"), ("o", "hdc")):
            inputs[f"w{name}{n_}"] = ("bf16", tuple(dims))
        inputs |= {f"wg{n_}": ("bf16", ("c", f)), f"wu{n_}": ("bf16", ("c", f)), f"wd{n_}": ("bf16", (f, "c"))}
        inputs[f"g{n_}"] = ("bf16", ("c",))
        lets.append(f"n{n_} = bf16.op({x} * rsqrt(add[c]({x} * {x}) / f32(8.0) + f32(1e-05)) * g{n_}[c])")
        for name in "qkv":
            turned = " * turn" if table and name == "k" else ""
            lets.append(f"{name}{n_} = bf16.op(add[c](n{n_} * w{name}{n_}[c, h, d]){turned})")
        lets.append(f"s{n_} = add[d](q{n_} * at(k{n_}, i=j)) * f32(0.5) if j <= i else f32(-inf)")
        lets.append(f"e{n_} = exp(s{n_} - max[j](s{n_}))")
        lets.append(f"a{n_} = bf16.op(add[j](bf16.op(e{n_} / add[j](e{n_})) * at(v{n_}, i=j)))")
        lets.append(f"y{n_} = bf16.op({x} + bf16.op(add[d, h](a{n_} * wo{n_}[h, d, c])))")
        lets.append(f"m{n_} = bf16.op(y{n_} * rsqrt(add[c](y{n_} * y{n_}) / f32(8.0) + f32(1e-05)))")
        for name in "gu":
            lets.append(
                f"{name}{n_} = bf16.op(add[c](m{n_} * w{name}{n_}[c, {f}]))".replace(
                    f"{name}{n_} =", f"p{name}{n_} ="
                )
            )
        lets.append(f"t{n_} = bf16.op(bf16.op(pg{n_} * sigmoid(pg{n_})) * pu{n_})")
        lets.append(f"z{n_} = bf16.op(y{n_} + bf16.op(add[{f}](t{n_} * wd{n_}[{f}, c])))")
        x = f"z{n_}"
    return program(axes, inputs, [("o", ("i", "c"), x)], "\n".join(lets))


def test_a_decoder_layer_is_right_in_a_few_forms() -> None:
    for machine in (H200, SLOW):
        found = best(layers(1), 2, machine)
        assert len(found) == 2


def test_equal_layers_are_cut_and_solved_once() -> None:
    (f,) = forms(saturate(layers(4)), SLOW)
    assert error(f, layers(4)) < TOLERANCE
    keys = [canonical(k, f).key for k in f.kernels]
    assert len(keys) <= 8
    assert keys[1:3] == keys[3:5]


def test_a_measured_time_replaces_the_model() -> None:
    p = exponentials(64, 4096)
    graph = saturate(p)

    def slow_alone(kernel: object, form: Form, cost: object) -> float | None:
        stores = kernel.stores  # type: ignore[attr-defined]
        reads = {b for s in stores for b in buffers_read(s.value)}
        return 500.0 if reads == {"x"} and any(s.value.free == {"i", "j"} for s in stores) else 1.0

    (f,) = forms(graph, H200, price=slow_alone)
    assert len(f.kernels) > 1
    assert f.cost_us == len(f.kernels)
    assert error(f, exponentials(64, 4096)) < TOLERANCE


def test_small_programs_take_under_a_tenth_of_a_second() -> None:
    graph = saturate(program(IC, X, [("o", ("i", "c"), "exp(x[i, c]) * w[c]")]))
    seconds = []
    for _ in range(3):
        start = time.thread_time()
        forms(graph, H200)
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 0.1


@pytest.mark.parametrize("k", [1, 3])
def test_no_time_still_gives_a_form(k: int) -> None:
    p = chain(b=2, i=6, j=10, d=3, e=4)
    found = forms(saturate(p), H200, k=k, budget_s=0.0)
    assert found and error(found[0], p) < TOLERANCE
