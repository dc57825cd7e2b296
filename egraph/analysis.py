"""What every class knows of itself: free axes, folded axes, dtype, sign and order. Egglog text, in part generated."""

from __future__ import annotations

import math
from collections.abc import Iterable

from egraph.encode import DTYPE_CODE, FIXED, PREFIX_CONSTRUCTORS, Constructor, signed
from ir import term as T
from ir.dtype import is_float
from ir.ops import BINARY, MONOIDS, UNARY

DECLARATIONS = """
(sort E)
(sort Axes (Set String))
(constructor slot (i64) E)
(function axes_named (String) Axes :no-merge)
(function free (E) Axes :merge (set-intersect old new))
(function folded (E) Axes :merge (set-intersect old new))
(function dtype (E) i64 :merge (& old new))
(function written (E) i64 :no-merge)
(relation axis (String))
(relation member (Axes String))
(relation computes (String))
(relation keeps (String))
(relation compares (String))
(relation combines (String))
(relation places (String))
(relation atom (E))
(relation mild (E))
(relation ranged (E))
(relation single (E String String E))
(relation streams (E String))
(relation carried (E))
(relation le (E E))
(relation nonpositive (E))
(relation safe (E))
(relation positive (E))
(relation bounded (E))
(relation plain (E))
(relation one (E))
(relation zero (E))
(relation minus_zero (E))
(relation infinite (E))
(relation guards (E E))
(relation inverse (E E))
(ruleset insert) (ruleset facts) (ruleset norm) (ruleset split) (ruleset hoist) (ruleset online) (ruleset push)
"""
KINDS = {
    "atom": ("Const", "Identity", "Select", "Round", "Load", "Index", "Extent", "Fold", "Scan", "At", "Whole"),
    "mild": ("Load", "Index", "Extent", "Fold", "Scan"),
}
"""Constructors whose values are no products, and those whose values divide by nothing that is folded."""
_RESULT = {"compute": "computes", "same": "keeps", "logic": "keeps", "bool": "compares"}
FLOAT = "(> {d} 0) (< {d} 8)"

MILD, RANGED = 24, 63
"""Powers of two within which a constant changes no range that matters, and within which its square is in range."""


def operator_facts() -> str:
    """How the dtype of each operator and monoid follows from its operands."""
    rows = [f'({_RESULT[o.result]} "{o.name}")' for table in (UNARY, BINARY) for o in table.values()]
    for m in MONOIDS.values():
        rows.append(f'({"places" if m.pair else "combines"} "{m.name}")')
    return "\n".join(rows)


def axis_rules(constructors: Iterable[Constructor]) -> str:
    """Free and folded axes of every constructor. What stands under At is not cut to a prefix: its folds are its own."""
    out = []
    for c in constructors:
        args = [f"a{k}" for k in range(len(c.kinds))]
        children = [args[k] for k in c.terms]
        body = [f"(= e ({' '.join([c.name, *args])}))"]
        body += [f"(= f{a} (free {a})) (= g{a} (folded {a}))" for a in children]
        free, folded = (_union([f"{letter}{a}" for a in children]) for letter in "fg")
        match c.op:
            case "Index":
                free = "(set-of a0)"
            case "Extent":
                folded = "(set-of a0)"
            case "Fold":
                free, folded = f"(set-diff {free} a0)", f"(set-union {folded} a0)"
            case "Scan":
                free = f"(set-insert {free} a0)"
            case "Prefix":
                free, folded = f"(set-insert {free} a0)", f"(set-remove {folded} a0)"
            case "Whole":
                folded = f"(set-diff {folded} a0)"
            case "At":
                free, folded = "(set-union (set-remove fa2 a0) fa1)", "(set-empty)"
        kinds = "".join(f" ({kind} e)" for kind, ops in KINDS.items() if c.op in ops)
        out.append(
            f"(rule ({' '.join(body)}) ((set (free e) {free}) (set (folded e) {folded}){kinds}) :ruleset facts)"
        )
    return "\n".join(out)


