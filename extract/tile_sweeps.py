"""Sweeps of a tile program: partial results of folds, states of streams and scans, and how they are merged."""

from __future__ import annotations

from collections.abc import Sequence

from extract.merging import Step, steps
from extract.tile_values import Loop, Values, is_contraction
from ir import term as T
from ir import tile
from ir.dtype import is_float
from ir.node import IRError, postorder
from ir.ops import MONOIDS
from ir.term import Term, Var
from ir.tile import Carried, TileAxis


class Sweeps(Values):
    """Writes what folds, streams and scans do inside a step and after the last."""

    # ---- folds

    def partial(self, t: T.Fold, inner: Loop) -> list[Var]:
        """The states of a fold over the loop's axis: partial results for each position of the folded tile."""
        row = MONOIDS[t.monoid]
        if t.monoid == "add" and is_contraction(t.x, t.axes):
            total = self.carry(inner, "r", sorted(t.free), t.dtype, t.monoid)
            inner.yields[total.name] = self.folded(t.x, t.axes, t.monoid, inner, total).name
            return [total]
        x = self.masked(t.x, t.axes, t.monoid, inner)
        if not row.pair:
            state = self.carry(inner, "r", x.axes, T.fold_type(t.monoid, x.dtype), t.monoid)
            self.combine(inner, row.combine, state, x)
            return [state]
        best = self.carry(inner, "r", x.axes, x.dtype, row.combine)
        self.combine(inner, row.combine, best, x)
        position = self.carry(inner, "r", x.axes, "i64", "add")
        nearer = T.Select(_better(row.combine, x, best), T.Index(t.axes[0]), position)
        inner.yields[position.name] = self.map(inner, nearer).name
        return [best, position]

    def merged(self, t: Term, states: Sequence[Var], loop: Loop) -> Var:
        """The result of a sweep from its states."""
        match t:
            case T.Fold(axes, monoid, _) if not states[0].free & set(axes):
                return states[0]
            case T.Fold(axes, monoid, _) if not MONOIDS[monoid].pair:
                return self.put(loop, tile.TileFold(self.name("v"), axes, monoid, states[0].name))
            case T.Fold(axes, monoid, _):
                best, position = states
                row = MONOIDS[monoid].combine
                top = self.put(loop, tile.TileFold(self.name("v"), axes, row, best.name))
                hit: Term = T.Binary("eq", best, top)
                if is_float(best.dtype):
                    hit = T.Binary("or", hit, T.Unary("isnan", best))
                found = self.map(loop, T.Select(hit, position, T.Identity("min")))
                return self.put(loop, tile.TileFold(self.name("v"), axes, "min", found.name))
        raise IRError(f"{type(t).__name__} is no sweep")

    # ---- streams

    def by_tiles(self, t: T.Stream) -> bool:
        """Whether each step folds the contributions of its tile at once; else each position of a tile has own states.

        The latter saves a fold a step, where a state with the tile's positions is no larger than a loaded tile.
        """
        loads = [k.free for k in postorder(t) if isinstance(k, T.Load)]
        fits = all(any((c.update.free | {t.axis}) <= axes for axes in loads) for c in t.carries)
        return steps(t) is not None and not fits

    def open_states(self, t: T.Stream, inner: Loop) -> None:
        """Make the states of a stream."""
        declared = {s.name: s for s in postorder(t) if isinstance(s, T.State)}
        own = set() if self.by_tiles(t) else {t.axis}
        for c in t.carries:
            state = declared.get(c.name)
            axes = set(state.axes if state else c.update.free - {t.axis})
            if c.update.free - axes - {t.axis}:
                raise IRError(f"stream {t.axis}: the update of {c.name} has axes that the state lacks")
            carried = Carried(c.name, tuple(a for a in self.axes if a in axes | own), c.dtype, c.monoid)
            inner.carried.append(carried)
            self.values[c.name] = Var(c.name, c.dtype, carried.axes)
            if state:
                inner.known[state] = self.values[c.name]

    def step(self, t: T.Stream, inner: Loop) -> None:
        """Write the next values of a stream's states."""
        axis, split = self.axes[t.axis], steps(t)
        if split is None:
            inner.yields.update({c.name: self.value(c.update, inner).name for c in t.carries})
            return
        for s in split:
            new = self.next_state(s, axis, self.by_tiles(t), inner)
            inner.yields[s.carry.name] = new.name

    def next_state(self, s: Step, axis: TileAxis, by_tiles: bool, inner: Loop) -> Var:
        """The value of a state after a step of a tile; what the step's other states see is known from here on."""
        old, row = self.values[s.carry.name], MONOIDS[s.carry.monoid].combine
        if by_tiles and s.counts:
            seen = T.Binary("add", old, T.number(axis.tile))
            last = T.Binary("min", seen, T.number(axis.extent)) if axis.extent % axis.tile else seen
            new = self.map(inner, last)
        elif by_tiles:
            new = self.folded(s.part, (axis.name,), s.carry.monoid, inner, self.moved(s, inner))
        else:
            new = self.map(inner, T.Binary(row, self.moved(s, inner), self.operand(s.part, inner, s.part.free)))
        inner.known[s.carry.update] = new
        if axis.extent % axis.tile and not by_tiles:
            inside = T.Binary("lt", T.Index(axis.name), T.number(axis.extent))
            new = self.map(inner, T.Select(inside, new, old))
        return new

    def moved(self, s: Step, loop: Loop) -> Term:
        """What an old state is worth under the new values of the others."""
        return self.values[s.carry.name] if s.moved is None else self.operand(s.moved, loop, s.moved.free)

    def close_states(self, t: T.Stream, loop: Loop) -> None:
        """The results of a stream: its last states, merged over the positions of a tile."""
        results = {c.name: T.Stream(t.axis, t.carries, c.name) for c in t.carries}
        if self.by_tiles(t):
            loop.known.update({result: self.values[name] for name, result in results.items()})
            return
        split = steps(t)
        if split is None or self.axes[t.axis].tile == 1:
            for c in t.carries:
                fold = tile.TileFold(self.name("v"), (t.axis,), c.monoid, c.name)
                loop.known[results[c.name]] = self.put(loop, fold)
            return
        loop.known.update(
            {k: self.values[k.name] for k in postorder(t) if isinstance(k, T.State) and k.name in results}
        )
        for s in split:
            if s.counts:
                merged = self.map(loop, T.number(self.axes[t.axis].extent))
            else:
                part = self.map(loop, self.moved(s, loop))
                merged = self.put(loop, tile.TileFold(self.name("v"), (t.axis,), s.carry.monoid, part.name))
            loop.known[s.carry.update] = loop.known[results[s.carry.name]] = merged

    def at_once(self, t: T.Stream, loop: Loop) -> Var:
        """A stream whose axis one tile covers: each state is the fold of its contributions, given the final others."""
        split = steps(t)
        if split is None:
            raise IRError(f"stream {t.axis}: its positions must be taken one by one")
        for s in split:
            if s.counts:
                total = self.map(loop, T.number(self.axes[t.axis].extent))
            else:
                total = self.folded(s.part, (t.axis,), s.carry.monoid, loop)
            loop.known[s.carry.update] = loop.known[T.Stream(t.axis, t.carries, s.carry.name)] = total
        return loop.known[t]

    # ---- scans

    def scanned(self, t: T.Scan, loop: Loop) -> Var:
        """A scan within the tile, continued from the steps before where its axis is streamed."""
        streamed = self.terms.streamed(t.axis)
        x = self.masked(t.x, (t.axis,), t.monoid, loop)
        inside = self.put(loop, tile.TileScan(self.name("v"), t.axis, t.monoid, x.name))
        if not streamed:
            return inside
        row, rest = MONOIDS[t.monoid], [a for a in x.axes if a != t.axis]
        if row.pair:
            return self.position_scanned(t, x, inside, loop)
        total = self.carry(loop, "r", rest, inside.dtype, t.monoid)
        step = self.put(loop, tile.TileFold(self.name("v"), (t.axis,), t.monoid, x.name))
        self.combine(loop, row.combine, total, step)
        return self.put(loop, tile.Combine(self.name("v"), row.combine, total.name, inside.name))

    def position_scanned(self, t: T.Scan, x: Var, inside: Var, loop: Loop) -> Var:
        row, rest = MONOIDS[t.monoid], [a for a in x.axes if a != t.axis]
        best = self.carry(loop, "r", rest, x.dtype, row.combine)
        step = self.put(loop, tile.TileFold(self.name("v"), (t.axis,), row.combine, x.name))
        self.combine(loop, row.combine, best, step)
        position = self.carry(loop, "r", rest, "i64", "add")
        where = self.put(loop, tile.TileFold(self.name("v"), (t.axis,), t.monoid, x.name))
        inner_best = self.put(loop, tile.TileScan(self.name("v"), t.axis, row.combine, x.name))
        nearer = self.map(loop, T.Select(_better(row.combine, step, best), where, position))
        loop.yields[position.name] = nearer.name
        return self.map(loop, T.Select(_better(row.combine, inner_best, best), inside, position))


def _better(combine: str, x: Var, best: Var) -> Term:
    """Whether `x` replaces `best`, which stands at an earlier position: it is strictly beyond, or the first NaN."""
    beyond = T.Binary("lt", best, x) if combine == "max" else T.Binary("lt", x, best)
    if not is_float(x.dtype):
        return beyond
    first_nan = T.Binary("and", T.Unary("isnan", x), T.Unary("not", T.Unary("isnan", best)))
    return T.Binary("or", beyond, first_nan)
