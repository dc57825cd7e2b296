"""Laws that turn folds over one axis into the carried states of one sweep.

`New(j, x)` and `Old(j, x)` are x with every fold over j cut to the prefix up to and with a step, or before it. An
equality that holds for all extents holds on prefixes, so these are ordinary constructors. Where g = c * r, j is not
free in c and r holds no fold over j, the sum of g obeys New(D) = Old(D) * (New c / Old c) + New(g).

Step 0 needs no peeling: `mulz` takes a ratio that is not finite as 0, and what it rescales then is 0, or is NaN and
stays so; `addz` is -inf where its first operand is -inf. The same `addz` joins a streamed value to a running one, so
that a value masked out by -inf stays out while its whole prefix is masked. For the same reason `Old` of a fold is a
state and is not taken apart: before step 0 it is the identity, which other ways to write the fold need not give. The
factor c must be an exponential, since one that could be 0 forgets what it multiplied, and its exponent never positive,
since a prefix may be far from the completed value.

Where every value is masked out the shift c is infinite, and the sum of exp(x + c) as written is NaN. What streams is the
sum that leaves such terms out; the sum as written is that and c - c, which is 0 or NaN.
"""

from __future__ import annotations

from egraph.law import Rule, constant, disjoint, has_fold, no_fold, relational, varies

_ONE, _NONE = '(Identity "mul")', '(Identity "add")'


_UNMARKED = "(< (state e j) 2)"


def _set(j: str) -> str:
    return f"(set-of {j})"


def _mark(c: str) -> str:
    """NaN where a shift is infinite, else 0."""
    return f'(Binary "add" {c} (Unary "neg" {c}))'


DEMAND = f"""
(relation eneed (String E))
(relation exponential (E))
(relation marks (E String E))
(relation renewed (E String Axes E))
(relation parts (E String Axes E E))
(function state (E String) i64 :merge (max old new))
(ruleset mark)
(relation esplit (E String E E))
(rule ((single e j "add" b) {has_fold("b", "j").facts}) ((eneed j b)) :ruleset split)
(rule ((eneed j e) (= e (Binary "mul" a b))) ((eneed j a) (eneed j b)) :ruleset split)
(rule ((eneed j e) (= e (Unary "exp" a)) {has_fold("a", "j").facts}) ((aneed (set-of j) a)) :ruleset split)
(rule ((eneed j e) (= e (Fold s "add" b)) (set-not-contains s j)) ((eneed j b)) :ruleset split)
(rule ((eneed j e) {constant("e", "j").facts}) ((esplit e j e {_ONE})) :ruleset split)
(rule ((eneed j e) {varies("e", "j").facts} {no_fold("e", "j").facts}) ((esplit e j {_ONE} e)) :ruleset split)
(rule ((= e (Fold s o b)) (< 1 (set-length s)) (member s j) {has_fold("b", "j").facts} (combines o))
      ((single e j o (Fold (set-remove s j) o b))) :ruleset split)
(rule ((= n (New j e)) (= e (Whole s x)) {has_fold("e", "j").facts}) ((union n (New j x))) :ruleset push)
(rule ((= n (Old j e)) (= e (Whole s x)) {has_fold("e", "j").facts}) ((union n (Old j x))) :ruleset push)
(rule ((= n (Ratio j e)) (= e (Whole s x)) {has_fold("e", "j").facts}) ((union n (Ratio j x))) :ruleset push)
(rule ((= n (Delta j e)) (= e (Whole s x)) {has_fold("e", "j").facts}) ((union n (Delta j x))) :ruleset push)
(rule ((= e (Unary "exp" a))) ((exponential e)) :ruleset split)
(rule ((= e (Binary "mul" a b)) (exponential a) (exponential b)) ((exponential e)) :ruleset split)
(rule ((= n (Old j e))) ((set (state e j) 0)) :ruleset mark)
(rule ((= n (New j e))) ((set (state e j) 0)) :ruleset mark)
(rule ((= n (Old j e)) (= e (Fold s o b)) (set-contains s j)) ((set (state e j) 1) (New j e)) :ruleset mark)
(rule ((eneed j e) {no_fold("e", "j").facts}) ((marks e j {_NONE})) :ruleset split)
(rule ((eneed j e) {constant("e", "j").facts}) ((marks e j {_NONE})) :ruleset split)
(rule ((eneed j e) (= e (Unary "exp" a)) (nonpositive a) (asplit a (set-of j) c r) {has_fold("c", "j").facts})
      ((marks e j {_mark("c")})) :ruleset split)
(rule ((eneed j e) (= e (Binary "mul" a b)) (marks a j z) (marks b j z)) ((marks e j z)) :ruleset split)
(rule ((eneed j e) (= e (Binary "mul" a b)) (marks a j y) (marks b j z) (!= y z))
      ((marks e j (Binary "add" y z))) :ruleset split)
(rule ((eneed j e) (= e (Fold s "add" b)) (set-not-contains s j) (marks b j z) {disjoint("z", "s").facts})
      ((marks e j z)) :ruleset split)
(rule ((eneed j e) (= e (Round d o b)) (marks b j z)) ((marks e j z)) :ruleset split)
(rule ((renewed e j s g) (marks g j z) (= z {_NONE})) ((streams e j)) :ruleset online)
(rule ((renewed e j s g) (marks g j z) (!= z {_NONE})) ((parts e j s g z)) :ruleset online)
"""
"""`state e j` is 1 where a prefix of e is carried as it is, and 2 where e is a streamed sum and its mark.

`renewed e j s g` says that New j of e, the sum of g over the axes s, is known of prefixes before. `marks g j z` says that
z, a sum of shifts less themselves, is NaN where a shift in g is infinite, and else 0; none is `Identity`. `parts e j s g z`
asks to stream e as what is summed where the mark z is a number, and z; the former is only `carried`, by a stream.
"""


