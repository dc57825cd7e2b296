"""Courses of tiles through shared memory: the rings that copies fill ahead of a stream, and rows that stay for later ones.

A thread's own copies go to a place of a slot that it alone reads, [vector][thread], and are committed once a step. A bulk
copy fills the slot as the tile lies in memory; then the slot's mbarriers order it and its readers. The uses of a course,
steps of one sweep after another, are numbered; a ring is filled for the next sweep while the last steps of one go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from codegen.passes.nest import THREAD, Nests
from codegen.passes.state import Access, Course, PartPlan, access_name
from codegen.passes.terms import linear, replaced, widened
from ir import kernel as K
from ir import term as T
from ir.dtype import DTYPES
from ir.kernel import BULK_BYTES
from ir.term import Term, Var
from ir.tile import Stream, TileAxis, TileLoad, TilePart, walk

Places = Callable[[Access, Nests], tuple[Term, Term | None]]
"""The element at hand that an access reaches, and what must hold for it."""


@dataclass(frozen=True)
class Ring:
    """The shared memory of a course: `slots` slots of `size` elements; one of its loads, which are all alike."""

    course: Course
    name: str
    load: TileLoad
    access: Access
    value: Var
    axis: TileAxis
    size: int
    slots: int

    @property
    def how(self) -> str:
        return self.course.staging.how

    @property
    def kept(self) -> bool:
        return self.course.staging.kept

    @property
    def filled(self) -> int:
        """How many times a tile is copied into a slot."""
        return self.axis.tiles * (1 if self.kept else len(self.course.loads))

    def declared(self) -> K.Statement:
        """Its declaration; loads, and not copies, fill a plain array."""
        dtype = self.value.dtype
        if not self.how:
            return K.Shared(self.name, dtype, self.slots * self.size)
        return K.Ring(self.name, dtype, self.size, self.slots, self.how == "bulk")


class Rings:
    """Writes what a part's courses do: in front of its streams, at each of their steps, and for each of their loads."""

    def __init__(self, part: TilePart, nests: Nests, plan: PartPlan, types: dict[str, Var], places: Places) -> None:
        self.part, self.nests, self.layouts, self.places = part, nests, plan.layouts, places
        loads = {s.out: s for s in walk(part.body) if isinstance(s, TileLoad)}
        fills = [part.axis(c.axis).tiles * (1 if c.staging.kept else len(c.loads)) for c in plan.courses]
        self.depth = min([*(c.staging.depth for c in plan.courses if c.staging.depth), *fills], default=0)
        self.of: dict[str, tuple[Ring, int]] = {}
        """By the name of a load: its ring, and how many sweeps of the course came before."""
        self.all = [self.ring(c, loads[c.loads[0]], plan, types) for c in plan.courses]
        for r in self.all:
            self.of |= {name: (r, k) for k, name in enumerate(r.course.loads)}
        self.leaves = {name: plan.accesses[access_name(loads[name])].leaves for name in self.of}
        """By the name of a load, the value of elements that it does not touch."""
        self.step: dict[str, Term] = {}
        """The number of the step at hand of the stream over an axis."""

    def ring(self, course: Course, load: TileLoad, plan: PartPlan, types: dict[str, Var]) -> Ring:
        value, axis = types[load.out], self.part.axis(course.axis)
        name = self.nests.names.fresh(f"{load.out}_{'row' if course.staging.kept else 'ring'}")
        tile = math.prod(self.part.axis(a).tile for a in value.axes)
        own = self.nests.registers(value.axes) * self.layouts.threads
        size = tile if course.staging.how == "bulk" else own
        slots = axis.tiles if course.staging.kept else self.depth
        return Ring(course, name, load, plan.accesses[access_name(load)], value, axis, size, slots)

    def declared(self) -> list[K.Statement]:
        """The declarations of all rings."""
        return [r.declared() for r in self.all]

    def used(self, s: Stream, how: str) -> list[tuple[Ring, int]]:
        """The rings of such copies that a stream reads, each with the sweeps that its course made before."""
        found = [self.of[load.out] for load in s.body if isinstance(load, TileLoad) and load.out in self.of]
        return [(r, k) for r, k in found if r.how == how]

    # ---- copies

    def begin(self, s: Stream) -> None:
        """In front of a stream: the copies for the first steps of the courses that begin with it."""
        self.nests.close()
        own = [r for r, k in self.used(s, "async") if k == 0]
        if own:
            self.nests.out.append(self.first(own, self.depth - 1))
        for r in (r for r, k in self.used(s, "bulk") if k == 0):
            loop = self.first([r], r.slots if r.kept else self.depth - 1)
            self.nests.out.append(K.If(_is_first(), (loop,)))

    def first(self, rings: Sequence[Ring], count: int) -> K.For:
        """The copies of the first uses of some rings, one after another."""
        use = Var(self.nests.names.fresh("use"), "i32", ())
        body = [c for r in rings for c in self.copies(r, use)]
        body += [] if rings[0].how == "bulk" else [K.Commit()]
        return K.For(use.name, _number(0), _number(count), 1, False, tuple(body))

    def ahead(self, s: Stream, at: Term) -> None:
        """At the begin of the step at coordinate `at`: copies for a later use, and the wait for those of this one."""
        self.step[s.axis] = step = T.binary("floordiv", at, T.const(self.part.axis(s.axis).tile, at.dtype))
        out = self.nests.out
        own = [(r, k) for r, k in self.used(s, "async") if not (r.kept and k)]
        for r, k in own:
            use = _plus(step, k * r.axis.tiles + self.depth - 1)
            out.append(K.If(T.binary("lt", use, T.const(r.filled, use.dtype)), tuple(self.copies(r, use))))
        if own:
            out += [K.Commit(), K.Wait(self.depth - 1)]
        for r, k in self.used(s, "bulk"):
            use = _plus(step, k * r.axis.tiles)
            if not r.kept:
                later = _plus(use, self.depth - 1)
                copies = K.If(_is_first(), (*self.freed(r, later), *self.copies(r, later)))
                out.append(K.If(T.binary("lt", later, T.const(r.filled, later.dtype)), (copies,)))
            if not (r.kept and k):
                out.append(K.WaitSlot(r.name, "full", self.slot(r, use), _parity(use, r.slots)))

    def freed(self, r: Ring, use: Term) -> list[K.Statement]:
        """The wait for the readers of what was in the slot of a use before."""
        before = _plus(use, -r.slots)
        wait = K.WaitSlot(r.name, "empty", self.slot(r, use), _parity(before, r.slots))
        return [K.If(T.binary("le", T.const(0, before.dtype), before), (wait,))]

    def slot(self, r: Ring, use: Term) -> Term:
        """The slot of a use."""
        return use if r.kept else T.binary("mod", use, T.const(r.slots, use.dtype))

    def copies(self, r: Ring, use: Term) -> list[K.Statement]:
        """The copies of the tile of a use, and in bulk the commit of its slot."""
        tile = use if r.kept else T.binary("mod", use, T.const(r.axis.tiles, use.dtype))
        start = T.binary("mul", widened(tile), T.number(r.axis.tile))
        if r.how == "bulk":
            slot = self.slot(r, use)
            return [*self.bulk_copies(r, slot, start), K.Commit(r.name, slot)]
        side = self.nests.beside(r.value.axes, self.layouts)
        side.enter(r.axis.name, start)
        body = side.over(r.value.axes, r.access.width, "load")
        place, pred = self.places(r.access, side)
        offset = self.own(r, side)
        body.append(K.Copy(r.name, self.slot(r, use), offset, r.load.buffer, place, r.access.width, pred))
        side.close()
        return side.out

    def bulk_copies(self, r: Ring, slot: Term, start: Term) -> list[K.Statement]:
        """One copy for each row of the tile whose position along the course's axis begins at `start`."""
        rows = [self.part.axis(a) for a in r.value.axes if a != r.axis.name]
        at = {a: Var(self.nests.names.fresh(f"{a.name}_row"), "i32", ()) for a in rows if a.tile > 1}
        first: dict[str, Term] = {r.axis.name: start}
        for a in rows:
            first[a.name] = T.binary("add", self.nests.start[a.name], widened(at[a]) if a in at else T.number(0))

        def leaf(t: Term) -> Term | None:
            return first.get(t.axis) if isinstance(t, T.Index) else None

        unit, extent, tile = BULK_BYTES // DTYPES[r.value.dtype].bytes, r.axis.extent, r.axis.tile
        left = T.binary("floordiv", T.binary("sub", T.number(extent), start), T.number(unit))
        count: Term = T.number(tile)
        if extent % tile:
            count = T.binary("mul", T.binary("min", T.number(tile // unit), left), T.number(unit))
        offset = linear({widened(v): self.pitch(r, a.name) for a, v in at.items()})
        body: tuple[K.Statement, ...] = (
            K.BulkCopy(r.name, slot, offset, r.load.buffer, replaced(r.access.offset, leaf), count),
        )
        for a, v in at.items():
            if a.name in r.access.extents:
                body = (K.If(T.binary("lt", first[a.name], T.number(a.extent)), body),)
            body = (K.For(v.name, _number(0), _number(a.tile), 1, False, body),)
        return list(body)

    def pitch(self, r: Ring, axis: str) -> int:
        """Elements of a slot filled in bulk between neighbours along an axis."""
        slower = (r.axis.name, *(a for a in reversed(r.value.axes) if a != r.axis.name))
        return math.prod(self.part.axis(a).tile for a in slower[: slower.index(axis)])

    def own(self, r: Ring, nests: Nests) -> Term:
        """The place in a slot of the element at hand of this thread alone."""
        element = widened(nests.element(r.value.axes))
        return linear({element: self.layouts.threads, THREAD: r.access.width})

    # ---- loads

    def read(self, name: str) -> str:
        """The load of that name, from its slot; returns the array it goes to."""
        (r, k), nests, axes = self.of[name], self.nests, self.of[name][0].value.axes
        body = nests.over(axes, r.access.width, "load")
        array = nests.array(name, r.value.dtype, nests.registers(axes))
        at, width = nests.element(axes), r.access.width
        _, pred = self.places(r.access, nests)
        leaves, there = self.leaves[name], {"": self.leaves[r.course.loads[0]], "async": 0}.get(r.how)
        if there is not None and _same(leaves, there):  # as it stands there, which in a bulk ring is nothing
            pred = None
        other = T.const(leaves, r.value.dtype) if pred is not None else None
        if not r.how:
            body.append(K.LoadShared(array, at, r.name, self.kept_place(r), width, pred, other))
            return array
        slot = self.slot(r, _plus(self.step[r.axis.name], k * r.axis.tiles if not r.kept else 0))
        in_memory = linear({nests.local(a): self.pitch(r, a) for a in axes})
        offset = self.own(r, nests) if r.how == "async" else in_memory
        body.append(K.LoadShared(array, at, r.name, offset, width, pred, other, slot))
        return array

    def kept_place(self, r: Ring) -> Term:
        """The place in a plain array of the element at hand."""
        return T.binary("add", linear({widened(self.step[r.axis.name]): r.size}), self.own(r, self.nests))

    def done(self, name: str, array: str) -> None:
        """Behind the loads of a step: a slot is released, or the tile of a first sweep stored."""
        (r, k), nests = self.of[name], self.nests
        if not r.how and k == 0:
            body = nests.over(r.value.axes, r.access.width, "store")
            body.append(
                K.StoreShared(r.name, self.kept_place(r), array, nests.element(r.value.axes), r.access.width)
            )
        elif r.how and not r.kept:
            nests.close()
            nests.out.append(K.Release(r.name, self.slot(r, _plus(self.step[r.axis.name], k * r.axis.tiles))))


def _same(a: float, b: float) -> bool:
    """Whether two numbers are one, of one sign."""
    return a == b and math.copysign(1.0, a) == math.copysign(1.0, b)


def _number(n: int) -> Term:
    return T.const(n, "i32")


def _plus(t: Term, n: int) -> Term:
    return T.binary("add", t, T.const(n, t.dtype))


def _parity(use: Term, slots: int) -> Term:
    """The parity of the phase that the n-th use of a ring ends."""
    return T.binary("mod", T.binary("floordiv", use, T.const(slots, use.dtype)), T.const(2, use.dtype))


def _is_first() -> Term:
    """Whether this is the thread that makes the bulk copies."""
    return T.binary("eq", K.THREAD, _number(0))
