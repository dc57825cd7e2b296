"""Laws that stream sums over values shifted by a completed one: the old sum is moved by the change of the shift.

Where p = c + r, j is not free in c and r holds no fold over j, the shift of p changes by the change d of c from one
prefix to the next, and a sum of p * q over the old positions moves by d times the sum of q over them. Nothing is
expanded into large terms that cancel: what is added is a difference between neighbouring prefixes (Welford, Note on a
method for calculating corrected sums of squares and products, 1962; for partial sums Chan, Golub and LeVeque, 1979).

Before step 0 the shift may be NaN, and all sums are 0: `mulz` keeps them so.
"""

from __future__ import annotations

from egraph.law import Rule, constant, floating, has_fold, no_fold, relational, varies

DEMAND = f"""
(relation shifted (String E))
(relation shifts (E String E E))
(rule ((single e j "add" b) {has_fold("b", "j").facts}) ((shifted j b)) :ruleset split)
(rule ((shifted j e) (= e (Binary "mul" p q)) {has_fold("e", "j").facts}) ((shifted j p) (shifted j q)) :ruleset split)
(rule ((shifted j e) (= e (Binary "add" p q)) {has_fold("e", "j").facts}) ((aneed (set-of j) e)) :ruleset split)
(relation tame (E))
(rule ((= g (folded e)) (= 0 (set-length g))) ((tame e)) :ruleset split)
(rule ((= e (Extent j))) ((tame e)) :ruleset split)
(rule ((= e (Fold s o x)) (tame x)) ((tame e)) :ruleset split)
(rule ((= e (Binary o x y)) (tame x) (tame y) (keeps o)) ((tame e)) :ruleset split)
(rule ((= e (Binary "add" x y)) (tame x) (tame y)) ((tame e)) :ruleset split)
(rule ((= e (Binary "mul" x y)) (tame x) (tame y)) ((tame e)) :ruleset split)
(rule ((= e (Select p x y)) (tame x) (tame y)) ((tame e)) :ruleset split)
(rule ((= e (Round d o x)) (tame x)) ((tame e)) :ruleset split)
(rule ((= e (Unary o x)) (tame x) (keeps o)) ((tame e)) :ruleset split)
(rule ((= e (Unary "exp" x)) (tame x) (nonpositive x)) ((tame e)) :ruleset split)
(rule ((= e (Unary "tanh" x)) (tame x)) ((tame e)) :ruleset split)
(rule ((= e (Unary "sigmoid" x)) (tame x)) ((tame e)) :ruleset split)
(rule ((= e (Unary "log" x)) (tame x) (positive x)) ((tame e)) :ruleset split)
(rule ((= e (Unary "recip" x)) (tame x) (positive x)) ((tame e)) :ruleset split)
(rule ((= e (Unary "rsqrt" x)) (tame x) (positive x)) ((tame e)) :ruleset split)
(relation moving (E String E))
(rule ((aneed s e) (= 1 (set-length s)) (= j (set-get s 0)) {floating("e").facts} {no_fold("e", "j").facts})
      ((moving e j e)) :ruleset split)
(rule ((aneed s e) (= 1 (set-length s)) (= j (set-get s 0)) {has_fold("e", "j").facts} {constant("e", "j").facts})
      ((moving e j (New j e))) :ruleset split)
(rule ((= e (Binary "add" p q)) (moving p j x) (moving q j y) {varies("e", "j").facts})
      ((moving e j (Binary "add" x y))) :ruleset split)
(rule ((= e (Unary "neg" p)) (moving p j x) {varies("e", "j").facts}) ((moving e j (Unary "neg" x))) :ruleset split)
"""
"""`shifted j e` asks whether e is a shifted value or a product with one: `shifts e j p q` says e = p * q, p shifted.

`tame e` is finite on every prefix where its operands are, and `moving e j x` says that x is the sum e on the new
prefix; unlike in an exponent, a streamed -inf absorbs nothing.
"""

_COUNT = '(Round t "op" (Extent j))'


def _shifted(p: str, c: str, r: str) -> str:
    """p = c + r is a shifted value, n_p what it is on the new prefix."""
    parts = f"(asplit {p} (set-of j) {c} {r}) {has_fold(c, 'j').facts} {no_fold(r, 'j').facts}"
    return f"{parts} (moving {p} j n_{p}) (tame {c})"


