"""Kernel IR as text that reads close to CUDA and parses back to the same program.

kernel rows(x: f32[4, 8] strides(8, 1) input align 16, ...) threads 128 blocks 4 cluster 2 {
  i32 a = block * 4                                    Let           (bare integers are i32)
  f32 v[8]                                             Array         shared f32 s[32]    Shared
  v[0] = v[1] + f32(1.0)                               Assign        v[0] = shuffle(v[1], 16)
  m[0] max= v[4]                                       Pairwise
  v[0]..4 <- x[a]; when a < 3; other f32(0.0)          LoadGlobal, LoadShared
  y[a]..4 <- v[0]; when a < 3; monoid add              StoreGlobal, StoreShared
  for (k = 0; 8; 1) unroll { ... }                     For           if (a < 3) { ... }  If
  barrier block                                        Barrier
  ring f32 r[3][512]                                   Ring          bulk ring f32 r[3][512]
  copy r[a]..4 <- x[a]; slot 1; when a < 3             Copy          commit    Commit     wait 1    Wait (pending groups)
  bulk copy r[a]..(n) <- x[a]; slot 1                  BulkCopy      commit r[1]
  wait full r[1] phase 0                               WaitSlot      release r[1]         Release
  v[0]..4 <- r[a]; slot 1                              LoadShared of a ring
  alias f32 t[32] of s                                 Alias
}

A cluster of one block is left out; `s[a]..1 <- v[0]; to all` stores to every block's copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ir import kernel as K
from ir.dtype import DTYPES, DType
from ir.loop import Buffer
from ir.node import IRError
from ir.term import Term, Var
from ir.text import Scope, parse_term, show_term

_TYPED = "|".join(DTYPES)
_PRINTED = re.compile(rf"\bi32\((-?\d+)\)|\b(?:{_TYPED})(?:\.bits)?\([^()]*\)|[A-Za-z_][\w.]*|(-?\b\d+)\b")
_WRITTEN = re.compile(rf"\b(?:{_TYPED})(?:\.bits)?\([^()]*\)|[A-Za-z_][\w.]*|(-?\b\d+)\b")
INDENT = "  "


def _show(t: Term) -> str:
    """A term in which bare integers are i32."""

    def plain(m: re.Match[str]) -> str:
        return m[1] or (f"i64({m[2]})" if m[2] else m[0])

    return _PRINTED.sub(plain, show_term(t))


def _typed(text: str) -> str:
    """Text of a term with its bare integers marked as i32."""
    return _WRITTEN.sub(lambda m: f"i32({m[1]})" if m[1] else m[0], text)


# ---- printing


def show_kernel(program: K.KernelProgram) -> str:
    """The program as text."""
    parameters = ", ".join(map(_show_buffer, program.buffers))
    size = f"threads {program.threads} blocks {program.blocks}"
    size += f" cluster {program.cluster}" if program.cluster > 1 else ""
    return "\n".join([f"kernel {program.name}({parameters}) {size} {{", *_show_body(program.body, 1), "}"]) + "\n"


def _show_buffer(b: Buffer) -> str:
    offset = f" offset {b.offset}" if b.offset else ""
    shape, strides = (", ".join(map(str, x)) for x in (b.shape, b.strides))
    return f"{b.name}: {b.dtype}[{shape}] strides({strides}){offset} {b.role} align {b.alignment}"


def _show_body(body: tuple[K.Statement, ...], depth: int) -> list[str]:
    lines: list[str] = []
    for s in body:
        lines.append(INDENT * depth + show_statement(s))
        if isinstance(s, K.For | K.If):
            lines += [*_show_body(s.body, depth + 1), INDENT * depth + "}"]
    return lines


def show_statement(s: K.Statement) -> str:
    """One statement on one line; a loop or branch up to its brace."""
    match s:
        case K.Let(name, value):
            return f"{value.dtype} {name} = {_show(value)}"
        case K.Array(name, dtype, size):
            return f"{dtype} {name}[{size}]"
        case K.Shared(name, dtype, size):
            return f"shared {dtype} {name}[{size}]"
        case K.Assign(array, index, value):
            return f"{array}[{_show(index)}] = {_show(value)}"
        case K.Pairwise(array, index, op, other, at):
            return f"{array}[{_show(index)}] {op}= {other}[{_show(at)}]"
        case K.For(name, start, stop, step, unroll):
            return f"for ({name} = {_show(start)}; {_show(stop)}; {step}) {'unroll ' if unroll else ''}{{"
        case K.If(pred):
            return f"if ({_show(pred)}) {{"
        case K.LoadGlobal(array, index, buffer, offset, width, pred, other, cache):
            copy = _copy(array, index, buffer, offset, width)
            return copy + _options(when=pred, other=other, cache=cache if cache != "default" else None)
        case K.LoadShared(array, index, shared, offset, width, pred, missing, slot):
            return _copy(array, index, shared, offset, width) + _options(slot=slot, when=pred, other=missing)
        case K.StoreGlobal(buffer, offset, array, index, width, pred, monoid, cache):
            copy = _copy(buffer, offset, array, index, width)
            return copy + _options(when=pred, monoid=monoid, cache=cache if cache != "default" else None)
        case K.StoreShared(shared, offset, array, index, width, pred, to):
            copy = _copy(shared, offset, array, index, width)
            return copy + _options(when=pred, to=to if to != "own" else None)
        case K.Shuffle(array, index, value, mask):
            return f"{array}[{_show(index)}] = shuffle({_show(value)}, {mask})"
        case K.Barrier(scope):
            return f"barrier {scope}"
        case _:
            return _show_staging(s)


def _show_staging(s: K.Statement) -> str:
    match s:
        case K.Ring(name, dtype, size, slots, bulk):
            return f"{'bulk ' if bulk else ''}ring {dtype} {name}[{slots}][{size}]"
        case K.Copy(ring, slot, offset, buffer, start, width, pred):
            return f"copy {_copy(ring, offset, buffer, start, width)}" + _options(slot=slot, when=pred)
        case K.BulkCopy(ring, slot, offset, buffer, start, count):
            return f"bulk copy {ring}[{_show(offset)}]..({_show(count)}) <- {buffer}[{_show(start)}]" + _options(
                slot=slot
            )
        case K.Commit(ring, slot):
            return f"commit {ring}[{_show(slot)}]" if slot is not None else "commit"
        case K.Wait(pending):
            return f"wait {pending}"
        case K.WaitSlot(ring, side, slot, phase):
            return f"wait {side} {ring}[{_show(slot)}] phase {_show(phase)}"
        case K.Release(ring, slot):
            return f"release {ring}[{_show(slot)}]"
        case K.Alias(name, dtype, size, of):
            return f"alias {dtype} {name}[{size}] of {of}"
    raise IRError(f"{type(s).__name__} has no text")


def _copy(target: str, at: Term, source: str, begin: Term, width: int) -> str:
    return f"{target}[{_show(at)}]..{width} <- {source}[{_show(begin)}]"


def _options(**values: Term | str | None) -> str:
    shown = {k: _show(v) if isinstance(v, Term) else v for k, v in values.items() if v is not None}
    return "".join(f"; {k} {v}" for k, v in shown.items())


# ---- parsing


_HEAD = re.compile(r"kernel (\w+)\((.*)\) threads (\d+) blocks (\d+)(?: cluster (\d+))? \{")
_BUFFER = re.compile(r"(\w+): (\w+)\[([\d, ]*)\] strides\(([\d, ]*)\)(?: offset (\d+))? (\w+) align (\d+)(?:, |$)")


def parse_kernel(text: str) -> K.KernelProgram:
    """The program that `text` prints; raises `IRError` with the line where it is not one."""
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or (head := _HEAD.fullmatch(lines[0][1])) is None:
        raise IRError("line 1: a kernel starts with `kernel name(...) threads N blocks N {`")
    buffers = tuple(_parse_buffer(m) for m in _BUFFER.finditer(head[2]))
    parser = _Parser(lines, {b.name: b.dtype for b in buffers})
    body = parser.body({"block": K.BLOCK, "thread": K.THREAD}, {})
    if parser.at != len(lines):
        raise IRError(f"line {lines[parser.at][0]}: text stands after the kernel")
    return K.KernelProgram(head[1], buffers, int(head[3]), int(head[4]), body, int(head[5] or 1))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n.strip())


def _parse_buffer(m: re.Match[str]) -> Buffer:
    return Buffer(m[1], m[2], _numbers(m[3]), _numbers(m[4]), int(m[5] or 0), m[6], int(m[7]))


class _Parser:
    """Reads lines from `at` on; scalars and register arrays are known as they are declared."""

    def __init__(self, lines: list[tuple[int, str]], buffers: Mapping[str, DType]) -> None:
        self.lines, self.at = lines, 1
        self.buffers, self.shared = buffers, set[str]()

    def body(self, scalars: Mapping[str, Var], arrays: Mapping[str, DType]) -> tuple[K.Statement, ...]:
        scope = Scope(dict(arrays), (), dict(scalars))
        out: list[K.Statement] = []
        while self.at < len(self.lines):
            number, line = self.lines[self.at]
            self.at += 1
            if line == "}":
                return tuple(out)
            try:
                out.append(self.statement(line, scope))
            except IRError as e:
                raise IRError(str(e) if str(e).startswith("line ") else f"line {number}: {e}") from None
        raise IRError(f"line {self.lines[-1][0]}: a closing brace is missing")

    def statement(self, line: str, scope: Scope) -> K.Statement:
        for pattern, build in _STATEMENTS:
            if (m := pattern.fullmatch(line)) is not None:
                return build(self, m, scope)
        raise IRError(f"{line!r} is no statement")

    def let(self, m: re.Match[str], scope: Scope) -> K.Statement:
        value = _term(m[3], scope)
        if value.dtype != m[1]:
            raise IRError(f"{m[2]} is declared {m[1]}, but its value is {value.dtype}")
        _values(scope)[m[2]] = Var(m[2], value.dtype, ())
        return K.Let(m[2], value)

    def array(self, m: re.Match[str], scope: Scope) -> K.Statement:
        if m[1]:
            self.shared.add(m[3])
            return K.Shared(m[3], m[2], int(m[4]))
        _arrays(scope)[m[3]] = m[2]
        return K.Array(m[3], m[2], int(m[4]))

    def loop(self, m: re.Match[str], scope: Scope) -> K.Statement:
        start, stop = _term(m[2], scope), _term(m[3], scope)
        inner = {**scope.values, m[1]: Var(m[1], stop.dtype, ())}
        return K.For(m[1], start, stop, int(m[4]), bool(m[5]), self.body(inner, scope.buffers))

    def branch(self, m: re.Match[str], scope: Scope) -> K.Statement:
        pred = _term(m[1], scope)
        return K.If(pred, self.body(scope.values, scope.buffers))

    def copy(self, m: re.Match[str], scope: Scope) -> K.Statement:
        (target, at, width, source, begin), options = m.groups()[:5], _parse_options(m[6])
        to, start, n = _term(at, scope), _term(begin, scope), int(width)
        pred = _term(options["when"], scope) if "when" in options else None
        other = _term(options["other"], scope) if "other" in options else None
        cache = options.get("cache", "default")
        if source in self.buffers and other is not None:
            return K.LoadGlobal(target, to, source, start, n, pred, other, cache)
        if source in self.shared:
            slot = _term(options["slot"], scope) if "slot" in options else None
            return K.LoadShared(target, to, source, start, n, pred, other, slot)
        if target in self.shared:
            return K.StoreShared(target, to, source, start, n, pred, options.get("to", "own"))
        if target in self.buffers:
            return K.StoreGlobal(target, to, source, start, n, pred, options.get("monoid"), cache)
        raise IRError(f"neither {target} nor {source} is a buffer or a shared array, or a load has no `other`")

    def shuffle(self, m: re.Match[str], scope: Scope) -> K.Statement:
        return K.Shuffle(m[1], _term(m[2], scope), _term(m[3], scope), int(m[4]))

    def pairwise(self, m: re.Match[str], scope: Scope) -> K.Statement:
        return K.Pairwise(m[1], _term(m[2], scope), m[3], m[4], _term(m[5], scope))

    def assign(self, m: re.Match[str], scope: Scope) -> K.Statement:
        return K.Assign(m[1], _term(m[2], scope), _term(m[3], scope))

    def barrier(self, m: re.Match[str], scope: Scope) -> K.Statement:
        return K.Barrier(m[1])

    def ring(self, m: re.Match[str], scope: Scope) -> K.Statement:
        self.shared.add(m[3])
        return K.Ring(m[3], m[2], int(m[5]), int(m[4]), bool(m[1]))

    def alias(self, m: re.Match[str], scope: Scope) -> K.Statement:
        self.shared.add(m[2])
        return K.Alias(m[2], m[1], int(m[3]), m[4])

    def filled(self, m: re.Match[str], scope: Scope) -> K.Statement:
        """A copy into a slot of a ring, of a constant width or, in bulk, of a count of elements."""
        options = _parse_options(m[6])
        offset, start, slot = _term(m[2], scope), _term(m[5], scope), _term(options["slot"], scope)
        if m[3].startswith("("):
            return K.BulkCopy(m[1], slot, offset, m[4], start, _term(m[3][1:-1], scope))
        pred = _term(options["when"], scope) if "when" in options else None
        return K.Copy(m[1], slot, offset, m[4], start, int(m[3]), pred)

    def commit(self, m: re.Match[str], scope: Scope) -> K.Statement:
        return K.Commit(m[1], _term(m[2], scope)) if m[1] else K.Commit()

    def wait(self, m: re.Match[str], scope: Scope) -> K.Statement:
        return K.Wait(int(m[1]))

    def wait_slot(self, m: re.Match[str], scope: Scope) -> K.Statement:
        return K.WaitSlot(m[2], m[1], _term(m[3], scope), _term(m[4], scope))

    def release(self, m: re.Match[str], scope: Scope) -> K.Statement:
        return K.Release(m[1], _term(m[2], scope))


_Build = Callable[[_Parser, re.Match[str], Scope], K.Statement]
_STATEMENTS: tuple[tuple[re.Pattern[str], _Build], ...] = (
    (re.compile(r"barrier (\w+)"), _Parser.barrier),
    (re.compile(rf"(bulk )?ring ({_TYPED}) (\w+)\[(\d+)\]\[(\d+)\]"), _Parser.ring),
    (re.compile(rf"alias ({_TYPED}) (\w+)\[(\d+)\] of (\w+)"), _Parser.alias),
    (re.compile(r"(?:bulk )?copy (\w+)\[(.*)\]\.\.(\d+|\(.*\)) <- (\w+)\[([^;]*)\]((?:; .*)?)"), _Parser.filled),
    (re.compile(r"commit(?: (\w+)\[(.*)\])?"), _Parser.commit),
    (re.compile(r"wait (\d+)"), _Parser.wait),
    (re.compile(r"wait (full|empty) (\w+)\[(.*)\] phase (.*)"), _Parser.wait_slot),
    (re.compile(r"release (\w+)\[(.*)\]"), _Parser.release),
    (re.compile(r"for \((\w+) = (.*); (.*); (\d+)\) (unroll )?\{"), _Parser.loop),
    (re.compile(r"if \((.*)\) \{"), _Parser.branch),
    (re.compile(rf"(shared )?({_TYPED}) (\w+)\[(\d+)\]"), _Parser.array),
    (re.compile(rf"({_TYPED}) (\w+) = (.*)"), _Parser.let),
    (re.compile(r"(\w+)\[(.*)\]\.\.(\d+) <- (\w+)\[([^;]*)\]((?:; .*)?)"), _Parser.copy),
    (re.compile(r"(\w+)\[(.*?)\] = shuffle\((.*), (\d+)\)"), _Parser.shuffle),
    (re.compile(r"(\w+)\[(.*?)\] (\w+)= (\w+)\[(.*)\]"), _Parser.pairwise),
    (re.compile(r"(\w+)\[(.*?)\] = (.*)"), _Parser.assign),
)


def _parse_options(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (o.partition(" ") for o in text.split("; ") if o)}


def _term(text: str, scope: Scope) -> Term:
    return parse_term(_typed(text), scope)


def _values(scope: Scope) -> dict[str, Var]:
    assert isinstance(scope.values, dict)
    return scope.values


def _arrays(scope: Scope) -> dict[str, DType]:
    assert isinstance(scope.buffers, dict)
    return scope.buffers
