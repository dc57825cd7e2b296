"""Laws that are true of real numbers and only nearly so in floats: allowed where a caller asks for speed."""

from __future__ import annotations

from egraph.law import Rule, constant, fact, has_fold, law, no_fold, relational, varies
from ir.term import Term, Unary

DEMAND = "(relation xneed (String E))"


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


@relational("approximate", "approximate", "hoist")
def sum_of_shifted_products_is_a_sum_of_sums() -> list[Rule]:
    """A sum over values shifted by a completed one is expanded; it may cancel, as a mean square less a squared mean."""
    demand = f'(= e (Fold s "add" b)) (axis j) (set-contains s j) {has_fold("b", "j").facts}'
    live = '(xneed j e) (= e (Binary "mul" x y)) (= x (Binary "add" p q))'
    shifted = f"{has_fold('p', 'j').facts} {no_fold('q', 'j').facts}"
    mixed = f"{constant('p', 'j').facts} {varies('q', 'j').facts}"
    expanded = '(union e (Binary "add" (Binary "mul" p y) (Binary "mul" q y)))'
    return [
        (demand, "(xneed j b)"),
        ('(xneed j e) (= e (Binary "mul" x y))', "(xneed j x) (xneed j y)"),
        ('(xneed j e) (= e (Binary "add" x y))', "(xneed j x) (xneed j y)"),
        ('(xneed j e) (= e (Unary "neg" x))', "(xneed j x)"),
        (f"{live} {shifted}", expanded),
        (f"{live} {mixed}", expanded),
        (
            '(= e (Fold s "add" b)) (xneed j b) (set-contains s j) (= b (Binary "add" x y))',
            '(union e (Binary "add" (Fold s "add" x) (Fold s "add" y)))',
        ),
    ]