@relational("streaming", "reassociating", "push")
def fold_over_several_axes_streams_over_one() -> list[Rule]:
    """A fold over several axes whose prefix is wanted is a fold over that axis of the folds over the others."""
    body = "(= n (New j e)) (= e (Fold s o b)) (< 1 (set-length s)) (set-contains s j) (combines o)"
    return [(body, "(single e j o (Fold (set-remove s j) o b))")]


@relational("streaming", "reassociating", "split")
def streamed_product_splits() -> list[Rule]:
    """A product under a sum splits into completed factors and streamed ones, looking through inner sums."""
    live = f"(eneed j e) {varies('e', 'j').facts} {has_fold('e', 'j').facts}"
    return [
        (
            f'{live} (= e (Binary "mul" a b)) (esplit a j c r) (esplit b j d q)',
            '(esplit e j (Binary "mul" c d) (Binary "mul" r q))',
        ),
        (
            f'{live} (= e (Fold s "add" b)) (set-not-contains s j) (esplit b j c r) (= f_c (free c)) '
            "(= 0 (set-length (set-intersect f_c s)))",
            '(esplit e j c (Fold s "add" r))',
        ),
    ]


@relational("streaming", "reassociating", "split")
def streamed_exponential_splits() -> list[Rule]:
    """The exponential of a sum is a product: what is completed leaves it as a factor."""
    body = (
        f'(eneed j e) (= e (Unary "exp" a)) (nonpositive a) {has_fold("e", "j").facts} (asplit a {_set("j")} c r)'
    )
    return [(body, '(esplit e j (Unary "exp" c) (Unary "exp" r))')]


@relational("streaming", "reassociating", "online")
def sum_of_products_streams() -> list[Rule]:
    """A sum of c * r, c a completed exponential, is rescaled by the ratio of c: New D = Old D * Ratio c + New g."""
    body = f'(single e j "add" g) {has_fold("g", "j").facts} (esplit g j c r) {no_fold("r", "j").facts} (exponential c)'
    new = '(Binary "add" (Binary "mulz" (Old j e) (Ratio j c)) (New j g))'
    return [(body, f"(union (New j e) {new}) (renewed e j {_set('j')} g)")]


