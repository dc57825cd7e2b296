"""Laws that are true of real numbers and only nearly so in floats: allowed where a caller asks for speed."""

from __future__ import annotations

from egraph.law import fact, law
from ir.term import Term, Unary


@law("approximate", "approximate", given=(fact("positive", "x"),))
def exponential_undoes_logarithm(x: Term) -> tuple[Term, Term]:
    """The exponential of the logarithm of a positive value is the value."""
    return Unary("exp", Unary("log", x)), x


@law("approximate", "approximate", given=(fact("bounded", "x"),))
def logarithm_undoes_exponential(x: Term) -> tuple[Term, Term]:
    """The logarithm of the exponential of a value that is at most 1 in size is the value."""
    return Unary("log", Unary("exp", x)), x


@law("approximate", "approximate")
def double_reciprocal_cancels(x: Term) -> tuple[Term, Term]:
    """The reciprocal of a reciprocal is the value."""
    return Unary("recip", Unary("recip", x)), x


@law("approximate", "approximate")
def reciprocal_of_square_root(x: Term) -> tuple[Term, Term]:
    """The reciprocal of a square root is one operation."""
    return Unary("recip", Unary("sqrt", x)), Unary("rsqrt", x)


@law("approximate", "approximate")
def reciprocal_of_exponential(x: Term) -> tuple[Term, Term]:
    """The reciprocal of an exponential is the exponential of the negated exponent."""
    return Unary("recip", Unary("exp", x)), Unary("exp", Unary("neg", x))
