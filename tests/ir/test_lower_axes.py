"""Lowering names axes so that equal dimensions meet, and writes indices that stay affine where they can."""

from __future__ import annotations

import time

import pytest

from ir import term as T
from ir.counts import with_counts
from ir.loop import LoopProgram
from ir.loop_text import show_loop
from ir.lower import lower
from ir.node import postorder
from ir.tensor import Input, Iota, Map, Result, Scatter, TensorProgram
from tests import programs as P
from tests import words as W


def lowered(p: TensorProgram) -> LoopProgram:
    (step,) = lower(p).steps
    assert isinstance(step, LoopProgram)
    return step


def nodes(loop: LoopProgram, kind: type[T.Term]) -> list[T.Term]:
    return [t for t in postorder(*(s.value for s in loop.results)) if isinstance(t, kind)]


def stores(p: TensorProgram) -> list[str]:
    return [line for line in show_loop(lowered(p)).splitlines() if line.startswith(("store", "t"))]


def test_equal_dimensions_share_an_axis_and_extent_one_has_none() -> None:
    loop = lowered(P.root_mean_square("f32"))
    assert loop.axes == {"a0": 6, "a1": 16}
    assert nodes(loop, T.At) == []
    assert len(nodes(loop, T.Fold)) == 1


def test_a_dimension_used_twice_by_one_consumer_is_renamed() -> None:
    x = W.given("x", (5, 7))
    gram = W.contract("ik,kj->ij", x, W.permute(x, 1, 0))
    assert stores(W.program("gram", gram)) == ["store y0[a0, a1] = add[a2](x[a0, a2] * x[a1, a2])"]
    work = W.apply("exp", W.contract("ik,kj->ij", x, W.given("w", (7, 4))))
    gram = W.contract("ik,kj->ij", work, W.permute(work, 1, 0))
    (move,) = nodes(lowered(W.program("gram", gram)), T.At)
    assert isinstance(move, T.At) and isinstance(move.index, T.Index)


def test_two_folds_of_one_tensor_meet_in_one_axis() -> None:
    loop = lowered(P.layer_norm())
    axes = {t.axes for t in nodes(loop, T.Fold) if isinstance(t, T.Fold)}
    assert axes == {("a1",)}


def test_a_product_over_a_merged_dimension_is_one_fold_over_its_factors() -> None:
    loop = lowered(P.merged_and_split())
    products = [t for t in nodes(loop, T.Fold) if isinstance(t, T.Fold) and t.monoid == "add"]
    assert [len(t.axes) for t in products] == [2]
    index_ops = {t.op for s in loop.results for t in postorder(s.value, *s.index) if isinstance(t, T.Binary)}
    assert not index_ops & {"floordiv", "mod"}


def test_grouped_heads_and_projections_stay_affine() -> None:
    loop = lowered(P.grouped_attention())
    ops = {t.op for s in loop.results for t in postorder(s.value, *s.index) if isinstance(t, T.Binary)}
    assert not ops & {"floordiv", "mod"}
    sums = {t.axes for t in nodes(loop, T.Fold) if isinstance(t, T.Fold)}
    assert any(len(axes) == 3 for axes in sums)  # the output projection, over group, head in the group, and width


def test_reshapes_that_conflict_fall_back_to_division() -> None:
    loop = lowered(P.conflicting_reshapes())
    ops = {t.op for s in loop.results for t in postorder(s.value) if isinstance(t, T.Binary)}
    assert {"floordiv", "mod"} <= ops


def test_a_scanned_dimension_stays_one_axis() -> None:
    (scan, *_) = nodes(lowered(P.scanned()), T.Scan)
    assert isinstance(scan, T.Scan)
    x = W.given("x", (4, 6))
    flat = W.reshape(x, 24)
    text = stores(W.program("p", W.reduce("argmax", flat, 0), W.apply("exp", flat)))
    assert text[0] == "store y0[()] = argmax[a0](x[a0 // 6, a0 % 6])"


def test_moves_of_inputs_go_into_the_index() -> None:
    x = W.given("x", (5, 6))
    joined = W.pad(W.flip(W.shifted(x, 1, 1, 5), 0), 1, 1, 0, 2.0)
    assert stores(W.program("p", joined)) == [
        "store y0[a0, a1] = x[-a0 + 4, a1] if 0 <= a1 + -1 else f32(2.0)",
    ]


def test_moves_of_work_compose_into_one() -> None:
    x, w = W.given("x", (5, 6)), W.given("w", (6, 8))
    work = W.contract("ik,kj->ij", x, w)
    moved = W.apply("neg", W.shifted(W.apply("neg", W.shifted(work, 1, 2, 8)), 1, 1, 4))
    (move,) = nodes(lowered(W.program("p", moved)), T.At)
    assert isinstance(move, T.At) and isinstance(move.x, T.Fold)


def test_an_index_aligned_with_the_base_is_not_folded() -> None:
    loop = lowered(P.scattered())
    first = loop.results[0].value
    assert isinstance(first, T.Binary)
    assert [t.axes for t in postorder(first) if isinstance(t, T.Fold)] == [("a2",)]


