"""Means: a sum divided by the number of its terms names that number by its axes, so that a prefix has its own count."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ir import term as T
from ir.dtype import is_float


def with_counts(x: T.Term, y: T.Term, extents: Mapping[str, int]) -> list[T.Term]:
    """The factors of a product, with 1 / n written over the extents where the other is a sum of n terms.

    The values are the same: n, or 1 / n rounded to its type.
    """
    return [_counted(x, y, extents), _counted(y, x, extents)]


def _counted(factor: T.Term, total: T.Term, extents: Mapping[str, int]) -> T.Term:
    while isinstance(total, T.Round):
        total = total.x
    divides = isinstance(factor, T.Unary) and factor.op == "recip"
    constant = factor.terms[0] if divides else factor
    if not (isinstance(total, T.Fold) and total.monoid == "add" and isinstance(constant, T.Const)):
        return factor
    n = math.prod(extents[a] for a in total.axes)
    if n == 0 or not is_float(constant.type):
        return factor
    known = T.const(n, constant.type)
    if constant is not (known if divides else T.const(1 / float(known.value), constant.type)):
        return factor
    count: T.Term = T.number(1)
    for a in total.axes:
        count = T.binary("mul", count, T.Extent(a))
    return T.unary("recip", T.round_to(constant.type, "op", count))
