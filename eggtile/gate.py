"""The gate on one kernel's binary: what it must compute on hard inputs, and whether the memory it leaves says so.

Expected values come from the kernel's own loop terms in float64. Where that is more work than `WORK`, the free axes
are sampled (folds stay whole, sizes are the real ones), and every element is held to the fall-back schedule's kernel.
An error is max|y - y64| / max|y64|. It may be FACTOR times the bound: the error that the same terms make when numpy
rounds them as they say and each fold errs by (log2 n + sqrt n) roundoffs of its absolute sum (the deterministic bound
of a tree and the probabilistic one of a row: Higham and Mary, 2019), plus a few roundoffs for the last operations.
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
FACTOR = 4.0
LAST_ROUNDOFFS = 8 * 2.0**-24
OTHER_ROUNDOFFS = 64  # between two kernels, where no element has a bound of its own
GUARD_BYTES = 4096
GUARD = 0xA5
CASE = "case"  # the axis along which the inputs of all cases lie; no program's axis has its name
PERIOD = 1_000_003  # values repeat after a prime number of elements, so rows of large buffers still differ
MULTIPLY_ADDS = 64  # of a contraction that take as long as one operation elsewhere


class GateError(IRError):
    """A kernel whose memory, once it has run, is not what it must be; the message is one sentence."""


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
                    raise GateError(f"axis {a} cannot be sampled")
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
        bound = float(np.abs(y[kept] - z[kept]).max(initial=0.0)) / _largest(y[kept])
        bound += DTYPES[b.dtype].unit_roundoff + LAST_ROUNDOFFS
        odd = ~np.isfinite(y) & ((y == z) | (np.isnan(y) & np.isnan(z))) if strict else odd
    else:
        kept = y == z
    return Expected(right.buffer, right.places[kept], y[kept], bound, right.places[odd], y[odd])


def _largest(y: Array) -> float:
    return float(np.abs(y).max(initial=0.0)) or 1.0


# ---- memory around a launch

Run = Callable[[list[Array], list[int]], None]
"""Launches a kernel on byte images of its buffers, changed in place; the integers say where each buffer starts."""


def image(stored: Array, b: Buffer) -> tuple[Array, int]:
    """A buffer's bytes between guards, and where they start: aligned as promised, and no better."""
    start = GUARD_BYTES + b.alignment
    made = np.full(start + stored.nbytes + GUARD_BYTES, GUARD, np.uint8)
    made[start : start + stored.nbytes] = stored.view(np.uint8)
    return made, start


def launched(run: Run, buffers: Sequence[Buffer], before: Sequence[Array]) -> list[Array]:
    """The storage of every buffer after a launch; raises where bytes around one have changed."""
    images, starts = map(list, zip(*map(image, before, buffers), strict=True))
    run(images, starts)
    out = []
    for b, made, start, old in zip(buffers, images, starts, before, strict=True):
        for side, guard in (("before", made[:start]), ("past", made[start + old.nbytes :])):
            if (guard != GUARD).any():
                raise GateError(f"{b.name} is written {side} its {'start' if side == 'before' else 'end'}")
        out.append(made[start : start + old.nbytes].view(old.dtype))
    return out


@dataclass(frozen=True)
class Verdict:
    """Whether a kernel passed; error and bound in the first trial, of the buffer that came nearest to its bound."""

    status: str
    error: float = 0.0
    bound: float = 0.0
    reason: str = ""


def gate(
    run: Run,
    buffers: Sequence[Buffer],
    given: Sequence[tuple[Trial, list[Array]]],
    reference: Sequence[Array] | None = None,
) -> Verdict:
    """Launch on the memory of every trial; `reference` is what another kernel leaves in the first one."""
    error = bound = 0.0
    try:
        for k, (trial, before) in enumerate(given):
            after = launched(run, buffers, before)
            if k == 0 and trial.same_twice:
                again = launched(run, buffers, before)
                if any(x.tobytes() != y.tobytes() for x, y in zip(after, again, strict=True)):
                    raise GateError("two launches give different bits")
            check_kept(trial, buffers, before, after)
            for e in trial.expected:
                off = check_values(e, buffers[e.buffer], trial.case, after[e.buffer])
                if k == 0 and off * bound >= error * e.bound:
                    error, bound = off, e.bound
            if k == 0 and reference is not None:
                check_alike(trial, buffers, after, reference)
    except GateError as e:
        return Verdict("wrong", error, bound, str(e))
    return Verdict("ok", error, bound)


def check_kept(trial: Trial, buffers: Sequence[Buffer], before: Sequence[Array], after: Sequence[Array]) -> None:
    """Elements that the kernel must not write are as they were."""
    for k, (b, old, new) in enumerate(zip(buffers, before, after, strict=True)):
        if b.role == "output" and not trial.whole:
            continue
        kept = np.ones(old.size, bool)
        kept[trial.written.get(k, np.zeros(0, np.int64))] = False
        if (old[kept].view(np.uint8) != new[kept].view(np.uint8)).any():
            raise GateError(f"{trial.case}: {b.name} has changed where nothing is stored")


def check_values(e: Expected, b: Buffer, case: str, stored: Array) -> float:
    """The error of the elements of a buffer; raises where it is too large."""
    odd = from_storage(stored[e.odd], b.dtype)
    if not np.array_equal(odd.astype(np.float64), e.odd_values, equal_nan=True):
        raise GateError(f"{case}: NaN and infinities of {b.name} are not in place")
    got = from_storage(stored[e.places], b.dtype).astype(np.float64)
    with np.errstate(all="ignore"):
        off = float(np.abs(got - e.values).max(initial=0.0)) / _largest(e.values)
    if not off <= FACTOR * e.bound:
        raise GateError(f"{case}: {b.name} has error {off:.3g}, its bound is {e.bound:.3g}")
    return off


def check_alike(
    trial: Trial, buffers: Sequence[Buffer], after: Sequence[Array], reference: Sequence[Array]
) -> None:
    """Every element is what another kernel of the same terms left, within what both may err."""
    bounds = {e.buffer: e.bound for e in trial.expected}
    for k, (b, x, y) in enumerate(zip(buffers, after, reference, strict=True)):
        if b.role != "output" or x.tobytes() == y.tobytes():
            continue
        got, other = (from_storage(v, b.dtype).astype(np.float64) for v in (x, y))
        finite = np.isfinite(other)
        if not np.array_equal(got[~finite], other[~finite], equal_nan=True):
            raise GateError(f"{b.name}: NaN and infinities differ from the fall-back's")
        off = float(np.abs(got - other)[finite].max(initial=0.0)) / _largest(other[finite])
        if not off <= 2 * FACTOR * bounds.get(k, OTHER_ROUNDOFFS * DTYPES[b.dtype].unit_roundoff):
            raise GateError(f"{b.name} differs from the fall-back by {off:.3g}")
