"""Stages: which loads of a streamed axis go through shared memory, as STAGE asks, and which stay in registers.

A load is staged where its tile is a run of neighbours along the axis, each element in one thread alone, in a stream of
the part's own body, of a buffer that nothing stores to. Copies move what a thread moves at once, or whole runs in bulk.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from codegen.passes.layouts import legal_width
from codegen.passes.state import Access, Course, PartPlan, State, access_name
from ir import tile
from ir.dtype import DTYPES
from ir.interval import Ranges
from ir.kernel import BULK_BYTES, COPY_BYTES
from ir.loop import Buffer
from ir.node import IRError, postorder
from ir.schedule import Staging, staging
from ir.term import Index, Term, Var
from ir.tile import TileAxis, TileLoad, TilePart, TileStore


def choose_stages(state: State) -> State:
    """Plan the courses of every part; raises where the line asks for some and no load can be staged."""
    program = state.tile
    wish = staging(program.schedule)
    if wish is None:
        return state
    if state.cluster > 1:
        raise IRError(f"STAGE={program.schedule.get('STAGE')}: blocks of a cluster stage nothing")
    if wish.how == "bulk" and not state.machine.bulk_copies:
        raise IRError(f"STAGE={program.schedule.get('STAGE')}: the {state.machine.name} has no bulk copies")
    buffers = {b.name: b for b in program.buffers}
    stored = {s.buffer for p in program.parts for s in tile.walk(p.body) if isinstance(s, TileStore)}
    pairs = zip(program.parts, state.plans, strict=True)
    chosen = [_Chooser(p, plan, buffers, stored, wish).courses() for p, plan in pairs]
    if not any(chosen):
        kept = " that two sweeps make" if wish.kept else ""
        raise IRError(f"STAGE={program.schedule.get('STAGE')}: no load of a swept axis{kept} can be staged")
    plans = (replace(plan, courses=c) for plan, c in zip(state.plans, chosen, strict=True))
    return replace(state, plans=tuple(plans))


class _Chooser:
    def __init__(
        self, part: TilePart, plan: PartPlan, buffers: dict[str, Buffer], stored: set[str], wish: Staging
    ) -> None:
        self.part, self.plan, self.buffers, self.stored, self.wish = part, plan, buffers, stored, wish
        self.values = tile.infer(part, buffers)
        self.ranges = Ranges({Index(a.name): (0, max(a.extent - 1, 0)) for a in part.axes})

    def courses(self) -> tuple[Course, ...]:
        """One for each place that loads of the streams of an axis have in common."""
        found = defaultdict[tuple[str, str, tuple[Term, ...]], list[str]](list)
        for s in (s for s in self.part.body if isinstance(s, tile.Stream)):
            for load in s.body:
                if isinstance(load, TileLoad) and self.fits(load, self.part.axis(s.axis)):
                    found[s.axis, load.buffer, load.index].append(load.out)
        return tuple(
            Course(axis, tuple(loads), self.wish)
            for (axis, _, _), loads in found.items()
            if len(loads) > 1 or not self.wish.kept
        )

    def fits(self, s: TileLoad, axis: TileAxis) -> bool:
        """Whether a load in a stream of the axis may be staged."""
        access, buffer = self.plan.accesses[access_name(s)], self.buffers[s.buffer]
        if access.tests or access_name(s) in self.plan.staged or s.buffer in self.stored or axis.tiles < 2:
            return False
        if any(isinstance(t, Var) for t in postorder(*s.index)):
            return False
        steps = self.ranges.affine(access.offset).coefficients
        even = all(isinstance(atom, Index) for atom in steps) and 1 in steps.values()
        if not even or Index(axis.name) not in steps:
            return False
        if self.wish.how == "bulk":
            return steps[Index(axis.name)] == 1 and self.in_bulk(access, buffer, axis, s.out)
        own = all(m.axis is not None for m in self.plan.layouts.over(self.values[s.out].axes).thread)
        return own and (self.wish.how == "" or access.width * DTYPES[buffer.dtype].bytes in COPY_BYTES)

    def in_bulk(self, access: Access, buffer: Buffer, axis: TileAxis, out: str) -> bool:
        """Whether rows along the axis begin and end at multiples of 16 bytes, and the layout covers the tile alone."""
        unit = BULK_BYTES // DTYPES[buffer.dtype].bytes
        layouts, axes = self.plan.layouts, self.values[out].axes
        exact = all(layouts.over((a,)).cover(a) == self.part.axis(a).tile for a in axes)
        return exact and legal_width(access.offset, axis, buffer, unit) == unit