def _union(sets: list[str]) -> str:
    if not sets:
        return "(set-empty)"
    return sets[0] if len(sets) == 1 else f"(set-union {sets[0]} {_union(sets[1:])})"


def dtype_rules(constructors: Iterable[Constructor]) -> str:
    """The dtype of every constructor. A class has the narrowest type that holds its value exactly."""
    out = [_OPERATORS]
    for c in constructors:
        args = [f"a{k}" for k in range(len(c.kinds))]
        node = f"(= e ({' '.join([c.name, *args])}))"
        match c.op:
            case "Const" | "Round":
                body, value = node, "a0"
            case "Load":
                body, value = node, "a1"
            case "Index" | "Extent":
                body, value = node, str(DTYPE_CODE["i64"])
            case "Identity":
                body, value = node, str(DTYPE_CODE["any"])
            case "Select":
                body, value = f"{node} (= x (dtype a1)) (= y (dtype a2))", "(| x y)"
            case "At" | "Prefix" | "Whole":
                body, value = f"{node} (= x (dtype {args[-1]}))", "x"
            case _:
                continue
        out.append(f"(rule ({body}) ((set (dtype e) {value})) :ruleset facts)")
    return "\n".join(out)


_OPERATORS = """
(rule ((= e (Unary o x)) (keeps o) (= d (dtype x))) ((set (dtype e) d)) :ruleset facts)
(rule ((= e (Unary o x)) (computes o) (= d (dtype x)) (> d 0) (< d 8)) ((set (dtype e) (| d 3))) :ruleset facts)
(rule ((= e (Unary o x)) (computes o) (= d (dtype x)) (= 0 (& d 7))) ((set (dtype e) d)) :ruleset facts)
(rule ((= e (Unary o x)) (compares o)) ((set (dtype e) 16)) :ruleset facts)
(rule ((= e (Binary o x y)) (keeps o) (= d (| (dtype x) (dtype y)))) ((set (dtype e) d)) :ruleset facts)
(rule ((= e (Binary o x y)) (computes o) (= d (| (dtype x) (dtype y))) (> d 0) (< d 8))
      ((set (dtype e) (| d 3))) :ruleset facts)
(rule ((= e (Binary o x y)) (computes o) (= d (| (dtype x) (dtype y))) (= 0 (& d 7))) ((set (dtype e) d)) :ruleset facts)
(rule ((= e (Binary o x y)) (compares o)) ((set (dtype e) 16)) :ruleset facts)
(rule ((= e (Fold s o x)) (keeps o) (= d (dtype x))) ((set (dtype e) d)) :ruleset facts)
(rule ((= e (Fold s o x)) (computes o) (= d (dtype x)) (> d 0) (< d 8)) ((set (dtype e) (| d 3))) :ruleset facts)
(rule ((= e (Fold s o x)) (computes o) (= d (dtype x)) (= 0 (& d 7))) ((set (dtype e) d)) :ruleset facts)
(rule ((= e (Fold s o x)) (places o)) ((set (dtype e) 512)) :ruleset facts)
(rule ((= e (Scan j o x)) (keeps o) (= d (dtype x))) ((set (dtype e) d)) :ruleset facts)
(rule ((= e (Scan j o x)) (computes o) (= d (dtype x)) (> d 0) (< d 8)) ((set (dtype e) (| d 3))) :ruleset facts)
(rule ((= e (Scan j o x)) (computes o) (= d (dtype x)) (= 0 (& d 7))) ((set (dtype e) d)) :ruleset facts)
(rule ((= e (Scan j o x)) (places o)) ((set (dtype e) 512)) :ruleset facts)
"""

