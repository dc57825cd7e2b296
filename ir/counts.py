"""Means: a sum divided by the number of its terms names that number by its axes, so that a prefix has its own count."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain, combinations

from ir import term as T
from ir.dtype import is_float


def with_counts(x: T.Term, y: T.Term, extents: Mapping[str, int]) -> list[T.Term]:
    """The factors of a product, with 1 / n written over the extents where the other is a sum of n terms.

    The sum may be over more axes, as the mean of products that are summed themselves is. The values are the same: n, or
    1 / n rounded to its type.
    """
    return [_counted(x, y, extents), _counted(y, x, extents)]


def _counted(factor: T.Term, total: T.Term, extents: Mapping[str, int]) -> T.Term:
    while isinstance(total, T.Round):
        total = total.x
    divides = isinstance(factor, T.Unary) and factor.op == "recip"
    constant = factor.terms[0] if divides else factor
    if not (isinstance(total, T.Fold) and total.monoid == "add" and isinstance(constant, T.Const)):
        return factor
    if not is_float(constant.type) or not all(extents[a] for a in total.axes):
        return factor
    for axes in _some(total.axes):
        known = T.const(math.prod(extents[a] for a in axes), constant.type)
        if constant is (known if divides else T.const(1 / float(known.value), constant.type)):
            count: T.Term = T.number(1)
            for a in axes:
                count = T.binary("mul", count, T.Extent(a))
            return T.unary("recip", T.round_to(constant.type, "op", count))
    return factor


def _some(axes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """All of the axes, then fewer of them."""
    return chain.from_iterable(combinations(axes, n) for n in range(len(axes), 0, -1))
