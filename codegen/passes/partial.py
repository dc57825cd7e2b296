"""Partial results of folds in register arrays, and how partial results of a monoid combine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from codegen.passes.nest import Nests
from codegen.passes.terms import assigned
from ir import kernel as K
from ir import meaning
from ir import term as T
from ir.dtype import DType, compute_type, is_float
from ir.layout import Mode
from ir.ops import MONOIDS
from ir.term import Term, Var


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
