"""Which classes of a region may be materialised in a buffer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from extract.source import Source

POINTWISE = ("Unary", "Binary", "Round", "Select")
PLAIN = ("Load", "Index", "Const", "Extent", "Identity")  # cheaper to write again than to keep


class Scope:
    """A region of the graph: the classes to make (`roots`) from inputs and from `given` classes made before."""

    def __init__(self, source: Source, roots: Iterable[int], borders: Iterable[int] = ()) -> None:
        self.source, self.graph = source, source.graph
        self.roots = tuple(sorted(set(roots)))
        self.given = frozenset(borders) - set(self.roots)
        self.reachable = self._reach()
        self._find_items()

    def _reach(self) -> list[int]:
        """Classes that can take part, children before parents where no cycle forbids it."""
        out: list[int] = []
        seen: set[int] = set()
        stack = [(r, False) for r in sorted(set(self.roots), reverse=True)]
        while stack:
            c, done = stack.pop()
            if done:
                out.append(c)
            elif c not in seen:
                seen.add(c)
                stack.append((c, True))
                if c not in self.given:
                    stack.extend((k, False) for k in sorted(self.source.below(c), reverse=True))
        return out

    def _find_items(self) -> None:
        users: dict[int, set[tuple[int, bool]]] = defaultdict(set)
        free = self.graph.free
        for c in self.reachable:
            for n in self.source.nodes(c):
                if n.op != "Prefix":
                    for k in n.children:
                        users[k].add((c, n.op in POINTWISE and free[k] == free[c]))
        found = {c for c in self.reachable if self._is_item(c, users[c] - {(c, True), (c, False)})}
        self.items = frozenset(found) | set(self.roots) | (self.given & set(self.reachable))

    def _is_item(self, c: int, users: Iterable[tuple[int, bool]]) -> bool:
        g = self.graph
        ops = {n.op for n in g.classes[c]}
        readers = {p for p, _ in users}
        kept = all(pointwise for _, pointwise in users)
        if "Scan" in ops:
            return True
        if any(n.op == "Unary" and n.payload == ("recip",) for n in g.classes[c]):
            return False  # of a small number it is infinite, where a quotient by that number is not
        if len(readers) == 1 and kept:
            return False  # its one reader is a better place to cut
        if ops & {*PLAIN, "Prefix"} or not g.free[c]:
            return bool(ops & {"Fold"}) and not ops & {"Load", "Prefix", "Extent"}
        if g.folded[c] and not kept:
            return True
        shared = self.source.fan.get(c, 1) > 1 and c in self.source.terms and g.dtype[c] != "bool"
        return bool(ops & {"Round", "Fold"}) or shared
