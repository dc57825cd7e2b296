"""Tile statements become what one thread does: loads, register loops, folds, serial streams, stores, block ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from codegen.passes.exchange import Slots, seen_of_all
from codegen.passes.folds import Running, begin_fold
from codegen.passes.nest import Names, Nests
from codegen.passes.partial import Algebra, Partial
from codegen.passes.rings import Rings
from codegen.passes.scans import write_scan
from codegen.passes.state import Access, PartPlan, State, access_name
from codegen.passes.terms import assigned, conjunction, digit, linear, replaced, typed, widened
from ir import kernel as K
from ir import meaning, tile
from ir import term as T
from ir.dtype import DType
from ir.interval import type_range
from ir.layout import Family
from ir.loop import Buffer
from ir.node import IRError, postorder
from ir.ops import MONOIDS
from ir.term import Term, Var
from ir.tile import TilePart

I32_MAX = type_range("i32")[1]
MOST_COUNTED = I32_MAX
"""What a counter in i32 may end at."""


def lower_statements(state: State) -> State:
    """The kernel program: parts take consecutive ranges of blocks, and every part decodes its own grid."""
    program = state.tile
    names = Names(b.name for b in program.buffers)
    counts = [math.prod(a.tiles for a in p.axes if a.role == "grid") for p in program.parts]
    body: list[K.Statement] = []
    first = 0
    for part, plan, count in zip(program.parts, state.plans, counts, strict=True):
        block = T.binary("sub", widened(K.BLOCK), T.number(first))
        lines = _PartWriter(state, part, plan, names).write(block)
        if len(program.parts) == 1:
            body += lines
        elif count:
            low, high = T.const(first, "i32"), T.const(first + count, "i32")
            tests = [T.binary("le", low, K.BLOCK), T.binary("lt", K.BLOCK, high)]
            body.append(K.If(T.binary("and", *tests), lines))
        first += count
    if first * state.cluster > I32_MAX:
        raise IRError(f"{program.name}: {first * state.cluster} blocks are more than a launch takes")
    kernel = K.KernelProgram(program.name, program.buffers, state.threads, first, tuple(body), state.cluster)
    return replace(state, kernel=kernel)


class _PartWriter:
    def __init__(self, state: State, part: TilePart, plan: PartPlan, names: Names) -> None:
        self.part, self.plan = part, plan
        self.buffers = {b.name: b for b in state.tile.buffers}
        self.types = tile.infer(part, self.buffers)
        self.nests = Nests(part, plan.layouts, names)
        self.arrays: dict[str, str] = {}
        self.unfinished: set[str] = set()
        self.arriving: list[Callable[[], None]] = []
        self.running: dict[str, Running] = {}
        """By the names of a state and of its next value."""
        self.rings = Rings(part, self.nests, plan, self.types, self.places)

    def write(self, block: Term) -> tuple[K.Statement, ...]:
        """The part's body for a linear block index of its own range."""
        grid = [a for a in self.part.axes if a.role == "grid"]
        below = 1
        for axis in reversed(grid):
            start = T.binary("mul", digit(block, below, axis.tiles), T.number(axis.tile))
            self.nests.enter(axis.name, start if axis.tiles else T.number(0))
            below *= max(axis.tiles, 1)
        for axis in self.part.axes:
            if axis.role != "grid":
                self.nests.enter(axis.name, T.number(0))
        self.nests.out += self.rings.declared()
        self.body(self.part.body)
        self.nests.close()
        return tuple(self.nests.out)

    def body(self, body: Sequence[tile.Statement]) -> None:
        for k, s in enumerate(body):
            if self.unfinished & self.reads(s):
                self.nests.close()
                self.unfinished.clear()
            if not isinstance(s, tile.TileLoad | tile.Share) or (isinstance(s, tile.TileLoad) and self.reads(s)):
                self.arrive()
            match s:
                case tile.TileLoad() if access_name(s) in self.plan.staged:
                    self.staged_load(s, self.plan.staged[access_name(s)])
                case tile.TileLoad() if s.out in self.rings.of:
                    self.course_load(s)
                case tile.TileLoad():
                    self.load(s)
                case tile.TileStore():
                    self.store(s)
                case tile.Stream():
                    self.stream(s, folded_after(s, body[k + 1 :]))
                case tile.Combine(out, _, x, y) if out in self.running:
                    added = self.types[y if self.running.get(x) is self.running[out] else x]
                    self.running[out].absorb(added, self.here(added))
                case tile.TileFold(out, _, _, x) if x in self.running:
                    self.arrays[out] = self.running[x].end(self.types[x], self.types[out])
                case tile.TileFold(out, axes, monoid, x):
                    self.unfinished.add(out)
                    self.fold(out, axes, monoid, x)
                case tile.TileScan(out, axis, monoid, x):
                    self.scan(out, axis, monoid, x)
                case tile.Share():
                    self.share(s)
                case _:
                    self.pointwise(s.out, self.meaning(s))
        self.arrive()

    def reads(self, s: tile.Statement) -> set[str]:
        """The values that a statement uses."""
        terms: Sequence[Term] = ()
        match s:
            case tile.TileLoad(_, _, index):
                terms = index
            case tile.TileStore(_, index, value, _):
                terms = (*index, self.types[value])
            case tile.Stream():
                return set(self.unfinished)
            case tile.TileFold(_, _, _, x) | tile.TileScan(_, _, _, x) | tile.Share(_, x, _, _):
                terms = (self.types[x],)
            case _:
                terms = (self.meaning(s),)
        return {t.name for root in terms for t in postorder(root) if isinstance(t, Var)}

    # ---- values

    def meaning(self, s: tile.Statement) -> Term:
        """A pointwise statement as one term over values and coordinates."""
        match s:
            case tile.Map(_, term):
                return typed(term)
            case tile.Where(_, pred, x, monoid):
                v = self.types[x]
                return T.select(typed(pred), v, T.const(meaning.identity(monoid, v.dtype), v.dtype))
            case tile.Convert(_, x, dtype, _):
                return T.round_to(dtype or self.types[x].dtype, "cast", self.types[x])
            case tile.Combine(_, monoid, x, y):
                return T.binary(MONOIDS[monoid].combine, self.types[x], self.types[y])
        raise IRError(f"{self.part}: {type(s).__name__} is not pointwise")

    def here(self, term: Term, nests: Nests | None = None) -> Term:
        """A tile term as a term of the thread, for the element at hand of the open nest."""
        at = nests or self.nests

        def leaf(t: Term) -> Term | None:
            match t:
                case T.Index(axis):
                    return at.coordinate(axis)
                case T.Extent(axis):
                    return T.number(self.part.axis(axis).extent)
                case T.Var(name, dtype, axes):
                    return T.Load(self.arrays[name], dtype, (at.element(axes),))
            return None

        return replaced(term, leaf)

    def declare(self, name: str, dtype: DType, axes: Sequence[str]) -> str:
        array = self.nests.array(name, dtype, self.nests.registers(axes))
        self.arrays[name] = array
        return array

    def pointwise(self, out: str, term: Term) -> None:
        """out = term at every register of its tile."""
        v = self.types[out]
        body = self.nests.over(v.axes)
        array = self.declare(out, v.dtype, v.axes)
        body.append(K.Assign(array, self.nests.element(v.axes), assigned(self.here(term), v.dtype)))

    def fold(self, out: str, axes: tuple[str, ...], monoid: str, x: str) -> None:
        v = self.types[x]
        ended = {a for a in axes if (out, a) in self.plan.ended}
        self.arrays[out] = begin_fold(self.nests, axes, monoid, v, self.here(v), self.types[out], ended)

    def scan(self, out: str, axis: str, monoid: str, x: str) -> None:
        v = self.types[x]
        self.arrays[out] = write_scan(self.nests, axis, monoid, v, self.here(v), self.types[out])

    def share(self, s: tile.Share) -> None:
        """Send to all blocks of the cluster; what reads it stands in front of the next use of anything."""
        v, nests, layouts = self.types[s.x], self.nests, self.nests.layouts
        nests.close()
        units = self.part.axis(s.axis).tile
        rest = [a for a in v.axes if a != s.axis]
        own = Partial(nests, Algebra("max", (v.dtype,), 1), nests.modes(v.axes), (self.arrays[s.x],))
        slots = Slots.fill(own, layouts.over(v.axes).project(rest), layouts.threads // units, "all")

        def arrive() -> None:
            (self.arrays[s.out],) = seen_of_all(own, slots, bool(layouts.thread.get(s.along)))

        self.arriving.append(arrive)

    # ---- memory

    def load(self, s: tile.TileLoad) -> None:
        self.arrays[s.out] = self.loaded(s, self.nests)

    def loaded(self, s: tile.TileLoad, nests: Nests) -> str:
        """A load in the layouts of `nests`; returns the array it goes to."""
        v, access = self.types[s.out], self.plan.accesses[access_name(s)]
        body = nests.over(v.axes, access.width, "load")
        array = nests.array(s.out, v.dtype, nests.registers(v.axes))
        at, other = nests.element(v.axes), T.const(access.leaves, v.dtype)
        offset, pred = self.places(access, nests)
        body.append(K.LoadGlobal(array, at, s.buffer, offset, access.width, pred, other, access.cache))
        return array

    def course_load(self, s: tile.TileLoad) -> None:
        """A load through shared memory; what ends it stands in front of the next statement that is no load."""
        ring, sweep = self.rings.of[s.out]
        array = self.loaded(s, self.nests) if not ring.how and sweep == 0 else self.rings.read(s.out)
        self.arrays[s.out] = array
        self.arriving.append(lambda: self.rings.done(s.out, array))

    def staged_load(self, s: tile.TileLoad, layouts: Family) -> None:
        """Load in layouts that walk memory, and leave the tile in shared memory for the layouts of the part.

        What reads it there is written in front of the next statement that is no load, behind one barrier for all.
        """
        v, nests = self.types[s.out], self.nests
        side, shared = nests.beside(v.axes, layouts), nests.names.fresh(f"{s.out}_tile")
        pitch, size = self.pitches(layouts)
        source = self.loaded(s, side)
        place = linear({side.local(a): p for a, p in pitch.items()})
        body = side.over(v.axes, 1, "store")
        body.append(K.StoreShared(shared, place, source, side.element(v.axes), 1, side.owner(v.axes)))
        side.close()
        nests.close()
        nests.out += [K.Shared(shared, v.dtype, size), *side.out]

        def arrive() -> None:
            body = nests.over(v.axes, 1, "load")
            self.arrays[s.out] = nests.array(s.out, v.dtype, nests.registers(v.axes))
            place = linear({nests.local(a): p for a, p in pitch.items()})
            body.append(K.LoadShared(self.arrays[s.out], nests.element(v.axes), shared, place, 1))

        self.arriving.append(arrive)

    def pitches(self, layouts: Family) -> tuple[dict[str, int], int]:
        """Elements between neighbours along each axis of a staged tile, and its size.

        Rows are one element longer than they need, so that lanes along either of two axes meet different banks.
        """
        pitch: dict[str, int] = {}
        step = 1
        for k, axis in enumerate(layouts.thread):
            pitch[axis] = step
            step = step * self.part.axis(axis).tile + (k == 0)
        return pitch, step

    def arrive(self) -> None:
        """Write what reads the staged tiles."""
        waiting, self.arriving = self.arriving, []
        for read in waiting:
            read()

    def store(self, s: tile.TileStore) -> None:
        buffer, access = self.buffers[s.buffer], self.plan.accesses[access_name(s)]
        v = self.types[s.value]
        axes = [a.name for a in self.part.axes if a.name in v.free.union(*(t.free for t in s.index))]
        array = self.arrays[s.value]
        if v.dtype != buffer.dtype or set(axes) != v.free:
            array = self.copied(s.value, axes, buffer)
        body = self.nests.over(axes, access.width, "store")
        owner = self.nests.owner(axes)
        pred = conjunction([*([owner] if owner is not None else []), *self.tests(access, self.nests)])
        at, offset = self.nests.element(axes), self.here(access.offset)
        body.append(K.StoreGlobal(s.buffer, offset, array, at, access.width, pred, s.monoid, access.cache))

    def copied(self, value: str, axes: Sequence[str], buffer: Buffer) -> str:
        """A value broadcast over `axes` in the dtype of the buffer that it goes to."""
        body = self.nests.over(axes)
        array = self.nests.array(f"{value}_{buffer.name}", buffer.dtype, self.nests.registers(axes))
        term = T.round_to(buffer.dtype, "cast", self.here(self.types[value]))
        body.append(K.Assign(array, self.nests.element(axes), assigned(term, buffer.dtype)))
        return array

    def places(self, access: Access, nests: Nests) -> tuple[Term, Term | None]:
        """The element at hand that an access reaches, and what must hold for it."""
        return self.here(access.offset, nests), conjunction(self.tests(access, nests))

    def tests(self, access: Access, nests: Nests) -> list[Term]:
        """What must hold for the element at hand of the nest, or for the run of elements that starts there."""
        out = [self.here(t, nests) for t in access.tests]
        for a in access.extents:
            out.append(T.binary("lt", nests.coordinate(a), T.number(self.part.axis(a).extent)))
        for a in access.tiles:
            out.append(T.binary("lt", nests.local(a), T.number(self.part.axis(a).tile)))
        return out

    # ---- streams

    def stream(self, s: tile.Stream, folds: Mapping[str, tile.TileFold]) -> None:
        """A serial loop whose states are register arrays, set together at the end of each step.

        `folds` has the states that are only folded after it.
        """
        nests = self.nests
        for c, y in zip(s.carried, s.yields, strict=True):
            if c.name in folds and self.covered(folds[c.name].axes):
                self.running[c.name] = self.running[y] = Running.begin(nests, c, folds[c.name].axes)
                continue
            start = T.const(meaning.identity(c.monoid, c.dtype), c.dtype)
            body = nests.over(c.axes)
            body.append(K.Assign(self.declare(c.name, c.dtype, c.axes), nests.element(c.axes), start))
        axis = self.part.axis(s.axis)
        wide: DType = "i32" if axis.tiles * axis.tile <= MOST_COUNTED else "i64"
        step = Var(nests.names.fresh(f"{s.axis}_at"), wide, ())
        self.rings.begin(s)
        with nests.block() as lines:
            nests.enter(s.axis, widened(step))
            self.rings.ahead(s, step)
            self.body(s.body)
            self.advance(s)
        bounds = T.const(0, wide), T.const(axis.extent, wide)
        nests.out.append(K.For(step.name, *bounds, axis.tile, False, tuple(lines)))

    def covered(self, axes: Sequence[str]) -> bool:
        """Whether layouts have places for the tile alone along the axes, so that none needs a test."""
        return all(self.plan.layouts.over((a,)).cover(a) <= self.part.axis(a).tile for a in axes)

    def advance(self, s: tile.Stream) -> None:
        self.nests.close()
        self.unfinished.clear()
        states = {c.name for c in s.carried}
        sources = {}
        pairs = [(c, y) for c, y in zip(s.carried, s.yields, strict=True) if c.name not in self.running]
        for c, y in pairs:
            if y in states and y != c.name:
                sources[c.name] = Var(f"{c.name}_next", self.types[y].dtype, self.types[y].axes)
                self.types[sources[c.name].name] = sources[c.name]
                self.pointwise(sources[c.name].name, self.types[y])
        for c, y in pairs:
            if y != c.name:
                body = self.nests.over(c.axes)
                value = T.round_to(c.dtype, "cast", self.here(sources.get(c.name, self.types[y])))
                body.append(K.Assign(self.arrays[c.name], self.nests.element(c.axes), assigned(value, c.dtype)))


def folded_after(s: tile.Stream, rest: Sequence[tile.Statement]) -> dict[str, tile.TileFold]:
    """States that a step only combines with a tile of their axes, and that only a fold behind the stream reads."""
    inside, behind = list(tile.walk(s.body)), list(tile.walk(tuple(rest)))
    out: dict[str, tile.TileFold] = {}
    for c, y in zip(s.carried, s.yields, strict=True):
        made = [t for t in inside if y in tile.reads(t) or c.name in tile.reads(t)]
        used = [t for t in behind if c.name in tile.reads(t)]
        match made, used:
            case [tile.Combine(out_name, combine, a, b)], [tile.TileFold(_, _, monoid, _) as fold] if (
                out_name == y and a != b and s.yields.count(y) == 1
                and monoid == c.monoid and combine == MONOIDS[monoid].combine and not MONOIDS[monoid].pair
            ):  # fmt: skip
                out[c.name] = fold
    return out