def _kept(s: str, g: str, o: str = '"add"') -> str:
    """The fold of g over s where the mark z is a number."""
    return f'(Fold {s} {o} (Select (Binary "eq" z z) {g} (Identity {o})))'


@relational("streaming", "reassociating", "online")
def streamed_fold_leaves_its_mark() -> list[Rule]:
    """A sum, or maximum, is that of the terms of finite shift, which streams, and a mark: 0, or NaN for infinite shifts."""
    kept = _kept("s", "g", "o")
    same = f"(union (New j e) (New j {kept})) (union (Old j e) (Old j {kept}))"
    body = "(parts e j s g z) (= e (Fold t o b)) (set-contains t j)"
    return [
        (body, f'(union e (Binary "add" {kept} z)) {same} (streams {kept} j) (carried {kept}) (set (state e j) 2)')
    ]


@relational("streaming", "reassociating", "online")
def quotient_by_streamed_sum_needs_no_mark() -> list[Rule]:
    """Divided by a sum of exponentials, one of the same shift needs no mark: where that is infinite, 0 / 0 is NaN too."""
    terms = "(marks {0} j z) (esplit {0} j {1} {2}) (exponential {1})"
    sum_of = f'(= {{0}} (Binary "add" {{1}} z)) (= {{1}} {_kept("{2}", "{3}")})'
    return [
        (
            f'(= e (Binary "mul" x (Unary "recip" y))) {sum_of.format("y", "k", "t", "h")} {terms.format("h", "b", "q")} '
            f"{sum_of.format('x', 'l', 's', 'g')} {terms.format('g', 'a', 'r')}",
            '(union e (Binary "mul" l (Unary "recip" k)))',
        )
    ]


@relational("streaming", "reassociating", "online")
def maximum_of_sums_streams() -> list[Rule]:
    """A maximum of c + r, c completed, is shifted by the change of c: New D = max(Old D + Delta c, New g)."""
    body = f'(single e j "max" g) {has_fold("g", "j").facts} (asplit g {_set("j")} c r) {no_fold("r", "j").facts}'
    new = '(Binary "max" (Binary "addz" (Old j e) (Delta j c)) (New j g))'
    return [(body, f"(union (New j e) {new}) (parts e j {_set('j')} g {_mark('c')})")]


@relational("streaming", "reassociating", "push")
def fold_is_a_recurrence() -> list[Rule]:
    """A fold whose body holds no completed fold over its axis takes one more value at each step: New D = Old D (+) f."""
    body = f"(= n (New j e)) (single e j o f) {no_fold('f', 'j').facts} (combines o)"
    return [(body, "(union n (Binary o (Old j e) f)) (streams e j)")]


@relational("streaming", "exact", "push")
def prefix_passes_operators() -> list[Rule]:
    """The prefix of an operator's value is the operator of its operands' prefixes."""
    rules: list[Rule] = []
    for p, whole in (("New", _UNMARKED), ("Old", "(= 0 (state e j))")):
        live = f"(= n ({p} j e)) {has_fold('e', 'j').facts} {whole}"
        rules += [
            (f"{live} (= e (Unary o a))", f"(union n (Unary o ({p} j a)))"),
            (f'{live} (= e (Binary o a b)) (!= o "add")', f"(union n (Binary o ({p} j a) ({p} j b)))"),
            (f"{live} (= e (Round d o a))", f"(union n (Round d o ({p} j a)))"),
            (f"{live} (= e (Select q a b))", f"(union n (Select ({p} j q) ({p} j a) ({p} j b)))"),
            (f"{live} (= e (Fold s o a)) (set-not-contains s j)", f"(union n (Fold s o ({p} j a)))"),
        ]
    rules.append((f'{live} (= e (Binary "add" a b))', '(union n (Binary "add" (Old j a) (Old j b)))'))
    return rules


