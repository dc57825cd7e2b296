"""Tile to tile: what blocks or warps of a cluster exchange to fold over an axis that numbers them goes to all at once.

Folds that depend on each other would each wait for all blocks. A value over the axis that depends on none of them is
shared instead, along an axis that every thread holds in registers, or every warp in its lanes where there are many; the
folds, and what stands between them, are local.

m = fold max over j of x, s = fold add over j of exp(x - m)      m, s over p, j the positions of one block or warp
ms = share m over p as q, ss = share s over p as q               one barrier
M = fold max over q of ms, S = fold add over q of ss * exp(ms - M)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from codegen.passes.state import PartPlan, State
from codegen.passes.terms import replaced
from ir import term as T
from ir import tile
from ir.layout import LANES, Family, Layout, Mode
from ir.live import live
from ir.ops import MONOIDS
from ir.term import Term, Var
from ir.tile import Statement, TileAxis, TilePart

MOST_REGISTERS = 32
"""Words of a thread that shared values may take."""


def share_early(state: State) -> State:
    """Share what dependent folds over an axis that numbers the blocks of a cluster are made of."""
    buffers = {b.name: b for b in state.tile.buffers}
    parts, plans = list[TilePart](), list[PartPlan]()
    for part, plan in zip(state.tile.parts, state.plans, strict=True):
        for axis in part.axes:
            if _numbers_units(axis, plan.layouts):
                part, plan = _shared(part, plan, axis, tile.infer(part, buffers))
        parts.append(part)
        plans.append(plan)
    return replace(state, tile=replace(state.tile, parts=tuple(parts)), plans=tuple(plans))


def _numbers_units(axis: TileAxis, layouts: Family) -> bool:
    """Whether block or warp k of a cluster of several blocks holds position k of the axis alone."""
    whole = axis.role == "whole" and axis.extent == axis.tile and layouts.cluster > 1
    units = [unit for unit in (LANES, layouts.block) if axis.tile * unit == layouts.threads]
    return whole and layouts.thread.get(axis.name) in [((unit, Mode(axis.tile, axis.name, 1)),) for unit in units]


def _shared(part: TilePart, plan: PartPlan, axis: TileAxis, values: Mapping[str, Var]) -> tuple[TilePart, PartPlan]:
    """The part and its plan with the folds over the axis made local, where that saves an exchange."""
    folds = [s for s in part.body if isinstance(s, tile.TileFold) and axis.name in s.axes]
    local = all(s.axes == (axis.name,) and not MONOIDS[s.monoid].pair for s in folds)
    split = _Split.of(part.body, folds, axis.name, values)
    loaded = {s.buffer for s in tile.walk(part.body) if isinstance(s, tile.TileLoad)}
    stored = {s.buffer for s in tile.walk(part.body) if isinstance(s, tile.TileStore)}
    if len(folds) < 2 or not local or split is None or loaded & stored:
        return part, plan
    held = [plan.layouts.over(values[n].axes) for n in split.leaves]
    words = sum(layout.registers for layout in held)
    free_lanes = all(m.axis is None for layout in held for m in _lanes(layout)) and axis.tile % LANES == 0
    lanes = LANES if free_lanes and words * axis.tile > MOST_REGISTERS else 1
    if words * axis.tile // lanes > MOST_REGISTERS:
        return part, plan
    along = _fresh(f"{axis.name}q", {a.name for a in part.axes} | values.keys())
    names = {n: _fresh(f"{n}_{along}", values.keys()) for n in (*split.leaves, *split.between)}
    shares = [tile.Share(names[n], n, axis.name, along) for n in split.leaves]
    late = [k for s in split.late for k in _along(s, split, names, axis.name, along)]
    order = [k for a in part.axes for k in ((a, replace(a, name=along)) if a is axis else (a,))]
    register = tuple(m for m in (Mode(axis.tile // lanes, along, lanes), *plan.layouts.register) if m.size > 1)
    thread = {**plan.layouts.thread, along: ((1, Mode(lanes, along, 1)),) if lanes > 1 else ()}
    body = live((*split.early, *shares, *late))
    layouts = replace(plan.layouts, thread=thread, register=register)
    return TilePart(tuple(order), body), replace(plan, layouts=layouts)


def _lanes(layout: Layout) -> Iterator[Mode]:
    """The modes of a layout that lie among the lanes of a warp."""
    before = 1
    for m in layout.thread:
        if before < LANES:
            yield m
        before *= m.size


@dataclass(frozen=True)
class _Split:
    """A body cut in two: what no fold over the axis is needed for, and the rest.

    `between` are the values over the axis that stand between folds, `leaves` those of the early part that they and the
    folds read.
    """

    early: tuple[Statement, ...]
    late: tuple[Statement, ...]
    leaves: tuple[str, ...]
    between: tuple[str, ...]

    @staticmethod
    def of(
        body: Sequence[Statement], folds: Sequence[tile.TileFold], axis: str, values: Mapping[str, Var]
    ) -> _Split | None:
        """The cut, or None where something between folds is not pointwise, or a leaf is as it was loaded."""
        late, behind = list[Statement](), set[str]()
        for s in body:
            if s in folds or behind & set(_reads(s)):
                late.append(s)
                behind |= set(_outs(s))
        made = {n: s for s in body for n in _outs(s)}
        leaves, between = dict[str, None](), dict[str, None]()
        waiting = [s.x for s in folds]
        while waiting:
            name = waiting.pop()
            if axis not in values[name].free or name in leaves or name in between:
                continue
            pointwise = isinstance(made[name], tile.Map | tile.Where | tile.Combine | tile.Convert)
            if name not in behind and not isinstance(made[name], tile.TileLoad):
                leaves[name] = None
            elif name in behind and pointwise:
                between[name] = None
                waiting += _reads(made[name])
            else:
                return None
        early = tuple(s for s in body if s not in late)
        return _Split(
            early, tuple(late), tuple(n for n in made if n in leaves), tuple(n for n in made if n in between)
        )


def _reads(s: Statement) -> Iterator[str]:
    """The values that a statement uses, those of a stream's body too."""
    return (n for k in tile.walk((s,)) for n in tile.reads(k))


