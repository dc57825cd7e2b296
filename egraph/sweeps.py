"""Which folds can be computed in one sweep: those whose next prefix needs nothing but prefixes before the step."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from egraph.canonical import Classes
from egraph.graph import ENode


def sweepable(
    nodes: Classes, candidates: Iterable[tuple[int, str]], new: Mapping[tuple[str, int], int]
) -> set[tuple[int, str]]:
    """The candidates (fold class, axis) whose next prefix needs only prefixes before the step that are sweepable too.

    All axes go at once: a set of axes is a number with a bit for each.
    """
    kept = set(candidates)
    bits = {axis: 1 << k for k, axis in enumerate(sorted({j for _, j in kept}))}
    while True:
        states: dict[int, int] = defaultdict(int)
        for c, axis in kept:
            states[c] |= bits[axis]
        built = _built(nodes, bits, states)
        dropped = {(c, axis) for c, axis in kept if not built.get(new[axis, c], 0) & bits[axis]}
        if not dropped:
            return kept
        kept -= dropped


def _built(nodes: Classes, bits: Mapping[str, int], states: Mapping[int, int]) -> dict[int, int]:
    """Per class the axes along which it has a term for one step that reads the given states and completes no fold."""
    every = (1 << len(bits)) - 1

    def along(names: Iterable[object]) -> int:
        return sum(bits.get(str(a), 0) for a in names)

    def rule(n: ENode) -> tuple[int, int, tuple[int, ...]]:
        """Axes along which the node can be used, those along which it needs no operand, and the operands."""
        match n.op:
            case "Prefix":
                own = bits.get(str(n.payload[1]), 0) if n.payload[0] == "old" else 0
                return own & states.get(n.children[0], 0), every, ()
            case "Fold":
                return every & ~along(n.payload[:-1]), 0, n.children
            case "Whole":  # there before the stream starts
                return every, along(n.payload), n.children
            case "At":
                return every, 0, n.children[:1]
        return every, 0, n.children

    readers: dict[int, list[tuple[int, int, int, tuple[int, ...]]]] = defaultdict(list)
    built: dict[int, int] = {}
    grown: deque[int] = deque()

    def reach(c: int, usable: int, free: int, needs: tuple[int, ...]) -> None:
        found = every
        for k in needs:
            found &= built.get(k, 0)
        old = built.get(c, 0)
        if (usable & (free | found)) | old != old:
            built[c] = old | usable & (free | found)
            grown.append(c)

    for c, ns in nodes.items():
        for n in ns:
            way = c, *rule(n)
            for k in set(way[3]):
                readers[k].append(way)
            reach(*way)
    while grown:
        for way in readers[grown.popleft()]:
            reach(*way)
    return built
