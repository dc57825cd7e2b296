"""Terms as text in Python's expression grammar, shared subterms on `t0 = ...` lines; text parses back to the same object.

x[i, c]                load                   add[c, d](e)  max[j](e)     fold
exp(e)  -e             unary                  scan.add[j](e)              scan
a + b   a * b  a < b   binary                 at(e, i=k)                  At(i, k, e)
a - b   a / b          add neg, mul recip     bf16.op(e)  bf16.cast(e)    round
x if p else y          select                 identity.add  extent(j)     identity, extent
3  f32(1e-06)  True    constants              new[j](e)                   prefix semantics
stream[j](m=carry(max, f32, [i], e), ...).m   stream; `old.m` is the state before the step
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from keyword import iskeyword

import numpy as np

from ir import term as T
from ir.dtype import DTYPES, bits_of, is_float
from ir.node import IRError, postorder
from ir.ops import BINARY, MONOIDS, UNARY

_INFIX = {
    "add": ("+", 6), "mul": ("*", 7), "floordiv": ("//", 7), "mod": ("%", 7), "shl": ("<<", 5), "shr": (">>", 5),
    "and": ("&", 4), "xor": ("^", 3), "or": ("|", 2), "lt": ("<", 1), "le": ("<=", 1), "eq": ("==", 1), "ne": ("!=", 1),
}  # fmt: skip
_TERNARY, _UNARY, _ATOM = 0, 8, 9
_AST_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.LShift: "shl", ast.RShift: "shr",
    ast.BitAnd: "and", ast.BitXor: "xor", ast.BitOr: "or",
}  # fmt: skip
_AST_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}
LINE = 100


@dataclass
class Scope:
    """What names mean while a term is parsed: buffer dtypes, axes, tile values, shared terms, stream states."""

    buffers: Mapping[str, str]
    axes: Iterable[str] = ()
    values: Mapping[str, T.Var] = field(default_factory=dict)
    shared: dict[str, T.Term] = field(default_factory=dict)
    states: dict[str, T.State] = field(default_factory=dict)


# ---- printing


def show_term(root: T.Term) -> str:
    """One term as one expression, shared subterms written out (so it can be long: for messages and small terms)."""
    return _Printer((root,), share=False).text(root)


def show_terms(roots: Iterable[T.Term], prefix: str = "t", taken: int = 0) -> tuple[list[str], list[str]]:
    """Lines `t0 = ...` for shared or long subterms, and the text of every root in terms of them."""
    all_roots = tuple(roots)
    printer = _Printer(all_roots, share=True, prefix=prefix, taken=taken)
    texts = [printer.text(r) for r in all_roots]
    return printer.lines, texts


class _Printer:
    def __init__(self, roots: tuple[T.Term, ...], share: bool, prefix: str = "t", taken: int = 0) -> None:
        self.share, self.prefix, self.taken = share, prefix, taken
        self.lines: list[str] = []
        self.memo: dict[int, tuple[str, int]] = {}
        uses: Counter[int] = Counter(id(r) for r in roots)
        order = list(postorder(*roots))
        for t in order:
            uses.update(id(k) for k in t.children)
        bound = _under_states(order)
        self.states = {c: state for t in order if isinstance(t, T.Stream) for c, state in _states_of(t)}
        for t in order:
            text, level = self._expression(t)
            leaf = not t.children or (isinstance(t, T.Load) and len(text) < 24) or isinstance(t, T.Carry)
            if share and not leaf and t not in bound and (uses[id(t)] > 1 or len(text) > LINE):
                name = f"{prefix}{taken + len(self.lines)}"
                self.lines.append(f"{name} = {text}")
                text, level = name, _ATOM
            self.memo[id(t)] = (text, level)

    def text(self, t: T.Term, level: int = -1) -> str:
        text, own = self.memo[id(t)]
        return f"({text})" if own < level else text

    def _expression(self, t: T.Term) -> tuple[str, int]:
        arg = self.text
        match t:
            case T.Index(axis):
                return axis, _ATOM
            case T.Var(name):
                return name, _ATOM
            case T.Const():
                return _constant(t), _ATOM
            case T.Extent(axis):
                return f"extent({axis})", _ATOM
            case T.Identity(monoid):
                return f"identity.{_word(monoid)}", _ATOM
            case T.Load(buffer, _, index):
                return f"{buffer}[{', '.join(map(arg, index)) if index else '()'}]", _ATOM
            case T.Unary("neg", x) if not isinstance(x, T.Const):
                return f"-{arg(x, _UNARY)}", _UNARY
            case T.Unary(op, x):
                return f"{op}({arg(x)})" if op != "not" else f"not_({arg(x)})", _ATOM
            case T.Binary("add", x, T.Unary("neg", y)) if not isinstance(y, T.Const):
                return f"{arg(x, 6)} - {arg(y, 7)}", 6
            case T.Binary("mul", x, T.Unary("recip", y)):
                return f"{arg(x, 7)} / {arg(y, 8)}", 7
            case T.Binary(op, x, y) if op in _INFIX:
                symbol, level = _INFIX[op]
                return f"{arg(x, level + (level == 1))} {symbol} {arg(y, level + 1)}", level
            case T.Binary(op, x, y):
                return f"{op}({arg(x)}, {arg(y)})", _ATOM
            case T.Select(p, x, y):
                return f"{arg(x, 1)} if {arg(p, 1)} else {arg(y, 1)}", _TERNARY
            case T.Round(type_, origin, x):
                return f"{type_}.{origin}({arg(x)})", _ATOM
            case T.Fold(axes, monoid, x):
                return f"{_word(monoid)}[{', '.join(axes)}]({arg(x)})", _ATOM
            case T.Scan(axis, monoid, x):
                return f"scan.{_word(monoid)}[{axis}]({arg(x)})", _ATOM
            case T.At(axis, index, x):
                return f"at({arg(x)}, {axis}={arg(index)})", _ATOM
            case T.State(name):
                return f"old.{name}", _ATOM
            case T.Carry(name, monoid, update):
                state = self.states.get(t)
                own = ", ".join(state.axes) if state else ""
                return (
                    f"{name}=carry({_word(monoid)}, {state.type if state else 'any'}, [{own}], {arg(update)})",
                    _ATOM,
                )
            case T.Stream(axis, carries, result):
                return f"stream[{axis}]({', '.join(map(arg, carries))}).{result}", _ATOM
            case T.Prefix(which, axis, x):
                return f"{which}[{axis}]({arg(x)})", _ATOM
        raise AssertionError(f"no text for {type(t).__name__}")


def _word(name: str) -> str:
    """The name of an operator where Python's keywords may not stand."""
    return f"{name}_" if iskeyword(name) else name


