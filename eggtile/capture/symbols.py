"""Symbolic extents: their text as terms, their values, and programs in which numbers replace them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

from ir.dtype import bits_of, value_of
from ir.node import IRError, Node, postorder
from ir.tensor import Dim, Full, Input, Reduce, Result, Tensor, TensorProgram
from ir.term import Term, Var, binary, number

_OPERATORS: dict[type[ast.AST], str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv"}
_FUNCTIONS = {
    "FloorDiv": "floordiv",
    "CleanDiv": "floordiv",
    "Mod": "mod",
    "PythonMod": "mod",
    "Max": "max",
    "Min": "min",
}
_MEANING: dict[str, Callable[[int, int], int]] = {
    "add": int.__add__,
    "sub": int.__sub__,
    "mul": int.__mul__,
    "floordiv": int.__floordiv__,
    "mod": int.__mod__,
    "max": max,
    "min": min,
}


@cache
def dim_term(extent: Dim) -> Term:
    """An extent as an i64 term; symbols are variables without axes."""
    if isinstance(extent, int):
        return number(extent)
    term: Term = _walk(extent, number, lambda name: Var(name, "i64", ()), binary)
    return term


def dim_value(extent: Dim, values: Mapping[str, int]) -> int:
    """The number an extent is under `values`; raises `IRError` where a symbol has none."""
    if isinstance(extent, int):
        return extent

    def value(name: str) -> int:
        if name not in values:
            raise IRError(f"extent {extent} depends on {name}, which has no value")
        return values[name]

    number_: int = _walk(extent, int, value, lambda name, a, b: _MEANING[name](a, b))
    return number_


def _walk(
    text: str, constant: Callable[[int], Any], symbol: Callable[[str], Any], apply: Callable[..., Any]
) -> Any:
    def go(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=int(v)):
                return constant(v)
            case ast.Name(id=name):
                return symbol(name)
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return apply("mul", constant(-1), go(x))
            case ast.BinOp(left=x, op=ast.Pow(), right=ast.Constant(value=int(n))) if n > 0:
                out = base = go(x)
                for _ in range(n - 1):
                    out = apply("mul", out, base)
                return out
            case ast.BinOp(left=x, op=op, right=y) if type(op) in _OPERATORS:
                return apply(_OPERATORS[type(op)], go(x), go(y))
            case ast.Call(func=ast.Name(id=f), args=[x, y]) if f in _FUNCTIONS:
                return apply(_FUNCTIONS[f], go(x), go(y))
        raise IRError(f"extent {text}: {ast.unparse(node)} is not an integer expression over symbols")

    return go(ast.parse(text, mode="eval").body)


def bind(program: TensorProgram, values: Mapping[str, int]) -> TensorProgram:
    """The program with numbers for its symbols; raises `IRError` for a number out of range or a symbol without one."""
    for name, value in values.items():
        low, high = program.symbols.get(name, (value + 1, value))
        if not low <= value <= high:
            known = (
                f"{name} is in [{low}, {high}]"
                if name in program.symbols
                else f"the symbols are {[*program.symbols]}"
            )
            raise IRError(f"{program.name}: {name} = {value}, but {known}")
    if not program.symbols:
        return program
    bound: dict[Node, Node] = {}
    for node in postorder(*_roots(program)):
        bound[node] = _rebuilt(node, bound, values)
    inputs = tuple(_as_input(bound[x]) for x in program.inputs)
    results = tuple(
        replace(r, value=_as_tensor(bound[r.value]), strides=tuple(dim_value(s, values) for s in r.strides))
        for r in program.results
    )
    rest = {s: r for s, r in program.symbols.items() if s not in values}
    return replace(program, inputs=inputs, results=results, symbols=rest)


def _roots(program: TensorProgram) -> list[Node]:
    return [*program.inputs, *(r.value for r in program.results)]


def _as_input(node: Node) -> Input:
    assert isinstance(node, Input)
    return node


def _as_tensor(node: Node) -> Tensor:
    assert isinstance(node, Tensor)
    return node


def _rebuilt(node: Node, bound: Mapping[Node, Node], values: Mapping[str, int]) -> Node:
    if isinstance(node, Var) and node.name in values:
        return number(values[node.name])
    parts = {f.name: _part(f.name, getattr(node, f.name), bound, values) for f in fields(node)}
    if isinstance(node, Term) and type(node).__name__ == "Binary":
        return binary(parts["op"], parts["x"], parts["y"])
    made: Node = type(node)(*parts.values())
    return _counted(made) if isinstance(made, Reduce) else made


def _counted(node: Reduce) -> Tensor:
    """A sum of equal constants over all dimensions is a constant: this is how extents stand as values."""
    x = node.x
    if node.monoid == "add" and isinstance(x, Full) and not node.shape and value_of(x.type, x.bits) == 1:
        return Full(node.dtype, bits_of(node.dtype, _product(x.extents)), ())
    return node


def _product(extents: tuple[Dim, ...]) -> int:
    out = 1
    for e in extents:
        out *= int(e)
    return out


_DIMS = ("extents", "strides", "offset", "extent")


def _part(name: str, value: Any, bound: Mapping[Node, Node], values: Mapping[str, int]) -> Any:
    match value:
        case Node():
            return bound[value]
        case tuple() if name in _DIMS:
            return tuple(dim_value(e, values) for e in value)
        case int() | str() if name in _DIMS:
            return dim_value(value, values)
        case tuple() if value and isinstance(value[0], Node):
            return tuple(bound[v] for v in value)
    return value


__all__ = ["Result", "bind", "dim_term", "dim_value"]
