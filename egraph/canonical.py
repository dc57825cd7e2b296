"""Canonical numbers of classes: they do not depend on the order in which egglog happens to hold its rows.

Classes are sorted by the size of their smallest term, then by its top node in numbers already given, so that equal
graphs give equal objects.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable

from egraph.encode import COMMUTING
from egraph.graph import ENode

Classes = dict[int, set[ENode]]


def ranks(nodes: Classes) -> dict[int, int]:
    """Canonical numbers: by the size of the smallest term, then by its top node in numbers already given."""
    size = _sizes(nodes)
    rank: dict[int, int] = {}
    by_size: dict[int, list[int]] = defaultdict(list)
    for c in nodes:
        by_size[size[c]].append(c)
    for s in sorted(by_size):

        def key(c: int, s: int = s) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
            useful = [n for n in nodes[c] if c not in n.children]
            smallest = (n for n in useful if len(useful) == 1 or 1 + sum([size[k] for k in n.children]) == s)
            return min([_key(n, rank) for n in smallest])

        alike = by_size[s]
        for c in sorted(alike, key=key) if len(alike) > 1 else alike:
            rank[c] = len(rank)
    return rank


def _key(n: ENode, rank: dict[int, int]) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
    return n.op, tuple([f"{p:020d}" if isinstance(p, int) else p for p in n.payload]), _operands(n, rank)


def _operands(n: ENode, rank: dict[int, int]) -> tuple[int, ...]:
    children = [rank[k] for k in n.children]
    return tuple(sorted(children)) if n.op == "Binary" and n.payload[0] in COMMUTING else tuple(children)


def _sizes(nodes: Classes) -> dict[int, int]:
    """The size of the smallest term of each class (Knuth's generalisation of Dijkstra)."""
    parents: dict[int, list[tuple[int, list[int], tuple[int, ...]]]] = defaultdict(list)
    queue: list[tuple[int, int]] = []
    for c, ns in nodes.items():
        for n in ns:
            if not n.children:
                queue.append((1, c))
            kids = set(n.children)
            count = [len(kids)]
            for k in kids:
                parents[k].append((c, count, n.children))
    heapq.heapify(queue)
    size: dict[int, int] = {}
    while queue:
        s, c = heapq.heappop(queue)
        if c in size:
            continue
        size[c] = s
        for parent, count, children in parents[c]:
            count[0] -= 1
            if not count[0] and parent not in size:
                heapq.heappush(queue, (1 + sum([size[k] for k in children]), parent))
    return size


def renumbered(nodes: Iterable[ENode], rank: dict[int, int], own: int) -> tuple[ENode, ...]:
    """The sorted nodes of class `own` in canonical numbers, less those that hold their own class."""
    useful = [ENode(n.op, n.payload, _operands(n, rank)) for n in nodes if own not in n.children]
    return tuple(sorted(set(useful)) if len(useful) > 1 else useful)