def _under_states(order: list[T.Term]) -> set[T.Term]:
    """Terms that hold a state not bound inside them: they cannot stand on a line outside their stream."""
    open_states: dict[T.Term, frozenset[str]] = {}
    for t in order:
        names = frozenset[str]().union(*(open_states[k] for k in t.terms))
        if isinstance(t, T.State):
            names |= {t.name}
        if isinstance(t, T.Stream):
            names -= {c.name for c in t.carries}
        open_states[t] = names
    return {t for t, names in open_states.items() if names}


def _states_of(stream: T.Stream) -> list[tuple[T.Carry, T.State]]:
    """The carries of a stream with the states that its updates read."""
    carries = {c.name: c for c in stream.carries}
    return [
        (carries[t.name], t) for t in postorder(*stream.carries) if isinstance(t, T.State) and t.name in carries
    ]


def _constant(t: T.Const) -> str:
    value = t.value
    if t.type == "i64" or t.type == "bool":
        return str(value)
    if is_float(t.type):
        if math.isnan(value) and t.bits != bits_of(t.type, math.nan):
            return f"{t.type}.bits({t.bits:#x})"
        return f"{t.type}({str(np.float32(value)) if t.type == 'f32' else repr(value)})"
    return f"{t.type}({value})"


# ---- parsing


