"""Which folds can be computed in one sweep: those whose next prefix needs nothing but prefixes before the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from egraph.canonical import Classes
from egraph.graph import ENode


def sweepable(
    nodes: Classes, candidates: Iterable[tuple[int, str]], new: dict[tuple[str, int], int]
) -> set[tuple[int, str]]:
    """The candidates (fold class, axis) whose next prefix needs only prefixes before the step that are sweepable too."""
    kept = set(candidates)
    while True:
        dropped: set[tuple[int, str]] = set()
        for axis in {j for _, j in kept}:
            states = {c for c, j in kept if j == axis}
            built = _built(nodes, axis, states)
            dropped |= {(c, axis) for c in states if new[axis, c] not in built}
        if not dropped:
            return kept
        kept -= dropped


def _built(nodes: Classes, axis: str, states: set[int]) -> set[int]:
    """Classes with a term for one step along `axis` that reads the given states and completes no fold over the axis."""

    def usable(n: ENode) -> bool:
        match n.op:
            case "Prefix":
                return n.payload[:2] == ("old", axis) and n.children[0] in states
            case "Fold":
                return axis not in n.payload[:-1]
        return True

    def needs(n: ENode) -> tuple[int, ...]:
        match n.op:
            case "Prefix":
                return ()
            case "Whole":  # there before the stream starts
                return () if axis in n.payload else n.children
            case "At":
                return n.children[:1]
        return n.children

    return _closed(nodes, usable, needs)


def _closed(nodes: Classes, usable: Callable[[ENode], bool], needs: Callable[[ENode], tuple[int, ...]]) -> set[int]:
    """The least set of classes that have a usable node all of whose needs are in the set."""
    waiting: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    ready: list[int] = []
    for c, ns in nodes.items():
        for n in ns:
            if usable(n):
                wanted = set(needs(n))
                count = [len(wanted)]
                for k in wanted:
                    waiting[k].append((c, count))
                if not wanted:
                    ready.append(c)
    done: set[int] = set()
    while ready:
        c = ready.pop()
        if c in done:
            continue
        done.add(c)
        for parent, count in waiting[c]:
            count[0] -= 1
            if not count[0]:
                ready.append(parent)
    return done
