"""What a kernel must compute on hard inputs: expected values from its own loop terms, and how far it may be off.

Values are float64. Where evaluating the terms is more work than `WORK`, the free axes are sampled: folds stay whole,
sizes are the real ones, and the gate holds every element to the fall-back schedule's kernel. An error is
max|y - y64| / max|y64|. Its bound is the error that the same terms make when numpy rounds them as they say and each
fold errs by (log2 n + sqrt n) roundoffs of its absolute sum (what a tree cannot, and a row is not likely to exceed:
Higham and Mary, 2019), plus a few roundoffs for the last operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from extract.facts import buffers_read
from extract.rewrite import Substitution, rebuilt, with_children
from ir import meaning
from ir import term as T
from ir.dtype import DTYPES, Array, from_storage, is_float, rounded, storage_type, to_storage
from ir.loop import Buffer, KernelForm, Part
from ir.node import IRError, postorder
from ir.term_interp import Evaluator

WORK = 1 << 24  # element operations of one evaluation of a kernel's terms in all cases
LAST_ROUNDOFFS = 8 * 2.0**-24
CASE = "case"  # the axis along which the inputs of all cases lie; no program's axis has its name
PERIOD = 1_000_003  # values repeat after a prime number of elements, so rows of large buffers still differ
MULTIPLY_ADDS = 64  # of a contraction that take as long as one operation elsewhere


# ---- inputs

Draw = Callable[[np.random.Generator, int, float], Array]
"""Float values from a generator: their number, and the greatest value of their type."""


def _with(x: Array, rng: np.random.Generator, values: Sequence[float], one_in: int) -> Array:
    where = rng.integers(0, one_in, x.size) == 0
    return np.where(where, rng.choice(np.array(values), x.size), x)


@dataclass(frozen=True)
class Case:
    """Inputs of one kind: floats by `draw`, masks with a share of True, integers up to `past` outside the axes."""

    draw: Draw
    true: float = 0.5
    past: int = 0


FIRST, SPECIAL = "random", "special"
CASES = {
    "random": Case(lambda rng, n, most: rng.standard_normal(n)),
    "offset": Case(lambda rng, n, most: rng.standard_normal(n) + 1e4, past=3),
    "huge": Case(lambda rng, n, most: rng.uniform(-1, 1, n) * min(most, 1e30), true=1.0),
    "zeros": Case(lambda rng, n, most: _with(rng.standard_normal(n), rng, (0.0, -0.0), 2), true=0.0),
    SPECIAL: Case(lambda rng, n, most: _with(rng.standard_normal(n), rng, (np.nan, np.inf, -np.inf), 97)),
}
MOST: Mapping[str, float] = {"f16": 65504.0}


def span(b: Buffer) -> int:
    """Elements from the first to the last of a strided buffer."""
    return 1 + sum((n - 1) * s for n, s in zip(b.shape, b.strides, strict=True)) if b.size else 0


def only_written(kernel: KernelForm) -> set[str]:
    """Buffers of the kernel whose old content it does not use."""
    terms = [t for s in kernel.stores for t in (*s.index, s.value)]
    used = set[str]().union(*map(buffers_read, terms)) | {s.buffer for s in kernel.stores if s.monoid}
    return {s.buffer for s in kernel.stores} - used


def storage(case: str, buffers: Sequence[Buffer], fresh: set[str], largest: int) -> list[Array]:
    """The memory of every buffer before the launch, in the storage type; `fresh` buffers hold poison."""
    rng = np.random.default_rng([ord(c) for c in case])
    return [_poison(b, CASES[case]) if b.name in fresh else _drawn(b, CASES[case], rng, largest) for b in buffers]


def _poison(b: Buffer, case: Case) -> Array:
    pattern = 0xFF if is_float(b.dtype) else int(case.true == 0) if b.dtype == "bool" else 0x5A
    return np.full(span(b) * DTYPES[b.dtype].bytes, pattern, np.uint8).view(storage_type(b.dtype))


def _drawn(b: Buffer, case: Case, rng: np.random.Generator, largest: int) -> Array:
    count = min(span(b), PERIOD)
    if is_float(b.dtype):
        values = case.draw(rng, count, MOST.get(b.dtype, math.inf))
    elif b.dtype == "bool":
        values = rng.random(count) < case.true
    else:
        values = rng.integers(-case.past, max(1, largest) + case.past, count)
    return np.resize(to_storage(rounded(values, b.dtype), b.dtype), span(b))


# ---- expected values


@dataclass(frozen=True)
class Expected:
    """Elements of a buffer: at `places` the `values`, within `bound` of their largest; at `odd` NaN and infinities."""

    buffer: int
    places: Array
    values: Array
    bound: float
    odd: Array
    odd_values: Array


@dataclass(frozen=True)
class Trial:
    """One case of a kernel; where `whole`, every element outside `written` (by buffer) must stay as it was."""

    case: str
    expected: tuple[Expected, ...]
    written: Mapping[int, Array]
    whole: bool
    same_twice: bool


def trials(
    kernel: KernelForm, buffers: Sequence[Buffer], axes: Mapping[str, int], exact: bool, work: int = WORK
) -> list[Trial]:
    """What the kernel must compute in every case; NaN and infinities are fed and held in place where laws are `exact`."""
    terms = [t for s in kernel.stores for t in (*s.index, s.value)]
    exact = exact and not any(isinstance(t, T.Stream) for t in postorder(*terms))
    cases = [c for c in CASES if exact or c != SPECIAL]
    fresh, largest = only_written(kernel), max(axes.values(), default=1)
    drawn = [storage(c, buffers, fresh, largest) for c in cases]
    memory = {
        b.name: np.stack([from_storage(_view(x[k], b), b.dtype) for x in drawn])
        for k, b in enumerate(buffers)
        if b.name not in fresh
    }
    parts = [_batched(p) for p in kernel.parts]
    extents = {**axes, CASE: len(cases)}
    samples = [_Sampled(p, extents, work) for p in parts]
    noisy = [_Sampled(_noisy(p, axes), extents, work, s.caps) for p, s in zip(parts, samples, strict=True)]
    right = [x for s in samples for x in s.run(buffers, memory, exact=True)]
    near = [x for s in noisy for x in s.run(buffers, memory, exact=False)]
    atomic = any(s.monoid == "add" and is_float(s.value.dtype) for s in kernel.stores)
    out = []
    for n, case in enumerate(cases):
        strict = exact or case == FIRST
        expected = tuple(_expected(buffers, r[n], z[n], strict) for r, z in zip(right, near, strict=True))
        written: dict[int, Array] = {}
        for r in right:
            written[r[n].buffer] = np.concatenate([written.get(r[n].buffer, np.zeros(0, np.int64)), r[n].places])
        out.append(Trial(case, expected, written, not any(s.caps for s in samples), not atomic))
    return out


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


def _view(stored: Array, b: Buffer) -> Array:
    steps = [s * stored.itemsize for s in b.strides]
    return np.lib.stride_tricks.as_strided(stored, b.shape, steps, writeable=False)


@dataclass(frozen=True)
class _Stored:
    buffer: int
    places: Array
    values: Array


class _Sampled:
    """The stores of a part over all of its axes, or over as many of each as the work allows."""

    def __init__(
        self, part: Part, axes: Mapping[str, int], work: int, caps: Mapping[str, int] | None = None
    ) -> None:
        self.part, self.axes, self.picks = part, dict(axes), dict[str, Array]()
        self.stores = [(s, s.index, s.value) for s in part.stores]
        self.caps = dict(caps or {})
        cap = max((axes[a] for a in part.axes), default=1)
        while caps is None and cap > 1 and _work([v for _, _, v in self.stores], {**axes, **self.caps}) > work:
            cap = -(-cap // 2)
            self.caps = {a: cap for a in part.axes if axes[a] > cap}
        if any(s.monoid for s in part.stores) and self.caps:
            self.stores, self.caps = [], dict.fromkeys(part.axes, 0)
        self._restrict(Substitution(axes))

    def _restrict(self, substitute: Substitution) -> None:
        """Each capped axis gives way to a new one that runs over picked positions."""
        rng = np.random.default_rng(len(self.axes))
        for a, cap in self.caps.items() if self.stores else ():
            index = T.Load(f"picked {a}", "i64", (T.Index(f"some {a}"),))
            moved = []
            for s, at, value in self.stores:
                new = [substitute(t, a, index) for t in (*at, value)]
                kept = [t for t in new if t is not None]
                if len(kept) < len(new):
                    raise IRError(f"axis {a} cannot be sampled")
                moved.append((s, tuple(kept[:-1]), kept[-1]))
            self.stores = moved
            ends = {0, 1, self.axes[a] - 1}
            inner = rng.choice(self.axes[a], max(cap - len(ends), 1), replace=False)
            self.picks[f"picked {a}"] = np.array(sorted(ends | {int(i) for i in inner}))
            self.axes[f"some {a}"] = len(self.picks[f"picked {a}"])
        self.axes |= substitute.extents

    def run(self, buffers: Sequence[Buffer], memory: Mapping[str, Array], exact: bool) -> list[list[_Stored]]:
        """What each store leaves in each case: places in the storage, and values as the buffer keeps them."""
        known = {**memory, **self.picks}
        number = {b.name: k for k, b in enumerate(buffers)}
        evaluator = Evaluator([t for _, at, v in self.stores for t in (*at, v)], self.axes, known, exact, {})
        out: list[list[_Stored]] = []
        for s, at, value in self.stores:
            b = buffers[number[s.buffer]]
            order = (CASE, *sorted(value.free.union(*(t.free for t in at)) - {CASE}))
            values = evaluator.over(value, order, b.dtype)
            index = [np.asarray(evaluator.over(t, order), np.int64) for t in at]
            out.append([])
            for n in range(self.axes[CASE]):
                old = memory[b.name][n] if s.monoid else None
                out[-1].append(_stored(number[b.name], b, s.monoid, old, [i[n] for i in index], values[n], exact))
        return out


def _stored(
    k: int, b: Buffer, monoid: str | None, old: Array | None, index: list[Array], values: Array, exact: bool
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
    return _Stored(k, places, meaning.convert(values, b.dtype, exact))


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


def _expected(buffers: Sequence[Buffer], right: _Stored, near: _Stored, strict: bool) -> Expected:
    """Elements that are held to a bound, and those that are NaN or infinite in both evaluations."""
    b = buffers[right.buffer]
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
    return Expected(right.buffer, right.places[kept], y[kept], bound, right.places[odd], y[odd])


def largest(y: Array) -> float:
    """What errors are relative to: 1 where all values are 0."""
    return float(np.abs(y).max(initial=0.0)) or 1.0