def _old_sum(x: str) -> str:
    return f'(Old j (Fold (set-of j) "add" {x}))'


def _add(*xs: str) -> str:
    first, *rest = xs
    return f'(Binary "add" {first} {_add(*rest)})' if rest else first


def _mul(x: str, y: str, op: str = "mul") -> str:
    return f'(Binary "{op}" {x} {y})'


def _moved(total: str, c: str) -> str:
    """A sum over the old positions times the change of a shift."""
    return _mul(total, f"(Delta j {c})", "mulz")


def _becomes(update: str) -> str:
    return f"(union (New j e) {update}) (streams e j)"


@relational("translation", "reassociating", "split")
def shifted_factor_leaves_product() -> list[Rule]:
    """A product holds a shifted value as a factor, where one of its operands is one or holds one."""
    live = '(shifted j e) (= e (Binary "mul" p q))'
    rest = _mul("g", "q")
    return [
        (f"{live} {_shifted('p', 'c', 'r')}", "(shifts e j p q)"),
        (f"{live} (shifts p j f g)", f"(shifts e j f {rest}) (eneed j {rest}) (shifted j {rest})"),
    ]


@relational("translation", "reassociating", "online")
def sum_of_shifted_values_streams() -> list[Rule]:
    """A sum of c + r moves by the count times the change of c: New S = Old S + Old n * Delta c + New (c + r)."""
    body = f'(single e j "add" p) {_shifted("p", "c", "r")} (= t (dtype e))'
    return [(body, _becomes(_add("(Old j e)", _moved(f"(Old j {_COUNT})", "c"), "n_p")))]


@relational("translation", "reassociating", "online")
def sum_of_shifted_products_streams() -> list[Rule]:
    """A sum of (c + r) * q moves by the sum of q times the change of c, and is rescaled as the sum of q is."""
    body = f'(single e j "add" b) (shifts b j p q) {_shifted("p", "c", "r")} (esplit q j f g) {no_fold("g", "j").facts}'
    moved = _add("(Old j e)", _moved(_old_sum("q"), "c"))
    new = _mul("n_p", "(New j q)")
    return [
        (f"{body} {no_fold('f', 'j').facts}", _becomes(_add(moved, new))),
        (f"{body} (exponential f)", _becomes(_add(_mul(moved, "(Ratio j f)", "mulz"), new))),
    ]


@relational("translation", "reassociating", "online")
def sum_of_products_of_shifted_values_streams() -> list[Rule]:
    """A sum of (c + r) * (d + s) * w moves by both shifts: each changes it by the sum of the other factors."""
    body = f'(single e j "add" b) (shifts b j p q) (= t (dtype e)) {_shifted("p", "c", "r")}'
    rules = []
    for found, count, others, weight in (
        ("(= u q)", f"(Old j {_COUNT})", "p", ""),
        (f"(shifts q j u w) {no_fold('w', 'j').facts}", _old_sum("w"), _mul("p", "w"), "w"),
    ):
        first = _moved(_add(_old_sum("q"), _moved(count, "d")), "c")
        second = _moved(_old_sum(others), "d")
        new = _mul("n_p", "n_u")
        update = _add("(Old j e)", first, second, _mul(new, weight) if weight else new)
        demand = f"(shifted j {others})" if weight else ""
        rules.append((f"{body} {found} {_shifted('u', 'd', 's')}", f"{_becomes(update)} {demand}"))
    return rules


@relational("translation", "reassociating", "hoist")
def sum_of_varying_addends_splits() -> list[Rule]:
    """A sum of (p + q) * y, p with a completed fold and q without, both varying with the axis, is a sum of two sums."""
    parts = (
        f"{has_fold('p', 'j').facts} {varies('p', 'j').facts} {no_fold('q', 'j').facts} {varies('q', 'j').facts}"
    )
    total = '(= e (Fold s "add" b)) (axis j) (set-contains s j)'
    sums = _add('(Fold s "add" {})', '(Fold s "add" {})')
    return [
        (f'{total} (= b (Binary "add" p q)) {parts}', f"(union e {sums.format('p', 'q')})"),
        (
            f'{total} (= b (Binary "mul" a y)) (= a (Binary "add" p q)) {parts} {no_fold("y", "j").facts}',
            f"(union e {sums.format(_mul('p', 'y'), _mul('q', 'y'))})",
        ),
    ]