ENUMERATED = 4
"""Axes of a fold that are listed one by one; every axis of the program is tried on folds over more."""
SHAPES = (
    "\n".join(
        f"(rule ((= e (Fold s o b)) (< {k} (set-length s)) (= j (set-get s {k}))) ((member s j)) :ruleset facts)"
        for k in range(ENUMERATED)
    )
    + f"""
(rule ((= e (Fold s o b)) (< {ENUMERATED} (set-length s)) (axis j) (set-contains s j)) ((member s j)) :ruleset facts)
(rule ((= e (Unary o x)) (!= o "neg")) ((atom e)) :ruleset facts)
(rule ((= e (Binary o x y)) (!= o "mul")) ((atom e)) :ruleset facts)
(rule ((= e (Fold s o b)) (= 1 (set-length s)) (= j (set-get s 0))) ((single e j o b)) :ruleset facts)
"""
)

SIGNS = """
(rule ((= e (Identity "mul"))) ((positive e)) :ruleset facts)
(rule ((= e (Extent j))) ((positive e)) :ruleset facts)
(rule ((= e (Unary "exp" x))) ((positive e)) :ruleset facts)
(rule ((= e (Unary "exp2" x))) ((positive e)) :ruleset facts)
(rule ((= e (Unary "rsqrt" x)) (plain x)) ((positive e)) :ruleset facts)
(rule ((= e (Unary "sigmoid" x))) ((positive e) (bounded e)) :ruleset facts)
(rule ((= e (Unary "recip" x)) (positive x)) ((positive e)) :ruleset facts)
(rule ((= e (Binary "mul" x y)) (positive x) (positive y)) ((positive e)) :ruleset facts)
(rule ((= e (Binary "add" x y)) (positive x) (positive y)) ((positive e)) :ruleset facts)
(rule ((= e (Fold s "add" x)) (positive x)) ((positive e)) :ruleset facts)
(rule ((= e (Round d o x)) (positive x) (< d 8)) ((positive e)) :ruleset facts)
(rule ((= e (Whole s x)) (positive x)) ((positive e)) :ruleset facts)
(rule ((= e (Unary "exp" x)) (nonpositive x)) ((bounded e)) :ruleset facts)
(rule ((= e (Unary "tanh" x))) ((bounded e) (safe e)) :ruleset facts)
(rule ((= e (Unary "sigmoid" x))) ((safe e)) :ruleset facts)
(rule ((= e (Binary "mul" x y)) (bounded x) (bounded y)) ((bounded e)) :ruleset facts)
(rule ((= e (Binary "mul" x (Unary "recip" (Fold s "add" x)))) (positive x)) ((bounded e)) :ruleset facts)
(rule ((= e (Round d o x)) (bounded x)) ((bounded e)) :ruleset facts)
(rule ((= e (Select p x y)) (bounded x) (bounded y)) ((bounded e)) :ruleset facts)
(rule ((positive e)) ((plain e)) :ruleset facts)
(rule ((= e (Unary "abs" x))) ((plain e)) :ruleset facts)
(rule ((= e (Binary "mul" x x))) ((plain e)) :ruleset facts)
(rule ((= e (Binary "add" x y)) (plain x)) ((plain e)) :ruleset facts)
"""

