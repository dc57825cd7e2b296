"""Terms of Kernel IR as C++ expressions: shared and long subterms become `const float t3 = ...` lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from codegen import cuda_ops as ops
from ir.dtype import DTYPES, DType, bits_of, compute_type, is_float, is_integer
from ir.kernel import Array
from ir.node import IRError
from ir.term import Binary, Const, Load, Round, Select, Term, Unary, Var, const

LINE = 96
HALVES = ("f16", "bf16")


class EmitError(IRError):
    """A kernel that has no text; the message is one sentence."""


@dataclass(frozen=True)
class Fact:
    """What is known of an integer: it is never negative; it is data of the program, so it wraps."""

    nonnegative: bool = False
    data: bool = False


@dataclass(frozen=True)
class Text:
    """A piece of C++ with its precedence."""

    text: str
    level: int = ops.ATOM

    def at(self, level: int) -> str:
        """The text as an operand in a place that binds at `level`."""
        return self.text if self.level >= level else f"({self.text})"


def literal(t: Const) -> Text:
    """A constant, exact by its bits."""
    value = t.value
    if is_float(t.type):
        return _float_literal(compute_type(t.type), float(value))
    if t.type == "bool":
        return Text("true" if value else "false")
    suffix = "ll" if t.type == "i64" else ""
    least = -(1 << (8 * DTYPES[t.type].bytes - 1))
    if t.type in ("i32", "i64") and value == least:
        return Text(f"{least + 1}{suffix} - 1", ops.SUM)
    return Text(f"{value}{suffix}", ops.PREFIX if value < 0 else ops.ATOM)


def _float_literal(dtype: DType, value: float) -> Text:
    bits = bits_of(dtype, value)
    if not np.isfinite(value):
        call = "__int_as_float" if dtype == "f32" else "__longlong_as_double"
        return Text(f"{call}(0x{bits:x}{'' if dtype == 'f32' else 'll'})")
    level = ops.PREFIX if bits >> (31 if dtype == "f32" else 63) else ops.ATOM
    if dtype == "f64":
        return Text(repr(value), level)
    text = str(np.float32(value))
    if bits_of("f32", float(text)) != bits:  # a compiler that reads it as a double first would round twice
        return Text(f"__int_as_float(0x{bits:x})")
    return Text(f"{text}f" if any(c in text for c in ".en") else f"{text}.0f", level)


Shape = tuple[str, tuple[Term, ...]]


def shape(t: Term) -> Shape:
    """The operator that is printed for `t` and its operands: a sum with a negation is sub, a product with a recip div."""
    match t:
        case Binary("add", x, Unary("neg", y)) | Binary("add", Unary("neg", y), x) if t.dtype != "bool":
            return "sub", (x, y)
        case Binary("add", x, Const() as c) | Binary("add", Const() as c, x) if t.dtype != "bool" and c.value < 0:
            positive = const(-c.value, c.type)
            return ("sub", (x, positive)) if positive.value > 0 else ("add", (x, c))
        case Binary("mul", x, Unary("recip", y)) | Binary("mul", Unary("recip", y), x):
            return "div", (x, y)
        case Binary(op, x, y):
            return op, (x, y)
        case Unary(op, x):
            return op, (x,)
        case Round(_, _, x):
            return "round", (x,)
        case Select(p, x, y):
            return "select", (p, x, y)
        case Load(_, _, index) if len(index) == 1:
            return "load", index
        case Var() | Const():
            return "leaf", ()
    raise EmitError(f"a {type(t).__name__} has no place in Kernel IR")


class Expressions:
    """Prints the terms of one statement after another; remembers the functions called and the facts of scalars."""

    def __init__(self, arrays: Mapping[str, Array], name: Callable[[str], str], fresh: Callable[[], str]) -> None:
        self.arrays, self.name, self.fresh = arrays, name, fresh
        self.facts: dict[str, Fact] = {"block": Fact(nonnegative=True), "thread": Fact(nonnegative=True)}
        self.called: dict[tuple[str, str], None] = {}
        self._known: dict[Term, Fact] = {}
        self._texts: dict[Term, Text] = {}

    def values(self, *terms: Term) -> tuple[list[str], list[Text]]:
        """Lines that make shared subterms, and the value of each term in its compute type."""
        lines = self._print(terms)
        return lines, [self._texts[t] for t in terms]

    def stored(self, dtype: DType, *terms: Term) -> tuple[list[str], list[Text]]:
        """Lines that make shared subterms, and each term as it lies in memory or in a register array of `dtype`."""
        for t in terms:
            if t.dtype != dtype:
                raise EmitError(f"a value of type {t.dtype} is put where {dtype} stands")
        if dtype not in HALVES:
            return self.values(*terms)
        inner = [self._unrounded(t) for t in terms]
        lines = self._print([x for x in inner if not isinstance(x, Const)])
        return lines, [self._narrowed(dtype, x) for x in inner]

    def fact(self, t: Term) -> Fact:
        """What is known of the integer `t`, which has been printed."""
        return self._known[t]

    def call(self, name: str, ctype: str = "") -> str:
        """The name, after noting that the text needs this function."""
        self.called[name, ctype] = None
        return name

    # ---- 16-bit floats in memory

    def _unrounded(self, t: Term) -> Term:
        return t.x if isinstance(t, Round) and is_float(t.x.dtype) else t

    def _narrowed(self, dtype: DType, x: Term) -> Text:
        match x:
            case Const(type_, bits) if type_ == dtype:
                return Text(f"0x{bits:04x}")
            case Const():
                return Text(f"0x{bits_of(dtype, x.value):04x}")
            case Load(array, type_, (index,)) if type_ == dtype:
                return self._element(array, index)
        return Text(self._narrow(dtype, x))

    def _narrow(self, dtype: DType, x: Term) -> str:
        text = self._texts[x].at(ops.TERNARY)
        if x.dtype == "f64":
            text = f"{self.call('to_odd')}({text})"
        return f"{self.call(f'to_{dtype}')}({text})"

    def _element(self, array: str, index: Term) -> Text:
        if array not in self.arrays:
            raise EmitError(f"{array} is read as a register array, but no Array statement makes it")
        one = self.arrays[array].size == 1
        return Text(self.name(array) if one else f"{self.name(array)}[{self._texts[index].text}]")

    # ---- values

    def _print(self, roots: Sequence[Term]) -> list[str]:
        self._known, self._texts = {}, {}
        shapes: dict[Term, Shape] = {}
        order: list[Term] = []
        stack = [(r, False) for r in reversed(roots)]
        while stack:
            t, ready = stack.pop()
            if ready:
                order.append(t)
            elif t not in shapes:
                shapes[t] = shape(t)
                stack.append((t, True))
                stack.extend((k, False) for k in reversed(shapes[t][1]))
        uses = Counter(k for _, operands in shapes.values() for k in operands)
        uses.update(roots)
        lines: list[str] = []
        for t in order:
            op, operands = shapes[t]
            self._known[t] = self._fact(t, op, operands)
            text = self._text(t, op, operands)
            plain = op == "leaf" or (
                op == "load" and isinstance(operands[0], Const | Var) and t.dtype not in HALVES
            )
            if not plain and (uses[t] > 1 or (len(text.text) > LINE and t not in roots)):
                temp = self.fresh()
                lines.append(f"const {ops.VALUE[t.dtype]} {temp} = {text.text};")
                text = Text(temp)
            self._texts[t] = text
        return lines

    def _text(self, t: Term, op: str, operands: tuple[Term, ...]) -> Text:
        match t:
            case Var(name):
                return Text(self.name(name))
            case Const():
                return literal(t)
            case Load(array, dtype, (index,)):
                element = self._element(array, index)
                return Text(f"{self.call(f'from_{dtype}')}({element.text})") if dtype in HALVES else element
            case Select(p, x, y):
                texts = self._texts
                p_text, x_text, y_text = texts[p].at(ops.OR), texts[x].at(ops.OR), texts[y].at(ops.TERNARY)
                return Text(f"{p_text} ? {x_text} : {y_text}", ops.TERNARY)
            case Round(dtype, _, x):
                return self._round(dtype, x)
        return self._operator(t, op, operands)

    def _operator(self, t: Term, op: str, operands: tuple[Term, ...]) -> Text:
        dtype = self._operand_type(operands)
        kind = ops.VALUE[dtype]
        if dtype in ("i32", "i64") and not any(self._known[x].data for x in operands):
            kind = "index"
        row = ops.OP_TEXT[kind].get(op)
        if row is None:
            raise EmitError(f"{op} has no text for operands of type {dtype}")
        if self._direct(op, operands, kind):
            row = ops.DIRECT[op]
            if DTYPES[dtype].bytes < 4:
                row = ops.cast(row, kind)
        x, *rest = [
            self._operand(k, dtype).at(level)
            for k, level in zip(operands, (row.x_level, row.y_level), strict=False)
        ]
        for name in row.calls:
            self.call(name, ops.VALUE[dtype] if is_float(dtype) or dtype == "i64" else "int")
        return Text(row.text.format(x=x, y=rest[0] if rest else ""), row.level)

    def _operand_type(self, operands: tuple[Term, ...]) -> DType:
        kinds = [k.dtype for k in operands]
        for dtype in kinds:
            if dtype not in ops.VALUE:
                raise EmitError(f"an operand of type {dtype} has no value in Kernel IR")
        return "f64" if "f64" in kinds else compute_type(kinds[0])

    def _operand(self, t: Term, dtype: DType) -> Text:
        text = self._texts[t]
        if dtype == "f64" and t.dtype != "f64":
            return Text(f"(double){text.at(ops.PREFIX)}", ops.PREFIX)
        return text

    def _direct(self, op: str, operands: tuple[Term, ...], kind: str) -> bool:
        if op not in ops.DIRECT or not is_integer(operands[0].dtype):
            return False
        x, y = operands
        if not isinstance(y, Const):
            return False
        match op:
            case "floordiv" | "mod":
                return y.value > 0 and self._known[x].nonnegative
            case "truncdiv" | "fmod":
                return y.value not in (0, -1)
            case "shl":
                return kind == "index" and 0 <= y.value < 8 * DTYPES[y.type].bytes
        return 0 <= y.value < 8 * DTYPES[y.type].bytes

    def _round(self, dtype: DType, x: Term) -> Text:
        of, text = compute_type(x.dtype), self._texts[x]
        if dtype in HALVES:
            if x.dtype == dtype:
                return text
            if dtype == "bf16" and x.dtype != "f64":
                return Text(f"{self.call('round_bf16')}({text.at(ops.TERNARY)})")
            return Text(f"{self.call(f'from_{dtype}')}({self._narrow(dtype, x)})")
        if dtype == of:
            return text
        to = ops.VALUE[dtype]
        if dtype == "bool":
            zero = literal(const(0, of))
            return Text(f"{text.at(ops.EQUAL)} != {zero.text}", ops.EQUAL)
        if is_integer(dtype) and is_float(of):
            truncated = ops.FLOAT_TO_INT.get((ops.VALUE[of], dtype))
            if truncated:
                return Text(f"{truncated}({text.text})")
            return Text(f"({to}){ops.FLOAT_TO_INT[ops.VALUE[of], 'i64']}({text.text})", ops.PREFIX)
        return Text(f"({to}){text.at(ops.PREFIX)}", ops.PREFIX)

    # ---- facts

    def _fact(self, t: Term, op: str, operands: tuple[Term, ...]) -> Fact:
        known = [self._known[k] for k in operands]
        data = any(k.data for k in known)
        match t:
            case Var(name):
                return self.facts.get(name, Fact(data=True))
            case Const():
                return Fact(nonnegative=not is_float(t.type) and t.value >= 0)
            case Load():
                return Fact(t.dtype == "u8", data=True)
            case Round(_, _, x):
                widens = is_integer(x.dtype) and DTYPES[x.dtype].bytes <= DTYPES[t.dtype].bytes
                return Fact(widens and known[0].nonnegative, data or is_float(x.dtype))
            case Select():
                return Fact(known[1].nonnegative and known[2].nonnegative, known[1].data or known[2].data)
        if data or not is_integer(t.dtype):
            return Fact(op == "mod" and _positive(operands[1]), data)
        both = all(k.nonnegative for k in known)
        match op:
            case "add" | "mul" | "min" | "floordiv" | "truncdiv" | "shl" | "shr" | "or" | "xor":
                return Fact(both)
            case "max" | "and":
                return Fact(any(k.nonnegative for k in known))
            case "mod":
                return Fact(both or _positive(operands[1]))
        return Fact(op == "abs" or (op == "fmod" and known[0].nonnegative))


def _positive(t: Term) -> bool:
    return isinstance(t, Const) and not is_float(t.type) and t.value > 0