def _outs(s: Statement) -> tuple[str, ...]:
    match s:
        case tile.TileStore():
            return ()
        case tile.Stream(_, carried, _, _):
            return tuple(c.name for c in carried)
    return (s.out,)


def _along(s: Statement, split: _Split, names: Mapping[str, str], axis: str, along: str) -> Iterator[Statement]:
    """A late statement, along the shared axis where it folds, or stands between folds; then also as it was."""

    def leaf(t: Term) -> Term | None:
        match t:
            case T.Index(name) if name == axis:
                return T.Index(along)
            case T.Var(name, dtype, axes) if name in names:
                return Var(names[name], dtype, tuple(along if a == axis else a for a in axes))
        return None

    match s:
        case tile.TileFold(out, (name,), monoid, x) if name == axis:
            yield tile.TileFold(out, (along,), monoid, names[x])
            return
        case tile.Map(out, term) if out in split.between:
            yield tile.Map(names[out], replaced(term, leaf))
        case tile.Where(out, pred, x, monoid) if out in split.between:
            yield tile.Where(names[out], replaced(pred, leaf), names.get(x, x), monoid)
        case tile.Combine(out, monoid, x, y) if out in split.between:
            yield tile.Combine(names[out], monoid, names.get(x, x), names.get(y, y))
        case tile.Convert(out, x, dtype, _) if out in split.between:
            yield tile.Convert(names[out], names.get(x, x), dtype)
    yield s


def _fresh(name: str, taken: Set[str]) -> str:
    while name in taken:
        name += "_"
    return name
