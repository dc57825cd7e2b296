"""The steps of a stream are those of all of its pieces, and are tested on numbers once for all of them."""

from __future__ import annotations

import pytest

from egraph.saturate import saturate
from extract import merging
from extract.forms import forms
from extract.merging import steps
from extract.spaces import space
from ir import term as T
from ir.dtype import DType
from ir.machine import H200
from tests.egraph.written import program

AXIS = "j"
X = T.Load("X", "f32", (T.Index("i"), T.Index(AXIS)))


def carry(name: str, monoid: str, part: T.Term, moved: T.Term | None = None) -> T.Carry:
    old = T.State(name, "f32", ("i",)) if moved is None else moved
    return T.Carry(name, monoid, T.binary(monoid, old, part))


def state(name: str, dtype: DType = "f32") -> T.Term:
    return T.State(name, dtype, ("i",))


def soft(mask: T.Term | None) -> T.Stream:
    """The maximum m of x, and the sum of exp(x - m), at positions where the mask holds."""
    x = X if mask is None else T.select(mask, X, T.Identity("max"))
    top = carry("m", "max", x)
    part = T.unary("exp", T.binary("sub", X, top.update))
    part = part if mask is None else T.select(mask, part, T.Identity("add"))
    moved = T.binary("mulz", state("s"), T.unary("exp", T.binary("sub", state("m"), top.update)))
    return T.Stream(AXIS, (top, carry("s", "add", part, moved)), "s")


def short(end: int) -> T.Term:
    return T.binary("lt", T.binary("add", T.Index(AXIS), T.number(7)), T.number(end))


def test_one_test_serves_pieces_of_any_length() -> None:
    assert steps(soft(None)) is not None
    before = merging._agree.cache_info().misses
    found = [steps(soft(short(n))) for n in (8, 100, 129, 1000)]
    assert all(f is not None and len(f) == 2 for f in found)
    assert merging._agree.cache_info().misses - before <= 1


def test_results_of_one_stream_share_its_steps() -> None:
    one = soft(None)
    assert steps(one) is steps(T.Stream(AXIS, one.carries, "m"))


@pytest.mark.parametrize("mask", [None, short(100)])
def test_a_state_that_is_moved_wrongly_has_no_steps(mask: T.Term | None) -> None:
    right = soft(mask)
    top, total = right.carries
    back = T.unary("exp", T.binary("sub", top.update, state("m")))
    wrong = T.Carry("s", "add", T.binary("add", T.binary("mulz", state("s"), back), _part(total.update)))
    assert steps(T.Stream(AXIS, (top, wrong), "s")) is None


def test_two_masks_that_differ_in_a_place_are_not_one() -> None:
    """The sum counts positions that the maximum leaves out: still right, as the parts of any position are."""
    top = carry("m", "max", T.select(short(50), X, T.Identity("max")))
    part = T.select(short(60), T.unary("exp", T.binary("sub", X, top.update)), T.Identity("add"))
    moved = T.binary("mulz", state("s"), T.unary("exp", T.binary("sub", state("m"), top.update)))
    assert steps(T.Stream(AXIS, (top, carry("s", "add", part, moved)), "s")) is not None


def test_a_mean_needs_the_mask_of_its_count() -> None:
    """Squares around a running mean: with a count of other positions than the sum the old squares are moved wrongly."""
    assert steps(spread(short(60), short(60))) is not None
    assert steps(spread(short(60), short(61))) is None


def spread(mask: T.Term, other: T.Term) -> T.Stream:
    """Count, sum, and the sum of squared distances to the mean, the count under a mask of its own."""
    one, none = T.const(1.0, "f32"), T.Identity("add")
    count = carry("n", "add", T.select(other, one, none))
    total = carry("t", "add", T.select(mask, X, none))

    def mean(t: T.Term, n: T.Term) -> T.Term:
        return T.binary("div", t, n)

    new = mean(total.update, count.update)
    far = T.binary("sub", X, new)
    part = T.select(mask, T.binary("mul", far, far), none)
    apart = T.binary("sub", mean(state("t"), state("n")), new)
    moved = T.binary("add", state("q"), T.binary("mulz", state("n"), T.binary("mul", apart, apart)))
    squares = T.Carry("q", "add", T.binary("add", moved, part))
    return T.Stream(AXIS, (count, total, squares), "q")


def _part(update: T.Term) -> T.Term:
    assert isinstance(update, T.Binary)
    return next(t for t in (update.x, update.y) if not (isinstance(t, T.Binary) and t.op == "mulz"))


def test_a_listing_tests_the_stream_and_a_piece_of_it() -> None:
    p = program(
        "mu := add[j](X[i, j]) / f32.op(extent(j))\nadd[j]((X[i, j] - mu) * (X[i, j] - mu))", {"i": 2, "j": 131072}
    )
    form = forms(saturate(p), H200)[0]
    before = merging._agree.cache_info().misses
    for kernel in form.kernels:
        assert any("split" in str(line) for line in space(kernel, form.buffers, form.axes, H200).lines)
    assert merging._agree.cache_info().misses - before <= 4
