"""Streams of one kernel that sweep the same axis and share states become one loop with several results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from extract.facts import levels, streams
from extract.rewrite import with_children
from ir import term as T
from ir.loop import Part, Store
from ir.node import postorder
from ir.term import Term

Carries = tuple[T.Carry, ...]


def merged(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts with the streams of each part merged where no value gains an axis by it."""
    return tuple(_merged_part(p) for p in parts)


def _merged_part(part: Part) -> Part:
    inside = [s.value for s in part.stores if streams(s.value)]
    if len({t.carries for value in inside for t in streams(value)}) < 2:
        return part
    loops: dict[tuple[str, int], list[T.Stream]] = defaultdict(list)
    for t in (t for t in postorder(*inside) if isinstance(t, T.Stream)):
        loops[t.axis, levels(t)[t.axis]].append(t)
    for group in loops.values():
        for united in _united(group):
            stores = tuple(Store(s.buffer, s.index, _with_carries(s.value, united), s.monoid) for s in part.stores)
            same = all(new.value.free == old.value.free for new, old in zip(stores, part.stores, strict=True))
            if same and stores != part.stores:
                return _merged_part(Part(part.axes, stores))
    return part


def _united(group: Sequence[T.Stream]) -> list[Mapping[Carries, Carries]]:
    """Per set of streams that share states, the union of their carries in place of each one's own."""
    sets: list[tuple[list[Carries], dict[str, T.Carry]]] = []
    for carries in dict.fromkeys(t.carries for t in group):
        own = {c.name: c for c in carries}
        members = [carries]
        for other in list(sets):
            shared = own.keys() & other[1].keys()
            if shared and all(own[n] is other[1][n] for n in shared):
                sets.remove(other)
                members += other[0]
                own |= other[1]
        sets.append((members, own))
    unions: list[Mapping[Carries, Carries]] = []
    for members, own in sets:
        union = tuple(own[n] for n in sorted(own))
        if len(members) > 1 and not any(isinstance(t, T.Stream) and t.carries in members for t in _inside(union)):
            unions.append(dict.fromkeys(members, union))
    return unions


def _inside(carries: Carries) -> list[Term]:
    return [t for t in postorder(*carries) if not isinstance(t, T.Carry)]


def _with_carries(root: Term, united: Mapping[Carries, Carries]) -> Term:
    memo: dict[Term, Term] = {}
    for t in postorder(root):
        if isinstance(t, T.Stream) and t.carries in united:
            memo[t] = T.Stream(t.axis, united[t.carries], t.result)
        else:
            memo[t] = with_children(t, [memo[k] for k in t.terms]) if t.terms else t
    return memo[root]
