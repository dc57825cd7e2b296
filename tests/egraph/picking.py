"""The way to compute a program that sweeps least over one axis, taken greedily: enough to see what the laws found."""

from __future__ import annotations

from collections.abc import Callable

from egraph.graph import EGraph, ENode
from ir import term as T

Cost = tuple[int, int, int]
Best = dict[int, tuple[Cost, ENode | None]]
TERMS: dict[str, Callable[..., T.Term]] = {
    "Const": T.Const, "Index": T.Index, "Extent": T.Extent, "Identity": T.Identity, "Unary": T.Unary,
    "Binary": T.Binary, "Select": T.Select, "Round": T.Round, "Scan": T.Scan, "At": T.At,
}  # fmt: skip


def rebuilt(n: ENode, kids: list[T.Term]) -> T.Term:
    """The term of a node over terms for its children."""
    match n.op:
        case "Fold":
            return T.Fold(tuple(map(str, n.payload[:-1])), str(n.payload[-1]), kids[0])
        case "Load":
            return T.Load(str(n.payload[0]), str(n.payload[1]), tuple(kids))
    return TERMS[n.op](*n.payload, *kids)


class Pick:
    """Ways with the fewest unsafe exponentials, then the fewest sweeps over `axis`, then the fewest nodes.

    `outer` are the ways outside streams (None: a stream), `inner` those for one step of a stream over the axis, where
    a class that completes a fold over it is a value made before the stream.
    """

    def __init__(self, graph: EGraph, axis: str) -> None:
        self.graph, self.axis = graph, axis
        self.states = {c for c, j in graph.streams if j == axis}
        self.inner: Best = {}
        self.outer: Best = {}
        while self._improved():
            pass

    @property
    def sweeps(self) -> int:
        """Passes over the axis, one after the other, that the results need."""
        return max(self.outer[r][0][1] for r in self.graph.roots)

    @property
    def unsafe(self) -> int:
        """Exponentials that could overflow."""
        return sum(self.outer[r][0][0] for r in self.graph.roots)

    def terms(self) -> list[T.Term]:
        """The results as terms, with streams."""
        self.memo: dict[int, T.Term] = {}
        return [self._term(r) for r in self.graph.roots]

    def _term(self, c: int) -> T.Term:
        if c not in self.memo:
            way = self.outer[c][1]
            self.memo[c] = self._stream(c) if way is None else rebuilt(way, [self._term(k) for k in way.children])
        return self.memo[c]

    def _stream(self, c: int) -> T.Term:
        carries: dict[int, T.Carry] = {}
        wanted = [c]
        while wanted:
            x = wanted.pop()
            if x not in carries:
                update = self._step(self.graph.new[self.axis, x], {}, wanted)
                carries[x] = T.Carry(f"s{x}", self._monoid(x), update)
        return T.Stream(self.axis, tuple(carries[x] for x in sorted(carries)), f"s{c}")

    def _step(self, c: int, memo: dict[int, T.Term], wanted: list[int]) -> T.Term:
        if c not in memo:
            way = self.inner[c][1]
            if way is None:
                memo[c] = self._term(c)
            elif way.op == "Prefix":
                x = way.children[0]
                wanted.append(x)
                memo[c] = T.State(f"s{x}", self.graph.dtype[x], tuple(sorted(self.graph.free[x])))
            else:
                memo[c] = rebuilt(way, [self._step(k, memo, wanted) for k in way.children])
        return memo[c]

    def _monoid(self, c: int) -> str:
        return next(str(n.payload[-1]) for n in self.graph.classes[c] if self._folds(n))

    def _folds(self, n: ENode) -> bool:
        return n.op == "Fold" and self.axis in n.payload[:-1]

    def _improved(self) -> bool:
        better = False
        for c, nodes in self.graph.classes.items():
            for way in (*nodes, None):
                for best, cost in ((self.outer, self._outer_cost(c, way)), (self.inner, self._inner_cost(c, way))):
                    if cost is not None and (c not in best or cost < best[c][0]):
                        best[c], better = (cost, way), True
        return better

    def _inner_cost(self, c: int, way: ENode | None) -> Cost | None:
        if way is None:
            return self.outer[c][0] if c in self.outer and any(map(self._folds, self.graph.classes[c])) else None
        if way.op == "Prefix":
            ready = way.payload == ("old", self.axis) and way.children[0] in self.states
            return (0, 0, 1) if ready else None
        return None if self._folds(way) else self._sum(way, self.inner)

    def _outer_cost(self, c: int, way: ENode | None) -> Cost | None:
        if way is None:
            update = self.inner.get(self.graph.new[self.axis, c]) if c in self.states else None
            return update and (update[0][0], update[0][1] + 1, update[0][2] + 1)
        total = None if way.op == "Prefix" or c in self.graph.carried else self._sum(way, self.outer)
        return total and (total[0], total[1] + self._folds(way), total[2])

    def _sum(self, n: ENode, best: Best) -> Cost | None:
        if any(k not in best for k in n.children):
            return None
        kids = [best[k][0] for k in n.children]
        unsafe = n.op == "Unary" and n.payload == ("exp",) and n.children[0] not in self.graph.safe
        return unsafe + sum(k[0] for k in kids), max((k[1] for k in kids), default=0), 1 + sum(k[2] for k in kids)
