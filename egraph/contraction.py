"""Laws of sums over axes: factors leave them, contractions associate, maxima commute with monotone maps.

A factoring is demand-driven: `psplit e s c r` says e = c * r and `asplit e s c r` says e = c + r, where no axis of the
set s is free in c. `pneed s e` and `aneed s e` ask for them.
"""

from __future__ import annotations

from egraph.law import (
    Axes,
    Condition,
    Rule,
    apart,
    disjoint,
    fact,
    floating,
    joined,
    law,
    meets,
    relational,
    unfolded,
)
from ir.term import Binary, Fold, Term, Unary

DEMAND = f"""
(relation pneed (Axes E))
(relation aneed (Axes E))
(relation psplit (E Axes E E))
(relation asplit (E Axes E E))
(relation addend (E))
(rule ((= e (Fold s "add" b))) ((pneed s b)) :ruleset split)
(rule ((= e (Fold s "max" b))) ((pneed s b) (aneed s b)) :ruleset split)
(rule ((pneed s e) (= e (Binary "mul" a b))) ((pneed s a) (pneed s b)) :ruleset split)
(rule ((pneed s e) (= e (Unary "neg" a))) ((pneed s a)) :ruleset split)
(rule ((aneed s e) (= e (Binary "add" a b))) ((aneed s a) (aneed s b)) :ruleset split)
(rule ((aneed s e) (= e (Unary "neg" a))) ((aneed s a)) :ruleset split)
(rule ((aneed s e) (= e (Binary "mul" k a)) {disjoint("k", "s").facts} {meets("a", "s").facts})
      ((aneed s a)) :ruleset split)
(rule ((pneed s e) {disjoint("e", "s").facts}) ((psplit e s e (Identity "mul")) (lone e)) :ruleset split)
(rule ((pneed s e) (atom e) {meets("e", "s").facts}) ((psplit e s (Identity "mul") e)) :ruleset split)
(rule ((pneed s e) (atom e) (= 1 (written e)) {meets("e", "s").facts}) ((level e)) :ruleset split)
(rule ((aneed s e) {floating("e").facts} {disjoint("e", "s").facts}) ((asplit e s e (Identity "add"))) :ruleset split)
(rule ((aneed s e) {floating("e").facts} {meets("e", "s").facts} {unfolded("e", "s").facts})
      ((asplit e s (Identity "add") e)) :ruleset split)
(rule ((aneed s e) (addend e) {floating("e").facts} {meets("e", "s").facts})
      ((asplit e s (Identity "add") e)) :ruleset split)
(rule ((= e (Binary o a b)) (!= o "add") (!= o "mul")) ((addend e)) :ruleset split)
(rule ((= e (Unary o a)) (!= o "neg")) ((addend e)) :ruleset split)
(rule ((= e (Select p a b))) ((addend e)) :ruleset split)
(rule ((= e (Round d o a))) ((addend e)) :ruleset split)
(rule ((= e (Fold t o a))) ((addend e)) :ruleset split)
(rule ((= e (Fold s o b)) (psplit b s c r) (mild c)) ((leaves c r)) :ruleset split)
(rule ((= e (Fold s o b)) (psplit b s c r) (rooted c) (fair r)) ((leaves c r)) :ruleset split)
(rule ((= e (Fold s o b)) (psplit b s c r) (lone c) (level r)) ((leaves c r)) :ruleset split)
(rule ((= e (Fold s o b)) (psplit b s c r) (= d (dtype c)) (> d 7)) ((leaves c r)) :ruleset split)
"""


@relational("contraction", "reassociating", "split")
def product_splits_into_factors() -> list[Rule]:
    """A product splits into the factors that depend on the folded axes and those that do not."""
    return [
        (
            f'(pneed s e) (= e (Binary "mul" a b)) {meets("e", "s").facts} (psplit a s c r) (psplit b s d q)',
            '(psplit e s (Binary "mul" c d) (Binary "mul" r q))',
        ),
        (
            f'(pneed s e) (= e (Unary "neg" a)) {meets("e", "s").facts} (psplit a s c r)',
            '(psplit e s (Unary "neg" c) r)',
        ),
        (
            f'(pneed s e) (= e (Unary "neg" a)) {meets("e", "s").facts} (psplit a s c r) (positive c)',
            '(psplit e s c (Unary "neg" r))',
        ),
    ]


@relational("contraction", "reassociating", "split")
def sum_splits_into_addends() -> list[Rule]:
    """A sum splits into the addends that depend on the folded axes and those that do not."""
    live = f"(aneed s e) {floating('e').facts} {meets('e', 's').facts}"
    scaled = f'{live} (= e (Binary "mul" k a)) {disjoint("k", "s").facts}'
    return [
        (
            f'{live} (= e (Binary "add" a b)) (asplit a s c r) (asplit b s d q)',
            '(asplit e s (Binary "add" c d) (Binary "add" r q))',
        ),
        (
            f'{live} (= e (Unary "neg" a)) (asplit a s c r) (!= c (Identity "add"))',
            '(asplit e s (Unary "neg" c) (Unary "neg" r))',
        ),
        (
            f'{scaled} (asplit a s c r) (!= c (Identity "add"))',
            '(asplit e s (Binary "mul" k c) (Binary "mul" k r))',
        ),
        (f'{scaled} (asplit a s (Identity "add") r)', '(asplit e s (Identity "add") e)'),
        (f'{live} (= e (Unary "neg" a)) (asplit a s (Identity "add") r)', '(asplit e s (Identity "add") e)'),
    ]


