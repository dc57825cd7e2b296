"""Tile programs as text: one statement a line, its type and axes after it; text parses back to an equal program.

tile NAME                                     v1 = map v0 * v0
schedule WORK=points128                       v2 = where j < 20 of v1 else identity.add
note KEY: TEXT                                v3 = fold add over j, k of v2
buffer x: f32[4, 8] input                     v4 = scan max over j of v2
part i: grid 4/1, j: whole 8/8                v5 = mma over k of a, b onto acc
  v0 = load x[i, j]           f32[i, j]       v6 = convert v5 to bf16 like v1
  store y[i, j] = v0                          v7 = combine add v5, v6
                                              v8 = share v7 over p as q
  store add y[v9] = v0
  stream k carrying m: max f32[i], z: add f32[i]
    yield m2, z2
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence

from ir import tile
from ir.loop import Buffer, contiguous
from ir.node import IRError
from ir.schedule import parse_schedule
from ir.term import Term, Var
from ir.text import Scope, parse_term, show_term
from ir.tile import Statement, TileAxis, TilePart, TileProgram

_COLUMN = 60

# ---- printing


def show_tile(program: TileProgram) -> str:
    """The program as text."""
    buffers = {b.name: b for b in program.buffers}
    lines = [f"tile {program.name}", f"schedule {program.schedule}".rstrip()]
    lines += [f"note {k}: {v}" for k, v in program.notes.items()]
    lines += [_buffer(b) for b in program.buffers]
    for part in program.parts:
        axes = ", ".join(f"{a.name}: {a.role} {a.extent}/{a.tile}" for a in part.axes)
        lines.append(f"part {axes}".rstrip())
        values = tile.infer(part, buffers)
        lines += _body(part.body, values, "  ")
    return "\n".join(lines) + "\n"


def _buffer(b: Buffer) -> str:
    text = f"buffer {b.name}: {b.dtype}{list(b.shape)} {b.role}"
    if b.strides != contiguous(b.shape):
        text += f" strides {list(b.strides)}"
    return text + f" offset {b.offset}" * (b.offset != 0) + f" align {b.alignment}" * (b.alignment != 16)


def _body(body: Sequence[Statement], values: Mapping[str, Var], indent: str) -> list[str]:
    lines = []
    for s in body:
        text = indent + _statement(s)
        if isinstance(s, tile.Stream):
            lines += [text, *_body(s.body, values, indent + "  ")]
            lines += [f"{indent}  yield {', '.join(s.yields)}"] * bool(s.yields)
        elif isinstance(s, tile.TileStore):
            lines.append(text)
        else:
            lines.append(f"{text:<{_COLUMN}}  {_typed(values[s.out])}")
    return lines


def _typed(v: Var) -> str:
    return f"{v.type}[{', '.join(v.axes)}]"


def _index(index: Sequence[Term]) -> str:
    return f"[{', '.join(map(show_term, index))}]"


def _statement(s: Statement) -> str:
    match s:
        case tile.TileLoad(out, buffer, index):
            return f"{out} = load {buffer}{_index(index)}"
        case tile.TileStore(buffer, index, value, monoid):
            return f"store {monoid + ' ' if monoid else ''}{buffer}{_index(index)} = {value}"
        case tile.Map(out, term):
            return f"{out} = map {show_term(term)}"
        case tile.Where(out, pred, x, monoid):
            return f"{out} = where {show_term(pred)} of {x} else identity.{monoid}"
        case tile.TileFold(out, axes, monoid, x):
            return f"{out} = fold {monoid} over {', '.join(axes)} of {x}"
        case tile.TileScan(out, axis, monoid, x):
            return f"{out} = scan {monoid} over {axis} of {x}"
        case tile.Mma(out, a, b, over, acc):
            return f"{out} = mma over {', '.join(over)} of {a}, {b}" + (f" onto {acc}" if acc else "")
        case tile.Convert(out, x, dtype, like):
            return f"{out} = convert {x}" + (f" to {dtype}" if dtype else "") + (f" like {like}" if like else "")
        case tile.Combine(out, monoid, x, y):
            return f"{out} = combine {monoid} {x}, {y}"
        case tile.Share(out, x, axis, along):
            return f"{out} = share {x} over {axis} as {along}"
        case tile.Stream(axis, carried, _, _):
            states = ", ".join(f"{c.name}: {c.monoid} {c.dtype}[{', '.join(c.axes)}]" for c in carried)
            return f"stream {axis}" + (f" carrying {states}" if states else "")


# ---- parsing

_BUFFER = re.compile(
    r"(\w+): (\w+)\[([\d, ]*)\] (\w+)(?: strides \[([\d, -]*)\])?(?: offset (\d+))?(?: align (\d+))?"
)
_AXIS = re.compile(r"(\w+): (\w+) (\d+)/(\d+)")
_STATE = re.compile(r"(\w+): (\w+) (\w+)\[([\w, ]*)\]")
_SUFFIX = re.compile(r"(.*?)\s{2,}(\w+\[[\w, ]*\])")
_FORMS: dict[str, re.Pattern[str]] = {
    "load": re.compile(r"(\w+) = load (\w+)\[(.*)\]"),
    "store": re.compile(r"store (?:(\w+) )?(\w+)\[(.*)\] = (\w+)"),
    "map": re.compile(r"(\w+) = map (.*)"),
    "where": re.compile(r"(\w+) = where (.*) of (\w+) else identity\.(\w+)"),
    "fold": re.compile(r"(\w+) = fold (\w+) over ([\w, ]+) of (\w+)"),
    "scan": re.compile(r"(\w+) = scan (\w+) over (\w+) of (\w+)"),
    "mma": re.compile(r"(\w+) = mma over ([\w, ]+) of (\w+), (\w+)(?: onto (\w+))?"),
    "convert": re.compile(r"(\w+) = convert (\w+)(?: to (\w+))?(?: like (\w+))?"),
    "combine": re.compile(r"(\w+) = combine (\w+) (\w+), (\w+)"),
    "share": re.compile(r"(\w+) = share (\w+) over (\w+) as (\w+)"),
}


def parse_tile(text: str) -> TileProgram:
    """The program that `text` spells; raises `IRError` with the line where it is not one."""
    return _Reader(text).program()


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines = [(k + 1, line.rstrip()) for k, line in enumerate(text.splitlines()) if line.strip()]
        self.at = 0
        self.buffers: dict[str, Buffer] = {}
        self.values: dict[str, Var] = {}

    def fail(self, why: str) -> IRError:
        number, line = self.lines[min(self.at, len(self.lines) - 1)]
        return IRError(f"line {number}: {why}: {line.strip()!r}")

    def starting(self, word: str) -> list[str]:
        """The rest of each of the next lines that start with `word`."""
        found = []
        while self.at < len(self.lines) and (self.lines[self.at][1] + " ").startswith(word + " "):
            found.append(self.lines[self.at][1][len(word) + 1 :])
            self.at += 1
        return found

    def one(self, word: str) -> str:
        found = self.starting(word)
        if len(found) != 1:
            raise self.fail(f"one line {word!r} is expected")
        return found[0]

    def program(self) -> TileProgram:
        name, schedule = self.one("tile"), parse_schedule(self.one("schedule"))
        notes = dict(line.split(": ", 1) for line in self.starting("note"))
        while self.at < len(self.lines) and self.lines[self.at][1].startswith("buffer "):
            b = self.buffer(self.lines[self.at][1].removeprefix("buffer "))
            self.buffers[b.name] = b
            self.at += 1
        parts = []
        while self.at < len(self.lines):
            parts.append(self.part())
        return TileProgram(name, tuple(self.buffers.values()), tuple(parts), schedule, notes)

    def buffer(self, line: str) -> Buffer:
        m = _BUFFER.fullmatch(line)
        if m is None:
            raise self.fail("a buffer is written name: dtype[shape] role")
        shape = tuple(map(int, _names(m[3])))
        strides = contiguous(shape) if m[5] is None else tuple(map(int, _names(m[5])))
        return Buffer(m[1], m[2], shape, strides, int(m[6] or 0), m[4], int(m[7] or 16))

    def part(self) -> TilePart:
        head = (self.lines[self.at][1] + " ").removeprefix("part ").strip()
        axes = []
        for item in _names(head):
            m = _AXIS.fullmatch(item)
            if not self.lines[self.at][1].startswith("part") or m is None:
                raise self.fail("a part is written part name: role extent/tile, ...")
            axes.append(TileAxis(m[1], int(m[3]), m[2], int(m[4])))
        self.at += 1
        self.values = {}
        empty = TilePart(tuple(axes), ())
        return TilePart(empty.axes, self.body(empty, "  "))

    def body(self, part: TilePart, indent: str) -> tuple[Statement, ...]:
        out: list[Statement] = []
        while self.at < len(self.lines):
            line = self.lines[self.at][1]
            text = line.removeprefix(indent)
            if text == line or text.startswith("yield "):
                break
            if text.startswith(" "):
                raise self.fail("the line is indented too far")
            out.append(self.stream(text, part, indent) if text.startswith("stream ") else self.simple(text, part))
        return tuple(out)

    def stream(self, text: str, part: TilePart, indent: str) -> tile.Stream:
        axis, _, states = text.removeprefix("stream ").partition(" carrying ")
        carried = []
        for item in re.split(r", (?=\w+: )", states) if states else ():
            m = _STATE.fullmatch(item)
            if m is None:
                raise self.fail("a state is written name: monoid dtype[axes]")
            carried.append(tile.Carried(m[1], _names(m[4]), m[3], m[2]))
        self.values.update({c.name: tile.state_var(c, part) for c in carried})
        self.at += 1
        body = self.body(part, indent + "  ")
        yields: tuple[str, ...] = ()
        if carried:
            yields = _names(self.one(f"{indent}  yield"))
        if len(yields) != len(carried):
            raise self.fail(f"the stream over {axis} has {len(carried)} states and yields {len(yields)}")
        return tile.Stream(axis, tuple(carried), body, yields)

    def simple(self, text: str, part: TilePart) -> Statement:
        m = _SUFFIX.fullmatch(text)
        bare, annotation = (m[1], m[2]) if m else (text, None)
        s = self.statement(bare, Scope({}, [a.name for a in part.axes], self.values))
        try:
            made = tile.infer_one(s, self.values, part, self.buffers)
        except IRError as e:
            raise self.fail(str(e)) from None
        if made is not None:
            if annotation not in (None, _typed(made)):
                raise self.fail(f"{made.name} is {_typed(made)}, not {annotation}")
            self.values[made.name] = made
        self.at += 1
        return s

    def statement(self, text: str, scope: Scope) -> Statement:
        for name, pattern in _FORMS.items():
            if m := pattern.fullmatch(text):
                for buffer in {"load": [m[2]], "store": [m[2]]}.get(name, []):
                    if buffer not in self.buffers:
                        raise self.fail(f"no buffer is named {buffer}")
                try:
                    return _BUILD[name](m, scope)
                except IRError as e:
                    raise self.fail(str(e)) from None
        raise self.fail("not a statement")


def _names(text: str) -> tuple[str, ...]:
    return tuple(n.strip() for n in text.split(",") if n.strip())


def _indices(text: str, scope: Scope) -> tuple[Term, ...]:
    """The terms of a comma-separated list; commas inside calls belong to the calls."""
    if not text.strip():
        return ()
    tree = ast.parse(f"({text},)", mode="eval").body
    assert isinstance(tree, ast.Tuple)
    return tuple(parse_term(ast.unparse(n), scope) for n in tree.elts)


_BUILD: dict[str, Callable[[re.Match[str], Scope], Statement]] = {
    "load": lambda m, scope: tile.TileLoad(m[1], m[2], _indices(m[3], scope)),
    "store": lambda m, scope: tile.TileStore(m[2], _indices(m[3], scope), m[4], m[1]),
    "map": lambda m, scope: tile.Map(m[1], parse_term(m[2], scope)),
    "where": lambda m, scope: tile.Where(m[1], parse_term(m[2], scope), m[3], m[4]),
    "fold": lambda m, scope: tile.TileFold(m[1], _names(m[3]), m[2], m[4]),
    "scan": lambda m, scope: tile.TileScan(m[1], m[3], m[2], m[4]),
    "mma": lambda m, scope: tile.Mma(m[1], m[3], m[4], _names(m[2]), m[5]),
    "convert": lambda m, scope: tile.Convert(m[1], m[2], m[3], m[4]),
    "combine": lambda m, scope: tile.Combine(m[1], m[2], m[3], m[4]),
    "share": lambda m, scope: tile.Share(m[1], m[2], m[3], m[4]),
}
