"""What a law is: a named function whose docstring is its sentence, giving two sides or egglog rules.

A two-sided law is built from pattern variables with the term constructors; the same sides become egglog rules, the
numeric check and the listing. A relational law (a split, a push) gives its rules as (body, actions) pairs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import product

from egraph.analysis import FLOAT
from egraph.encode import CLASSES, DTYPE_CODE, signed
from egraph.graph import EGraphError
from ir import term as T

LAW_CLASSES = ("exact", "finite", "reassociating", "rounding", "approximate")
NUMERICS: dict[str, tuple[str, ...]] = {
    "strict": ("exact",),
    "default": ("exact", "finite", "reassociating", "rounding"),
    "fast": LAW_CLASSES,
}
Axes = tuple[str, ...]
Predicate = T.Term
Rule = tuple[str, str]


@dataclass(frozen=True)
class Condition:
    """A side condition on pattern variables: its name, the variables, and the egglog facts that state it."""

    name: str
    variables: tuple[str, ...]
    facts: str


def disjoint(x: str, s: str) -> Condition:
    """No axis of the set s is free in x."""
    return Condition("disjoint", (x, s), f"(= f_{x} (free {x})) (= 0 (set-length (set-intersect f_{x} {s})))")


def occupied(s: str) -> Condition:
    """No axis of the set s is empty, as none is in a graph that laws run on."""
    return Condition("occupied", (s,), "")


def meets(x: str, s: str) -> Condition:
    """Some axis of the set s is free in x."""
    return Condition("meets", (x, s), f"(= f_{x} (free {x})) (< 0 (set-length (set-intersect f_{x} {s})))")


def apart(s: str, t: str) -> Condition:
    """The axis sets s and t have no axis in common."""
    return Condition("apart", (s, t), f"(= 0 (set-length (set-intersect {s} {t})))")


def unfolded(x: str, s: str) -> Condition:
    """x holds no completed fold over an axis of the set s."""
    return Condition("unfolded", (x, s), f"(= g_{x} (folded {x})) (= 0 (set-length (set-intersect g_{x} {s})))")


def no_fold(x: str, j: str) -> Condition:
    """x holds no completed fold over the axis j."""
    return Condition("no_fold", (x, j), f"(= g_{x} (folded {x})) (set-not-contains g_{x} {j})")


def has_fold(x: str, j: str) -> Condition:
    """x holds a completed fold over the axis j."""
    return Condition("has_fold", (x, j), f"(= g_{x} (folded {x})) (set-contains g_{x} {j})")


def varies(x: str, j: str) -> Condition:
    """The axis j is free in x."""
    return Condition("varies", (x, j), f"(= f_{x} (free {x})) (set-contains f_{x} {j})")


def constant(x: str, j: str) -> Condition:
    """The axis j is not free in x."""
    return Condition("constant", (x, j), f"(= f_{x} (free {x})) (set-not-contains f_{x} {j})")


def floating(x: str) -> Condition:
    """x is of a floating-point type."""
    return Condition("floating", (x,), f"(= d_{x} (dtype {x})) {FLOAT.format(d=f'd_{x}')}")


def typed(x: str, d: str) -> Condition:
    """x is of the type d."""
    return Condition("typed", (x, d), f"(= {d} (dtype {x}))")


def fact(name: str, *variables: str) -> Condition:
    """A relation of the analyses: positive, nonpositive, safe, bounded, plain, one, zero, minus_zero, le, inverse."""
    return Condition(name, variables, f"({name} {' '.join(variables)})")


@dataclass(frozen=True)
class Law:
    """A named equality. `class_` says how equal its sides are; `rules` are egglog (body, actions) pairs."""

    name: str
    family: str
    class_: str
    sentence: str
    ruleset: str
    rules: tuple[Rule, ...]
    sides: tuple[tuple[T.Term, T.Term], ...] = ()
    given: tuple[Condition, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def hides(self) -> bool:
        """Whether the left side is removed, so that no other law matches it any more."""
        return any("(subsume " in actions for _, actions in self.rules)

    def text(self) -> Iterator[str]:
        """The egglog rules, each named after the law."""
        for k, (body, actions) in enumerate(self.rules):
            name = f"{self.name}/{k}"
            yield f'(rule ({body}) ({actions}) :ruleset {self.ruleset} :name "{name}")'


LAWS: dict[str, Law] = {}


def _register(law: Law) -> Law:
    if law.class_ not in LAW_CLASSES:
        raise EGraphError(f"law {law.name}: class {law.class_!r} is none of {', '.join(LAW_CLASSES)}")
    if law.name in LAWS:
        raise EGraphError(f"law {law.name}: the families {LAWS[law.name].family} and {law.family} both define it")
    LAWS[law.name] = law
    return law


def _sentence(function: Callable[..., object]) -> str:
    return " ".join((inspect.getdoc(function) or "").split())


def relational(family: str, class_: str, ruleset: str) -> Callable[[Callable[[], list[Rule]]], Law]:
    """Register a law given as egglog rules: (body, actions) pairs."""

    def register(function: Callable[[], list[Rule]]) -> Law:
        rules = tuple(function())
        return _register(Law(function.__name__, family, class_, _sentence(function), ruleset, rules))

    return register


def two_sided(
    family: str,
    class_: str,
    ruleset: str = "norm",
    given: tuple[Condition, ...] = (),
    over: Mapping[str, tuple[str, ...]] | None = None,
    both: bool = False,
    hides: bool = False,
) -> Callable[[Callable[..., tuple[T.Term, T.Term]]], Law]:
    """Make a law of a function from pattern variables to (left, right).

    Parameters annotated Term, Predicate and Axes are pattern variables; a str parameter is a variable over text
    unless `over` lists its values. `both` also rewrites right to left; `hides` removes the left node, which must be
    useless.
    """

    def make(function: Callable[..., tuple[T.Term, T.Term]]) -> Law:
        kinds = {p.name: str(p.annotation) for p in inspect.signature(function).parameters.values()}
        swept = over or {}
        sides = []
        for values in product(*swept.values()):
            chosen = dict(zip(swept, values, strict=True))
            sides.append(function(**{n: chosen.get(n, _variable(n, kind)) for n, kind in kinds.items()}))
        rules = []
        for left, right in sides:
            rules.append(rewrite(left, right, given, hides))
            if both:
                rules.append(rewrite(right, left, given, False))
        return Law(
            function.__name__,
            family,
            class_,
            _sentence(function),
            ruleset,
            tuple(rules),
            tuple(sides),
            given,
            kinds,
        )

    return make


def law(
    family: str,
    class_: str,
    ruleset: str = "norm",
    given: tuple[Condition, ...] = (),
    over: Mapping[str, tuple[str, ...]] | None = None,
    both: bool = False,
    hides: bool = False,
) -> Callable[[Callable[..., tuple[T.Term, T.Term]]], Law]:
    """As `two_sided`, and registered."""
    make = two_sided(family, class_, ruleset, given, over, both, hides)
    return lambda function: _register(make(function))


def _variable(name: str, kind: str) -> object:
    match kind:
        case "Term":
            return T.Var(name, "any", ())
        case "Predicate":
            return T.Var(name, "bool", ())
        case "Axes":
            return (f"?{name}",)
        case "str":
            return f"?{name}"
    raise EGraphError(f"pattern variable {name}: the annotation {kind} is none of Term, Predicate, Axes, str")


def joined(s: Axes, t: Axes) -> Axes:
    """The union of two axis sets, as a pattern."""
    return (f"?(set-union {s[0][1:]} {t[0][1:]})",)


def rewrite(left: T.Term, right: T.Term, given: tuple[Condition, ...], hides: bool) -> Rule:
    """The rule that puts `right` into the class of `left`."""
    conditions = " ".join(c.facts for c in given)
    actions = f"(union e {pattern(right)})" + (f" (subsume {pattern(left)})" if hides else "")
    return f"(= e {pattern(left)}) {conditions}", actions


def pattern(t: T.Term) -> str:
    """A term with pattern variables as egglog text."""
    if isinstance(t, T.Var):
        return t.name
    if type(t).__name__ not in CLASSES:
        raise EGraphError(f"law: a {type(t).__name__} has no pattern")
    parts = [type(t).__name__]
    for f in fields(t):
        value = getattr(t, f.name)
        if isinstance(value, T.Term):
            parts.append(pattern(value))
        elif isinstance(value, tuple):
            parts.append(value[0].removeprefix("?"))
        elif isinstance(value, int):
            parts.append(str(signed(value)))
        elif value.startswith("?"):
            parts.append(value[1:])
        else:
            parts.append(str(DTYPE_CODE[value]) if f.type == "DType" else f'"{value}"')
    return f"({' '.join(parts)})"
