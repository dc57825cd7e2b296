"""Canonical kernels: two kernels that differ by names and by the order of commutative operands become one text.

Names are told apart by colour refinement over what uses them, then numbered by first use.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from extract.rewrite import Names
from ir import term as T
from ir.loop import Buffer, Form, KernelForm, Part, Store
from ir.node import postorder
from ir.ops import BINARY
from ir.term import Term

Name = tuple[str, str]
ROUNDS = 6
KNOWN = 1 << 12
"""Kernels whose spelling is kept: it is asked for when forms are compared, priced, told of and written."""


@dataclass(frozen=True)
class Canonical:
    """A kernel with axes x0.., buffers b0.. and states s0..; `names` and `axis_names` lead back to the form's.

    A buffer that the kernel writes has the role output, one that an earlier kernel made has the role scratch
    (it is warm in cache), and any other has the role input. With `quotients` the kernel has divisions, of which each
    rounds once, as strict numerics ask.
    """

    kernel: KernelForm
    buffers: tuple[Buffer, ...]
    axes: Mapping[str, int]
    names: Mapping[str, str]
    axis_names: Mapping[str, str]
    key: str
    quotients: bool = False


def canonical(kernel: KernelForm, form: Form, quotients: bool = False) -> Canonical:
    """The canonical spelling of a kernel of `form`, and its key; `quotients` says what divisions must do, if it has any."""
    buffers, axes = _used(kernel.parts)
    extents = tuple((a, form.axes[a]) for a in axes)
    return _spelled(kernel.parts, tuple(map(form.buffer, buffers)), extents, quotients)


@lru_cache(KNOWN)
def _used(parts: tuple[Part, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The buffers and the axes that parts name."""
    stores = [s for p in parts for s in p.stores]
    found = {n for t in postorder(*(t for s in stores for t in (*s.index, s.value))) for n in names_of(t)}
    found |= {("buffer", s.buffer) for s in stores} | {("axis", a) for p in parts for a in p.axes}
    buffers, axes = (tuple(sorted(n for k, n in found if k == kind)) for kind in ("buffer", "axis"))
    return buffers, axes


@lru_cache(KNOWN)
def _spelled(
    parts: tuple[Part, ...], buffers: tuple[Buffer, ...], extents: tuple[tuple[str, int], ...], quotients: bool
) -> Canonical:
    kernel, form = KernelForm("kernel", parts), Form("", dict(extents), buffers, ())
    colours = _Colours(kernel, form)
    numbers: dict[str, dict[str, str]] = {"axis": {}, "buffer": {}, "state": {}}
    prefix = {"axis": "x", "buffer": "b", "state": "s"}
    for kind, name in _first_uses(kernel, colours):
        numbers[kind].setdefault(name, f"{prefix[kind]}{len(numbers[kind])}")
    names = Names(numbers["axis"], numbers["buffer"], numbers["state"])
    spelled = tuple(_part(p, colours, names) for p in _sorted_parts(kernel, colours))
    axes = {new: form.axes[old] for old, new in numbers["axis"].items()}
    written = {s.buffer for s in kernel.stores}
    own = tuple(_buffer(form.buffer(old), new, old in written) for old, new in numbers["buffer"].items())
    quotients = quotients and any(isinstance(t, T.Unary) and t.op == "recip" for t in colours.order)
    text = repr((axes, own, [_part_text(p) for p in spelled], *(["quotients"] if quotients else ())))
    key = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    back = {new: old for old, new in numbers["buffer"].items()}
    axis_back = {new: old for old, new in numbers["axis"].items()}
    return Canonical(KernelForm("kernel", spelled), own, axes, back, axis_back, key, quotients)


def form_key(form: Form, quotients: bool = False) -> str:
    """The identity of a whole form: the keys of its kernels in order, and which of their buffers are one."""
    number: dict[str, int] = {}
    rows = []
    for kernel in form.kernels:
        known = canonical(kernel, form, quotients)
        rows.append((known.key, [number.setdefault(known.names[b.name], len(number)) for b in known.buffers]))
    return hashlib.blake2b(repr(rows).encode(), digest_size=12).hexdigest()


def _buffer(b: Buffer, name: str, written: bool) -> Buffer:
    role = "output" if written else "input" if b.role == "input" else "scratch"
    return replace(b, name=name, role=role)


def _part(part: Part, colours: _Colours, names: Names) -> Part:
    stores = []
    for s in sorted(part.stores, key=colours.of_store):
        value, *index = names.terms([s.value, *s.index])
        stores.append(Store(names.buffers[s.buffer], tuple(index), value, s.monoid))
    axes = sorted((names.axes[a] for a in part.axes), key=lambda a: int(a[1:]))
    return Part(tuple(axes), tuple(stores))


def _part_text(part: Part) -> object:
    return part.axes, [(s.buffer, [t.digest for t in s.index], s.value.digest, s.monoid) for s in part.stores]


# ---- colours


def names_of(t: Term) -> tuple[Name, ...]:
    """The names that stand in the node itself."""
    match t:
        case T.Load(buffer, _, _):
            return (("buffer", buffer),)
        case T.Index(axis) | T.Extent(axis) | T.Scan(axis, _, _) | T.At(axis, _, _):
            return (("axis", axis),)
        case T.Fold(axes, _, _):
            return tuple(("axis", a) for a in axes)
        case T.State(name, _, axes):
            return ("state", name), *(("axis", a) for a in axes)
        case T.Carry(name, _, _):
            return (("state", name),)
        case T.Stream(axis, _, result):
            return ("axis", axis), ("state", result)
    return ()


