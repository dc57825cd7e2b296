"""Register elements that straight-line code assigns become scalars; copies, identities and dead code go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from codegen.passes.nest import Names
from codegen.passes.state import State
from codegen.passes.terms import rebuilt, with_children
from ir import kernel as K
from ir import meaning
from ir import term as T
from ir.node import postorder
from ir.ops import MONOIDS
from ir.term import Const, Term, Var

Element = tuple[str, int]
Body = tuple[K.Statement, ...]


def promote_scalars(state: State) -> State:
    """Every element of a register array whose assignments all stand in one body becomes scalars, set once each."""
    kernel = state.kernel
    assert kernel is not None
    kept, homes = set[Element](), defaultdict[Element, set[int]](set)
    sizes = {s.name: s.size for s in K.walk(kernel.body) if isinstance(s, K.Array)}
    _survey(kernel.body, sizes, kept, homes)
    names = {s.name for s in K.walk(kernel.body) if isinstance(s, K.Let | K.Array | K.Shared | K.For)}
    writer = _Promoter(Names(names | {b.name for b in kernel.buffers}), kept, homes)
    return replace(state, kernel=replace(kernel, body=without_dead(writer.body(kernel.body, {}))))


def _survey(body: Body, sizes: dict[str, int], kept: set[Element], homes: dict[Element, set[int]]) -> None:
    """Elements that must stay in arrays (moved by loads, stores and shuffles, or indexed), and the bodies that assign."""

    def keep(array: str, index: Term, width: int) -> None:
        first = int(index.value) if isinstance(index, Const) else None
        kept.update((array, k) for k in (range(sizes[array]) if first is None else range(first, first + width)))

    for s in body:
        for t in postorder(*K.terms(s)):
            if isinstance(t, T.Load) and not isinstance(t.index[0], Const):
                keep(t.buffer, t.index[0], 1)
        match s:
            case K.LoadGlobal(array, index, _, _, width) | K.LoadShared(array, index, _, _, width):
                keep(array, index, width)
            case K.StoreGlobal(_, _, array, index, width) | K.StoreShared(_, _, array, index, width):
                keep(array, index, width)
            case K.Shuffle(array, index):
                keep(array, index, 1)
            case K.Assign(array, Const() as index):
                homes[array, int(index.value)].add(id(body))
            case K.Assign(array, index):
                keep(array, index, 1)
            case K.For() | K.If():
                _survey(s.body, sizes, kept, homes)


class _Promoter:
    def __init__(self, names: Names, kept: set[Element], homes: dict[Element, set[int]]) -> None:
        self.names, self.kept, self.homes = names, kept, homes

    def body(self, body: Body, outer: dict[Term, Term]) -> Body:
        """The body, with what is known of scalars and elements outside it."""
        known, out = dict(outer), list[K.Statement]()

        def here(t: Term) -> Term:
            return rebuilt(t, lambda s, kids: _node(s, kids, known))

        for s in body:
            new = K.map_terms(s, here)
            match new:
                case K.Let(name, value) if not value.terms:
                    known[Var(name, value.dtype, ())] = value
                case K.Assign(array, Const() as index, value) if self.promoted(array, int(index.value)):
                    element = T.Load(array, value.dtype, (index,))
                    known[element] = value if not value.terms else self.let(f"{array}_{index.value}", value, out)
                case K.For() | K.If():
                    assert isinstance(s, K.For | K.If)
                    out.append(replace(new, body=self.body(s.body, known)))
                case _:
                    out.append(new)
        return tuple(out)

    def promoted(self, array: str, index: int) -> bool:
        return (array, index) not in self.kept and len(self.homes[array, index]) == 1

    def let(self, wish: str, value: Term, out: list[K.Statement]) -> Term:
        name = self.names.fresh(wish)
        out.append(K.Let(name, value))
        return Var(name, value.dtype, ())


def _node(t: Term, kids: Sequence[Term], known: dict[Term, Term]) -> Term:
    new = with_children(t, kids)
    new = known.get(new, new)
    if isinstance(new, T.Binary) and new.op in _NEUTRAL:
        for x, y in ((new.x, new.y), (new.y, new.x)):
            if isinstance(x, Const) and y.dtype == new.dtype and x is _neutral(new.op, x.type):
                return y
    return new


_NEUTRAL = {m.combine for m in MONOIDS.values()}


def _neutral(op: str, dtype: str) -> Const:
    """The constant that `op` does not see."""
    monoid = next(m.name for m in MONOIDS.values() if m.combine == op)
    return T.const(meaning.identity(monoid, dtype), dtype)


def without_dead(body: Body) -> Body:
    """The body without scalars, arrays and assignments whose values nothing uses."""
    while True:
        used = set[str]()
        for s in K.walk(body):
            used |= {name for t in postorder(*K.terms(s)) if (name := _name(t)) is not None}
            if isinstance(s, K.StoreGlobal | K.StoreShared):
                used.add(s.array)
            if isinstance(s, K.LoadShared):
                used.add(s.shared)
        new = _live(body, used)
        if new == body:
            return body
        body = new


def _name(t: Term) -> str | None:
    match t:
        case Var(name) | T.Load(name):
            return name
    return None


def _live(body: Body, used: set[str]) -> Body:
    out: list[K.Statement] = []
    for s in body:
        match s:
            case K.Let(name) | K.Array(name) | K.Shared(name) if name not in used:
                continue
            case K.Assign(array) | K.LoadGlobal(array) | K.LoadShared(array) | K.Shuffle(array) if (
                array not in used
            ):
                continue
            case K.StoreShared(shared) if shared not in used:
                continue
            case K.For() | K.If():
                inner = _live(s.body, used)
                if inner:
                    out.append(replace(s, body=inner))
            case _:
                out.append(s)
    return tuple(out)
