"""The way to compute a program that sweeps least over one axis, taken greedily: enough to see what the laws found."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from egraph.graph import EGraph, ENode
from ir import term as T

Cost = tuple[int, int, int]
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
    """Ways with the fewest unsafe exponentials, then the fewest sweeps over `axis`, then the fewest nodes."""

    def __init__(self, graph: EGraph, axis: str) -> None:
        self.graph, self.axis = graph, axis
        self.states = {c for c, j in graph.streams if j == axis}
        self.inner = self._best(self._inner_cost)
        self.outer = self._best(self._outer_cost)

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
        memo: dict[int, T.Term] = {}
        return [self._term(r, memo) for r in self.graph.roots]

    def _term(self, c: int, memo: dict[int, T.Term]) -> T.Term:
        if c not in memo:
            way = self.outer[c][1]
            memo[c] = self._stream(c) if way is None else rebuilt(way, [self._term(k, memo) for k in way.children])
        return memo[c]

    def _stream(self, c: int) -> T.Term:
        carries: dict[int, T.Carry] = {}
        wanted = [c]
        while wanted:
            x = wanted.pop()
            if x not in carries:
                memo: dict[int, T.Term] = {}
                update = self._step(self.graph.new[self.axis, x], memo, wanted)
                carries[x] = T.Carry(f"s{x}", self._monoid(x), update)
        return T.Stream(self.axis, tuple(carries[x] for x in sorted(carries)), f"s{c}")

    def _step(self, c: int, memo: dict[int, T.Term], wanted: list[int]) -> T.Term:
        if c not in memo:
            way = self.inner[c][1]
            assert way is not None
            if way.op == "Prefix":
                x = way.children[0]
                wanted.append(x)
                memo[c] = T.State(f"s{x}", self.graph.dtype[x], tuple(sorted(self.graph.free[x])))
            else:
                memo[c] = rebuilt(way, [self._step(k, memo, wanted) for k in way.children])
        return memo[c]

    def _monoid(self, c: int) -> str:
        return next(
            str(n.payload[-1]) for n in self.graph.classes[c] if n.op == "Fold" and self.axis in n.payload[:-1]
        )

    def _best(self, cost: Callable[[int, ENode | None, Mapping[int, tuple[Cost, ENode | None]]], Cost | None]):
        best: dict[int, tuple[Cost, ENode | None]] = {}
        changed = True
        while changed:
            changed = False
            for c, nodes in self.graph.classes.items():
                for way in (*nodes, None):
                    found = cost(c, way, best)
                    if found is not None and (c not in best or found < best[c][0]):
                        best[c], changed = (found, way), True
        return best

    def _inner_cost(self, c: int, way: ENode | None, best: Mapping[int, tuple[Cost, ENode | None]]) -> Cost | None:
        if way is None or (way.op == "Fold" and self.axis in way.payload[:-1]):
            return None
        if way.op == "Prefix":
            ready = way.payload == ("old", self.axis) and way.children[0] in self.states
            return (0, 0, 1) if ready else None
        return self._sum(way, best)

    def _outer_cost(self, c: int, way: ENode | None, best: Mapping[int, tuple[Cost, ENode | None]]) -> Cost | None:
        if way is None:
            if c not in self.states:
                return None
            unsafe, _, size = self.inner[self.graph.new[self.axis, c]][0]
            return unsafe, 1, size + 1
        if way.op == "Prefix":
            return None
        total = self._sum(way, best)
        if total is not None and way.op == "Fold" and self.axis in way.payload[:-1]:
            return total[0], total[1] + 1, total[2]
        return total

    def _sum(self, n: ENode, best: Mapping[int, tuple[Cost, ENode | None]]) -> Cost | None:
        if any(k not in best for k in n.children):
            return None
        kids = [best[k][0] for k in n.children]
        unsafe = n.op == "Unary" and n.payload == ("exp",) and n.children[0] not in self.graph.safe
        return unsafe + sum(k[0] for k in kids), max((k[1] for k in kids), default=0), 1 + sum(k[2] for k in kids)