def payload(t: Term) -> tuple[object, ...]:
    """What stands in the node itself and is neither a name nor a term."""
    match t:
        case T.Const(dtype, bits):
            return dtype, bits
        case T.Identity(monoid) | T.Fold(_, monoid, _) | T.Scan(_, monoid, _) | T.Carry(_, monoid, _):
            return (monoid,)
        case T.Unary(op, _) | T.Binary(op, _, _):
            return (op,)
        case T.Round(dtype, origin, _):
            return dtype, origin
    return (t.dtype,)


def unordered(t: Term) -> bool:
    """Whether the order of the node's children says nothing."""
    return isinstance(t, T.Stream) or (isinstance(t, T.Binary) and BINARY[t.op].commutes)


def _hash(x: object) -> str:
    return hashlib.blake2b(repr(x).encode(), digest_size=8).hexdigest()


class _Colours:
    """A name-free hash of every term and store, refined by the places where each name is used."""

    def __init__(self, kernel: KernelForm, form: Form) -> None:
        self.kernel = kernel
        roots = [t for s in kernel.stores for t in (*s.index, s.value)]
        self.order = list(postorder(*roots))
        self.own = {t: names_of(t) for t in self.order}
        written = {s.buffer for s in kernel.stores}
        self.name: dict[Name, str] = {}
        for kind, name in (n for t in self.order for n in self.own[t]):
            self.name[kind, name] = _hash((kind, form.axes[name] if kind == "axis" else 0))
        for buffer in {s.buffer for s in kernel.stores} | {n for k, n in self.name if k == "buffer"}:
            b = _buffer(form.buffer(buffer), "", buffer in written)
            self.name["buffer", buffer] = _hash((b, buffer in written))
        for part in kernel.parts:
            for axis in part.axes:
                self.name.setdefault(("axis", axis), _hash(("axis", form.axes[axis])))
        self.term: dict[Term, str] = {}
        distinct = 0
        for _ in range(ROUNDS):
            self._refine()
            if len(set(self.name.values())) == distinct:
                break
            distinct = len(set(self.name.values()))
        self._bottom_up()

    def of_store(self, s: Store) -> str:
        return _hash((self.name["buffer", s.buffer], [self.term[t] for t in s.index], self.term[s.value], s.monoid))

    def of_part(self, p: Part) -> str:
        axes = sorted(self.name["axis", a] for a in p.axes)
        return _hash((axes, sorted(self.of_store(s) for s in p.stores)))

    def of_names(self, t: Term) -> list[Name]:
        """The node's names; those of a set in the order of their colours."""
        own = list(self.own[t])
        if isinstance(t, T.Fold):
            own.sort(key=lambda n: self.name[n])
        elif isinstance(t, T.State):
            own[1:] = sorted(own[1:], key=lambda n: self.name[n])
        return own

    def kids(self, t: Term) -> Sequence[Term]:
        """The children; those of a commutative node in the order of their hashes."""
        return sorted(t.terms, key=lambda k: self.term[k]) if unordered(t) else t.terms

    def _bottom_up(self) -> None:
        for t in self.order:
            own = [self.name[n] for n in self.of_names(t)]
            self.term[t] = _hash((type(t).__name__, payload(t), own, [self.term[k] for k in self.kids(t)]))

    def _refine(self) -> None:
        """One round: hash terms upwards, their contexts downwards, then names by all their uses."""
        self._bottom_up()
        context: dict[Term, list[object]] = defaultdict(list)
        uses: dict[Name, list[object]] = defaultdict(list)
        for p in self.kernel.parts:
            for a in p.axes:
                uses["axis", a].append(("part", self.of_part(p)))
            for s in p.stores:
                place = self.of_store(s), self.of_part(p)
                uses["buffer", s.buffer].append(place)
                for k, t in enumerate((*s.index, s.value)):
                    context[t].append((place, k - len(s.index)))
        for t in reversed(self.order):
            here = _hash((self.term[t], sorted(context[t], key=repr)))
            for position, name in enumerate(self.own[t]):
                ordered = not isinstance(t, T.Fold) and (not isinstance(t, T.State) or position == 0)
                uses[name].append((here, position if ordered else -1))
            for position, kid in enumerate(t.terms):
                context[kid].append((here, 0 if unordered(t) else position))
        for name in self.name:
            self.name[name] = _hash((self.name[name], sorted(uses[name], key=repr)))


def _sorted_parts(kernel: KernelForm, colours: _Colours) -> list[Part]:
    return sorted(kernel.parts, key=colours.of_part)


def _first_uses(kernel: KernelForm, colours: _Colours) -> Iterator[Name]:
    """Names in the order of a walk that nothing but colours directs: part by part, index before value."""
    seen: set[Term] = set()
    for part in _sorted_parts(kernel, colours):
        for s in sorted(part.stores, key=colours.of_store):
            yield "buffer", s.buffer
            stack = [*reversed((*s.index, s.value))]
            while stack:
                t = stack.pop()
                if t not in seen:
                    seen.add(t)
                    yield from colours.of_names(t)
                    stack.extend(reversed(colours.kids(t)))
        yield from sorted((("axis", a) for a in part.axes), key=lambda n: colours.name[n])
