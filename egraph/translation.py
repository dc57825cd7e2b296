"""Laws that stream sums over values shifted by a completed one: the old sum is moved by the change of the shift.

Where p = c + r, j is not free in c and r holds no fold over j, the shift of p changes by the change d of c from one
prefix to the next, and a sum of p * q over the old positions moves by d times the sum of q over them. Nothing is
expanded into large terms that cancel: what is added is a difference between neighbouring prefixes (Welford, Note on a
method for calculating corrected sums of squares and products, 1962; for partial sums Chan, Golub and LeVeque, 1979).

Before step 0 the shift may be NaN, and all sums are 0: `mulz` keeps them so.
"""

from __future__ import annotations

from collections.abc import Sequence

from egraph.law import Rule, apart, constant, disjoint, floating, has_fold, no_fold, relational, varies

DEMAND = f"""
(relation shifted (String Axes E))
(relation shifts (E Axes E E))
(rule ((= e (Fold s "add" b)) (member s j) {has_fold("b", "j").facts}) ((shifted j s b)) :ruleset split)
(rule ((shifted j s e) (= e (Binary "mul" p q)) {has_fold("e", "j").facts})
      ((shifted j s p) (shifted j s q)) :ruleset split)
(rule ((shifted j s e) (= e (Binary "add" p q)) {has_fold("e", "j").facts}) ((aneed s e)) :ruleset split)
(relation tame (E))
(rule ((= g (folded e)) (= 0 (set-length g))) ((tame e)) :ruleset facts)
(rule ((= e (Extent j))) ((tame e)) :ruleset facts)
(rule ((= e (Fold s o x)) (tame x)) ((tame e)) :ruleset facts)
(rule ((= e (Binary o x y)) (tame x) (tame y) (keeps o)) ((tame e)) :ruleset facts)
(rule ((= e (Binary "add" x y)) (tame x) (tame y)) ((tame e)) :ruleset facts)
(rule ((= e (Binary "mul" x y)) (tame x) (tame y)) ((tame e)) :ruleset facts)
(rule ((= e (Select p x y)) (tame x) (tame y)) ((tame e)) :ruleset facts)
(rule ((= e (Round d o x)) (tame x)) ((tame e)) :ruleset facts)
(rule ((= e (Unary o x)) (tame x) (keeps o)) ((tame e)) :ruleset facts)
(rule ((= e (Unary "exp" x)) (tame x) (nonpositive x)) ((tame e)) :ruleset facts)
(rule ((= e (Unary "tanh" x)) (tame x)) ((tame e)) :ruleset facts)
(rule ((= e (Unary "sigmoid" x)) (tame x)) ((tame e)) :ruleset facts)
(rule ((= e (Unary "log" x)) (tame x) (positive x)) ((tame e)) :ruleset facts)
(rule ((= e (Unary "recip" x)) (tame x) (positive x)) ((tame e)) :ruleset facts)
(rule ((= e (Unary "rsqrt" x)) (tame x) (positive x)) ((tame e)) :ruleset facts)
(relation moving (E String E))
(rule ((aneed s e) (axis j) (set-contains s j) {floating("e").facts} {no_fold("e", "j").facts})
      ((moving e j e)) :ruleset split)
(rule ((aneed s e) (axis j) (set-contains s j) {has_fold("e", "j").facts} {constant("e", "j").facts})
      ((moving e j (New j e))) :ruleset split)
(rule ((= e (Binary "add" p q)) (moving p j x) (moving q j y) {varies("e", "j").facts})
      ((moving e j (Binary "add" x y))) :ruleset split)
(rule ((= e (Unary "neg" p)) (moving p j x) {varies("e", "j").facts}) ((moving e j (Unary "neg" x))) :ruleset split)
(relation counts (Axes E))
(rule ((shifted j s e) (= 1 (set-length s))) ((counts s (Extent j))) :ruleset split)
(rule ((= n (Extent j))) ((counts (set-of j) n)) :ruleset split)
(rule ((= n (Binary "mul" x y)) (counts s x) (counts t y) {apart("s", "t").facts})
      ((counts (set-union s t) n)) :ruleset split)
(function kind (E) i64 :merge (max old new))
(relation stepped (E String E))
(rule ((shifted j s e) (= e (Binary "add" p q)) {has_fold("e", "j").facts}) ((set (kind e) 0)) :ruleset split)
(rule ((shifted j s e) (= e (Binary "add" p q)) {has_fold("e", "j").facts} (nonpositive e))
      ((set (kind e) 1)) :ruleset split)
(rule ((shifted j s e) (= e (Binary "add" r (Unary "neg" (Binary "mul" (Fold s "add" r) (Unary "recip" m)))))
       (= m (Round d o n)) (counts s n)) ((set (kind e) 2)) :ruleset split)
(rule ((shifted j s e) (!= 1 (kind e)) (moving e j x))
      ((stepped e j x) (marks e j (Identity "add"))) :ruleset split)
(rule ((shifted j s e) (= 1 (kind e)) (asplit e s c r) {has_fold("c", "j").facts})
      ((stepped e j (New j e)) (marks e j (Binary "add" c (Unary "neg" c)))) :ruleset split)
(relation shift (E String Axes E E E))
(rule ((shifted j s e) (asplit e s c r) {has_fold("c", "j").facts} {no_fold("r", "j").facts} (stepped e j n) (tame c))
      ((shift e j s c (Binary "mulz" (Identity "mul") (Delta j c)) n)) :ruleset split)
"""
"""`shifted j s e` asks, for a sum over the axes s that streams over j, whether e is a shifted value or a product with
one: `shifts e s p q` says e = p * q, p shifted. `counts s n` says that n is the number of positions of the axes.

`shift e j s c d n` says that e is c + r; d is the change of c, or 0 where that is not finite, and n is e on the new
prefix (`stepped`), by the `kind` of e: a value that a maximum shifts (1) stays -inf whatever the shift, which may be
infinite for a while, as in an exponent; elsewhere (`moving`) a streamed -inf absorbs nothing. Values less their mean are
of kind 2. `tame c` is finite on every prefix where its operands are.
"""

