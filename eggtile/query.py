"""Questions to a dump: `forms where CONDITION` and `classes where CONDITION`, in the syntax of Python's expressions."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from eggtile.dump_file import node_of
from eggtile.echo import around, cut, echoed
from eggtile.pipeline import RequestError
from egraph.dump import describe

QUERY = re.compile(r"\s*(?P<kind>forms|classes)(?P<where>\s+where(?=\s|$)(?P<condition>.*))?\s*", re.DOTALL)
Row = Mapping[str, Any]
Value = Any
"""A number, a text, a truth value, a set of texts, or `Some`."""


class Some(frozenset[Any]):
    """Several values of one thing: it equals what one of them equals."""

    def __eq__(self, other: object) -> bool:
        return other in self

    def __ne__(self, other: object) -> bool:
        return other not in self

    __hash__ = frozenset.__hash__


def _among(x: Value, y: Value) -> bool:
    """Whether a value, or one of several, is among others."""
    return any(v in y for v in x) if isinstance(x, Some) else x in y


def _equal(x: Value, y: Value) -> bool:
    if len({isinstance(v, frozenset) and not isinstance(v, Some) for v in (x, y)}) > 1:
        raise TypeError("a set is equal to a set alone")
    return bool(x == y)


COMPARE: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Eq: _equal, ast.NotEq: lambda x, y: not _equal(x, y), ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: _among, ast.NotIn: lambda x, y: not _among(x, y),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: lambda x, y: x / y if y else math.nan,
}  # fmt: skip
"""Of numbers. What is divided by 0 compares with nothing."""


def _total(form: Row, table: str, known: frozenset[str]) -> Callable[[str], int]:
    def total(name: str) -> int:
        if name not in known:
            raise RequestError(f"{table}({cut(name)}): the dump has {', '.join(sorted(known))}")
        return sum(k[table].get(name, 0) for k in form["kernels"])

    return total


def _known(data: Row, table: str) -> frozenset[str]:
    """The names that a table of a kernel is asked for: those of any kernel of any form."""
    kernels = (k for region in data["regions"] for f in region["forms"] for k in f["kernels"])
    return frozenset(name for k in kernels for name in k[table])


def form_names(f: Row, axes: frozenset[str], buffers: frozenset[str]) -> Mapping[str, Value]:
    """What a condition on a form may name."""
    return {
        "id": f["id"], "cost_us": f["cost_us"], "flops": f["flops"], "bytes": f["bytes"], "kernels": len(f["kernels"]),
        "default": f["default"], "chosen": f["chosen"], "laws": frozenset(f["laws"]), "law_class": f["class"],
        "states": max((k["states"] for k in f["kernels"]), default=0),
        "sweeps": _total(f, "sweeps", axes), "reads": _total(f, "reads", buffers),
    }  # fmt: skip


def class_names(number: str, c: Row) -> Mapping[str, Value]:
    """What a condition on a class may name."""
    return {
        "id": int(number), "op": Some(n[0] for n in c["nodes"]), "dtype": c["dtype"], "nodes": len(c["nodes"]),
        "name": Some(p for n in c["nodes"] for p in n[1]), "free": frozenset(c["free"]),
        "folded": frozenset(c["folded"]), "safe": c["safe"], "positive": c["positive"],
        "origin": Some(c["origins"]), "joins": frozenset(c["joins"]),
    }  # fmt: skip


def answers(data: Row, text: str) -> list[dict[str, Any]]:
    """Of KIND where CONDITION, the rows for which it is true; KIND is forms or classes, and no condition takes all.

    A condition is an expression of Python: and, or, not, comparisons, in, + - * /, sets in braces. A name that is no
    field stands for its own text, so sum_of_products_streams in laws needs no quotes.

    A form has id, cost_us, kernels, flops, bytes, states, default, chosen, laws, law_class, sweeps(AXIS), the loops over
    an axis, and reads(BUFFER), the loops in which a buffer is read.

    A class has id, op, name, origin (of one of its nodes), dtype, nodes, free, folded, joins, safe, positive.
    """
    found = QUERY.fullmatch(text)
    if found is None:
        raise RequestError(f"a query is forms or classes, then where and a condition, not {echoed(text)}")
    condition = "True" if found["where"] is None else found["condition"].replace("\n", " ").strip()
    if not condition:
        raise RequestError(f"{echoed(text)} ends after where; a condition like id == 0 is to follow")
    try:
        return _answers(data, found["kind"], ast.parse(condition, mode="eval").body)
    except SyntaxError as e:
        at = e.offset - 1 if e.offset else len(condition)
        place = f"at character {at + 1}, by {around(condition, at)}" if at < len(condition) else "at its end"
        raise RequestError(f"the condition {echoed(condition)} is not an expression: {e.msg} {place}") from None
    except (RecursionError, MemoryError):
        raise RequestError("the condition is nested too deeply") from None


def _holds(value: Value) -> bool:
    """Whether a condition with the value is met; one that is not a number is not."""
    return bool(value) and not (isinstance(value, float) and math.isnan(value))


def _answers(data: Row, kind: str, tree: ast.expr) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    asked: list[Mapping[str, Value]] = []
    for n, region in enumerate(data["regions"]):
        rows: Iterable[tuple[Mapping[str, Value], dict[str, Any]]]
        if kind == "forms":
            axes, buffers = _known(data, "axes"), _known(data, "reads")
            rows = ((form_names(f, axes, buffers), _form_row(f)) for f in region["forms"])
        else:
            rows = ((class_names(c, row), _class_row(c, row)) for c, row in region["classes"].items())
        for names, shown in rows:
            asked.append(names)
            found += [{"region": n} | shown] * _holds(_value(tree, names))
    divisors = [e.right for e in ast.walk(tree) if isinstance(e, ast.BinOp) and isinstance(e.op, ast.Div)]
    by_zero = sum(any(_value(e, names) == 0 for e in divisors) for names in asked) if divisors and not found else 0
    if by_zero:
        divided = echoed(ast.unparse(tree))
        raise RequestError(f"none found, and {divided} divides by 0 for {by_zero} of {len(asked)} {kind}")
    return found


def _form_row(f: Row) -> dict[str, Any]:
    signature = "; ".join(f["signature"])
    return {"form": f["id"], "cost_us": f["cost_us"], "signature": signature, "laws": list(f["laws"])}


def _class_row(number: str, c: Row) -> dict[str, Any]:
    ways = [describe(node_of(n)) for n in c["nodes"]]
    return {"class": int(number), "dtype": c["dtype"], "free": c["free"], "ways": ways, "origins": c["origins"]}


def _value(e: ast.expr, names: Mapping[str, Value]) -> Value:
    """The value of an expression of the language; anything else is refused."""

    def of(x: ast.expr) -> Value:
        return _value(x, names)

    match e:
        case ast.Constant(value):
            return value
        case ast.Name(name) if callable(names.get(name)):
            raise RequestError(f"{cut(name)} is asked of one axis or buffer: {name}(NAME)")
        case ast.Name(name):
            return names.get(name, name)
        case ast.Set(items) | ast.List(items) | ast.Tuple(items):
            return frozenset(map(of, items))
        case ast.BoolOp(ast.And(), values):
            return all(map(of, values))
        case ast.BoolOp(_, values):
            return any(map(of, values))
        case ast.UnaryOp(ast.Not(), x):
            return not of(x)
        case ast.UnaryOp(ast.USub(), x):
            return -_number(of(x), e)
        case ast.BinOp(x, op, y) if type(op) in ARITHMETIC:
            try:
                return float(ARITHMETIC[type(op)](_number(of(x), e), _number(of(y), e)))
            except OverflowError:
                raise RequestError(
                    f"{echoed(ast.unparse(e))} is beyond the numbers that queries calculate with"
                ) from None
        case ast.Compare(ast.Name(name), [op]) if name not in names and not isinstance(op, ast.In | ast.NotIn):
            raise RequestError(
                f"{cut(name)} is no field; fields are {', '.join(n for n in names if not callable(names[n]))}"
            )
        case ast.Compare(left, ops, rights) if all(type(op) in COMPARE for op in ops):
            values = [of(left), *map(of, rights)]
            pairs = zip(ops, values, values[1:], strict=False)
            return all(_applied(COMPARE[type(op)], x, y, e) for op, x, y in pairs)
        case ast.Call(ast.Name(name), [ast.Name(argument) | ast.Constant(str(argument))], []):
            if not callable(names.get(name)):
                raise RequestError(
                    f"{cut(name)} takes no name in parentheses; those that do are {_functions(names)}"
                )
            return names[name](argument)
    raise RequestError(f"{echoed(ast.unparse(e))} is not part of the query language")


def _number(x: Value, e: ast.expr) -> float:
    if not isinstance(x, int | float):
        raise RequestError(f"{echoed(ast.unparse(e))} calculates with {_said(x)}")
    return x


def _applied(op: Callable[[Value, Value], Value], x: Value, y: Value, e: ast.expr) -> Value:
    try:
        return op(x, y)
    except TypeError:
        raise RequestError(f"{echoed(ast.unparse(e))} compares {_said(x)} with {_said(y)}") from None


def _said(x: Value) -> str:
    return f"the text {cut(x)}" if isinstance(x, str) else "a set" if isinstance(x, frozenset) else echoed(x)


def _functions(names: Mapping[str, Value]) -> str:
    return ", ".join(n for n, v in names.items() if callable(v)) or "none"
