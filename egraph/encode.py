"""Terms to egglog and back, from one table: a Term class's fields give its constructor, rows, analyses and decoding.

A term is a row of its constructor; a tuple of terms gives a constructor for each length (`Load2`), a tuple of axes is
a set of strings, a dtype is a code whose bitwise or joins types, and Prefix has a constructor for each kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
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
        """The relation of inserted rows (number of the term, arguments) and the rule that makes terms of them."""
        args = [f"a{k}" for k in range(len(self.kinds))]
        body, made = [f"(in_{self.name} {' '.join(['k', *args])})"], []
        for arg, kind in zip(args, self.kinds, strict=True):
            made.append(f"v{arg}" if kind in ("term", "axes") else arg)
            if kind == "term":
                body.append(f"(= v{arg} (slot {arg}))")
            elif kind == "axes":
                body.append(f"(= v{arg} (axes_named {arg}))")
        sorts = " ".join(_ROW_SORT[k] for k in self.kinds)
        term = f"({self.name} {' '.join(made)})"
        return (
            f"(relation in_{self.name} (i64 {sorts}))\n"
            f'(rule ({" ".join(body)}) ((set (slot k) {term})) :ruleset insert :name "insert {self.name}")'
        )


def _constructor(op: str, arity: int) -> Constructor:
    kinds: list[str] = []
    suffix = ""
    for f in fields(CLASSES[op]):
        kind = _KIND[str(f.type)]
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


def arguments(t: T.Term, number: dict[T.Term, int]) -> list[str]:
    """The columns of the row of `t`, given the numbers of its subterms."""
    out: list[str] = []
    for f in fields(t):
        value = getattr(t, f.name)
        match _KIND[str(f.type)]:
            case "term":
                out.append(str(number[value]))
            case "terms":
                out += [str(number[v]) for v in value]
            case "axes":
                out.append(" ".join(value))
            case "dtype":
                out.append(str(DTYPE_CODE[value]))
            case "bits":
                out.append(str(signed(value)))
            case _:
                out.append(value)
    return out


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
    """The rows of all terms below `roots` and of the tags, each (label, term, operands)."""
    named = list(tags)
    everything = [*roots, *(t for _, term, operands in named for t in (term, *operands))]
    number = {t: k for k, t in enumerate(postorder(*everything))}
    whole = kept_whole(tuple(number))
    seen_as: dict[T.Term, int] = dict(number)
    seen_as.update((t, len(number) + k) for k, t in enumerate(whole))
    used: dict[str, Constructor] = {}
    lines: dict[str, list[str]] = {}
    axis_lists: set[tuple[str, ...]] = set()
    for t, k in number.items():
        c = constructor_of(t)
        used[c.name] = c
        lines.setdefault(c.name, []).append("\t".join([str(k), *arguments(t, seen_as)]))
        if isinstance(t, T.Fold):
            axis_lists.add(t.axes)
    if whole:
        used[WHOLE.name] = WHOLE
        lines[WHOLE.name] = [f"{seen_as[t]}\t{' '.join(sorted(axes))}\t{number[t]}" for t, axes in whole.items()]
        axis_lists.update(tuple(sorted(axes)) for axes in whole.values())
    text = [c.row_signature for c in used.values()]
    for axes in sorted(axis_lists):
        members = " ".join(f'"{a}"' for a in axes)
        text.append(f'(set (axes_named "{" ".join(axes)}") (set-of {members}))')
    for label, term, operands in named:
        c = tensor_constructor(len(operands))
        if c.name not in used:
            used[c.name] = c
            text.append(f"{c.signature}\n{_tensor_rule(c)}")
        cells = [str(number[term]), label, *(str(number[o]) for o in operands)]
        lines.setdefault(c.name, []).append("\t".join(cells))
    text += [f'(input in_{name} "{name}.tsv")' for name in lines]
    files = {name: "\n".join(rows) + "\n" for name, rows in lines.items()}
    return Rows(number, tuple(used.values()), files, "\n".join(text))


def _tensor_rule(c: Constructor) -> str:
    args = [f"a{k}" for k in range(len(c.terms))]
    body = " ".join(f"(= v{a} (slot {a}))" for a in args)
    made = " ".join(["label", *(f"v{a}" for a in args)])
    return (
        f"(relation in_{c.name} (i64 String {' '.join(['i64'] * len(args))}))\n"
        f"(rule ((in_{c.name} k label {' '.join(args)}) (= e (slot k)) {body}) "
        f'((union e ({c.name} {made}))) :ruleset insert :name "insert {c.name}")'
    )
