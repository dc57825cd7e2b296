"""Terms to egglog and back, from one table: a Term class's fields give its constructor, rows, analyses and decoding.

A term is a row of its constructor; a tuple of terms gives a constructor for each length (`Load2`), a tuple of axes is
a set of strings, a dtype is a code whose bitwise or joins types, and Prefix has a constructor for each kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from egraph.border import kept_whole
from ir import term as T
from ir.node import postorder

DTYPE_CODE = {
    "any": 0, "f16": 1, "bf16": 2, "f32": 3, "f64": 7,
    "bool": 16, "u8": 32, "i8": 64, "i16": 128, "i32": 256, "i64": 512,
}  # fmt: skip
DTYPE_OF = {code: name for name, code in DTYPE_CODE.items()}
PREFIXES = {"new": "New", "old": "Old", "ratio": "Ratio", "delta": "Delta"}
PREFIX_OF = {constructor: which for which, constructor in PREFIXES.items()}
COMMUTING = ("add", "mul", "max", "min")

_KIND = {
    "str": "text", "int": "bits", "DType": "dtype", "Term": "term",
    "tuple[Term, ...]": "terms", "tuple[str, ...]": "axes",
}  # fmt: skip
_SORT = {"text": "String", "bits": "i64", "dtype": "i64", "term": "E", "axes": "Axes"}
_ROW_SORT = {"text": "String", "bits": "i64", "dtype": "i64", "term": "i64", "axes": "String"}
_FROM_ROW = {"term": "(slot {})", "axes": "v{}"}

CLASSES: dict[str, type[T.Term]] = {
    c.__name__: c
    for c in (
        T.Const, T.Index, T.Extent, T.Identity, T.Load, T.Unary, T.Binary, T.Select, T.Round, T.Fold, T.Scan, T.At,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Constructor:
    """One egglog constructor: the Term class it stands for and the kind of every argument."""

    name: str
    op: str
    kinds: tuple[str, ...]

    @property
    def terms(self) -> tuple[int, ...]:
        """Positions of the arguments that are terms."""
        return tuple(k for k, kind in enumerate(self.kinds) if kind == "term")

    @property
    def signature(self) -> str:
        """The declaration in egglog."""
        return f"(constructor {self.name} ({' '.join(_SORT[k] for k in self.kinds)}) E)"

    @property
    def row_signature(self) -> str:
        """The relation of inserted rows (number of the term, arguments) and the rule that makes terms of them.

        A term stands in its slot from the start, so that all rows go in at once, whatever their depth.
        """
        args = [f"a{k}" for k in range(len(self.kinds))]
        made = [_FROM_ROW.get(kind, "{}").format(arg) for arg, kind in zip(args, self.kinds, strict=True)]
        sets = [f"(= v{a} (axes_named {a}))" for a, kind in zip(args, self.kinds, strict=True) if kind == "axes"]
        body = " ".join((f"(in_{self.name} {' '.join(['k', *args])})", *sets))
        sorts = " ".join(_ROW_SORT[k] for k in self.kinds)
        return (
            f"(relation in_{self.name} (i64 {sorts}))\n"
            f"(rule ({body}) ((union (slot k) ({self.name} {' '.join(made)})))"
            f' :ruleset insert :name "insert {self.name}")'
        )


@cache
def _fields(of: type[T.Term]) -> tuple[tuple[str, str], ...]:
    """Every field of a Term class with its kind."""
    return tuple((f.name, _KIND[str(f.type)]) for f in fields(of))


@cache
def _constructor(op: str, arity: int) -> Constructor:
    kinds: list[str] = []
    suffix = ""
    for _, kind in _fields(CLASSES[op]):
        if kind == "terms":
            suffix, kinds = str(arity), kinds + ["term"] * arity
        else:
            kinds.append(kind)
    return Constructor(op + suffix, op, tuple(kinds))


def constructor_of(t: T.Term) -> Constructor:
    """The constructor that encodes `t`."""
    return _constructor(type(t).__name__, len(t.terms))


def load_constructor(rank: int) -> Constructor:
    """The constructor of loads with `rank` indices."""
    return _constructor("Load", rank)


def tensor_constructor(arity: int) -> Constructor:
    """The constructor of a named whole tensor over `arity` operands."""
    return Constructor(f"Tensor{arity}", "Tensor", ("text", *["term"] * arity))


WHOLE = Constructor("Whole", "Whole", ("axes", "term"))
FIXED = (*(_constructor(op, 0) for op in CLASSES if op != "Load"), WHOLE)
PREFIX_CONSTRUCTORS = tuple(Constructor(name, "Prefix", ("text", "term")) for name in PREFIXES.values())


def signed(bits: int) -> int:
    """A 64-bit pattern as egglog's i64."""
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def unsigned(bits: int) -> int:
    """The 64-bit pattern of egglog's i64."""
    return bits % (1 << 64)


def arguments(
    t: T.Term, number: Mapping[T.Term, int], named: Callable[[tuple[str, ...]], str] = " ".join
) -> list[str]:
    """The columns of the row of `t`, given the numbers of its subterms and the names of its sets of axes."""
    out: list[str] = []
    for name, kind in _fields(type(t)):
        value = getattr(t, name)
        match kind:
            case "term":
                out.append(str(number[value]))
            case "terms":
                out += [str(number[v]) for v in value]
            case "axes":
                out.append(named(value))
            case "dtype":
                out.append(str(DTYPE_CODE[value]))
            case "bits":
                out.append(str(signed(value)))
            case _:
                out.append(value)
    return out


