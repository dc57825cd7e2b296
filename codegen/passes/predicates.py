"""Predicates: which accesses need tests or clamped indices, proved by intervals; and how wide each access moves."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from codegen.passes.layouts import element_offset, legal_width, reach
from codegen.passes.masks import Tests, hidden
from codegen.passes.state import Access, State, access_name
from codegen.passes.terms import widened
from ir import term as T
from ir import tile
from ir.interval import Ranges, inside, run_along
from ir.layout import Family
from ir.loop import Buffer
from ir.term import Index, Term
from ir.tile import TileLoad, TilePart, TileStore


def decide_predicates(state: State) -> State:
    """Plan every access: a load stays in range by proof, by a test, or by clamped indices; a store by proof or tests.

    A store stays in the tile of its block, and so does a load of what the program stores to: others write the rest.
    """
    plans = []
    stored = {s.buffer for p in state.tile.parts for s in tile.walk(p.body) if isinstance(s, TileStore)}
    for part, plan in zip(state.tile.parts, state.plans, strict=True):
        accesses = {}
        buffers = {b.name: b for b in state.tile.buffers}
        values = tile.infer(part, buffers)
        for s in tile.walk(part.body):
            if isinstance(s, TileLoad):
                planner = _Planner(part, plan.staged.get(access_name(s), plan.layouts))
                access = planner.load(s, buffers[s.buffer])
                cut = planner.cut(values[s.out].free, ("grid",)) if s.buffer in stored else ()
                accesses[access_name(s)] = replace(access, tiles=cut)
            elif isinstance(s, TileStore):
                planner = _Planner(part, plan.layouts)
                accesses[access_name(s)] = planner.store(buffers[s.buffer], s.index, values[s.value].free)
        plans.append(replace(plan, accesses=accesses))
    return replace(state, plans=tuple(plans))


class _Planner:
    def __init__(self, part: TilePart, layouts: Family) -> None:
        self.part, self.layouts, self.tests = part, layouts, Tests(part)
        self.valid, self.padded = (
            Ranges({Index(a.name): reach(a, layouts, padded) for a in part.axes}) for padded in (False, True)
        )

    def overrun(self, axes: frozenset[str]) -> set[str]:
        """Axes with positions at or past their extent."""
        return {a for a in axes if self.padded.of(Index(a))[1] >= self.part.axis(a).extent}

    def load(self, s: TileLoad, buffer: Buffer) -> Access:
        if not buffer.size:
            return Access(T.number(0), tests=(T.const(False, "bool"),))
        terms, tests, extents = list[Term](), list[Term](), set[str]()
        for t, size in zip(map(widened, s.index), buffer.shape, strict=True):
            whole, beyond = (0, size - 1), self.beyond(t, size)
            if inside(self.padded.of(t), whole):
                terms.append(t)
            elif not beyond:
                terms.append(t)
                extents |= self.overrun(t.free)
            elif hidden(self.part, s.out, set().union(*(self.tests.all_of(b) for b in beyond))):
                terms.append(t)
                tests += beyond
                extents |= self.overrun(t.free)
            else:
                terms.append(T.binary("min", T.binary("max", t, T.number(0)), T.number(size - 1)))
        return Access(element_offset(buffer, tuple(terms)), tuple(tests), tuple(sorted(extents)))

    def beyond(self, t: Term, size: int) -> list[Term]:
        """What must hold for an index to be inside a dimension, as far as coordinates inside their extents do not."""
        low, high = self.valid.of(t)
        tests = [T.binary("le", T.number(0), t)] if low < 0 else []
        return tests + ([T.binary("lt", t, T.number(size))] if high >= size else [])

    def store(self, buffer: Buffer, index: tuple[Term, ...], value_axes: frozenset[str]) -> Access:
        terms = tuple(map(widened, index))
        axes = value_axes.union(*(t.free for t in terms))
        tests: list[Term] = []
        for t, size in zip(terms, buffer.shape, strict=True):
            tests += self.beyond(t, size)
        extents = tuple(sorted(self.overrun(axes)))
        return Access(element_offset(buffer, terms), tuple(tests), extents, self.cut(axes))

    def cut(self, axes: Set[str], roles: Sequence[str] = ("grid", "whole", "stream")) -> tuple[str, ...]:
        """The axes of some roles along which an access must stay in the tile, as its layout has places past it."""
        return tuple(a for a in sorted(axes) if self.part.axis(a).role in roles and self._covers_more(a))

    def _covers_more(self, name: str) -> bool:
        """Whether the layout has places past the tile that belong to the next tile."""
        axis = self.part.axis(name)
        return axis.tiles > 1 and self.layouts.over((name,)).cover(name) > axis.tile


def choose_widths(state: State) -> State:
    """Give every access the widest legal run of its fastest register mode."""
    plans = []
    for part, plan in zip(state.tile.parts, state.plans, strict=True):
        buffers = {b.name: b for b in state.tile.buffers}
        values = tile.infer(part, buffers)
        accesses = dict(plan.accesses)
        for s in tile.walk(part.body):
            if isinstance(s, TileLoad | TileStore):
                access = accesses[access_name(s)]
                axes = values[s.out if isinstance(s, TileLoad) else s.value].free
                monoid = s.monoid if isinstance(s, TileStore) else None
                layouts = plan.staged.get(access_name(s), plan.layouts)
                width = 1 if monoid else _width(access, buffers[s.buffer], part, layouts, axes)
                accesses[access_name(s)] = replace(access, width=width)
        plans.append(replace(plan, accesses=accesses))
    return replace(state, plans=tuple(plans))


def _width(access: Access, buffer: Buffer, part: TilePart, layouts: Family, axes: frozenset[str]) -> int:
    fastest = layouts.over(axes | access.offset.free).register[:1]
    for mode in fastest:
        if mode.stride == 1 and mode.axis is not None:
            width = legal_width(access.offset, part.axis(mode.axis), buffer, mode.size)
            while width > 1 and not all(_uniform(t, mode.axis, width) for t in access.tests):
                width //= 2
            return width
    return 1


def _uniform(test: Term, axis: str, width: int) -> bool:
    """Whether a test gives one answer for every aligned run of so many positions along the axis."""
    if axis not in test.free:
        return True
    match test:
        case T.Binary("lt", t, T.Const() as bound) | T.Binary("le", T.Const() as bound, t):
            run = run_along(t, axis, width)
            return run is not None and run[0] == 1 and run[1] % width == 0 and int(bound.value) % width == 0
    return False
