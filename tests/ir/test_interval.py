"""Intervals, affine forms, runs and divisors hold for every value of the leaves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir import meaning
from ir import term as T
from ir.dtype import Array
from ir.interval import Affine, Ranges, divisor, run_along
from ir.term import Index, Term, Var

X, Y = Index("i"), Index("j")
SPANS = {X: (0, 11), Y: (0, 6)}
OPS = ("add", "mul", "min", "max", "floordiv", "mod", "truncdiv", "fmod", "and", "shr")


def terms() -> st.SearchStrategy[Term]:
    leaves = st.sampled_from([X, Y]) | st.integers(-9, 9).map(T.number)
    positive = st.integers(1, 9).map(T.number)

    def grown(inner: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
        pairs = st.builds(T.binary, st.sampled_from(OPS[:4]), inner, inner)
        divided = st.builds(T.binary, st.sampled_from(OPS[4:]), inner, positive)
        compared = st.builds(T.binary, st.sampled_from(["lt", "le", "eq"]), inner, inner)
        return (
            pairs | divided | inner.map(lambda t: T.unary("neg", t)) | st.builds(T.select, compared, inner, inner)
        )

    return st.recursive(leaves, grown, max_leaves=8)


def values(t: Term) -> Array:
    """The term at every pair of coordinates, [12, 7]."""
    places = {X: np.arange(12)[:, None], Y: np.arange(7)[None]}
    return np.broadcast_to(meaning.pointwise(t, lambda leaf: places[leaf], False), (12, 7))


@given(terms())
@settings(max_examples=300, deadline=None)
def test_values_stay_inside_their_interval(t: Term) -> None:
    low, high = Ranges(SPANS).of(t)
    assert low <= values(t).min()
    assert values(t).max() <= high


@given(terms(), terms(), st.sampled_from(["lt", "le", "eq", "ne"]))
@settings(max_examples=200, deadline=None)
def test_a_decided_predicate_holds_everywhere_or_nowhere(x: Term, y: Term, op: str) -> None:
    known = Ranges(SPANS).decide(T.binary(op, x, y))
    if known is not None:
        assert (values(T.binary(op, x, y)) == known).all()


@given(terms())
@settings(max_examples=200, deadline=None)
def test_an_affine_form_has_the_values_of_its_term(t: Term) -> None:
    form = Ranges(SPANS).affine(t)
    total = form.constant + sum((c * values(a) for a, c in form.coefficients.items()), np.zeros((12, 7), np.int64))
    assert (total == values(t)).all()


@given(terms(), st.sampled_from([2, 4]))
@settings(max_examples=300, deadline=None)
def test_a_run_moves_by_its_step_from_multiples_of_its_divisor(t: Term, width: int) -> None:
    found = run_along(t, "i", width)
    if found is None:
        return
    step, multiple = found
    for first, e in itertools.product(range(0, 12, width), range(width)):
        assert (values(t)[first + e] == values(t)[first] + step * e).all()
        assert not (values(t)[first] % multiple).any() if multiple else not values(t)[first].any()


@given(terms())
@settings(max_examples=200, deadline=None)
def test_a_divisor_divides(t: Term) -> None:
    found = divisor(t, {})
    assert not (values(t) % found).any() if found else not values(t).any()


def test_a_loaded_value_along_the_axis_is_no_run() -> None:
    assert run_along(Var("v", "i64", ("i",)), "i", 4) is None
    assert run_along(Var("v", "i64", ("j",)), "i", 4) == (0, 1)


def test_what_may_wrap_is_not_affine() -> None:
    x = Var("x", "i32", ())
    twice = T.binary("mul", x, T.const(2, "i32"))
    assert Ranges({}).affine(twice) == Affine({twice: 1}, 0)
    assert Ranges({x: (0, 100)}).affine(twice) == Affine({x: 2}, 0)
    assert Ranges({}).of(twice) == (-(1 << 31), (1 << 31) - 1)


@pytest.mark.parametrize(
    ("start", "stop", "step", "want"), [(0, 10, 4, (0, 8)), (2, 3, 5, (2, 2)), (5, 5, 1, (5, 5))]
)
def test_a_counter_takes_the_values_of_its_loop(start: int, stop: int, step: int, want: tuple[int, int]) -> None:
    assert Ranges({}).counter(T.const(start, "i32"), T.const(stop, "i32"), step) == want


def test_an_identity_has_no_interval_before_it_has_a_type() -> None:
    p, ranges = T.binary("lt", X, T.number(4)), Ranges(SPANS)
    best = T.fold("i", "min", T.select(p, X, T.Identity("min")))
    for t in (
        best,
        T.binary("add", best, Y),
        T.select(p, T.Identity("max"), X),
        T.Binary("min", X, T.Identity("min")),
    ):
        low, high = ranges.of(t)
        assert low <= 0 and high >= 11
    assert ranges.of(T.select(T.binary("lt", X, T.number(12)), X, T.Identity("min"))) == SPANS[X]


def test_shared_terms_do_not_take_exponential_time() -> None:
    t: Term = X
    for _ in range(200):
        t = T.binary("max", T.binary("add", t, T.unary("neg", t)), T.binary("mod", t, T.number(13)))
    assert Ranges(SPANS).of(t)[1] == 11
    assert Ranges(SPANS).affine(t).constant == 0
    assert divisor(t, {}) == 1
