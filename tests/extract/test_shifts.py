"""What a difference cancels is added up in one order on both its sides."""

from __future__ import annotations

import pytest

from extract.shifts import Shifts
from ir import term as T
from ir.text import Scope, parse_term

AXES = {"i": 3, "j": 6, "d": 4}
TOTAL = "add[j](x[i, j])"
STREAMED = "stream[j](s0=carry(add, f32, [i], x[i, j] + old.s0), s1=carry(max, f32, [i], max(old.s1, x[i, j] - old.s0))).s1"
AGREE = (
    f"x[i, j] - {TOTAL}", f"x[i, j] - {TOTAL} - max[j](x[i, j] - {TOTAL})", f"x[i, j] - {STREAMED}",
    f"x[i, j] * rsqrt({TOTAL}) - {STREAMED}", f"add[d](x[i, d] * y[d, j]) - {STREAMED}",
    "add[d](x[i, d] * y[d, j]) - max[j](add[d](x[i, d] * y[d, j]))",
)  # fmt: skip
DIFFER = (
    f"x[i, j] - {TOTAL} - {STREAMED}", f"y[i, j] * (x[i, j] - {TOTAL}) + y[j, i] * {STREAMED}",
    f"exp(x[i, j] - {TOTAL} - {STREAMED})", f"add[j]((x[i, j] - {TOTAL}) * (x[i, j] - {TOTAL})) - {STREAMED} * {STREAMED}",
)  # fmt: skip


def term(text: str) -> T.Term:
    return parse_term(text, Scope({"x": "f32", "y": "f32"}, AXES))


@pytest.mark.parametrize("text", (*AGREE, *DIFFER))
def test_a_fold_and_a_state_of_a_stream_add_up_in_two_orders(text: str) -> None:
    assert Shifts({}).agree([term(text)]) == (text in AGREE)


@pytest.mark.parametrize("kernels", ((0, 0), (0, 1)))
def test_two_kernels_add_up_in_two_orders(kernels: tuple[int, int]) -> None:
    shifted = term(f"x[i, j] - {TOTAL}")
    values, least = T.Load("%7", "f32", (T.Index("i"), T.Index("j"))), T.Load("%8", "f32", (T.Index("i"),))
    made = {7: (kernels[0], shifted), 8: (kernels[1], term(f"min[j](x[i, j] - {TOTAL})"))}
    difference = T.binary("add", values, T.unary("neg", least))
    assert Shifts(made).agree([difference]) == (kernels[0] == kernels[1])
    assert not Shifts(made).agree([T.binary("add", shifted, T.unary("neg", least))])


def test_what_two_kernels_read_is_one_value() -> None:
    values = T.Load("%7", "f32", (T.Index("i"), T.Index("j")))
    made = {7: (0, term(f"x[i, j] - {TOTAL}")), 8: (1, T.fold("j", "min", values))}
    least = T.Load("%8", "f32", (T.Index("i"),))
    assert Shifts(made).agree([T.binary("add", values, T.unary("neg", least))])


def test_what_varies_along_the_axis_of_a_fold_is_not_cancelled_by_it() -> None:
    scores = "add[d](x[i, d] * y[d, j])"
    made = {8: (0, term(f"max[j]({scores})"))}
    assert Shifts(made).agree([T.binary("add", term(scores), T.unary("neg", T.Load("%8", "f32", (T.Index("i"),))))])
