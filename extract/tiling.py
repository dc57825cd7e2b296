"""A kernel of a form and a schedule become a tile program: straight-line code over tiles, with streams for long sweeps.

A term is computed once in the outermost loop that binds the streamed axes it needs. The sweeps of a loop - folds and
streams over a streamed axis, and stores along one - are grouped by axis and by how many earlier sweeps they depend on;
a group shares one Stream. A fold over a streamed axis keeps a partial result for each position of the step's tile,
and merges them after the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from extract.facts import buffers_read, size
from extract.live import live
from extract.merging import Step, steps
from extract.placing import Placing, is_coordinate, terms_of
from extract.roles import roles, tile_axes
from ir import term as T
from ir import tile
from ir.dtype import DType, is_float
from ir.loop import Buffer, KernelForm, Part, Store
from ir.node import IRError, postorder
from ir.ops import MONOIDS
from ir.schedule import Schedule
from ir.term import Term, Var
from ir.tile import Carried, Statement, TilePart, TileProgram

_INLINE = 24
"""Largest number of nodes of a coordinate term that is written out where it is used."""


def tile_program(
    kernel: KernelForm, buffers: Sequence[Buffer], axes: Mapping[str, int], schedule: Schedule
) -> TileProgram:
    """The tile program of `kernel` under `schedule`; `axes` gives extents, `buffers` at least the buffers it uses."""
    used = set[str]()
    for s in kernel.stores:
        used |= {s.buffer}.union(*map(buffers_read, terms_of(s)))
    parts = tuple(_Tiling(p, buffers, axes, schedule).part() for p in kernel.parts)
    return TileProgram(kernel.name, tuple(b for b in buffers if b.name in used), parts, schedule)


@dataclass(eq=False)
class _Group:
    """Sweeps over one axis that share a Stream: folds and streams, each by the term it stands for, and stores."""

    axis: str
    sweeps: dict[Term, Term] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    done: bool = False


@dataclass(eq=False)
class _Loop:
    """The body of the part or of a stream while it is written; `known` maps terms to the values that hold them."""

    axis: str | None
    parent: _Loop | None
    bound: frozenset[str]
    body: list[Statement] = field(default_factory=list)
    known: dict[Term, Var] = field(default_factory=dict)
    masks: dict[tuple[Term, Term, str], Var] = field(default_factory=dict)
    maps: dict[Term, Var] = field(default_factory=dict)
    groups: dict[tuple[int, str], _Group] = field(default_factory=dict)
    group_of: dict[Term, _Group] = field(default_factory=dict)
    carried: list[Carried] = field(default_factory=list)
    yields: dict[str, str] = field(default_factory=dict)


class _Tiling:
    """Writes the tile program of one part."""

    def __init__(self, part: Part, buffers: Sequence[Buffer], axes: Mapping[str, int], schedule: Schedule) -> None:
        part = replace(part, stores=tuple(s for s in part.stores if all(axes[a] for a in s.axes)))
        self.terms = Placing(part.stores, tile_axes(roles(part, buffers), axes, schedule))
        self.axes = self.terms.axes
        self.buffers = {b.name: b for b in buffers}
        loaded = [buffers_read(t) for s in self.terms.stores for t in terms_of(s)]
        self.overwritten = {s.buffer for s in part.stores} & frozenset[str]().union(*loaded)
        self.values: dict[str, Var] = {}
        self.taken = {*self.axes, *self.buffers}

    def part(self) -> TilePart:
        """The whole part."""
        root = _Loop(None, None, frozenset())
        self.store(root, self.plan(root, (), self.terms.stores))
        return TilePart(tuple(self.axes.values()), live(tuple(root.body)))

    # ---- which sweep stands where

    def place(self, t: Term, loop: _Loop) -> _Loop:
        """The outermost loop, from `loop` outwards, that binds what the term needs."""
        while loop.parent is not None and self.terms.needs(t) <= loop.parent.bound:
            loop = loop.parent
        return loop

    def plan(self, loop: _Loop, roots: Sequence[Term], stores: Sequence[Store]) -> list[Store]:
        """Group the sweeps that belong to the loop; gives the stores that need no sweep of their own."""
        levels: dict[Term, int] = {}
        for t in postorder(*roots, *(t for s in stores for t in terms_of(s))):
            level = max((levels[k] for k in t.terms), default=0)
            if self.terms.needs(t) <= loop.bound and self.place(t, loop) is loop:
                work = self.terms.bindable(t, loop.bound, loop.axis)
                axis = self.terms.sweep(work)
                if axis is not None:
                    level += 1
                    loop.group_of[t] = loop.groups.setdefault((level, axis), _Group(axis))
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
            loop.groups.setdefault((level, axis), _Group(axis)).stores.append(s)
        return own

    def store(self, loop: _Loop, own: Sequence[Store]) -> None:
        """Write the sweeps that store, in order, then the loop's own stores."""
        for _, group in sorted(loop.groups.items(), key=lambda item: item[0][0]):
            if group.stores:
                self.write(group, loop)
        ready = [(s, self.value(s.value, loop), [self.operand(t, loop) for t in s.index]) for s in own]
        for s, value, index in ready:
            loop.body.append(tile.TileStore(s.buffer, tuple(index), value.name, s.monoid))

    def write(self, group: _Group, loop: _Loop) -> None:
        """Write the Stream of a group into `loop`, and after it the results of its folds and streams."""
        if group.done:
            return
        group.done = True
        inner = _Loop(group.axis, loop, loop.bound | {group.axis})
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

    # ---- values

    def name(self, prefix: str) -> str:
        n = 0
        while f"{prefix}{n}" in self.taken:
            n += 1
        self.taken.add(f"{prefix}{n}")
        return f"{prefix}{n}"

    def put(self, loop: _Loop, s: Statement) -> Var:
        """Append a statement that makes a value."""
        made = tile.infer_one(s, self.values, TilePart(tuple(self.axes.values()), ()), self.buffers)
        if made is None:
            raise IRError(f"{type(s).__name__} makes no value")
        self.values[made.name] = made
        loop.body.append(s)
        return made

    def map(self, loop: _Loop, term: Term) -> Var:
        """The value of a term over values and coordinates."""
        if isinstance(term, Var):
            return term
        if term not in loop.maps:
            loop.maps[term] = self.put(loop, tile.Map(self.name("v"), term))
        return loop.maps[term]

    def carry(self, loop: _Loop, prefix: str, axes: Sequence[str], dtype: DType, monoid: str) -> Var:
        """A new state of the loop's stream."""
        state = Carried(self.name(prefix), tuple(a for a in self.axes if a in axes), dtype, monoid)
        loop.carried.append(state)
        self.values[state.name] = Var(state.name, dtype, state.axes)
        return self.values[state.name]

    def value(self, t: Term, loop: _Loop) -> Var:
        """The value that holds the term, made where the term belongs unless it is there."""
        loop = self.place(t, loop)
        if t not in loop.known:
            if t in loop.group_of:
                self.write(loop.group_of[t], loop)
            else:
                loop.known[t] = self.made(t, loop)
        return loop.known[t]

    def made(self, t: Term, loop: _Loop) -> Var:
        match t:
            case T.Load(buffer, _, index):
                where = tuple(self.operand(k, loop) for k in index)
                return self.put(loop, tile.TileLoad(self.name("v"), buffer, where))
            case T.Fold(axes, monoid, x):
                return self.folded(x, axes, monoid, loop)
            case T.Stream():
                return self.at_once(t, loop)
            case T.Scan():
                return self.scanned(t, loop)
            case T.State(name):
                raise IRError(f"state {name} is read outside its stream")
        return self.map(loop, self.written(t, loop, t.free))

    def operand(self, t: Term, loop: _Loop, around: frozenset[str] | None = None) -> Term:
        """The term as a part of another whose axes are `around`: written out where that costs nothing, else a value."""
        if isinstance(t, T.Const | T.Index | T.Identity) or (is_coordinate(t) and size(t) <= _INLINE):
            return t
        pointwise = isinstance(t, T.Unary | T.Binary | T.Select | T.Round)
        once = self.terms.uses[t] <= 1 and t not in loop.known and self.place(t, loop) is loop
        if pointwise and once and (around is None or t.free == around):
            term = self.written(t, loop, t.free)
            return loop.maps.get(term, term)
        return self.value(t, loop)

    def written(self, t: Term, loop: _Loop, around: frozenset[str]) -> Term:
        """A pointwise term over operands; `x / y` and `x - y` stay in one piece."""
        match t:
            case T.Binary("mul" | "add" as op, x, y):
                inverse = "recip" if op == "mul" else "neg"
                if _is(x, inverse) and not _is(y, inverse):
                    x, y = y, x
                first = self.operand(x, loop, around)
                if _is(y, inverse):
                    return T.Binary(op, first, T.Unary(inverse, self.operand(y.terms[0], loop, around)))
                return T.Binary(op, first, self.operand(y, loop, around))
            case T.Unary(op, x):
                return T.Unary(op, self.operand(x, loop, around))
            case T.Binary(op, x, y):
                return T.Binary(op, self.operand(x, loop, around), self.operand(y, loop, around))
            case T.Select(p, x, y):
                return T.Select(*(self.operand(k, loop, around) for k in (p, x, y)))
            case T.Round(dtype, origin, x):
                return T.Round(dtype, origin, self.operand(x, loop, around))
            case T.Const() | T.Index() | T.Identity():
                return t
        raise IRError(f"{type(t).__name__} has no place in a tile program")

    def masked(self, x: Term, axes: Sequence[str], monoid: str, loop: _Loop) -> Var:
        """The value of `x` over at least `axes`, with the monoid's identity where a tile overruns an extent."""
        tests: list[Term] = []
        match x:
            case T.Select(p, inner, T.Identity(same)) if same == monoid and inner.dtype != "any":
                tests.append(self.operand(p, loop))
                x = inner
        v = self.value(x, loop)
        for a in (self.axes[a] for a in axes):
            if a.extent % a.tile or a.extent == 0 or a.name not in v.axes:
                tests.append(T.Binary("lt", T.Index(a.name), T.number(a.extent)))
        if not tests:
            return v
        pred = tests[0]
        for test in tests[1:]:
            pred = T.Binary("and", pred, test)
        key = (v, pred, monoid)
        if key not in loop.masks:
            loop.masks[key] = self.put(loop, tile.Where(self.name("v"), pred, v.name, monoid))
        return loop.masks[key]

    def folded(self, x: Term, axes: Sequence[str], monoid: str, loop: _Loop, old: Term | None = None) -> Var:
        """The fold of `x` over the tile's extent of `axes`, onto `old`; a contraction where `x` is a product over them."""
        if monoid == "add" and is_contraction(x, axes):
            a, b = (self.masked(k, [n for n in axes if n in k.free], monoid, loop) for k in x.terms)
            onto = None if old is None else self.map(loop, old).name
            return self.put(loop, tile.Mma(self.name("v"), a.name, b.name, tuple(axes), onto))
        v = self.masked(x, axes, monoid, loop)
        total = self.put(loop, tile.TileFold(self.name("v"), tuple(axes), monoid, v.name))
        if old is None:
            return total
        if isinstance(old, Var):
            return self.put(loop, tile.Combine(self.name("v"), MONOIDS[monoid].combine, old.name, total.name))
        return self.map(loop, T.Binary(MONOIDS[monoid].combine, old, total))

    # ---- sweeps

    def partial(self, t: T.Fold, inner: _Loop) -> list[Var]:
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

    def combine(self, loop: _Loop, monoid: str, state: Var, x: Var) -> None:
        """Let the next value of the state be its product with `x`."""
        made = self.put(loop, tile.Combine(self.name("v"), monoid, state.name, x.name))
        loop.yields[state.name] = made.name

    # ---- streams

    def by_tiles(self, t: T.Stream) -> bool:
        """Whether each step folds the contributions of its tile at once; else each position of a tile has own states.

        The latter saves a fold a step, where a state with the tile's positions is no larger than a loaded tile.
        """
        loads = [k.free for k in postorder(t) if isinstance(k, T.Load)]
        fits = all(any((c.update.free | {t.axis}) <= axes for axes in loads) for c in t.carries)
        return steps(t) is not None and not fits

    def open_states(self, t: T.Stream, inner: _Loop) -> None:
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

    def step(self, t: T.Stream, inner: _Loop) -> None:
        """Write the next values of a stream's states."""
        axis, split = self.axes[t.axis], steps(t)
        if split is None:
            inner.yields.update({c.name: self.value(c.update, inner).name for c in t.carries})
            return
        for s in split:
            old = self.values[s.carry.name]
            scaled = self.scaled(s, old, inner)
            if self.by_tiles(t):
                new = self.folded(s.part, (t.axis,), s.carry.monoid, inner, scaled)
            else:
                row, part = MONOIDS[s.carry.monoid].combine, self.operand(s.part, inner, s.part.free)
                new = self.map(inner, T.Binary(row, scaled, part))
            inner.known[s.carry.update] = new
            if axis.extent % axis.tile and not self.by_tiles(t):
                inside = T.Binary("lt", T.Index(axis.name), T.number(axis.extent))
                new = self.map(inner, T.Select(inside, new, old))
            inner.yields[s.carry.name] = new.name

    def scaled(self, s: Step, old: Var, loop: _Loop) -> Term:
        """An old state rescaled by its ratio to the new one."""
        if s.scale is None or s.ratio is None:
            return old
        return T.Binary(s.scale, self.operand(s.ratio, loop, s.ratio.free), old)

    def close_states(self, t: T.Stream, loop: _Loop) -> None:
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
            part = self.map(loop, self.scaled(s, self.values[s.carry.name], loop))
            merged = self.put(loop, tile.TileFold(self.name("v"), (t.axis,), s.carry.monoid, part.name))
            loop.known[s.carry.update] = loop.known[results[s.carry.name]] = merged

    def at_once(self, t: T.Stream, loop: _Loop) -> Var:
        """A stream whose axis one tile covers: each state is the fold of its contributions, given the final others."""
        split = steps(t)
        if split is None:
            raise IRError(f"stream {t.axis}: its positions must be taken one by one")
        for s in split:
            total = self.folded(s.part, (t.axis,), s.carry.monoid, loop)
            loop.known[s.carry.update] = loop.known[T.Stream(t.axis, t.carries, s.carry.name)] = total
        return loop.known[t]

    def merged(self, t: Term, states: Sequence[Var], loop: _Loop) -> Var:
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

    def scanned(self, t: T.Scan, loop: _Loop) -> Var:
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

    def position_scanned(self, t: T.Scan, x: Var, inside: Var, loop: _Loop) -> Var:
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


def is_contraction(x: Term, axes: Sequence[str]) -> bool:
    """Whether `x` is a product of two floats that both go along `axes` and each have an axis of their own."""
    match x:
        case T.Binary("mul", a, b) if is_float(a.dtype) and is_float(b.dtype):
            own = a.free - b.free and b.free - a.free and set(axes) <= a.free & b.free
            return bool(own) and not _is(a, "recip") and not _is(b, "recip")
    return False


def _is(t: Term, op: str) -> bool:
    return isinstance(t, T.Unary) and t.op == op


def _better(combine: str, x: Var, best: Var) -> Term:
    """Whether `x` replaces `best`, which stands at an earlier position: it is strictly beyond, or the first NaN."""
    beyond = T.Binary("lt", best, x) if combine == "max" else T.Binary("lt", x, best)
    if not is_float(x.dtype):
        return beyond
    first_nan = T.Binary("and", T.Unary("isnan", x), T.Unary("not", T.Unary("isnan", best)))
    return T.Binary("or", beyond, first_nan)
