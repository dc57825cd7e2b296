"""A kernel of a form and a schedule become a tile program: straight-line code over tiles, with streams for long sweeps.

A term is computed once in the outermost loop that binds the streamed axes it needs. The sweeps of a loop - folds and
streams over a streamed axis, and stores along one - are grouped by axis and by how many earlier sweeps they depend on;
a group shares one Stream. A fold over a streamed axis keeps a partial result for each position of the step's tile,
and merges them after the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from extract.coarse import coarse
from extract.facts import buffers_read
from extract.parts import counted
from extract.placing import terms_of
from extract.tile_sweeps import Sweeps
from extract.tile_values import Group, Loop
from ir import term as T
from ir import tile
from ir.live import live
from ir.loop import Buffer, KernelForm, Store
from ir.node import postorder
from ir.schedule import Schedule
from ir.term import Term
from ir.tile import TilePart, TileProgram


def tile_program(
    kernel: KernelForm,
    buffers: Sequence[Buffer],
    axes: Mapping[str, int],
    schedule: Schedule,
    quotients: bool = False,
) -> TileProgram:
    """The tile program of `kernel` under `schedule`; `axes` gives extents, `buffers` at least the buffers it uses.

    With `quotients` every division rounds once, as strict numerics ask; else a row's divisor is inverted once, and
    exponentials are coarse where nobody sees it.
    """
    kernel, used = counted(kernel, axes), set[str]()
    for s in kernel.stores:
        used |= {s.buffer}.union(*map(buffers_read, terms_of(s)))
    parts = tuple(_Tiling(p, buffers, axes, schedule, quotients).part() for p in kernel.parts)
    return TileProgram(kernel.name, tuple(b for b in buffers if b.name in used), parts, schedule)


class _Tiling(Sweeps):
    """Writes the tile program of one part."""

    def part(self) -> TilePart:
        """The whole part."""
        root = Loop(None, None, frozenset())
        self.store(root, self.plan(root, (), self.terms.stores))
        written = TilePart(tuple(self.axes.values()), live(tuple(root.body)))
        return written if self.quotients else coarse(written, self.buffers)

    def plan(self, loop: Loop, roots: Sequence[Term], stores: Sequence[Store]) -> list[Store]:
        """Group the sweeps that belong to the loop; gives the stores that need no sweep of their own."""
        levels: dict[Term, int] = {}
        for t in postorder(*roots, *(t for s in stores for t in terms_of(s))):
            level = max((levels[k] for k in t.terms), default=0)
            if self.terms.needs(t) <= loop.bound and self.place(t, loop) is loop:
                work = self.terms.bindable(t, loop.bound, loop.axis)
                axis = self.terms.sweep(work)
                if axis is not None:
                    level += 1
                    loop.group_of[t] = loop.groups.setdefault((level, axis), Group(axis))
                    loop.group_of[t].sweeps[t] = work
            levels[t] = level
        own = []
        for s in sorted(stores, key=lambda s: s.buffer in self.overwritten):
            missing = frozenset[str]().union(*map(self.terms.needs, terms_of(s))) - loop.bound
            if not missing:
                own.append(s)
                continue
            level = 1 + max(levels[t] for t in terms_of(s))
            if s.buffer in self.overwritten:
                level = max((level, *(n for n, _ in loop.groups)))
            axis = next(a for a in self.axes if a in missing)
            loop.groups.setdefault((level, axis), Group(axis)).stores.append(s)
        return own

    def store(self, loop: Loop, own: Sequence[Store]) -> None:
        """Write the sweeps that store, in order, then the loop's own stores."""
        for _, group in sorted(loop.groups.items(), key=lambda item: item[0][0]):
            if group.stores:
                self.write(group, loop)
        ready = [(s, self.value(s.value, loop), [self.operand(t, loop) for t in s.index]) for s in own]
        for s, value, index in ready:
            loop.body.append(tile.TileStore(s.buffer, tuple(index), value.name, s.monoid))

    def write(self, group: Group, loop: Loop) -> None:
        """Write the Stream of a group into `loop`, and after it the results of its folds and streams."""
        if group.done:
            return
        group.done = True
        inner = Loop(group.axis, loop, loop.bound | {group.axis})
        streams = {w.carries: w for w in group.sweeps.values() if isinstance(w, T.Stream)}
        bodies = [k.update if isinstance(k, T.Carry) else k for w in group.sweeps.values() for k in w.terms]
        own = self.plan(inner, bodies, group.stores)
        for stream in streams.values():
            self.open_states(stream, inner)
        states = {t: self.partial(w, inner) for t, w in group.sweeps.items() if isinstance(w, T.Fold)}
        for stream in streams.values():
            self.step(stream, inner)
        self.store(inner, own)
        yields = tuple(inner.yields[c.name] for c in inner.carried)
        loop.body.append(tile.Stream(group.axis, tuple(inner.carried), tuple(inner.body), yields))
        for stream in streams.values():
            self.close_states(stream, loop)
        for t, w in group.sweeps.items():
            if isinstance(w, T.Fold):
                loop.known[t] = self.merged(w, states[t], loop)
            else:
                loop.known[t] = loop.known[w]