class AxisSets:
    """Sets of axes by their names in row files, each defined once: small ones are rows, filled up with one of their axes;
    a set of which a large part is known is made from that by a command of its own.
    """

    def __init__(self) -> None:
        self.larger: list[str] = []
        self.small: list[list[str]] = []
        self._names: dict[frozenset[str], str] = {}

    def named(self, axes: Collection[str], near: Iterable[frozenset[str]] = ()) -> str:
        """The name of a set; `near` are sets that may be a large part of it."""
        key = frozenset(axes)
        if key not in self._names:
            parts = [p for p in near if p in self._names and p <= key]
            part = max(parts, key=len, default=frozenset[str]())
            name, rest = str(len(self._names)), sorted(key - part)
            self._names[key] = name
            if part:
                more = " ".join(f'"{a}"' for a in rest)
                value = f'(set-union (axes_named "{self._names[part]}") (set-of {more}))'
                self.larger.append(f'(set (axes_named "{name}") {value})')
            elif rest:
                self.small.append([name, *rest])
            else:
                self.larger.append(f'(set (axes_named "{name}") (set-empty))')
        return self._names[key]

    @property
    def _width(self) -> int:
        return max(map(len, self.small), default=2)

    @property
    def lines(self) -> list[str]:
        """The rows of the small sets."""
        return ["\t".join(row + row[1:2] * (self._width - len(row))) for row in self.small]

    @property
    def text(self) -> tuple[str, ...]:
        """The commands that make all sets."""
        axes = " ".join(f"a{k}" for k in range(self._width - 1))
        return (
            f"(relation in_set (String{' String' * (self._width - 1)}))",
            f'(rule ((in_set k {axes})) ((set (axes_named k) (set-of {axes}))) :ruleset insert :name "insert sets")',
            '(input in_set "set.tsv")',
            "(run-schedule (run insert))",
            *self.larger,
        )


@dataclass(frozen=True)
class Rows:
    """Terms as rows: `number[t]` is the row of t; `text` declares what they need, `files` hold the rows themselves."""

    number: dict[T.Term, int]
    constructors: tuple[Constructor, ...]
    files: dict[str, str]
    text: str

    def write(self, folder: Path) -> None:
        """Write the row files where egglog's `input` finds them."""
        for name, lines in self.files.items():
            (folder / f"{name}.tsv").write_text(lines)


def encode(roots: Iterable[T.Term], tags: Iterable[tuple[str, T.Term, tuple[T.Term, ...]]] = ()) -> Rows:
    """The rows of all terms below `roots` and of the tags, each (label, term, operands).

    A row says what its term's children would tell of it: free axes, folded axes and dtype.
    """
    named = list(tags)
    everything = [*roots, *(t for _, term, operands in named for t in (term, *operands))]
    number = {t: k for k, t in enumerate(postorder(*everything))}
    whole, folded = kept_whole(tuple(number))
    seen_as: dict[T.Term, int] = dict(number)
    seen_as.update((t, len(number) + k) for k, t in enumerate(whole))
    used: dict[str, Constructor] = {}
    lines: dict[str, list[str]] = defaultdict(list)
    sets = AxisSets()
    for t, k in number.items():
        c = constructor_of(t)
        used.setdefault(c.name, c)
        lines[c.name].append("\t".join([str(k), *arguments(t, seen_as, sets.named)]))
        hidden = whole.get(t, frozenset())
        known = sets.named(t.free), sets.named(folded[t] | hidden, [folded[x] for x in t.terms])
        lines["known"].append("\t".join([str(k), *known, str(DTYPE_CODE[t.dtype])]))
        if hidden:
            used[WHOLE.name] = WHOLE
            lines[WHOLE.name].append(f"{seen_as[t]}\t{sets.named(hidden)}\t{k}")
            known = sets.named(t.free), sets.named(folded[t])
            lines["known"].append("\t".join([str(seen_as[t]), *known, str(DTYPE_CODE[t.dtype])]))
    for label, term, operands in named:
        c = tensor_constructor(len(operands))
        used.setdefault(c.name, c)
        cells = [str(number[term]), label, *(str(number[o]) for o in operands)]
        lines[c.name].append("\t".join(cells))
    text = [c.signature for c in used.values() if c.op == "Tensor"]
    text += [c.row_signature for c in used.values()]
    text += [KNOWN, WRITTEN, *sets.text, *(f'(input in_{name} "{name}.tsv")' for name in lines)]
    lines["set"] = sets.lines
    files = {name: "".join(f"{row}\n" for row in rows) for name, rows in lines.items()}
    return Rows(number, tuple(used.values()), files, "\n".join(text))


KNOWN = """(relation in_known (i64 String String i64))
(rule ((in_known k f g d) (= s (axes_named f)) (= t (axes_named g)))
      ((set (free (slot k)) s) (set (folded (slot k)) t) (set (dtype (slot k)) d)) :ruleset insert :name "insert known")"""
WRITTEN = '(rule ((in_known k f g d)) ((set (written (slot k)) 1)) :ruleset insert :name "insert written")'
