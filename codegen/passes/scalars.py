"""Register elements that straight-line code assigns become scalars; copies, identities and dead code go."""

from __future__ import annotations

from collections import Counter, defaultdict
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
    survey = _Survey([s for s in K.walk(kernel.body) if isinstance(s, K.Array)])
    survey.look(kernel.body)
    names = {s.name for s in K.walk(kernel.body) if isinstance(s, K.Named)}
    writer = _Promoter(Names(names | {b.name for b in kernel.buffers}), survey)
    return replace(state, kernel=replace(kernel, body=without_dead(writer.body(kernel.body, {}))))


class _Survey:
    """How the elements of register arrays are used."""

    def __init__(self, arrays: Sequence[K.Array]) -> None:
        self.sizes, self.types = {a.name: a.size for a in arrays}, {a.name: a.dtype for a in arrays}
        self.kept = set[Element]()
        """Elements that must stay in arrays: set by loads and shuffles, or indexed by loop variables."""
        self.stored = set[Element]()
        self.assigned = Counter[Element]()
        self.homes = defaultdict[Element, set[int]](set)
        """Bodies with assignments to an element."""
        self.moved = Counter[Element]()
        """How often a load or a shuffle sets an element; one that is set once, and so only, is a value by itself."""

    def elements(self, array: str, index: Term, width: int) -> list[Element]:
        """The elements of a run; all of the array where the index is no constant."""
        first = int(index.value) if isinstance(index, Const) else None
        return [(array, k) for k in (range(self.sizes[array]) if first is None else range(first, first + width))]

    def look(self, body: Body) -> None:
        """Survey a body and those in it."""
        for s in body:
            for t in postorder(*K.terms(s)):
                if isinstance(t, T.Load) and not isinstance(t.index[0], Const):
                    self.kept.update(self.elements(t.buffer, t.index[0], 1))
            match s:
                case K.LoadGlobal(array, index, _, _, width) | K.LoadShared(array, index, _, _, width):
                    self.kept.update(self.elements(array, index, width))
                    self.moved.update(self.elements(array, index, width))
                case K.StoreGlobal(_, _, array, index, width) | K.StoreShared(_, _, array, index, width):
                    self.stored.update(self.elements(array, index, width))
                case K.Pairwise(array, index, _, other, at):
                    self.kept.update(self.elements(array, index, 2), self.elements(other, at, 2))
                case K.Shuffle(array, index):
                    self.kept.update(self.elements(array, index, 1))
                    self.moved.update(self.elements(array, index, 1))
                case K.Assign(array, Const() as index):
                    self.homes[array, int(index.value)].add(id(body))
                    self.assigned[array, int(index.value)] += 1
                case K.Assign(array, index):
                    self.kept.update(self.elements(array, index, 1))
                case K.For() | K.If():
                    self.look(s.body)

    def promoted(self, array: str, index: int) -> bool:
        """Whether an element becomes scalars; one that is only assigned once and stored needs an array anyway."""
        element = array, index
        once = element in self.stored and self.assigned[element] == 1
        return element not in self.kept and len(self.homes[element]) == 1 and not once

    def steady(self, t: Term) -> bool:
        """Whether a term is a leaf, or an element that is set once, so that its name may stand for a copy of it."""
        if isinstance(t, T.Load) and isinstance(t.index[0], Const):
            element = t.buffer, int(t.index[0].value)
            return self.moved[element] == 1 and not self.homes[element]
        return not t.terms


class _Promoter:
    def __init__(self, names: Names, survey: _Survey) -> None:
        self.names, self.survey = names, survey

    def body(self, body: Body, outer: dict[Term, Term]) -> Body:
        """The body, with what is known of scalars and elements outside it."""
        known, out = dict(outer), list[K.Statement]()

        def here(t: Term) -> Term:
            return rebuilt(t, lambda s, kids: _node(s, kids, known))

        for s in body:
            new = K.map_terms(s, here)
            match new:
                case K.Let(name, value) if self.survey.steady(value):
                    known[Var(name, value.dtype, ())] = value
                case K.Assign(array, Const() as index, value) if self.survey.promoted(array, int(index.value)):
                    element = T.Load(array, self.survey.types[array], (index,))
                    steady = self.survey.steady(value)
                    known[element] = value if steady else self.let(f"{array}_{index.value}", value, out)
                case K.StoreGlobal() | K.StoreShared():
                    out.append(self.stored(new, known, out))
                case K.For() | K.If():
                    assert isinstance(s, K.For | K.If)
                    out.append(replace(new, body=self.body(s.body, known)))
                case _:
                    out.append(new)
        return tuple(out)

    def stored(
        self, s: K.StoreGlobal | K.StoreShared, known: dict[Term, Term], out: list[K.Statement]
    ) -> K.Statement:
        """The store, from an array of its own where the elements have become scalars."""
        run = self.survey.elements(s.array, s.index, s.width)
        if not any(self.survey.promoted(*e) for e in run):
            return s
        name = self.names.fresh(f"{s.array}_out")
        dtype = self.survey.types[s.array]
        out.append(K.Array(name, dtype, s.width))
        for k, (array, index) in enumerate(run):
            element = T.Load(array, dtype, (T.const(index, "i32"),))
            out.append(K.Assign(name, T.const(k, "i32"), known.get(element, element)))
        return replace(s, array=name, index=T.const(0, "i32"))

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
            if isinstance(s, K.Pairwise):
                used.add(s.other)
            if isinstance(s, K.Copy | K.BulkCopy):
                used.add(s.ring)
            if isinstance(s, K.Alias):
                used.add(s.of)
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
            case K.Let(name) | K.Array(name) | K.Shared(name) | K.Ring(name) if name not in used:
                continue
            case (
                K.Assign(array) | K.Pairwise(array) | K.LoadGlobal(array) | K.LoadShared(array) | K.Shuffle(array)
            ) if array not in used:
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