def parse_term(text: str, scope: Scope) -> T.Term:
    """The term that `text` prints; raises `IRError` with the place where it is not one."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as e:
        raise IRError(f"column {e.offset}: {e.msg} in {text.strip()!r}") from None
    return _Parser(scope, text.strip()).term(tree.body)


def parse_terms(text: str, scope: Scope) -> tuple[T.Term, ...]:
    """The terms of a comma-separated list; commas inside a term belong to it."""
    if not text.strip() or text.strip() == "()":
        return ()
    try:
        tree = ast.parse(f"({text.strip()},)", mode="eval").body
    except SyntaxError as e:
        raise IRError(f"column {(e.offset or 1) - 1}: {e.msg} in {text.strip()!r}") from None
    assert isinstance(tree, ast.Tuple)
    return tuple(_Parser(scope, text.strip()).term(node) for node in tree.elts)


class _Parser:
    def __init__(self, scope: Scope, text: str) -> None:
        self.scope, self.source = scope, text

    def fail(self, node: ast.AST, why: str) -> IRError:
        return IRError(f"column {getattr(node, 'col_offset', 0) + 1}: {why} in {self.source!r}")

    def name(self, node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return node.id
        raise self.fail(node, "a name is expected")

    def names(self, node: ast.AST) -> tuple[str, ...]:
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self.name(n) for n in node.elts)
        return (self.name(node),)

    def term(self, node: ast.AST) -> T.Term:
        match node:
            case ast.Name(id=name):
                return self._named(node, name)
            case ast.Constant(value=bool(v)):
                return T.const(v, "bool")
            case ast.Constant(value=int(v)):
                return T.number(v)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(v))):
                return T.number(-v)
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return T.Unary("neg", self.term(x))
            case ast.BinOp(left=x, op=ast.Sub(), right=y):
                return T.Binary("add", self.term(x), T.Unary("neg", self.term(y)))
            case ast.BinOp(left=x, op=ast.Div(), right=y):
                return T.Binary("mul", self.term(x), T.Unary("recip", self.term(y)))
            case ast.BinOp(left=x, op=op, right=y) if type(op) in _AST_BINARY:
                return T.Binary(_AST_BINARY[type(op)], self.term(x), self.term(y))
            case ast.Compare(left=x, ops=[op], comparators=[y]) if type(op) in _AST_COMPARE:
                return T.Binary(_AST_COMPARE[type(op)], self.term(x), self.term(y))
            case ast.IfExp(test=p, body=x, orelse=y):
                return T.Select(self.term(p), self.term(x), self.term(y))
            case ast.Subscript(value=ast.Name(id=buffer), slice=index):
                return self._load(node, buffer, index)
            case ast.Attribute(value=ast.Name(id="identity"), attr=monoid):
                return T.Identity(monoid.rstrip("_"))
            case ast.Attribute(value=ast.Name(id="old"), attr=state):
                if state not in self.scope.states:
                    raise self.fail(node, f"no state is named {state}")
                return self.scope.states[state]
            case ast.Attribute(
                value=ast.Call(func=ast.Subscript(value=ast.Name(id="stream"), slice=axis)) as call,
                attr=result,
            ):
                return self._stream(self.name(axis), call, result)
            case ast.Call():
                return self._call(node)
        raise self.fail(node, f"{ast.unparse(node)} is not a term")

    def _named(self, node: ast.AST, name: str) -> T.Term:
        if name in self.scope.shared:
            return self.scope.shared[name]
        if name in self.scope.values:
            return self.scope.values[name]
        if name in self.scope.axes:
            return T.Index(name)
        raise self.fail(node, f"{name} is neither an axis nor a value")

    def _load(self, node: ast.AST, buffer: str, index: ast.AST) -> T.Term:
        if buffer not in self.scope.buffers:
            raise self.fail(node, f"no buffer is named {buffer}")
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        return T.Load(buffer, self.scope.buffers[buffer], tuple(self.term(p) for p in parts))

    def _call(self, node: ast.Call) -> T.Term:
        args = node.args
        match node.func:
            case ast.Name(id=dtype) if dtype in DTYPES:
                return self._constant(node, dtype)
            case ast.Attribute(value=ast.Name(id=dtype), attr="bits") if dtype in DTYPES:
                return T.Const(dtype, ast.literal_eval(args[0]))
            case ast.Attribute(value=ast.Name(id=dtype), attr=origin) if dtype in DTYPES:
                return T.Round(dtype, origin, self.term(args[0]))
            case ast.Name(id="extent"):
                return T.Extent(self.name(args[0]))
            case ast.Name(id="at"):
                return T.At(str(node.keywords[0].arg), self.term(node.keywords[0].value), self.term(args[0]))
            case ast.Name(id=op) if op.rstrip("_") in UNARY and len(args) == 1:
                return T.Unary(op.rstrip("_"), self.term(args[0]))
            case ast.Name(id=op) if op in BINARY and len(args) == 2:
                return T.Binary(op, self.term(args[0]), self.term(args[1]))
            case ast.Subscript(value=ast.Name(id=monoid), slice=axes) if monoid.rstrip("_") in MONOIDS:
                return T.Fold(self.names(axes), monoid.rstrip("_"), self.term(args[0]))
            case ast.Subscript(value=ast.Name(id=which), slice=axis):
                return T.Prefix(which, self.name(axis), self.term(args[0]))
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id="scan"), attr=monoid), slice=axis):
                return T.Scan(self.name(axis), monoid.rstrip("_"), self.term(args[0]))
        raise self.fail(node, f"{ast.unparse(node.func)} is not an operator of {len(args)} operands")

    def _constant(self, node: ast.Call, dtype: str) -> T.Term:
        text = ast.unparse(node.args[0])
        if not is_float(dtype):
            return T.const(ast.literal_eval(text), dtype)
        return T.const(float(text), dtype)

    def _stream(self, axis: str, call: ast.Call, result: str) -> T.Term:
        headers = []
        for k in call.keywords:
            if not isinstance(k.value, ast.Call) or len(k.value.args) != 4:
                raise self.fail(k, "a state is written name=carry(monoid, dtype, [axes], update)")
            monoid, dtype, axes, update = k.value.args
            headers.append((str(k.arg), self.name(monoid).rstrip("_"), self.name(dtype), self.names(axes), update))
        outer = dict(self.scope.states)
        self.scope.states.update({n: T.State(n, d, a) for n, _, d, a, _ in headers})
        carries = tuple(T.Carry(n, m, self.term(u)) for n, m, _, _, u in headers)
        self.scope.states.clear()
        self.scope.states.update(outer)
        return T.Stream(axis, carries, result)
