"""Index terms in normal form keep their values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir import term as T
from ir.affine import affine, bounds, compared, normal
from ir.loop_interp import evaluate
from ir.text import Scope, parse_term, show_term

EXTENTS = {"a": 3, "b": 4, "c": 6, "u": 1}
TABLE = {"g": np.array([7, -3, 0, 12, 5, -9])}


def parsed(text: str) -> T.Term:
    return parse_term(text, Scope({"g": "i64"}, EXTENTS))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("(a * 24 + b * 6 + c) // 6", "b + a * 4"),
        ("(a * 24 + b * 6 + c) % 24", "c + b * 6"),
        ("(a * 24 + b * 6 + c) // 6 % 4", "b"),
        ("(a * 4 + b) // 12", "0"),
        ("(a * 4 + b) // 6 * 6 + (a * 4 + b) % 6", "b + a * 4"),
        ("g[a] // 5 * 5 + g[a] % 5", "g[a]"),
        ("(a * 4 + b) * 6 // 12", "a * 2 + b // 2"),
        ("c - c", "0"),
        ("u * 7 + a", "a"),
        ("(c + 12) // 4", "c // 4 + 3"),
    ],
)
def test_ranges_simplify_division(text: str, want: str) -> None:
    assert show_term(normal(parsed(text), EXTENTS)) == show_term(parsed(want))


leaves = st.sampled_from(["a", "b", "c", "u", "g[c]"]) | st.integers(-6, 24).map(str)
terms = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(inner, inner).map(lambda p: f"({p[0]} + {p[1]})")
        | st.tuples(inner, st.integers(-3, 12)).map(lambda p: f"({p[0]} * {p[1]})")
        | st.tuples(inner, st.sampled_from(["//", "%"]), st.sampled_from([1, 2, 3, 4, 6, 12, 24])).map(
            lambda p: f"({p[0]} {p[1]} {p[2]})"
        )
        | inner.map(lambda x: f"(-{x})")
    ),
    max_leaves=8,
)


@given(terms)
@settings(max_examples=300, deadline=None)
def test_a_normal_form_has_the_value_of_its_term(text: str) -> None:
    term = parsed(text)
    order = tuple(EXTENTS)
    want = evaluate(term, EXTENTS, TABLE, order, True)
    found = normal(term, EXTENTS)
    np.testing.assert_array_equal(evaluate(found, EXTENTS, TABLE, order, True), want)
    assert normal(found, EXTENTS) is found
    span = bounds(affine(term, EXTENTS), EXTENTS)
    assert span is None or (span[0] <= want.min() and want.max() <= span[1])


@given(terms, terms, st.sampled_from(["lt", "le"]))
@settings(max_examples=150, deadline=None)
def test_a_decided_comparison_is_right(x: str, y: str, op: str) -> None:
    order = tuple(EXTENTS)
    term = T.binary(op, parsed(x), parsed(y))
    found = compared(op, parsed(x), parsed(y), EXTENTS)
    np.testing.assert_array_equal(
        evaluate(found, EXTENTS, TABLE, order, True), evaluate(term, EXTENTS, TABLE, order, True)
    )
