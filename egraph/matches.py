"""Rules that write down their matches: egglog text in, the same rules with one more row kept for every match.

The row of a match holds the values of all variables of the rule, so that what the rule needed and what it made can be
read off afterwards. Which rule matched is known of every rule: of laws, of demands and of the analyses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

Sexp = str | tuple["Sexp", ...]
Signature = tuple[tuple[str, ...], str]

_TOKEN = re.compile(r'"[^"]*"|[()]|[^\s()"]+')
_PRIMITIVES = {
    **dict.fromkeys(("set-of", "set-empty", "set-union", "set-intersect", "set-diff"), "Axes"),
    **dict.fromkeys(("set-insert", "set-remove"), "Axes"),
    **dict.fromkeys(("set-length", "|", "&"), "i64"),
    "set-get": "String",
}


@dataclass(frozen=True)
class Rule:
    """A rule whose matches are rows of `table`: its variables, the rows that it needs and those that it makes.

    `law` is empty for a demand or an analysis. Rows are expressions over the variables; an expression of `needs`
    comes with the variable that is its class where the rule names it. `unions` are pairs put into one class.
    """

    law: str
    ruleset: str
    table: str
    variables: tuple[str, ...]
    needs: tuple[tuple[Sexp, str | None], ...]
    makes: tuple[Sexp, ...]
    unions: tuple[tuple[Sexp, Sexp], ...]
    body: tuple[Sexp, ...]


def parsed(text: str) -> list[Sexp]:
    """The expressions of egglog text."""
    stack: list[list[Sexp]] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = tuple(stack.pop())
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    return stack[0]


def shown(e: Sexp) -> str:
    """An expression as egglog text."""
    return e if isinstance(e, str) else f"({' '.join(map(shown, e))})"


def recorded(text: str) -> tuple[str, tuple[Rule, ...], Mapping[str, Signature]]:
    """The program with its rules writing down their matches, the rules, and the sorts of every table."""
    signatures: dict[str, Signature] = {}
    rules: list[Rule] = []
    out: list[str] = []
    for form in parsed(text):
        match form:
            case ("relation", str(name), (*sorts,)):
                signatures[name] = tuple(map(shown, sorts)), "Unit"
            case ("constructor" | "function", str(name), (*sorts,), str(result), *_):
                signatures[name] = tuple(map(shown, sorts)), result
            case ("rule", (*body,), (*actions,), *options):
                rule, kinds = _rule(len(rules), body, actions, [shown(o) for o in options], signatures)
                if rule.makes or rule.unions:
                    rules.append(rule)
                    signatures[rule.table] = kinds, "Unit"
                    out.append(f"(relation {rule.table} ({' '.join(kinds)}))")
                    kept = (*actions, (rule.table, *rule.variables))
                    form = ("rule", tuple(body), kept, *options)
        out.append(shown(form))
    return "\n".join(out), tuple(rules), signatures


def _rule(
    number: int, body: list[Sexp], actions: list[Sexp], options: list[str], signatures: Mapping[str, Signature]
) -> tuple[Rule, tuple[str, ...]]:
    sorts: dict[str, str] = {}
    for fact in body:
        _infer(fact, signatures, sorts)
    needs: list[tuple[Sexp, str | None]] = []
    for fact in body:
        match fact:
            case ("=", str(v), (str(table), *_) as e) if table in signatures:
                needs += [(e, v), *((n, None) for n in _inner(e, signatures))]
            case ("=", left, right):
                needs += [(n, None) for side in (left, right) for n in _tables(side, signatures)]
            case _:
                needs += [(n, None) for n in _tables(fact, signatures)]
    makes = [n for a in actions for n in _tables(a, signatures) if a[0] not in ("set", "subsume")]
    unions = [(a[1], a[2]) for a in actions if a[0] == "union"]
    named = dict(zip(options[::2], options[1::2], strict=True))
    law = named.get(":name", '""').strip('"').partition("/")[0]
    rule = Rule(
        law,
        named[":ruleset"],
        f"match_{number}",
        tuple(sorts),
        tuple(needs),
        tuple(makes),
        tuple(unions),
        tuple(body),
    )
    return rule, tuple(sorts[v] for v in rule.variables)


def _infer(e: Sexp, signatures: Mapping[str, Signature], sorts: dict[str, str]) -> str:
    """The sort of an expression; the sorts of the variables that are table arguments go into `sorts`."""
    if isinstance(e, str):
        if e[0] == '"':
            return "String"
        return "i64" if re.fullmatch(r"-?\d+", e) else sorts.get(e, "")
    head, *args = e
    found = [_infer(a, signatures, sorts) for a in args]
    assert isinstance(head, str)
    if head == "=":
        sort = next((s for s in found if s), "")
        sorts.update((a, sort) for a in args if _is_variable(a) and sort)
        return ""
    if head in signatures:
        wanted, result = signatures[head]
        sorts.update((a, s) for a, s in zip(args, wanted, strict=True) if _is_variable(a))
        return result
    return _PRIMITIVES.get(head, "")


def _is_variable(e: Sexp) -> TypeGuard[str]:
    return isinstance(e, str) and not re.match(r'["$\d-]', e)


def _tables(e: Sexp, signatures: Mapping[str, Signature]) -> Iterator[Sexp]:
    """The rows named in an expression, outermost first."""
    if not isinstance(e, str):
        if e[0] in signatures:
            yield e
        yield from _inner(e, signatures)


def _inner(e: Sexp, signatures: Mapping[str, Signature]) -> Iterator[Sexp]:
    return (n for a in e[1:] for n in _tables(a, signatures))
