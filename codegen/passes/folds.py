"""Folds over registers, lanes (butterflies of shuffles), warps, and blocks of a cluster (shared slots for each fold)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from codegen.passes.nest import THREAD, Nests
from codegen.passes.terms import assigned, conjunction, digit, linear, widened
from ir import kernel as K
from ir import meaning
from ir import term as T
from ir.dtype import DTYPES, DType, compute_type, is_float
from ir.layout import LANES, Layout, Mode
from ir.ops import MONOIDS
from ir.term import Term, Var

VECTOR_BYTES = 16
CHAINS = 4
"""Independent additions that hide the latency of one."""


@dataclass(frozen=True)
class Algebra:
    """How partial results of a monoid combine; a pair monoid keeps a value and its position."""

    monoid: str
    dtypes: tuple[DType, ...]
    limit: int

    @staticmethod
    def of(monoid: str, dtype: DType, extent: int) -> Algebra:
        """The algebra for values of `dtype`, and positions below `extent` along the axis."""
        value = compute_type(dtype)
        place = ("i32" if extent < 1 << 31 else "i64",) if MONOIDS[monoid].pair else ()
        return Algebra(monoid, (value, *place), extent)

    @property
    def identity(self) -> tuple[Term, ...]:
        """The components of the identity; its position is past every other."""
        value = T.const(meaning.identity(self.monoid, self.dtypes[0]), self.dtypes[0])
        return (value, *(T.const(self.limit, d) for d in self.dtypes[1:]))

    def combine(self, left: Sequence[Term], right: Sequence[Term], body: Nests) -> tuple[Term, ...]:
        """The components of left (+) right; the open nest gets the choice of a pair as a scalar."""
        if not MONOIDS[self.monoid].pair:
            return (T.binary(MONOIDS[self.monoid].combine, left[0], right[0]),)
        name = body.names.fresh("wins")
        body.inner.append(K.Let(name, self.wins(left, right)))
        wins = Var(name, "bool", ())
        return tuple(T.select(wins, r, x) for x, r in zip(left, right, strict=True))

    def tree(self, items: Sequence[Sequence[Term]], body: Nests) -> Sequence[Term]:
        """All items combined pair by pair: short chains of dependent operations, and small rounding errors."""
        while len(items) > 1:
            pairs = zip(items[::2], items[1::2], strict=False)
            items = [*(self.combine(x, y, body) for x, y in pairs), *items[len(items) // 2 * 2 :]]
        return items[0]

    def wins(self, left: Sequence[Term], right: Sequence[Term]) -> Term:
        """Whether the right pair replaces the left: better, or as good and earlier; NaN is best."""
        (a, i), (b, j) = left, right
        better = T.binary("lt", a, b) if MONOIDS[self.monoid].combine == "max" else T.binary("lt", b, a)
        equal, earlier = T.binary("eq", a, b), T.binary("lt", j, i)
        if is_float(a.dtype):
            nan_a, nan_b = T.unary("isnan", a), T.unary("isnan", b)
            better = T.binary("or", better, T.binary("and", nan_b, T.unary("not", nan_a)))
            equal = T.binary("or", equal, T.binary("and", nan_a, nan_b))
        return T.binary("or", better, T.binary("and", equal, earlier))


@dataclass
class Partial:
    """Register arrays that hold partial results over the digits of register modes, one for each component.

    Of every element there are `chains`, which are independent until they are joined.
    """

    nests: Nests
    algebra: Algebra
    modes: tuple[Mode, ...]
    arrays: tuple[str, ...]
    chains: int = 1

    @staticmethod
    def new(nests: Nests, algebra: Algebra, modes: tuple[Mode, ...], wish: str, chains: int = 1) -> Partial:
        size = chains * math.prod(m.size for m in modes)
        names = [f"{wish}{'_place' * k}" for k in range(len(algebra.dtypes))]
        arrays = tuple(nests.array(n, d, size) for n, d in zip(names, algebra.dtypes, strict=True))
        return Partial(nests, algebra, modes, arrays, chains)

    @property
    def here(self) -> tuple[Term, ...]:
        """The components at the element at hand."""
        return self.chain(T.const(0, "i32"))

    def place(self, chain: Term) -> Term:
        """The register of a chain of the element at hand."""
        first = T.binary("mul", self.nests.register(self.modes), T.const(self.chains, "i32"))
        return T.binary("add", first, chain)

    def chain(self, chain: Term) -> tuple[Term, ...]:
        """The components of a chain of the element at hand."""
        at = self.place(chain)
        return tuple(T.Load(a, d, (at,)) for a, d in zip(self.arrays, self.algebra.dtypes, strict=True))

    def set(self, values: Sequence[Term], chain: Term | None = None) -> None:
        """Assign the components at the element at hand in the open nest."""
        at = self.place(chain or T.const(0, "i32"))
        for array, dtype, value in zip(self.arrays, self.algebra.dtypes, values, strict=True):
            self.nests.inner.append(K.Assign(array, at, assigned(value, dtype)))

    def absorb(self, values: Sequence[Term], chain: Term | None = None) -> None:
        """self = self (+) values at the element at hand."""
        chain = chain or T.const(0, "i32")
        self.set(self.algebra.combine(self.chain(chain), values, self.nests), chain)

    def clear(self) -> None:
        """A nest in front of the open one that sets every element to the identity."""
        with self.nests.now(self.modes):
            for k in range(self.chains):
                self.set(self.algebra.identity, T.const(k, "i32"))

    def join(self, chained: Partial) -> None:
        """A nest that sets every element to the product of its chains elsewhere."""
        with self.nests.now(self.modes):
            chains = [chained.chain(T.const(k, "i32")) for k in range(chained.chains)]
            self.set(self.algebra.tree(chains, self.nests))

    def copy(self, wish: str) -> Partial:
        """The same partial results in arrays of their own."""
        out = Partial.new(self.nests, self.algebra, self.modes, wish)
        with self.nests.now(self.modes):
            out.set(self.here)
        return out


def begin_fold(nests: Nests, axes: tuple[str, ...], monoid: str, x: Var, value: Term, result: Var) -> str:
    """Fold the tile `x`, whose element at hand is `value`, into registers in the open nest; the rest when it closes.

    Returns the array that then holds the result in every thread that needs it.
    """
    algebra = Algebra.of(monoid, x.dtype, nests.part.axis(axes[0]).extent)
    kept, folded = nests.modes(result.axes), [m for m in nests.modes(x.axes) if m.axis in axes]
    beyond = [a for a in axes if nests.layouts.over((a,)).cover(a) > nests.part.axis(a).tile]
    inside = conjunction([T.binary("lt", nests.local(a), T.number(nests.part.axis(a).tile)) for a in beyond])
    pairs = inside is None and _in_pairs(algebra, x, nests.modes(x.axes), axes)
    chains = max(_chains(kept, folded), 2 if pairs else 1)
    narrow = replace(algebra, dtypes=(x.dtype,)) if pairs else algebra
    partial = Partial.new(nests, narrow, kept, f"{result.name}_chain" if chains > 1 else result.name, chains)
    total = Partial.new(nests, algebra, kept, result.name) if chains > 1 else partial
    partial.clear()
    step = 2 if pairs else 1
    pair = T.binary("floordiv", nests.register(folded), T.const(step, "i32"))
    chain = T.binary("mul", T.binary("mod", pair, T.const(chains // step, "i32")), T.const(step, "i32"))
    if pairs and isinstance(value, T.Load):
        op = MONOIDS[monoid].combine
        body = nests.over(x.axes, step, "pairs")
        body.append(K.Pairwise(partial.arrays[0], partial.place(chain), op, value.buffer, value.index[0]))
    else:
        nests.over(x.axes)
        components = [value, *(T.round_to(d, "cast", nests.coordinate(axes[0])) for d in algebra.dtypes[1:])]
        if inside is not None:
            components = [T.select(inside, c, e) for c, e in zip(components, algebra.identity, strict=True)]
        partial.absorb(components, chain)
    final = total.arrays[-1]
    if result.dtype != algebra.dtypes[-1]:
        final = nests.array(f"{result.name}_fold", result.dtype, nests.registers(result.axes))

    def finish() -> None:
        if chains > 1:
            total.join(partial)
        _finish(total, nests.layouts.over(x.axes), axes, result, final)

    nests.after.append(finish)
    return final


def _in_pairs(algebra: Algebra, x: Var, modes: Sequence[Mode], axes: Sequence[str]) -> bool:
    """Whether two neighbouring registers of 16-bit floats fold at once, which rounds nothing."""
    exact = algebra.monoid in ("max", "min") and x.dtype in ("f16", "bf16")
    return exact and bool(modes) and modes[0].axis in axes and modes[0].size % 2 == 0


def _chains(kept: Sequence[Mode], folded: Sequence[Mode]) -> int:
    """How many chains each result is folded in: few results need several, so that additions overlap."""
    wanted = min(CHAINS // math.prod(m.size for m in kept), math.prod(m.size for m in folded))
    return 1 << (wanted.bit_length() - 1) if wanted else 1


def _finish(partial: Partial, layout: Layout, axes: tuple[str, ...], result: Var, final: str) -> None:
    """Combine over the lanes, warps and blocks among which `axes` are spread."""
    nests, block = partial.nests, partial.nests.layouts.block
    digits = layout.digits(axes, block)
    for before, size, _ in digits:
        if before < LANES:
            for bit in range(size.bit_length() - 1):
                other = shuffled(partial, before << bit)
                with nests.now(partial.modes):
                    partial.absorb(other.here)
    for unit, end in ((LANES, block), (block, nests.layouts.threads)):
        units = [(size, before // unit) for before, size, _ in digits if unit <= before < end]
        if units:
            _gather(partial, Slots.fill(partial, layout.project(result.axes), unit, unit == block), units)
    if final != partial.arrays[-1]:
        with nests.now(partial.modes):
            value = T.round_to(result.dtype, "cast", partial.here[-1])
            nests.inner.append(K.Assign(final, nests.register(partial.modes), value))


def shuffled(partial: Partial, mask: int) -> Partial:
    """The partial results of the lane whose number differs in `mask`."""
    other = Partial.new(partial.nests, partial.algebra, partial.modes, "other")
    with partial.nests.now(partial.modes):
        at = partial.nests.register(partial.modes)
        for array, value in zip(other.arrays, partial.here, strict=True):
            partial.nests.inner.append(K.Shuffle(array, at, value, mask))
    return other


@dataclass
class Slots:
    """Shared arrays with a slot for each (register, kept thread of a unit, unit) of a partial result, the unit fastest.

    Units are warps, or blocks of a cluster: threads that have already agreed.
    """

    shared: tuple[str, ...]
    key: Term
    kept: int
    own: Term
    units: int

    @staticmethod
    def fill(partial: Partial, kept: Layout, unit: int, everywhere: bool) -> Slots:
        """Every unit of so many threads leaves its results in its slots; `kept` is the layout of the tile they make up.

        With `everywhere`, in the slots of every block.
        """
        nests, key, place, count = partial.nests, dict[Term, int](), dict[Term, int](), 1
        for before, size, mode in kept.digits({m.axis for m in kept.thread if m.axis}, nests.layouts.block):
            if before < unit:
                key[digit(THREAD, before, size)] = count
                place[digit(THREAD, before, size)] = before
                count *= mode.size
        shared = tuple(nests.names.fresh("slots") for _ in partial.arrays)
        own, units = T.binary("floordiv", THREAD, T.number(unit)), nests.layouts.threads // unit
        out = Slots(shared, linear(key), count, own, units)
        size = math.prod(m.size for m in partial.modes) * count * units
        nests.out += [K.Shared(n, d, size) for n, d in zip(shared, partial.algebra.dtypes, strict=True)]
        with nests.now(partial.modes):
            at = nests.register(partial.modes)
            sender = T.binary("eq", T.binary("mod", THREAD, T.number(unit)), linear(place))
            for name, array in zip(shared, partial.arrays, strict=True):
                nests.inner.append(K.StoreShared(name, out.at(at, own), array, at, 1, sender, everywhere))
        return out

    def at(self, register: Term, unit: Term) -> Term:
        """The slot of a register of this thread, as written by `unit`."""
        row = T.binary("add", T.binary("mul", widened(register), T.number(self.kept)), self.key)
        return T.binary("add", T.binary("mul", row, T.number(self.units)), unit)


def _gather(partial: Partial, slots: Slots, units: list[tuple[int, int]]) -> None:
    """Combine the slots of this thread's group of units, a run of neighbours in each load."""
    nests, algebra = partial.nests, partial.algebra
    count = math.prod(size for size, _ in units)
    width = _run(units, max(DTYPES[d].bytes for d in algebra.dtypes))
    size = math.prod(m.size for m in partial.modes)
    read = [nests.array("seen", d, size * count) for d in algebra.dtypes]
    with nests.now(partial.modes):
        at = nests.register(partial.modes)
        first = T.binary("mul", at, T.const(count, "i32"))
        for k in range(0, count, width):
            unit = T.binary("add", _first(slots.own, units), T.number(_place(k, units)))
            for name, array in zip(slots.shared, read, strict=True):
                to = T.binary("add", first, T.const(k, "i32"))
                nests.inner.append(K.LoadShared(array, to, name, slots.at(at, unit), width))
        places = [T.binary("add", first, T.const(k, "i32")) for k in range(count)]
        seen = [[T.Load(a, d, (p,)) for a, d in zip(read, algebra.dtypes, strict=True)] for p in places]
        partial.set(algebra.tree(seen, nests))


def _run(units: list[tuple[int, int]], size: int) -> int:
    """How many slots of neighbouring units one load takes."""
    (first, weight), *_ = units
    width = VECTOR_BYTES // size if weight == 1 else 1
    while first % width:
        width //= 2
    return width


def _place(k: int, units: list[tuple[int, int]]) -> int:
    """The unit, relative to the first of its group, that is number `k` of the group."""
    out = 0
    for size, weight in units:
        out, k = out + k % size * weight, k // size
    return out


def _first(own: Term, units: list[tuple[int, int]]) -> Term:
    """The first unit of the group of this thread: its unit's number without the digits of the group."""
    out: dict[Term, int] = {}
    below = 1
    for size, weight in units:
        out[digit(own, below, weight // below)] = below
        below = weight * size
    return linear({**out, T.binary("floordiv", own, T.number(below)): below})
