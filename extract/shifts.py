"""Whether what a difference cancels is one value on both its sides, as the kernels of a cover spell them.

With t = x - m, m a rounded sum, t less its mean is right however much m is off by, if it is so in both. Where the mean
is that of x - n, n the same sum added up in another order, their difference is left, which may be larger than t. A sum is
added up in one order where one kernel folds it, in another where it is the state of a stream or another kernel folds it.
What varies along an axis is not cancelled by a fold over it, nor what passes a curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from extract.bounds import HERE, ORDERLESS
from extract.facts import open_states, swept
from extract.source import class_read
from ir import term as T
from ir.dtype import is_float
from ir.node import postorder
from ir.term import Term

SUMS = ("add", "addz")
PASSED = (*SUMS, "mul", "mulz", *ORDERLESS)
Way = tuple[int, str]
"""The kernel that adds up a sum, and the axis of the stream that carries it."""
Held = Mapping[Term, frozenset[Way]]
"""Sums, as folds, and states that a value is made of by sums, products and maxima, with the ways they are added up in."""
NOTHING: Held = {}


class Shifts:
    """The sums in the terms of one cover; `made` are its values by class, each with the number of its kernel."""

    def __init__(self, made: Mapping[int, tuple[int, Term]]) -> None:
        self.made = made
        self._known: dict[tuple[Term, int], Held] = {}

    def agree(self, terms: Sequence[Term]) -> bool:
        """Whether no sum in `terms` adds values that hold one sum in two orders."""
        for t in terms:
            self.held(t, HERE)
        sums = (t for t in postorder(*terms) if isinstance(t, T.Binary) and t.op in SUMS and is_float(t.dtype))
        sides = ((self._known[t.x, HERE], self._known[t.y, HERE]) for t in sums)
        return all(x[s] == y[s] for x, y in sides for s in x.keys() & y.keys())

    def held(self, root: Term, kernel: int) -> Held:
        """What `root` is made of where `kernel` computes it."""
        if (root, kernel) not in self._known:
            for t in postorder(root):
                self._known[t, kernel] = self._node(t, [self._known[k, kernel] for k in t.terms], kernel)
        return self._known[root, kernel]

    def _node(self, t: Term, kids: Sequence[Held], kernel: int) -> Held:
        match t:
            case T.Load(buffer, _, _):
                number, made = self.made.get(class_read(buffer), (HERE, t))
                return NOTHING if made is t else self.held(made, number)
            case T.State(_, dtype, _):
                return {t: frozenset()} if is_float(dtype) else NOTHING
            case T.Unary("neg", _) | T.Round():
                return kids[0]
            case T.Binary(op, _, _) if op in PASSED:
                return joined(kids)
            case T.Select():
                return joined(kids[1:])
            case T.At() | T.Carry():
                return kids[-1]
            case T.Fold(_, monoid, _) | T.Scan(_, monoid, _):
                kept = constant(kids[0], swept(t))
                own = monoid not in ORDERLESS and is_float(t.dtype)
                return joined([kept, {t: frozenset({(kernel, "")})}]) if own else kept
            case T.Stream():
                return self._streamed(t, kids, kernel)
        return NOTHING

    def _streamed(self, t: T.Stream, kids: Sequence[Held], kernel: int) -> Held:
        """What the result of a stream is made of, through the states that it reads."""
        carries = {c.name: (c, held) for c, held in zip(t.carries, kids, strict=True)}
        out, todo, seen = NOTHING, [t.result], set[str]()
        while todo:
            name = todo.pop()
            seen.add(name)
            carry, held = carries[name]
            total = accumulated(t.axis, carry)
            out = joined([out, held, {total: frozenset({(kernel, t.axis)})} if total else NOTHING])
            todo += [s.name for s in held if isinstance(s, T.State) and s.name in carries.keys() - seen]
        own = {s: ways for s, ways in out.items() if not (isinstance(s, T.State) and s.name in carries)}
        return constant(own, (t.axis,))


def accumulated(axis: str, c: T.Carry) -> Term | None:
    """The fold that a state is, where each step adds to it what no state enters."""
    match c.update:
        case T.Binary("add", x, y) if c.monoid == "add" and is_float(c.update.dtype):
            for old, new in ((x, y), (y, x)):
                if isinstance(old, T.State) and old.name == c.name and not open_states(new):
                    return T.fold(axis, "add", new)
    return None


def joined(several: Iterable[Held]) -> Held:
    """All of them."""
    out: dict[Term, frozenset[Way]] = {}
    for held in several:
        for s, ways in held.items():
            out[s] = out.get(s, frozenset()) | ways
    return out


def constant(held: Held, axes: Iterable[str]) -> Held:
    """Those that do not vary along the axes."""
    over = frozenset(axes)
    return {s: ways for s, ways in held.items() if not s.free & over}