_COUNT = '(Round t "op" k)'


def _old(x: str) -> str:
    return f'(Old j (Fold s "add" {x}))'


def _add(*xs: str) -> str:
    first, *rest = xs
    return f'(Binary "add" {first} {_add(*rest)})' if rest else first


def _mul(x: str, y: str) -> str:
    return f'(Binary "mul" {x} {y})'


def _mulz(x: str, y: str) -> str:
    return f'(Binary "mulz" {x} {y})'


def _renews(b: str, body: str, old: Sequence[str], new: str, also: str = "(renewed e j s {b})") -> list[Rule]:
    """The sum e of b over s on the new prefix: what it was, moved, and the new value summed over the other axes of s."""
    return [
        (
            f'(= e (Fold s "add" {b})) ({several} 1 (set-length s)) {body}',
            f"(union (New j e) {_add(*old, value)}) {also.format(b=b)}",
        )
        for several, value in (("=", new), ("<", f'(Fold (set-remove s j) "add" {new})'))
    ]


def _moved(q: str, others: str, count: str, f: str = "f") -> list[str]:
    """The old sum after its shifts by d, of q about its new shift, and by f, of the other factors."""
    return ["(Old j e)", _mulz("d", _add(_old(q), _mulz(f, count))), _mulz(f, _old(others))]


@relational("translation", "reassociating", "split")
def shifted_factor_leaves_product() -> list[Rule]:
    """A product holds a shifted value as a factor, where one of its operands is one or holds one."""
    live = '(shifted j s e) (= e (Binary "mul" p q))'
    rest = _mul("g", "q")
    return [
        (f"{live} (shift p j s c d n)", "(shifts e s p q)"),
        (f"{live} (shifts p s f g)", f"(shifts e s f {rest}) (eneed j {rest}) (shifted j s {rest})"),
    ]


@relational("translation", "reassociating", "online")
def sum_of_shifted_values_streams() -> list[Rule]:
    """A sum of c + r moves by the count times the change of c: New S = Old S + Old n * Delta c + New (c + r)."""
    body = "(shift p j s c d n) (= t (dtype e)) (counts s k)"
    return _renews("p", body, ["(Old j e)", _mulz("d", f"(Old j {_COUNT})")], "n")


