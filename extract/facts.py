"""Facts of terms that extraction asks for again and again: each is computed once a term and kept on the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from ir import term as T
from ir.node import postorder
from ir.term import Term, union

V = TypeVar("V")
Levels = Mapping[str, int]
NO_LEVELS: Levels = {}


class Fact(Generic[V]):
    """A function of a term that follows from the same function of its children."""

    def __init__(self, rule: Callable[[Term, list[V]], V]) -> None:
        self.rule, self.slot = rule, f"fact.{rule.__name__}"

    def __call__(self, root: Term) -> V:
        stack, slot = [root], self.slot
        while slot not in vars(root):
            t = stack[-1]
            try:
                known = [vars(k)[slot] for k in t.terms]
            except KeyError:
                stack += [k for k in t.terms if slot not in vars(k)]
            else:
                vars(stack.pop())[slot] = self.rule(t, known)
        found: V = vars(root)[slot]
        return found


@Fact
def open_states(t: Term, kids: list[frozenset[str]]) -> frozenset[str]:
    """Names of states that are read and not carried by a stream inside."""
    names = union(kids)
    match t:
        case T.State(name):
            return names | {name}
        case T.Stream(_, carries, _):
            return names - {c.name for c in carries}
    return names


@Fact
def buffers_read(t: Term, kids: list[frozenset[str]]) -> frozenset[str]:
    """Names of the buffers that are loaded."""
    names = union(kids)
    return names | {t.buffer} if isinstance(t, T.Load) else names


@Fact
def mentioned(t: Term, kids: list[frozenset[str]]) -> frozenset[str]:
    """Names of all axes in the term, free or bound."""
    return t.free.union(swept(t), *kids)


@Fact
def levels(t: Term, kids: list[Levels]) -> Levels:
    """Per axis, the number of dependent loops over it that the term needs."""
    return _deeper(kids, swept(t))


@Fact
def passes(t: Term, kids: list[Levels]) -> Levels:
    """Per axis, the number of dependent folds over it; a scan goes along with what reads it."""
    return _deeper(kids, () if isinstance(t, T.Scan) else swept(t))


@Fact
def folds(t: Term, kids: list[Levels]) -> Levels:
    """Per axis, the number of dependent folds over it where all its positions are at hand.

    A stream then folds one state after another, where the update of one reads that of the other.
    """
    return _deeper(kids, (t.axis,) * _chain(t) if isinstance(t, T.Stream) else swept(t))


def _deeper(kids: list[Levels], over: tuple[str, ...]) -> Levels:
    """The largest number of every axis, and one more for each time that `over` names it.

    Terms share the numbers of a child that has them all.
    """
    most: Levels = max(kids, key=len, default=NO_LEVELS)
    if not over and all(kid is most or all(n <= most.get(a, 0) for a, n in kid.items()) for kid in kids):
        return most
    out: dict[str, int] = {}
    for kid in kids:
        for axis, n in kid.items():
            out[axis] = max(out.get(axis, 0), n)
    for axis in over:
        out[axis] = out.get(axis, 0) + 1
    return out


def _chain(t: T.Stream) -> int:
    """The most states of a stream of which each reads the new value of the one before."""
    inside = {c.update: set(postorder(c.update)) for c in t.carries}
    depth: dict[Term, int] = {}
    for update in sorted(inside, key=lambda u: len(inside[u])):
        depth[update] = 1 + max((depth[u] for u in inside[update] - {update} if u in depth), default=0)
    return max(depth.values())


@Fact
def size(t: Term, kids: list[int]) -> int:
    """Number of nodes of the term written out as a tree."""
    return 1 + sum(kids)


@Fact
def streams(t: Term, kids: list[frozenset[T.Stream]]) -> frozenset[T.Stream]:
    """The streams inside."""
    found = union(kids)
    return found | {t} if isinstance(t, T.Stream) else found


@Fact
def masks(t: Term, kids: list[frozenset[Term]]) -> frozenset[Term]:
    """Predicates that keep a value or put a constant in its place."""
    found = union(kids)
    masked = isinstance(t, T.Select) and isinstance(t.y, T.Const | T.Identity)
    return found | {t.p} if isinstance(t, T.Select) and masked else found


def product(t: Term) -> tuple[Term, Term, frozenset[str]] | None:
    """The factors and summed axes where `t` is a sum of products whose sides have axes of their own."""
    match t:
        case T.Fold(axes, "add", T.Binary("mul", a, b)):
            over = frozenset(axes)
            if over & a.free & b.free and (a.free - b.free) | (b.free - a.free):
                return a, b, over
        case T.Binary("add", x, y):
            for old, new in ((x, y), (y, x)):
                match new:
                    case T.Binary("mul", a, b) if open_states(old) and a.free - b.free and b.free - a.free:
                        return a, b, frozenset()
    return None


def swept(t: Term) -> tuple[str, ...]:
    """The axes over which the node itself loops."""
    match t:
        case T.Fold(axes, _, _):
            return axes
        case T.Stream(axis, _, _) | T.Scan(axis, _, _):
            return (axis,)
    return ()
