"""Laws of normal forms: identities vanish, involutions cancel, idempotent operations collapse. Nearly all are exact."""

from __future__ import annotations

from egraph.law import Axes, Predicate, apart, disjoint, fact, joined, law, occupied, typed
from ir.term import Binary, Fold, Identity, Round, Select, Term, Unary, const


def neg(x: Term) -> Term:
    """-x."""
    return Unary("neg", x)


def recip(x: Term) -> Term:
    """1 / x."""
    return Unary("recip", x)


@law("normal", "exact", over={"op": ("add", "mul", "max", "min")}, hides=True)
def identity_vanishes_right(x: Term, op: str) -> tuple[Term, Term]:
    """Combining with the monoid's identity on the right changes nothing."""
    return Binary(op, x, Identity(op)), x


@law("normal", "exact", over={"op": ("add", "mul", "max", "min")}, hides=True)
def identity_vanishes_left(x: Term, op: str) -> tuple[Term, Term]:
    """Combining with the monoid's identity on the left changes nothing."""
    return Binary(op, Identity(op), x), x


@law("normal", "exact", over={"op": ("add", "mul")})
def operands_commute(x: Term, y: Term, op: str) -> tuple[Term, Term]:
    """A sum or product does not depend on the order of its two operands."""
    return Binary(op, x, y), Binary(op, y, x)


@law("normal", "reassociating", over={"op": ("max", "min")})
def extrema_commute(x: Term, y: Term, op: str) -> tuple[Term, Term]:
    """A maximum or minimum does not depend on the order of its operands, but for the sign of a zero."""
    return Binary(op, x, y), Binary(op, y, x)


@law("normal", "exact")
def double_negation_cancels(x: Term) -> tuple[Term, Term]:
    """Negating twice gives the operand back."""
    return neg(neg(x)), x


@law("normal", "exact")
def negation_leaves_product(x: Term, y: Term) -> tuple[Term, Term]:
    """The sign of a factor is the sign of the product."""
    return Binary("mul", neg(x), y), neg(Binary("mul", x, y))


@law("normal", "exact")
def negation_leaves_reciprocal(x: Term) -> tuple[Term, Term]:
    """The reciprocal of a negated value is the negated reciprocal."""
    return recip(neg(x)), neg(recip(x))


@law("normal", "exact", given=(fact("one", "c"),))
def factor_one_vanishes(x: Term, c: Term) -> tuple[Term, Term]:
    """A factor that is exactly 1 changes nothing, whatever the other factor is."""
    return Binary("mul", x, c), x


@law("normal", "exact", given=(fact("minus_zero", "c"),))
def addend_minus_zero_vanishes(x: Term, c: Term) -> tuple[Term, Term]:
    """Adding -0.0 changes nothing, also for -0.0 itself."""
    return Binary("add", x, c), x


@law("normal", "exact", given=(fact("zero", "c"), fact("plain", "x")))
def addend_zero_vanishes(x: Term, c: Term) -> tuple[Term, Term]:
    """Adding 0.0 changes nothing where the other addend is never -0.0."""
    return Binary("add", x, c), x


@law("normal", "exact", given=(fact("inverse", "c", "d"),))
def division_by_power_of_two_is_a_product(x: Term, c: Term, d: Term) -> tuple[Term, Term]:
    """Dividing by a power of two is multiplying by its reciprocal, which is exact."""
    return Binary("mul", x, recip(c)), Binary("mul", x, d)


@law("normal", "exact", given=(typed("x", "d"),), over={"origin": ("op", "cast")})
def rounding_a_rounded_value(x: Term, d: str, origin: str) -> tuple[Term, Term]:
    """Rounding to the type a value already has changes nothing."""
    return Round(d, origin, x), x


@law("normal", "exact", over={"op": ("max", "min")})
def extremum_of_equals(x: Term, op: str) -> tuple[Term, Term]:
    """The maximum or minimum of a value with itself is the value."""
    return Binary(op, x, x), x


@law("normal", "exact")
def selecting_between_equals(p: Predicate, x: Term) -> tuple[Term, Term]:
    """A selection between equal values is that value."""
    return Select(p, x, x), x


@law("normal", "exact")
def selecting_under_one_predicate(p: Predicate, x: Term, y: Term, z: Term) -> tuple[Term, Term]:
    """What a predicate already rejected is not reached under the same predicate again."""
    return Select(p, Select(p, x, z), y), Select(p, x, y)


@law("normal", "exact")
def selecting_by_true(x: Term, y: Term) -> tuple[Term, Term]:
    """A true predicate selects its first value."""
    return Select(const(True, "bool"), x, y), x


@law("normal", "exact")
def selecting_by_false(x: Term, y: Term) -> tuple[Term, Term]:
    """A false predicate selects its second value."""
    return Select(const(False, "bool"), x, y), y


@law("normal", "exact", given=(disjoint("x", "s"), occupied("s")), over={"o": ("max", "min")})
def extremum_of_a_constant(x: Term, s: Axes, o: str) -> tuple[Term, Term]:
    """The maximum or minimum of a value over axes it does not depend on is the value."""
    return Fold(s, o, x), x


@law("normal", "reassociating", given=(apart("s", "t"),), over={"o": ("max", "min")})
def nested_extrema_merge(x: Term, s: Axes, t: Axes, o: str) -> tuple[Term, Term]:
    """A maximum of maxima over other axes is one maximum over all, but for the sign of a zero; so for minima."""
    return Fold(s, o, Fold(t, o, x)), Fold(joined(s, t), o, x)
