"""Terms that several statements need are computed once, as scalars in front of the first of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from codegen.passes.nest import Names
from codegen.passes.state import State
from codegen.passes.terms import rebuilt, with_children
from ir import kernel as K
from ir import term as T
from ir.node import postorder
from ir.term import Const, Term, Var

Body = tuple[K.Statement, ...]
INSIDE = ("neg", "recip")
"""Operators that are read together with the sum or product around them, as a difference or a quotient."""


def share_terms(state: State) -> State:
    """Every term that stands in two places of a body, or inside its loops, becomes a scalar of the body."""
    kernel = state.kernel
    assert kernel is not None
    taken = {s.name for s in K.walk(kernel.body) if isinstance(s, K.Named)}
    sharer = _Sharer(Names(taken | {b.name for b in kernel.buffers}), kernel.body)
    return replace(state, kernel=replace(kernel, body=sharer.body(kernel.body, {}, {"block", "thread"})))


class _Sharer:
    def __init__(self, names: Names, whole: Body) -> None:
        self.names = names
        self.changing = {s.array for s in K.walk(whole) if isinstance(s, K.Assign | K.Pairwise)}
        """Arrays with an element that is assigned: its value depends on the place of a read."""
        self.unrolled = {s.name for s in K.walk(whole) if isinstance(s, K.For) and s.unroll}

    def body(self, body: Body, known: Mapping[Term, Term], scope: set[str]) -> Body:
        """The body where `known` terms are scalars already and the names in `scope` have values."""
        known, scope, out = dict(known), set(scope), list[K.Statement]()
        wanted = self.shared(body)

        def here(t: Term) -> Term:
            return rebuilt(t, lambda s, kids: known.get(s) or with_children(s, kids))

        for s in body:
            own = s.value if isinstance(s, K.Let) else None
            for t in postorder(*(t for inner in K.walk((s,)) for t in K.terms(inner))):
                if t in wanted and t not in known and t is not own and all(n in scope for n in leaves(t)):
                    value, name = here(t), self.names.fresh("t")
                    out.append(K.Let(name, value))
                    known[t] = Var(name, value.dtype, ())
            new = K.map_terms(s, here)
            match s:
                case K.Let(name, value):
                    scope.add(name)
                    if isinstance(new, K.Let) and not new.value.terms:
                        known[Var(name, value.dtype, ())] = new.value
                        continue
                    if value in wanted:
                        known[value] = Var(name, value.dtype, ())
                case K.For() | K.If():
                    assert isinstance(new, K.For | K.If)
                    inner = scope | ({s.name} if isinstance(s, K.For) else set())
                    new = replace(new, body=self.body(s.body, known, inner))
                case K.LoadGlobal(array) | K.LoadShared(array) | K.Shuffle(array):
                    width = 1 if isinstance(s, K.Shuffle) else s.width
                    scope.update(f"{array}[{k}]" for k in _elements(s.index, width))
            out.append(new)
        return tuple(out)

    def shared(self, body: Body) -> set[Term]:
        """Terms of the body that stand under two different terms or statements."""
        uses = Counter[Term]()
        seen = set[Term]()
        for s in K.walk(body):
            uses.update(K.terms(s))
            for t in postorder(*K.terms(s)):
                if t not in seen:
                    seen.add(t)
                    uses.update(t.terms)
        return {t for t, n in uses.items() if n > 1 and self.sharable(t)}

    def sharable(self, t: Term) -> bool:
        """Whether a term is worth a name and means the same everywhere."""
        if not t.terms or isinstance(t, T.Load) or (isinstance(t, T.Unary) and t.op in INSIDE):
            return False
        if all(n in self.unrolled for n in leaves(t)):  # a register index, which must be known to the compiler
            return False
        return all(not isinstance(s, T.Load) or s.buffer not in self.changing for s in postorder(t))


def leaves(t: Term) -> Iterable[str]:
    """Scalars and register elements that a term reads."""
    for s in postorder(t):
        match s:
            case Var(name):
                yield name
            case T.Load(array, _, (Const() as index,)):
                yield f"{array}[{index.value}]"
            case T.Load(array):
                yield array


def _elements(index: Term, width: int) -> Iterable[int]:
    return range(int(index.value), int(index.value) + width) if isinstance(index, Const) else ()
