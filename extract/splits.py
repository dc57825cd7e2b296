"""A kernel whose long sweeps are split over blocks: kernels that fold pieces of an axis, and one that merges them.

A new axis numbers the pieces. A sweep over one piece
leaves partial results in scratch buffers: the value of a fold, the best value and its position, every state of a
stream. The next kernel folds them over the pieces, states moved to the merged values of the others as after any
stream of tiles. Sweeps that depend on merged results become one more kernel; what is stored comes last.

The blocks of a cluster, or its warps, take the pieces of one kernel, which then folds partial results over the axis of
pieces itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from extract.facts import buffers_read, levels, open_states, swept
from extract.merging import steps
from extract.parts import counted, with_terms
from extract.rewrite import Names, rebuilt, with_children
from extract.roles import memory_order
from ir import term as T
from ir.dtype import is_float
from ir.loop import Buffer, KernelForm, Part, Store, contiguous
from ir.node import IRError, postorder
from ir.ops import MONOIDS
from ir.term import Term

_NONE: Mapping[Any, Term] = {}
FILLS = (1, 2, 4)
"""How many blocks a multiprocessor has in the splits that are looked at."""
FAR = 16
"""Pieces of one block each are looked at up to so many times the most that are of as many blocks as the whole kernel."""
VECTOR = 8
"""Positions of which even pieces are multiples."""
NEIGHBOURS = 64
"""Pieces that do not divide the axis are a multiple of so many positions, so that vectors stay whole and aligned."""


@dataclass(frozen=True)
class Piece:
    """One kernel of a split kernel, with the buffers and the extents that it sees."""

    kernel: KernelForm
    buffers: tuple[Buffer, ...]
    axes: Mapping[str, int]


def split(
    kernel: KernelForm, buffers: Sequence[Buffer], axes: Mapping[str, int], axis: str, count: int
) -> tuple[Piece, ...]:
    """The kernels, in order, that compute `kernel` with its sweeps over `axis` split into at most `count` pieces."""
    reason = unsplittable(kernel, axis)
    if reason:
        raise IRError(reason)
    cut = _Cut.launches(axis, axes[axis], count, {*axes, *(b.name for b in buffers)})
    known, rest, out = tuple(buffers), counted(kernel, axes), list[Piece]()
    while any(axis in levels(t) for t in _terms(rest)):
        level = _Level(cut, axes)
        rest = replace(rest, parts=tuple(level.part(p, known) for p in rest.parts))
        known = (*known, *level.scratch)
        inner = {**axes, axis: cut.length, cut.outer: cut.count, cut.merging: cut.count}
        out.append(_piece(KernelForm(f"{kernel.name}_{len(out)}", tuple(level.parts)), known, inner))
    last = KernelForm(f"{kernel.name}_{len(out)}", rest.parts)
    return (*out, _piece(last, known, {**axes, cut.merging: cut.count}))


def shared(
    kernel: KernelForm,
    buffers: Sequence[Buffer],
    axes: Mapping[str, int],
    axis: str,
    count: int,
    whole: bool = False,
) -> tuple[Piece, str]:
    """The kernel with its sweeps over `axis` cut into `count` equal pieces, and the new axis that numbers these.

    The axis keeps its name inside a piece. Pieces of `whole` vectors need not be equal, the last are short or empty, but
    where the axis indexes a result.
    """
    reason = unsplittable(kernel, axis)
    if reason:
        raise IRError(reason)
    whole = whole and not any(axis in s.axes for p in kernel.parts for s in p.stores)
    if axes[axis] % count and not whole:
        raise IRError(f"{axes[axis]} positions of {axis} are no {count} equal pieces")
    cut = _Cut.units(axis, axes[axis], count, {*axes, *(b.name for b in buffers)}, whole)
    rest = counted(kernel, axes)
    while any(axis in levels(t) for t in _terms(rest)):
        level = _Shared(cut, axes)
        rest = replace(rest, parts=tuple(level.part(p, buffers) for p in rest.parts))
    rest = replace(rest, parts=tuple(with_terms(p, cut.placed) for p in rest.parts))
    back = Names(axes={cut.inner: axis})
    parts = tuple(with_terms(p, back.node) for p in rest.parts)
    parts = tuple(replace(p, axes=tuple(k for a in p.axes for k in cut.cut(a))) for p in parts)
    return _piece(
        replace(rest, parts=parts), tuple(buffers), {**axes, cut.outer: count, axis: cut.length}
    ), cut.outer


def _piece(kernel: KernelForm, buffers: tuple[Buffer, ...], axes: Mapping[str, int]) -> Piece:
    """The kernel with the extents of the axes that it has."""
    used = {a for t in postorder(*_terms(kernel)) for a in (*t.free, *swept(t))}
    return Piece(kernel, buffers, {a: n for a, n in axes.items() if a in used})


def unsplittable(kernel: KernelForm, axis: str) -> str:
    """Why the sweeps over the axis cannot be split; nothing where they can."""
    found = [t for t in postorder(*_terms(kernel)) if axis in swept(t)]
    if not found:
        return f"the kernel does not sweep over {axis}"
    for t in found:
        if isinstance(t, T.Scan):
            return f"a scan along {axis} is not split"
        if isinstance(t, T.Stream) and steps(t) is None:
            return f"a stream over {axis} takes its positions one by one"
        if open_states(t):
            return f"a sweep over {axis} depends on the states of another"
    return ""


def streamed(kernel: KernelForm, axis: str) -> bool:
    """Whether a stream of the kernel sweeps over the axis."""
    return any(isinstance(t, T.Stream) and t.axis == axis for t in postorder(*_terms(kernel)))


def split_axis(kernel: KernelForm, buffers: Sequence[Buffer], axes: Mapping[str, int]) -> str | None:
    """The axis that is split: the longest that can be, the slowest in memory among equals."""
    able = [
        a for p in kernel.parts for a in memory_order(p, buffers, list(postorder(*_terms(kernel)))) if axes[a] > 1
    ]
    able = [a for a in able if not unsplittable(kernel, a)]
    return max(able, key=lambda a: axes[a]) if able else None


def _terms(kernel: KernelForm) -> list[Term]:
    return [t for s in kernel.stores for t in (s.value, *s.index)]


def piece_length(extent: int, count: int) -> int:
    """Positions of a piece: the last pieces are short or empty where they do not divide the axis."""
    least = max(1, -(-extent // max(count, 1)))
    return least if extent == least * count or least < NEIGHBOURS else -(-least // NEIGHBOURS) * NEIGHBOURS


def made_pieces(extent: int, count: int) -> int:
    """The pieces that launches make of an axis where so many are asked for: none is empty; asked for, they are made."""
    return max(1, -(-extent // piece_length(extent, count)))


def split_counts(extent: int, blocks: int, sms: int) -> tuple[int, ...]:
    """Numbers of pieces worth a look: for so many blocks a piece as the whole kernel has, and for one block a piece.

    The latter where a block may take a piece of all that the whole kernel's blocks do, which then are few.
    """
    if blocks >= 2 * sms:
        return ()
    per_block = [-(-fill * sms // max(blocks, 1)) for fill in FILLS]
    own = [2 * sms] if 2 * sms <= FAR * per_block[-1] else []
    wanted = (min(extent, n) for n in (*own, *per_block))
    return tuple(dict.fromkeys(n for n in (made_pieces(extent, _near(extent, n)) for n in wanted) if n > 1))


def _near(extent: int, wanted: int) -> int:
    """The number nearest to the wanted one that gives even pieces of whole vectors, or else the wanted one."""
    even = [n for n in range(-(-wanted * 2 // 3), wanted * 3 // 2 + 1) if extent % (n * VECTOR) == 0]
    return min(even, key=lambda n: (abs(n - wanted), n), default=wanted)


@dataclass(frozen=True)
class _Cut:
    """How an axis is cut: `length` positions, along `inner`, of each of `count` pieces, numbered by `outer`.

    What the pieces make is folded over `merging`. `taken` are the names that the kernel has.
    """

    axis: str
    extent: int
    count: int
    length: int
    outer: str
    inner: str
    merging: str
    taken: set[str]

    @staticmethod
    def launches(axis: str, extent: int, count: int, taken: set[str]) -> _Cut:
        """Pieces of a launch that another merges; the axis keeps its name inside a piece."""
        outer, merging, length = _fresh(f"{axis}p", taken), _fresh(f"{axis}m", taken), piece_length(extent, count)
        return _Cut(axis, extent, made_pieces(extent, count), length, outer, axis, merging, taken)

    @staticmethod
    def units(axis: str, extent: int, count: int, taken: set[str], whole: bool) -> _Cut:
        """Pieces of one launch, which merges them itself, equal or of `whole` vectors."""
        outer, inner = _fresh(f"{axis}p", taken), _fresh(f"{axis}i", taken)
        short = whole and extent % (count * VECTOR)
        length = -(-extent // (count * NEIGHBOURS)) * NEIGHBOURS if short else extent // count
        return _Cut(axis, extent, count, length, outer, inner, outer, taken)

    @cached_property
    def start(self) -> Term:
        """The first position of a piece."""
        return T.binary("mul", T.Index(self.outer), T.number(self.length))

    @cached_property
    def position(self) -> Term:
        """The position along the axis."""
        return T.binary("add", self.start, T.Index(self.inner))

    @cached_property
    def inside(self) -> Term | None:
        """Whether a position is one of the axis; None where every position of a piece is."""
        even = self.count * self.length == self.extent
        return None if even else T.binary("lt", self.position, T.number(self.extent))

    def cut(self, axis: str) -> tuple[str, ...]:
        """The axes in place of one: also that of pieces, where it is the one that is cut."""
        return (self.outer, self.axis) if axis == self.axis else (axis,)

    def placed(self, t: Term, kids: Sequence[Term]) -> Term:
        """The node at the position inside a piece, over which the states of other streams may go."""
        match t:
            case T.Index(self.axis):
                return self.position
            case T.State(name, dtype, axes) if self.axis in axes:
                return T.State(name, dtype, tuple(sorted({*axes} - {self.axis} | {self.outer, self.inner})))
        return with_children(t, kids)

    def masked(self, x: Term, monoid: str) -> Term:
        """A contribution at a position inside a piece, or the identity beyond the end of the axis."""
        if self.inside is None:
            return x
        match x:
            case T.Binary("mul", a, b) if monoid == "add" and a.free - b.free and b.free - a.free:
                return T.binary("mul", self.masked(a, monoid), self.masked(b, monoid))
        return T.select(self.inside, x, T.Identity(monoid))

    def within(self, x: Term, states: Mapping[str, Term] = _NONE, updates: Mapping[Term, Term] = _NONE) -> Term:
        """A term at the position inside a piece, over the states and updates of the piece."""

        def leaf(t: Term, kids: Sequence[Term]) -> Term:
            if isinstance(t, T.State) and t.name in states:
                return states[t.name]
            return updates[t] if t in updates else self.placed(t, kids)

        return rebuilt([x], leaf)[0]

    def folded(self, t: T.Fold, monoid: str) -> Term:
        """The fold over one piece."""
        over = tuple(self.inner if a == self.axis else a for a in t.axes)
        return T.fold(over, monoid, self.masked(self.within(t.x), t.monoid))

    def streamed(self, t: T.Stream) -> tuple[T.Carry, ...]:
        """The states of a stream over one piece; a position beyond the end contributes nothing.

        Raises where positions must be taken one by one, as far as can be told over merged results.
        """
        own: dict[str, Term] = {
            c.name: T.State(c.name, c.dtype, tuple(sorted({*state_axes(t, c), self.outer}))) for c in t.carries
        }
        updates: dict[Term, Term] = {}
        known = steps(t)
        if known is None:
            raise IRError(f"a stream over {self.axis} takes its positions one by one")
        for s in known:
            part = self.masked(self.within(s.part, own, updates), s.carry.monoid)
            moved = own[s.carry.name] if s.moved is None else self.within(s.moved, own, updates)
            updates[s.carry.update] = T.binary(MONOIDS[s.carry.monoid].combine, moved, part)
        return tuple(T.Carry(c.name, c.monoid, updates[c.update]) for c in t.carries)


def state_axes(t: T.Stream, c: T.Carry) -> frozenset[str]:
    """The axes of a state of a stream: its own where it is read, else those of what it is set to."""
    for k in postorder(*(other.update for other in t.carries)):
        if isinstance(k, T.State) and k.name == c.name:
            return frozenset(k.axes)
    return c.update.free - {t.axis}


class _Level:
    """The sweeps of a kernel that depend on no other: what one piece makes of each, and how the pieces merge."""

    def __init__(self, cut: _Cut, axes: Mapping[str, int]) -> None:
        self.cut, self.axes = cut, axes
        self.made: dict[Term, Term] = {}
        self.scratch: list[Buffer] = []
        self.stores: list[Store] = []
        self.parts: list[Part] = []

    def part(self, part: Part, buffers: Sequence[Buffer]) -> Part:
        """The part over merged results; its sweeps over pieces become a part of their own in `parts`."""
        terms = [t for s in part.stores for t in (s.value, *s.index)]
        self.order = memory_order(part, buffers, list(postorder(*terms)))
        self.stores = []
        for t in postorder(*terms):
            if isinstance(t, T.Stream) and self._ready(t):
                self._stream(t)
        part = with_terms(part, self._leaf)
        read = frozenset[str]().union(*(buffers_read(t) for s in part.stores for t in (s.value, *s.index)))
        kept = tuple(s for s in self.stores if s.buffer in read)
        if kept:
            free = frozenset[str]().union(*(s.axes for s in kept))
            self.parts.append(Part((self.cut.outer, *(a for a in self.order if a in free)), kept))
        return part

    def _ready(self, t: Term) -> bool:
        """Whether the node is a sweep over the axis that depends on no other and is not yet merged."""
        return self.cut.axis in swept(t) and levels(t)[self.cut.axis] == 1 and t not in self.made

    def _leaf(self, t: Term, kids: Sequence[Term]) -> Term:
        if isinstance(t, T.Fold) and self._ready(t):
            self.made[t] = self._fold(t)
        return self.made[t] if t in self.made else with_children(t, kids)

    def _fold(self, t: T.Fold) -> Term:
        """A fold as the fold of its pieces; of equally good pieces the first has the position."""
        row, over = MONOIDS[t.monoid], self.cut.merging
        if not row.pair:
            return T.fold(over, t.monoid, self._partial(self.cut.folded(t, t.monoid), t.free))
        where = self._partial(T.binary("add", self.cut.start, self.cut.folded(t, t.monoid)), t.free)
        best = self._partial(self.cut.folded(t, row.combine), t.free)
        hit = T.binary("eq", best, T.fold(over, row.combine, best))
        if is_float(best.dtype):
            hit = T.binary("or", hit, T.unary("isnan", best))
        return T.fold(over, "min", T.select(hit, where, T.Identity("min")))

    def _stream(self, t: T.Stream) -> None:
        """The last states of a stream from those of its pieces."""
        carries = self.cut.streamed(t)
        old = {
            c.name: self._partial(T.Stream(self.cut.inner, carries, c.name), state_axes(t, c)) for c in t.carries
        }
        merged: dict[Term, Term] = {}

        def leaf(k: Term, kids: Sequence[Term]) -> Term:
            if isinstance(k, T.State) and k.name in old:
                return old[k.name]
            return merged[k] if k in merged else with_children(k, kids)

        for s in steps(t) or ():
            moved = old[s.carry.name] if s.moved is None else rebuilt([s.moved], leaf)[0]
            total = T.fold(self.cut.merging, s.carry.monoid, moved)
            merged[s.carry.update] = self.made[T.Stream(t.axis, t.carries, s.carry.name)] = total
            if s.moved is None:
                self.made.setdefault(T.fold(t.axis, s.carry.monoid, s.part), total)

    def _partial(self, value: Term, free: frozenset[str]) -> Term:
        """Store what every piece makes, a value over the axes `free`; gives it back along the merging axis."""
        along = [a for a in self.order if a in free]
        shape = (self.cut.count, *(self.axes[a] for a in along))
        b = Buffer(
            _fresh(f"p{len(self.cut.taken)}", self.cut.taken), value.dtype, shape, contiguous(shape), role="scratch"
        )
        rest = tuple(map(T.Index, along))
        self.scratch.append(b)
        self.stores.append(Store(b.name, (T.Index(self.cut.outer), *rest), value))
        return T.Load(b.name, b.dtype, (T.Index(self.cut.merging), *rest))


class _Shared(_Level):
    """The sweeps of a kernel whose pieces are merged where they are made."""

    def _partial(self, value: Term, free: frozenset[str]) -> Term:
        return value


def _fresh(name: str, taken: set[str]) -> str:
    """A name that nothing has yet."""
    while name in taken:
        name += "p"
    taken.add(name)
    return name