def test_an_embedding_is_a_load_at_a_loaded_index() -> None:
    assert stores(W.program("p", P.gathered().results[0].value)) == ["store y0[a0, a1] = table[rows[a0], a1]"]


def test_outputs_keep_strides_unless_elements_share_memory() -> None:
    x = Input("x", "f16", (3, 4), (8, 2), 5)
    y = Map("neg", (x,))
    results = (
        Result("a", y, (1, 3)),
        Result("b", y, (0, 1)),
        Result("c", y, (4, 1)),
        Result("d", y, (2, 1)),
        Result("e", W.reduce("max", x, 0, keep=True), (99, 1)),
    )
    loop = lowered(TensorProgram("p", (x,), results))
    strides = {b.name: b.strides for b in loop.buffers}
    assert strides == {"x": (8, 2), "a": (1, 3), "b": (4, 1), "c": (4, 1), "d": (4, 1), "e": (99, 1)}
    assert loop.buffer("x").offset == 5 and loop.buffer("x").alignment == 2


def test_only_used_axes_and_buffers_are_named() -> None:
    x, unused = W.given("x", (3, 4)), W.given("unused", (5,))
    p = TensorProgram("p", (x, unused), (Result("y", W.view(x, (3,), [W.o(0), W.number(2)]), (1,)),))
    loop = lowered(p)
    assert loop.axes == {"a0": 3}
    assert [b.name for b in loop.buffers] == ["x", "y"]
    assert [b.name for b in lower(p).buffers] == ["x", "unused", "y"]


@pytest.mark.parametrize("name", P.WRITTEN)
def test_lowering_twice_gives_the_same_program(name: str) -> None:
    assert lowered(P.WRITTEN[name]()) == lowered(P.WRITTEN[name]())


def test_a_long_chain_lowers_quickly_and_without_recursion() -> None:
    x, w = W.given("x", (4, 8)), W.given("w", (8, 8))
    t = x
    for k in range(700):
        t = W.apply("tanh", W.contract("ik,kj->ij", t, w)) if k % 2 else W.reshape(W.reshape(t, 4, 2, 4), 4, 8)
        t = W.apply("add", t, x)
    start = time.process_time()
    loop = lowered(W.program("chain", t))
    assert time.process_time() - start < 3
    assert len(nodes(loop, T.Fold)) == 350


def test_layers_share_the_axes_of_their_activations_and_scale_linearly() -> None:
    one, many = lowered(P.decoder_layers(1)), P.decoder_layers(32)
    start = time.process_time()
    loop = lowered(many)
    assert time.process_time() - start < 3
    assert len(one.axes) == 8  # rows twice, hidden, group, head in the group, width of keys and of values, inner
    assert len(loop.axes) == 5 + 32 * 3  # each layer has its own other row, width of values and inner
    moves = [t for t in nodes(one, T.At) if isinstance(t, T.At)]
    renamings = [t for t in moves if isinstance(t.index, T.Index)]
    assert len(renamings) == 2 and {t.axis for t in renamings} == {"a0"}  # keys and values at another row


def test_two_readers_of_one_count_are_not_related() -> None:
    """Extents that happen to be equal must not tie the rows of a mask to the width of a row."""
    loop = lowered(P.decoder_layers(1, rows=8))
    assert len([t for t in nodes(loop, T.At) if isinstance(t, T.At) and isinstance(t.index, T.Index)]) == 2


def test_axes_are_numbered_without_gaps() -> None:
    for build in P.WRITTEN.values():
        axes = lowered(build()).axes
        assert list(axes) == [f"a{k}" for k in range(len(axes))]


def test_an_iota_over_a_split_dimension_counts_through() -> None:
    x = W.given("x", (4, 6))
    numbers = W.apply("mul", W.reshape(x, 24), W.to("f32", Iota(24)))
    (count,) = nodes(lowered(W.program("p", W.apply("add", W.reshape(numbers, 4, 6), x))), T.Round)
    assert count.free == {"a0", "a1"}


def test_a_scatter_with_every_dimension_aligned_folds_nothing() -> None:
    x, y = W.given("x", (3, 4)), W.given("y", (3, 4))
    p = W.program("p", Scatter("add", x, y, (W.o(0), W.o(1)), ()), Scatter(None, x, y, (W.o(0), W.o(1)), ()))
    assert nodes(lowered(p), T.Fold) == []


@pytest.mark.parametrize(("shape", "over", "factor", "named"), [
    ((4, 5, 7), (1, 2), 1 / 35, {"a1", "a2"}), ((4, 5, 7), (1, 2), 1 / 5, {"a1"}), ((4, 5, 7), (1, 2), 1 / 6, set()),
])  # fmt: skip
def test_a_mean_names_the_axes_that_it_is_over_in_a_sum_over_more(shape, over, factor, named):
    extents = {f"a{k}": n for k, n in enumerate(shape)}
    total = T.fold(tuple(f"a{k}" for k in over), "add", T.Load("x", "f32", tuple(map(T.Index, extents))))
    _, count = with_counts(total, T.const(factor, "f32"), extents)
    assert {t.axis for t in postorder(count) if isinstance(t, T.Extent)} == named