@relational("streaming", "exact", "push")
def prefix_of_a_value_without_folds() -> list[Rule]:
    """A value that holds no fold over the axis is its own prefix."""
    return [
        (f"(= n (New j e)) {no_fold('e', 'j').facts}", "(union n e)"),
        (f"(= n (Old j e)) {no_fold('e', 'j').facts} {constant('e', 'j').facts}", "(union n e)"),
        (f"(= n (Ratio j e)) {no_fold('e', 'j').facts}", f"(union n {_ONE})"),
        (f"(= n (Delta j e)) {no_fold('e', 'j').facts}", '(union n (Identity "add"))'),
    ]


@relational("streaming", "exact", "push")
def extent_is_a_sum_of_ones() -> list[Rule]:
    """The extent of an axis is the sum of 1 over it, so that its prefix is the running count."""
    return [
        (f"(= n ({p} j e)) (= e (Extent j))", '(union e (Fold (set-of j) "add" (Const 512 1)))')
        for p in ("New", "Old")
    ]


@relational("streaming", "finite", "push")
def prefix_passes_sums() -> list[Rule]:
    """The prefix of a sum is the sum of prefixes; a streamed -inf absorbs a running value, which may be -inf itself."""
    live = f'(= n (New j e)) {_UNMARKED} (= e (Binary "add" a b)) {has_fold("b", "j").facts}'
    streamed = f"{no_fold('a', 'j').facts} {varies('a', 'j').facts}"
    row = f"{no_fold('a', 'j').facts} {constant('a', 'j').facts}"
    chain = f"{has_fold('a', 'j').facts} {varies('a', 'j').facts}"
    total = f"{has_fold('a', 'j').facts} {constant('a', 'j').facts} {constant('b', 'j').facts}"
    return [
        (f"{live} {streamed}", '(union n (Binary "addz" a (New j b)))'),
        (f"{live} {row}", '(union n (Binary "add" a (New j b)))'),
        (f"{live} {chain} {constant('b', 'j').facts}", '(union n (Binary "addz" (New j a) (New j b)))'),
        (f"{live} {chain} {varies('b', 'j').facts}", '(union n (Binary "add" (New j a) (New j b)))'),
        (f"{live} {total}", '(union n (Binary "add" (New j a) (New j b)))'),
    ]


@relational("streaming", "reassociating", "push")
def ratio_of_exponential() -> list[Rule]:
    """The ratio of exponentials is the exponential of the difference; of products, the product of ratios."""
    live = f"(= n (Ratio j e)) {has_fold('e', 'j').facts}"
    return [
        (f'{live} (= e (Unary "exp" a))', '(union n (Unary "exp" (Delta j a)))'),
        (f'{live} (= e (Binary "mul" a b))', '(union n (Binary "mul" (Ratio j a) (Ratio j b)))'),
    ]


@relational("streaming", "reassociating", "push")
def difference_passes_linear_maps() -> list[Rule]:
    """The change of a sum is the sum of changes; of a negated value old - new, which shows that it cannot be positive."""
    live = f"(= n (Delta j e)) {has_fold('e', 'j').facts}"
    difference = '(union n (Binary "add" (New j e) (Unary "neg" (Old j e))))'
    return [
        (f'{live} (= e (Binary "add" a b))', '(union n (Binary "add" (Delta j a) (Delta j b)))'),
        (f'{live} (= e (Unary "neg" a))', '(union n (Binary "add" (Old j a) (Unary "neg" (New j a))))'),
        (
            f'{live} (= e (Binary "mul" k a)) (= g_k (folded k)) (set-not-contains g_k j)',
            '(union n (Binary "mul" k (Delta j a)))',
        ),
        (f"{live} (= e (Fold s o a))", difference),
        (f'{live} (= e (Binary o a b)) (!= o "add") (!= o "mul")', difference),
        (f'{live} (= e (Unary o a)) (!= o "neg")', difference),
    ]
