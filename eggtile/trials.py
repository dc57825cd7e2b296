"""What a kernel must compute on hard inputs: expected values from its own loop terms, and how far it may be off.

Values are float64. Where evaluating the terms is more work than `WORK`, the free axes are sampled: folds stay whole,
sizes are the real ones, and the gate holds every element to the fall-back schedule's kernel. An error is
max|y - y64| / max|y64|. Its bound is the error that the same terms make when numpy rounds them as they say and each
fold errs by (log2 n + sqrt n) roundoffs of its absolute sum (what a tree cannot, and a row is not likely to exceed:
Higham and Mary, 2019), plus a few roundoffs for the last operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from codegen.trial import CASES, FIRST, SPECIAL, Expected, Trial, largest, periods
from extract.facts import buffers_read
from extract.rewrite import Substitution, rebuilt, with_children
from extract.splits import Piece, split, unsplittable
from ir import meaning
from ir import term as T
from ir.dtype import DTYPES, Array, from_storage, is_float
from ir.loop import Buffer, KernelForm, Part
from ir.node import IRError, postorder
from ir.term_interp import Evaluator

WORK = 1 << 24  # element operations of one evaluation of a kernel's terms in all cases
LAST_ROUNDOFFS = 8 * 2.0**-24
CASE = "case"  # the axis along which the inputs of all cases lie; no program's axis has its name
MOST_STEPS = 512  # of a stream that are taken one by one
MULTIPLY_ADDS = 64  # of a contraction that take as long as one operation elsewhere


def only_written(kernel: KernelForm) -> set[str]:
    """Buffers of the kernel whose old content it does not use."""
    terms = [t for s in kernel.stores for t in (*s.index, s.value)]
    used = set[str]().union(*map(buffers_read, terms)) | {s.buffer for s in kernel.stores if s.monoid}
    return {s.buffer for s in kernel.stores} - used


class Memory:
    """A buffer in all cases, as an array with the case first of which only what is asked for is ever made."""

    def __init__(self, b: Buffer, drawn: Sequence[Array]) -> None:
        self.buffer, self.values = b, np.stack([from_storage(d, b.dtype) for d in drawn])
        self.shape = (len(drawn), *b.shape)
        self.ndim, self.size = len(self.shape), math.prod(self.shape)

    def __getitem__(self, where: tuple[Array, ...]) -> Array:
        """The elements at arrays of positions, one for each dimension."""
        case, *index = where
        at = sum((i * s for i, s in zip(index, self.buffer.strides, strict=True)), np.zeros((), np.int64))
        found: Array = self.values[case, at % max(1, self.values.shape[1])]
        return found

    def whole(self, case: int) -> Array:
        """All elements in one case."""
        return self[(np.asarray(case), *np.indices(self.buffer.shape, sparse=True))]


def trials(
    kernel: KernelForm, buffers: Sequence[Buffer], axes: Mapping[str, int], exact: bool, work: int = WORK
) -> list[Trial]:
    """What the kernel must compute in every case; NaN and infinities are fed and held in place where laws are `exact`."""
    terms = [t for s in kernel.stores for t in (*s.index, s.value)]
    exact = exact and not any(isinstance(t, T.Stream) for t in postorder(*terms))
    cases = [c for c in CASES if exact or c != SPECIAL]
    fresh = only_written(kernel)
    drawn = [periods(c, buffers, fresh, max(axes.values(), default=1)) for c in cases]
    memory = {b.name: Memory(b, [x[k] for x in drawn]) for k, b in enumerate(buffers) if b.name not in fresh}
    stages = _staged(kernel, buffers, axes)
    picks = _picked([_batched(p) for p in kernel.parts], {**axes, CASE: len(cases)}, work)
    right = _left_by(stages, picks, memory, len(cases), exact=True)
    near = _left_by(stages, picks, memory, len(cases), exact=False)
    number = {b.name: k for k, b in enumerate(buffers)}
    atomic = any(s.monoid == "add" and is_float(s.value.dtype) for s in kernel.stores)
    out = []
    for n, case in enumerate(cases):
        strict = exact or case == FIRST
        expected = tuple(
            _expected(number[r[n].buffer.name], r[n], z[n], strict) for r, z in zip(right, near, strict=True)
        )
        written: dict[int, Array] = {}
        for r in right:
            k = number[r[n].buffer.name]
            written[k] = np.concatenate([written.get(k, np.zeros(0, np.int64)), r[n].places])
        out.append(Trial(case, expected, written, not picks, not atomic))
    return out


# ---- what is evaluated


def _staged(kernel: KernelForm, buffers: Sequence[Buffer], axes: Mapping[str, int]) -> tuple[Piece, ...]:
    """The kernel, its longest stream in pieces where it has many steps: they are taken one by one, pieces side by side."""
    terms = [t for s in kernel.stores for t in (*s.index, s.value)]
    long = {t.axis for t in postorder(*terms) if isinstance(t, T.Stream) and axes[t.axis] > MOST_STEPS}
    able = [a for a in long if not unsplittable(kernel, a)]
    if not able:
        return (Piece(kernel, tuple(buffers), axes),)
    axis = max(able, key=lambda a: (axes[a], a))
    return split(kernel, buffers, axes, axis, math.isqrt(axes[axis]))


def _batched(part: Part) -> Part:
    """The part in all cases at once: every load has the number of the case as its first coordinate."""

    def leaf(t: T.Term, kids: Sequence[T.Term]) -> T.Term:
        if isinstance(t, T.Load):
            return T.Load(t.buffer, t.type, (T.Index(CASE), *kids))
        return with_children(t, kids)

    stores = []
    for s in part.stores:
        value, *index = rebuilt([s.value, *s.index], leaf)
        stores.append(replace(s, value=value, index=tuple(index)))
    return replace(part, stores=tuple(stores))


def _picked(parts: Sequence[Part], extents: Mapping[str, int], work: int) -> dict[str, Array]:
    """Positions of every free axis that is too long for the work; the first two and the last among them.

    An axis along which a scan runs stays whole: a prefix is that of all positions before.
    """
    values = [s.value for p in parts for s in p.stores]
    scanned = {t.axis for t in postorder(*values) if isinstance(t, T.Scan)}
    axes = sorted({a for p in parts for a in p.axes} - scanned)
    cap, caps = max((extents[a] for a in axes), default=1), dict[str, int]()
    while cap > 1 and _work(values, {**extents, **caps}) > work:
        cap = -(-cap // 2)
        caps = {a: cap for a in axes if extents[a] > cap}
    rng, out = np.random.default_rng(len(extents)), dict[str, Array]()
    for a in caps:
        ends = {0, 1, extents[a] - 1}
        inner = rng.choice(extents[a], max(cap - len(ends), 1), replace=False)
        out[a] = np.array(sorted(ends | {int(i) for i in inner}))
    return out


@dataclass(frozen=True)
class _Stored:
    buffer: Buffer
    places: Array
    values: Array


def _left_by(
    stages: Sequence[Piece], picks: Mapping[str, Array], memory: Mapping[str, Memory], cases: int, exact: bool
) -> list[list[_Stored]]:
    """What each store of the last stage leaves in each case; earlier ones leave their buffers in memory."""
    known: dict[str, Any] = dict(memory)
    out: list[list[_Stored]] = []
    for stage in stages:
        out = []
        for part in map(_batched, stage.kernel.parts):
            if not (picks and any(s.monoid for s in part.stores)):
                axes = {**stage.axes, CASE: cases}
                own = part if exact else _noisy(part, axes)
                out += _Sampled(own, axes, picks).run(stage.buffers, known, exact)
        for stored in out if stage is not stages[-1] else ():
            known[stored[0].buffer.name] = _filled(stored)
    return out


def _filled(stored: Sequence[_Stored]) -> Array:
    """A buffer in all cases, with zeros where nothing is stored."""
    b = stored[0].buffer
    made = np.zeros((len(stored), b.size), stored[0].values.dtype)
    for n, x in enumerate(stored):
        made[n][x.places] = x.values
    return made.reshape(len(stored), *b.shape)


class _Sampled:
    """The stores of a part over all positions of its axes, or over those that are picked."""

    def __init__(self, part: Part, axes: Mapping[str, int], picks: Mapping[str, Array]) -> None:
        self.axes, self.picks = dict(axes), dict[str, Array]()
        self.stores = [(s, s.index, s.value) for s in part.stores]
        substitute = Substitution(axes)
        for a in sorted(picks.keys() & part.axes):
            self._restrict(a, picks[a], substitute)
        self.axes |= substitute.extents

    def _restrict(self, axis: str, places: Array, substitute: Substitution) -> None:
        """The axis gives way to a new one that runs over picked positions."""
        index = T.Load(f"picked {axis}", "i64", (T.Index(f"some {axis}"),))
        moved = []
        for s, at, value in self.stores:
            new = [substitute(t, axis, index) for t in (*at, value)]
            kept = [t for t in new if t is not None]
            if len(kept) < len(new):
                raise IRError(f"axis {axis} cannot be sampled")
            moved.append((s, tuple(kept[:-1]), kept[-1]))
        self.stores = moved
        self.picks[f"picked {axis}"] = places
        self.axes[f"some {axis}"] = len(places)

    def run(self, buffers: Sequence[Buffer], memory: Mapping[str, Any], exact: bool) -> list[list[_Stored]]:
        """What each store leaves in each case: places in the storage, and values as the buffer keeps them."""
        known = {**memory, **self.picks}
        named = {b.name: b for b in buffers}
        evaluator = Evaluator([t for _, at, v in self.stores for t in (*at, v)], self.axes, known, exact, {})
        out: list[list[_Stored]] = []
        for s, at, value in self.stores:
            b = named[s.buffer]
            order = (CASE, *sorted(value.free.union(*(t.free for t in at)) - {CASE}))
            values = evaluator.over(value, order, b.dtype)
            index = [np.asarray(evaluator.over(t, order), np.int64) for t in at]
            out.append([])
            for n in range(self.axes[CASE]):
                old = memory[b.name].whole(n) if s.monoid else None
                out[-1].append(_stored(b, s.monoid, old, [i[n] for i in index], values[n], exact))
        return out


def _stored(
    b: Buffer, monoid: str | None, old: Array | None, index: list[Array], values: Array, exact: bool
) -> _Stored:
    """One store in one case; an update (`old` is what it meets) leaves the whole buffer."""
    inside = np.ones(values.shape, bool)
    for i, n in zip(index, b.shape, strict=True):
        inside &= (i >= 0) & (i < n)
    index, values = [i[inside] for i in index], values[inside]
    if old is not None:
        base = meaning.convert(old, b.dtype, exact)[None]
        at = (np.zeros(values.shape, np.int64), *index)
        values = meaning.scatter(monoid, base, at, values, b.dtype, exact).ravel()
        index = [i.ravel() for i in np.indices(b.shape)]
    places = sum((i * n for i, n in zip(index, b.strides, strict=True)), np.zeros(values.shape, np.int64))
    return _Stored(b, places, meaning.convert(values, b.dtype, exact))


def _work(values: Sequence[T.Term], extents: Mapping[str, int]) -> int:
    """Element operations of one evaluation: every node over its axes; products that a sum takes in cost less."""
    nodes = list(postorder(*values))
    taken = {t.x for t in nodes if isinstance(t, T.Fold) and t.monoid == "add" and _is_product(t.x)}
    return sum(math.prod(extents[a] for a in t.free) // (MULTIPLY_ADDS if t in taken else 1) for t in nodes)


def _is_product(t: T.Term) -> bool:
    return isinstance(t, T.Binary) and meaning.operands(t)[0] == "mul"


def _noisy(part: Part, axes: Mapping[str, int]) -> Part:
    """The part with the error of each float fold added to it."""

    def leaf(t: T.Term, kids: Sequence[T.Term]) -> T.Term:
        new = with_children(t, kids)
        if not isinstance(t, T.Fold | T.Scan) or not is_float(t.dtype) or t.monoid not in ("add", "mul"):
            return new
        swept = t.axes if isinstance(t, T.Fold) else (t.axis,)
        n = max(2, math.prod(axes[a] for a in swept))
        error = T.const((math.log2(n) + math.sqrt(n)) * DTYPES[t.dtype].unit_roundoff, t.dtype)
        whole = new if t.monoid == "mul" else with_children(t, [_magnitude(kids[0])])
        return T.binary("add", new, T.binary("mul", error, whole))

    values = rebuilt([s.value for s in part.stores], leaf)
    return replace(part, stores=tuple(replace(s, value=v) for s, v in zip(part.stores, values, strict=True)))


def _magnitude(x: T.Term) -> T.Term:
    if isinstance(x, T.Binary) and _is_product(x):
        return T.binary("mul", T.unary("abs", x.x), T.unary("abs", x.y))
    return T.unary("abs", x)


def _expected(number: int, right: _Stored, near: _Stored, strict: bool) -> Expected:
    """Elements that are held to a bound, and those that are NaN or infinite in both evaluations."""
    b = right.buffer
    y, z = np.asarray(right.values, np.float64), np.asarray(near.values, np.float64)
    odd = np.zeros(y.shape, bool)
    bound = 0.0
    if is_float(b.dtype):
        kept = np.isfinite(y) & np.isfinite(z)
        bound = float(np.abs(y[kept] - z[kept]).max(initial=0.0)) / largest(y[kept])
        bound += DTYPES[b.dtype].unit_roundoff + LAST_ROUNDOFFS
        odd = ~np.isfinite(y) & ((y == z) | (np.isnan(y) & np.isnan(z))) if strict else odd
    else:
        kept = y == z
    return Expected(number, right.places[kept], y[kept], bound, right.places[odd], y[odd])