@relational("translation", "reassociating", "online")
def sum_of_shifted_products_streams() -> list[Rule]:
    """A sum of (c + r) * q moves by the sum of q times the change of c, and is rescaled as the sum of q is."""
    body = f"(shifts b s p q) (shift p j s c d n) (esplit q j f g) {no_fold('g', 'j').facts}"
    still = ["(Old j e)", _mulz("d", _old("q"))]
    scaled = [_mulz("(Old j e)", "(Ratio j f)"), _mulz("d", _mulz(_old("q"), "(Ratio j f)"))]
    new = _mul("n", "(New j q)")
    return [
        *_renews("b", f"{body} {no_fold('f', 'j').facts}", still, new),
        *_renews("b", f"{body} (exponential f) {disjoint('f', 's').facts}", scaled, new),
    ]


@relational("translation", "reassociating", "online")
def sum_of_products_of_shifted_values_streams() -> list[Rule]:
    """A sum of (c + r) * (a + q) * w moves by both shifts: each changes it by the sum of the other factors.

    A constant w of a square leaves the sum: 1 among them, by which every square is one of three factors.
    """
    body = "(shift p j s c d n) (shift u j s a f m)"
    twice = f"(shifts b s p u) (counts s k) (= t (dtype e)) {body}"
    moved = _moved("u", "p", f"(Old j {_COUNT})")
    weighted = f"(shifts b s p q) (shifts q s u w) {no_fold('w', 'j').facts} {body}"
    both = _mul("p", "w")
    constant_leaves = "(= p u) (= f_w (free w)) (< 0 (set-length (set-intersect f_w s)))"
    return [
        *_renews("b", f"{twice} (!= p u)", moved, _mul("n", "m")),
        *_renews("b", f"{twice} (= p u) (< (kind p) 2)", moved, _mul("n", "m")),
        *(
            rule
            for which in ("(!= p u)", constant_leaves)
            for rule in _renews(
                "b",
                f"{weighted} {which}",
                _moved("q", both, _old("w")),
                _mul(_mul("n", "m"), "w"),
                f"(renewed e j s {{b}}) (shifted j s {both})",
            )
        ),
    ]


@relational("translation", "reassociating", "online")
def sum_of_squares_about_a_mean_streams() -> list[Rule]:
    """A sum of squares about a mean moves as any; the square of what the mean is off by leaves it: (sum of x - mean)^2 / n.

    In exact arithmetic the sum of x - mean is 0. As the mean is rounded, a sum of squares about it is too large by this
    (Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983).
    """
    body = "(shifts b s p p) (= 2 (kind p)) (= t (dtype e)) (shift p j s c d n) (counts s k)"
    old = _moved("p", "p", f"(Old j {_COUNT})", "d")
    off = '(Fold s "add" p)'
    mark = f'(Unary "neg" {_mul(off, _mul(off, f"""(Unary "recip" {_COUNT})"""))})'
    return _renews("b", body, old, _mul("n", "n"), f"(parts e j s {{b}} {mark})")


@relational("translation", "reassociating", "hoist")
def sum_of_varying_addends_splits() -> list[Rule]:
    """A sum of (p + q) * y, p with a completed fold and q without, both varying with the axis, is a sum of two sums."""
    parts = (
        f"{has_fold('p', 'j').facts} {varies('p', 'j').facts} {no_fold('q', 'j').facts} {varies('q', 'j').facts}"
    )
    total = '(= e (Fold s "add" b)) (member s j)'
    sums = _add('(Fold s "add" {})', '(Fold s "add" {})')
    return [
        (f'{total} (= b (Binary "add" p q)) {parts}', f"(union e {sums.format('p', 'q')})"),
        (
            f'{total} (= b (Binary "mul" a y)) (= a (Binary "add" p q)) {parts} {no_fold("y", "j").facts}',
            f"(union e {sums.format(_mul('p', 'y'), _mul('q', 'y'))})",
        ),
    ]
