"""Tensor programs as text: one tensor a line in single assignment, its type after the colon; text parses back.

tensor NAME                                      %4 = reduce add [1] of %3 : f32[4]
symbol s0 in 1..64                               %5 = scan max 0 of %4 : f32[4]
note TEXT                                        %6 = contract [i, k] [j, k] -> [i, j] of %1, %2 : f32[4, 6]
%0 = input x : f32[4, 8] strides [8, 1]          %7 = view [o1, o0] of %6 : f32[6, 4]
%1 = full 0x3f800000 : f32[4, 8]                 %8 = view [o0 - 1] if 0 < o0 else 0x0 of %4 : f32[5]
%2 = iota : i64[4]                               %9 = view [g0, o1] of %1 from %3 : f32[4, 8]
%3 = map mul of %0, %1 : f32[4, 8]               %10 = scatter add [g0] of %4, %5 from %2 : f32[4]
%3 = convert cast of %0 : bf16[4, 8]             %11 = call aten.sort key 0 result 1 strides [1] '{0}' of %4 : i64[2]
result y = %3 strides [8, 1]                     result z = %4 strides [1] writes x
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

from ir import tensor as X
from ir.lines import Lines
from ir.loop import contiguous
from ir.regions import tensors
from ir.term import Term, Var
from ir.text import Scope, parse_term, parse_terms, show_term

# ---- printing


def show_tensor(program: X.TensorProgram) -> str:
    """The program as text."""
    lines = [f"tensor {program.name}"]
    lines += [f"symbol {s} in {low}..{high}" for s, (low, high) in program.symbols.items()]
    lines += [f"note {note}" for note in program.notes]
    order = tensors([*program.inputs, *(r.value for r in program.results)])
    names = {t: f"%{k}" for k, t in enumerate(order)}
    lines += [f"{names[t]} = {_show(t, names)}" for t in order]
    for r in program.results:
        writes = "" if r.writes is None else f" writes {r.writes}"
        lines.append(f"result {r.name} = {names[r.value]} strides {_list(r.strides)}{writes}")
    return "\n".join(lines) + "\n"


def _list(items: Sequence[object]) -> str:
    return f"[{', '.join(map(str, items))}]"


def _show(t: X.Tensor, names: dict[X.Tensor, str]) -> str:
    def of(*operands: X.Tensor) -> str:
        return " of " + ", ".join(names[x] for x in operands) if operands else ""

    def from_(sources: Sequence[X.Tensor]) -> str:
        return " from " + ", ".join(names[x] for x in sources) if sources else ""

    kind = f" : {t.dtype}{_list(t.shape)}"
    match t:
        case X.Input(name, _, shape, strides, offset):
            numbers = tuple(e for e in shape if isinstance(e, int))
            dense = len(numbers) == len(shape) and strides == contiguous(numbers)
            storage = ("" if dense else f" strides {_list(strides)}") + ("" if offset == 0 else f" offset {offset}")
            return f"input {name}{kind}{storage}"
        case X.Full(_, bits, _):
            return f"full {bits:#x}{kind}"
        case X.Iota(_):
            return f"iota{kind}"
        case X.Map(op, inputs):
            return f"map {op}{of(*inputs)}{kind}"
        case X.Convert(_, origin, x):
            return f"convert {origin}{of(x)}{kind}"
        case X.Reduce(monoid, dims, x):
            return f"reduce {monoid} {_list(dims)}{of(x)}{kind}"
        case X.Scan(monoid, dim, x):
            return f"scan {monoid} {dim}{of(x)}{kind}"
        case X.Contract(x, y, a, b, out):
            return f"contract {_list(a)} {_list(b)} -> {_list(out)}{of(x, y)}{kind}"
        case X.View(x, _, index, valid, fill, sources):
            where = "" if valid is None else f" if {show_term(valid)}"
            where += f" else {fill:#x}" * (valid is not None or fill != 0)
            return f"view {_list([show_term(i) for i in index])}{where}{of(x)}{from_(sources)}{kind}"
        case X.Scatter(monoid, base, updates, index, sources):
            at = _list([show_term(i) for i in index])
            return f"scatter {monoid or 'last'} {at}{of(base, updates)}{from_(sources)}{kind}"
        case X.Call(target, operands, arguments, result, _, _, strides, key):
            head = f"call {target} key {key} result {result} strides {_list(strides)}"
            return f"{head} {arguments!r}{of(*operands)}{kind}"
    raise AssertionError(f"no text for {type(t).__name__}")


# ---- parsing

_LINE = re.compile(r"(%\d+) = (\w+) ?(.*?) ?: (\w+)\[([^\[\]]*)\](?: strides \[([^\[\]]*)\])?(?: offset (.+))?")
_RESULT = re.compile(r"result (\w+) = (%\d+) strides \[([^\[\]]*)\](?: writes (\w+))?")
_TAIL = r"(?: of ((?:%\d+(?:, )?)+))?(?: from ((?:%\d+(?:, )?)+))?"
_BODY: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern + _TAIL)
    for name, pattern in {
        "input": r"(\w+)",
        "full": r"(0x[0-9a-f]+)",
        "iota": r"()",
        "map": r"(\w+)",
        "convert": r"(\w+)",
        "reduce": r"(\w+) \[([\d, ]*)\]",
        "scan": r"(\w+) (\d+)",
        "contract": r"\[([\w, ]*)\] \[([\w, ]*)\] -> \[([\w, ]*)\]",
        "view": r"\[(.*?)\](?: if (.*?))?(?: else (0x[0-9a-f]+))?",
        "scatter": r"(\w+) \[(.*)\]",
        "call": r"(\S+) key (-?\d+) result (\d+) strides \[([^\[\]]*)\] ('.*'|\".*\")",
    }.items()
}


_OPERANDS = {"convert": 1, "reduce": 1, "scan": 1, "contract": 2, "view": 1, "scatter": 2}
"""The number of operands where it is fixed by the kind."""


def parse_tensor(text: str) -> X.TensorProgram:
    """The program that `text` spells; raises `IRError` with the line where it is not one."""
    reader = Lines(text)
    (name,) = reader.match(re.compile(r"tensor (.+)"), "tensor NAME is expected")
    symbols = {m[0]: (int(m[1]), int(m[2])) for m in reader.all(re.compile(r"symbol (\w+) in (-?\d+)\.\.(-?\d+)"))}
    notes = tuple(m[0] for m in reader.all(re.compile(r"note (.*)")))
    values: dict[str, X.Tensor] = {}
    for groups in reader.each(_LINE):
        t = reader.checked(_Statement(reader, values, groups).tensor)
        if groups[0] in values:
            raise reader.fail(f"{groups[0]} is made twice")
        values[groups[0]] = t
    results = []
    for result, value, strides, writes in reader.each(_RESULT):
        if value not in values:
            raise reader.fail(f"{value} is not made")
        results.append(X.Result(result, values[value], _dims(strides), writes))
    reader.finish()
    inputs = tuple(t for t in values.values() if isinstance(t, X.Input))
    return X.TensorProgram(name, inputs, tuple(results), notes, symbols)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(n.strip() for n in (text or "").split(",") if n.strip())


def _dims(text: str) -> tuple[X.Dim, ...]:
    """Extents: numbers, or expressions over symbols, separated by commas outside parentheses."""
    parts = re.split(r",\s*(?![^()]*\))", text) if text.strip() else []
    return tuple(int(p) if re.fullmatch(r"-?\d+", p.strip()) else p.strip() for p in parts)


class _Statement:
    """One line, whose type and operands are read and whose body is matched."""

    def __init__(self, reader: Lines, values: dict[str, X.Tensor], groups: Sequence[str]) -> None:
        _, self.kind, body, self.dtype, extents, self.strides, self.offset = groups
        self.reader, self.extents = reader, _dims(extents)
        pattern = _BODY.get(self.kind)
        m = pattern.fullmatch(body) if pattern else None
        if m is None:
            raise reader.fail(f"{self.kind} {body} is not a tensor")
        *self.words, operands, sources = m.groups()
        for operand in _names(operands) + _names(sources):
            if operand not in values:
                raise reader.fail(f"{operand} is used before it is made")
        wanted = _OPERANDS.get(self.kind)
        if wanted is not None and len(_names(operands)) != wanted:
            raise reader.fail(f"{self.kind} has {wanted} operands, not {len(_names(operands))}")
        self.operands = tuple(values[v] for v in _names(operands))
        self.sources = tuple(values[v] for v in _names(sources))

    def tensor(self) -> X.Tensor:
        """The tensor, of the type that the line says."""
        t = _BUILD[self.kind](self)
        if (t.dtype, t.shape) != (self.dtype, self.extents):
            raise self.reader.fail(f"the tensor is {t.dtype}{_list(t.shape)}")
        return t

    def input(self) -> X.Tensor:
        """An input, contiguous where no strides are said."""
        numbers = tuple(e for e in self.extents if isinstance(e, int))
        strides = contiguous(numbers) if self.strides is None else _dims(self.strides)
        (offset,) = _dims(self.offset or "0")
        return X.Input(self.words[0], self.dtype, self.extents, strides, offset)

    def scope(self, coordinates: Sequence[X.Dim]) -> Scope:
        """The coordinates and the sources' elements, which index terms may name."""
        axes = tuple(f"o{k}" for k in range(len(coordinates)))
        return Scope({}, axes, {f"g{k}": Var(f"g{k}", s.dtype, axes) for k, s in enumerate(self.sources)})

    def terms(self, text: str, coordinates: Sequence[X.Dim]) -> tuple[Term, ...]:
        """The index terms of a list."""
        return parse_terms(text, self.scope(coordinates))

    def view(self) -> X.Tensor:
        """A view or a gather."""
        index, valid, fill = self.words
        inside = parse_term(valid, self.scope(self.extents)) if valid else None
        terms = self.terms(index, self.extents)
        return X.View(self.operands[0], self.extents, terms, inside, int(fill or "0", 16), self.sources)

    def scatter(self) -> X.Tensor:
        """A scatter."""
        monoid, index = self.words
        base, updates = self.operands
        terms = self.terms(index, updates.shape)
        return X.Scatter(None if monoid == "last" else monoid, base, updates, terms, self.sources)

    def call(self) -> X.Tensor:
        """A call."""
        target, key, result, strides, arguments = self.words
        said = str(ast.literal_eval(arguments))
        dims = _dims(strides)
        return X.Call(target, self.operands, said, int(result), self.dtype, self.extents, dims, int(key))


_BUILD: dict[str, Callable[[_Statement], X.Tensor]] = {
    "input": _Statement.input,
    "full": lambda s: X.Full(s.dtype, int(s.words[0], 16), s.extents),
    "iota": lambda s: X.Iota(s.extents[0]),
    "map": lambda s: X.Map(s.words[0], s.operands),
    "convert": lambda s: X.Convert(s.dtype, s.words[0], s.operands[0]),
    "reduce": lambda s: X.Reduce(s.words[0], tuple(map(int, _names(s.words[1]))), s.operands[0]),
    "scan": lambda s: X.Scan(s.words[0], int(s.words[1]), s.operands[0]),
    "contract": lambda s: X.Contract(s.operands[0], s.operands[1], *map(_names, s.words)),
    "view": _Statement.view,
    "scatter": _Statement.scatter,
    "call": _Statement.call,
}