# A guarded shift g is m, or 0 where m is infinite. Then x <= m gives x <= g, unless both are +inf. Where an old g is 0
# because its m is -inf, the difference to the new g may be positive, but what it rescales is 0.
ORDER = """
(rule ((= m (Fold s "max" f))) ((le f m)) :ruleset facts)
(rule ((= m (Fold s "max" f)) (le g f)) ((le g m)) :ruleset facts)
(rule ((= m (Binary "max" x y))) ((le x m) (le y m)) :ruleset facts)
(rule ((= m (Binary "max" x y)) (le z x)) ((le z m)) :ruleset facts)
(rule ((= m (Binary "max" x c)) (= n (Binary "max" y c)) (le x y)) ((le m n)) :ruleset facts)
(rule ((= m (Round d o x)) (= n (Round d p y)) (le x y)) ((le m n)) :ruleset facts)
(rule ((= m (Binary "mul" c x)) (= n (Binary "mul" c y)) (le x y) (positive c)) ((le m n)) :ruleset facts)
(rule ((= m (Binary "add" c x)) (= n (Binary "add" c y)) (le x y)) ((le m n)) :ruleset facts)
(rule ((= d (Binary "add" x (Unary "neg" y))) (le x y)) ((nonpositive d)) :ruleset facts)
(rule ((= d (Binary "addz" x (Unary "neg" y))) (le x y)) ((nonpositive d)) :ruleset facts)
(rule ((= d (Binary "mul" c x)) (positive c) (nonpositive x)) ((nonpositive d)) :ruleset facts)
(rule ((= d (Binary "add" x y)) (nonpositive x) (nonpositive y)) ((nonpositive d)) :ruleset facts)
(rule ((= d (Binary "addz" x y)) (nonpositive x) (nonpositive y)) ((nonpositive d)) :ruleset facts)
(rule ((= d (Round t o x)) (nonpositive x)) ((nonpositive d)) :ruleset facts)
(rule ((= d (Select p x y)) (nonpositive x) (nonpositive y)) ((nonpositive d)) :ruleset facts)
(rule ((= w (Whole s m)) (le x m)) ((le x w)) :ruleset facts)
(rule ((= w (Whole s m)) (le m x)) ((le w x)) :ruleset facts)
(rule ((= g (Select (Binary "eq" m c) z m)) (infinite c) (zero z)) ((guards g m)) :ruleset facts)
(rule ((= g (Select (Binary "eq" (Unary "abs" m) c) z m)) (infinite c) (zero z)) ((guards g m)) :ruleset facts)
(rule ((guards g m) (le x m)) ((le x g)) :ruleset facts)
(rule ((= d (Binary "add" g (Unary "neg" h))) (guards g m) (guards h n) (le m n)) ((safe d)) :ruleset facts)
(rule ((= d (Binary "mul" c x)) (positive c) (= x (Binary "add" g (Unary "neg" h))) (guards g m) (guards h n) (le m n))
      ((safe d)) :ruleset facts)
(rule ((nonpositive d)) ((safe d)) :ruleset facts)
"""


def stated(terms: Iterable[T.Term]) -> str:
    """What is said of a program before any rule runs: the identities stand in the graph, and facts of its constants."""
    return f'(Identity "mul") (Identity "add")\n{constant_facts(terms)}'


def constant_facts(terms: Iterable[T.Term]) -> str:
    """Facts about the float constants among the terms: sign, being 1 or 0, an exact reciprocal."""
    out = []
    for t in terms:
        if not isinstance(t, T.Const) or not is_float(t.type):
            continue
        text, value = f"(Const {DTYPE_CODE[t.type]} {signed(t.bits)})", float(t.value)
        names = {
            "positive": value > 0 and math.isfinite(value),
            "one": value == 1,
            "zero": value == 0 and math.copysign(1, value) > 0,
            "minus_zero": value == 0 and math.copysign(1, value) < 0,
            "nonpositive": value <= 0,
            "bounded": abs(value) <= 1,
            "infinite": math.isinf(value),
            "mild": 2.0**-MILD <= abs(value) <= 2.0**MILD,
            "ranged": 2.0**-RANGED <= abs(value) <= 2.0**RANGED,
        }
        out += [f"({name} {text})" for name, holds in names.items() if holds]
        if value and math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5:
            inverse = T.const(1 / value, t.type)
            if math.isfinite(float(inverse.value)) and inverse.value != 0 and value != 1:
                out.append(f"(inverse {text} (Const {DTYPE_CODE[t.type]} {signed(inverse.bits)}))")
                out.append(f"(positive (Const {DTYPE_CODE[t.type]} {signed(inverse.bits)}))" if value > 0 else "")
    return "\n".join(out)


def prelude(loads: Iterable[Constructor]) -> str:
    """Declarations and fact rules for the fixed constructors and the given loads."""
    constructors = (*FIXED, *loads, *PREFIX_CONSTRUCTORS)
    signatures = "\n".join(c.signature for c in constructors)
    return "\n".join(
        (
            DECLARATIONS,
            signatures,
            operator_facts(),
            axis_rules(constructors),
            dtype_rules(constructors),
            SHAPES,
            SIGNS,
            ORDER,
        )
    )
