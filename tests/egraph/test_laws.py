"""Laws hold by numbers, and tempting false ones do not."""

from __future__ import annotations

import pytest

from egraph.check import counterexample
from egraph.graph import EGraphError
from egraph.law import Axes, Law, disjoint, fact, two_sided, typed
from egraph.laws import LAWS, laws
from ir.term import Binary, Fold, Round, Term, Unary, const

TWO_SIDED = [name for name, x in LAWS.items() if x.sides]


@pytest.mark.parametrize("name", TWO_SIDED)
def test_both_sides_agree_as_the_class_of_the_law_says(name: str) -> None:
    assert counterexample(LAWS[name]) is None


def test_every_law_has_a_sentence_and_rules() -> None:
    assert all(x.sentence.endswith(".") and x.rules for x in LAWS.values())


def test_settings_choose_classes_and_names_are_checked() -> None:
    strict, default, fast = (laws(n) for n in ("strict", "default", "fast"))
    assert {x.class_ for x in strict} == {"exact"}
    assert set(strict) < set(default) < set(fast)
    assert not [x for x in laws(without=["factor_leaves_sum"]) if x.name == "factor_leaves_sum"]
    with pytest.raises(EGraphError, match="no law is named 'gravity'"):
        laws(without=["gravity"])
    with pytest.raises(EGraphError, match="numerics 'sloppy'"):
        laws("sloppy")


def zero_absorbs(x: Term, c: Term) -> tuple[Term, Term]:
    """A product with 0 is 0."""
    return Binary("mul", x, c), c


def adding_zero(x: Term, c: Term) -> tuple[Term, Term]:
    """Adding 0.0 changes nothing."""
    return Binary("add", x, c), x


def any_factor_leaves_maximum(x: Term, s: Axes) -> tuple[Term, Term]:
    """A factor leaves a maximum."""
    return Fold(s, "max", Binary("mul", x, const(-2.0, "f32"))), Binary(
        "mul", Fold(s, "max", x), const(-2.0, "f32")
    )


def subtraction_from_zero_is_negation(x: Term, c: Term) -> tuple[Term, Term]:
    """0 - x is -x."""
    return Binary("add", c, Unary("neg", x)), Unary("neg", x)


def narrow_round_trip_vanishes(x: Term, d: str) -> tuple[Term, Term]:
    """Rounding to f16 and back changes nothing."""
    return Round(d, "op", Round("f16", "op", x)), Round(d, "op", x)


def mean_divides_first(x: Term, s: Axes) -> tuple[Term, Term]:
    """The sum divided by n is the sum of what is divided by n."""
    return Binary("mul", Fold(s, "add", x), const(0.25, "f32")), Fold(
        s, "add", Binary("mul", x, const(0.25, "f32"))
    )


def exponentials_multiply(x: Term, y: Term) -> tuple[Term, Term]:
    """exp(x) * exp(y) is exp(x + y)."""
    return Binary("mul", Unary("exp", x), Unary("exp", y)), Unary("exp", Binary("add", x, y))


def logarithm_undoes_any_exponential(x: Term) -> tuple[Term, Term]:
    """log(exp(x)) is x."""
    return Unary("log", Unary("exp", x)), x


def negated_comparison_swaps(x: Term, y: Term) -> tuple[Term, Term]:
    """Not x < y is y <= x."""
    return Unary("not", Binary("lt", x, y)), Binary("le", y, x)


def squares_about_a_value_are_raw_moments(x: Term, m: Term, s: Axes) -> tuple[Term, Term]:
    """A sum of (x - m)^2 is a sum of x^2 less m times the sums of x and of x - m."""
    about = Binary("add", x, Unary("neg", m))
    off = Unary("neg", Binary("mul", m, Binary("add", Fold(s, "add", x), Fold(s, "add", about))))
    return Fold(s, "add", Binary("mul", about, about)), Binary("add", Fold(s, "add", Binary("mul", x, x)), off)


FALSE_LAWS: list[Law] = [
    two_sided("false", "exact", given=(fact("zero", "c"),))(zero_absorbs),
    two_sided("false", "exact", given=(fact("zero", "c"),))(adding_zero),
    two_sided("false", "finite")(any_factor_leaves_maximum),
    two_sided("false", "exact", given=(fact("zero", "c"),))(subtraction_from_zero_is_negation),
    two_sided("false", "exact", given=(typed("x", "d"),))(narrow_round_trip_vanishes),
    two_sided("false", "finite")(mean_divides_first),
    two_sided("false", "reassociating")(exponentials_multiply),
    two_sided("false", "reassociating")(logarithm_undoes_any_exponential),
    two_sided("false", "exact")(negated_comparison_swaps),
    two_sided("false", "approximate", given=(disjoint("m", "s"),))(squares_about_a_value_are_raw_moments),
]


@pytest.mark.parametrize("false", FALSE_LAWS, ids=lambda x: x.name)
def test_a_tempting_false_law_has_a_counterexample(false: Law) -> None:
    found = counterexample(false)
    assert found is not None and "left is" in found
    assert false.name not in LAWS