@relational("contraction", "reassociating", "hoist")
def factor_leaves_sum() -> list[Rule]:
    """A factor that does not depend on the folded axes leaves the sum where it divides by no fold, being a weight or a
    scale, or where what it leaves behind stays in range.
    """
    body = '(= e (Fold s "add" b)) (psplit b s c r) (!= c (Identity "mul")) (!= c b) (leaves c r)'
    return [(body, '(union e (Binary "mul" c (Fold s "add" r)))')]


@relational("contraction", "finite", "hoist")
def positive_factor_leaves_maximum() -> list[Rule]:
    """A positive factor that does not depend on the folded axes leaves the maximum, since products are monotone in it."""
    factored = '(= e (Fold s "max" b)) (psplit b s c r) (!= c (Identity "mul")) (!= c b) (positive c) (leaves c r)'
    outer = f"(positive c) {disjoint('c', 's').facts} {meets('r', 's').facts}"
    return [
        (factored, '(union e (Binary "mul" c (Fold s "max" r)))'),
        (f'(= e (Fold s "max" (Binary "mul" c r))) {outer}', '(union e (Binary "mul" c (Fold s "max" r)))'),
        (
            f'(= e (Fold s "max" (Unary "neg" (Binary "mul" c r)))) {outer}',
            '(union e (Binary "mul" c (Fold s "max" (Unary "neg" r))))',
        ),
    ]


@law("contraction", "finite", "hoist", given=(disjoint("c", "s"), meets("r", "s"), floating("r")))
def addend_leaves_maximum(c: Term, r: Term, s: Axes) -> tuple[Term, Term]:
    """An addend that does not depend on the folded axes leaves the maximum, since rounded sums are monotone in the rest."""
    return Fold(s, "max", Binary("add", c, r)), Binary("add", c, Fold(s, "max", r))


@relational("contraction", "reassociating", "hoist")
def sum_of_a_constant() -> list[Rule]:
    """The sum over an axis of a value that does not depend on it is the value times the extent."""
    body = '(= e (Fold s "add" b)) (member s j) (= f_b (free b)) (set-not-contains f_b j) (= d (dtype e))'
    single, several = "(= 1 (set-length s))", "(< 1 (set-length s))"
    count, rest = '(Round d "op" (Extent j))', '(Fold (set-remove s j) "add" b)'
    return [
        (f"{body} (!= d 512) (!= d 0) {single}", f'(union e (Binary "mul" b {count}))'),
        (f"{body} (!= d 512) (!= d 0) {several}", f'(union e (Binary "mul" {rest} {count}))'),
        (f"{body} (= d 512) {single}", '(union e (Binary "mul" b (Extent j)))'),
        (f"{body} (= d 512) {several}", f'(union e (Binary "mul" {rest} (Extent j)))'),
    ]


@law("contraction", "reassociating", ruleset="hoist", given=(apart("s", "t"),))
def nested_sums_merge(x: Term, s: Axes, t: Axes) -> tuple[Term, Term]:
    """A sum of sums over other axes is one sum over all of them."""
    return Fold(s, "add", Fold(t, "add", x)), Fold(joined(s, t), "add", x)


UNLIKE = Condition("unlike", ("a", "b", "c", "t"), '(!= c (Fold t "add" (Binary "mul" a b)))')
"""The product of c and the sum is not a square, which is never below 0 as it stands."""


@law(
    "contraction",
    "reassociating",
    ruleset="hoist",
    given=(apart("s", "t"), disjoint("c", "t"), disjoint("a", "s"), meets("b", "s"), meets("c", "s"), UNLIKE),
)
def contractions_associate(a: Term, b: Term, c: Term, s: Axes, t: Axes) -> tuple[Term, Term]:
    """A chain of contractions may be evaluated from either end."""
    left = Fold(s, "add", Binary("mul", Fold(t, "add", Binary("mul", a, b)), c))
    return left, Fold(t, "add", Binary("mul", a, Fold(s, "add", Binary("mul", b, c))))


@law("contraction", "reassociating", ruleset="hoist", given=(floating("x"),))
def common_factor_leaves_sum(x: Term, y: Term, z: Term) -> tuple[Term, Term]:
    """A common factor of two addends leaves their sum."""
    return (
        Binary("add", Binary("mul", x, y), Binary("mul", x, z)),
        Binary("mul", x, Binary("add", y, z)),
    )


@law("contraction", "reassociating", ruleset="hoist", given=(fact("nonpositive", "x"), fact("nonpositive", "y")))
def product_of_exponentials(x: Term, y: Term) -> tuple[Term, Term]:
    """The product of two exponentials that cannot overflow is the exponential of the sum."""
    return Binary("mul", Unary("exp", x), Unary("exp", y)), Unary("exp", Binary("add", x, y))
