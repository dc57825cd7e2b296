"""What one operator, conversion, fold or scan does to numpy arrays: the arithmetic that the interpreters share.

Values of `dtype` are held in `held(dtype, exact)`: every float in float64 where `exact`, else `numpy_type(dtype)`.
The order of a fold is not fixed by the IR, so float sums and products accumulate in float64 and round once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ir import term as T
from ir.dtype import DTYPES, Array, DType, compute_type, is_float, numpy_type, rounded
from ir.node import IRError, postorder
from ir.ops import BINARY, MONOIDS, UNARY

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def held(dtype: DType, exact: bool) -> type[np.generic]:
    """The array type in which values of `dtype` are held; `any` is held in float64."""
    if dtype == "any" or (exact and is_float(dtype)):
        return np.float64
    return numpy_type(dtype)


def convert(values: Array, dtype: DType, exact: bool) -> Array:
    """`values` converted to `dtype` as a cast does; where `exact`, conversions to float types keep every bit."""
    if exact and is_float(dtype):
        return np.asarray(values, dtype=np.float64)
    return rounded(np.asarray(values), dtype)


def identity(monoid: str, dtype: DType) -> float | int | bool:
    """The value e of `dtype` with x (+) e = x for all x (-0.0 for float sums)."""
    kind = "float" if dtype == "any" else DTYPES[dtype].kind
    bits = 8 * DTYPES[dtype].bytes
    low, high = {
        "float": (-np.inf, np.inf),
        "int": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        "uint": (0, (1 << bits) - 1),
        "bool": (0, 1),
    }[kind]
    match MONOIDS[monoid].combine:
        case "add":
            return -0.0 if kind == "float" else 0
        case "mul":
            return 1
        case "max":
            return low
        case "min":
            return high
        case "and":
            return -1 if kind == "int" else high
    return 0


def operands(t: T.Term) -> tuple[str, tuple[T.Term, ...]]:
    """The operator a pointwise term computes and its operands; a product with a `recip` is a division, likewise `neg`."""
    match t:
        case T.Binary("mul", x, T.Unary("recip", y)) | T.Binary("mul", T.Unary("recip", y), x):
            return "div", (x, y)
        case T.Binary("add", x, T.Unary("neg", y)) | T.Binary("add", T.Unary("neg", y), x):
            return "sub", (x, y)
        case T.Unary(op, _) | T.Binary(op, _, _):
            return op, t.terms
        case T.Select():
            return "select", t.terms
        case T.Round(type_, _, _):
            return type_, t.terms
    raise IRError(f"{type(t).__name__} is not a pointwise term")


_EXTRA: dict[str, Callable[..., Array]] = {"div": np.divide, "sub": np.subtract}


def compute(op: str, values: Sequence[Array], dtypes: Sequence[DType], result: DType, exact: bool) -> Array:
    """Apply the operator of `operands` to arrays whose dtypes are `dtypes`; the result is held as `result`."""
    if op in DTYPES:
        return convert(values[0], op, exact)
    if op == "select":
        p, x, y = values
        return np.where(p, x.astype(held(result, exact)), y.astype(held(result, exact)))
    row = UNARY.get(op) or BINARY.get(op)
    joined = dtypes[0]
    for d in dtypes[1:]:
        joined = T.join(joined, d, op)
    wide = held(compute_type(joined) if row is None or row.result == "compute" else joined, exact)
    meaning = _EXTRA[op] if row is None else row.meaning
    if op == "not":
        wide = np.bool_
    with np.errstate(all="ignore"):
        return np.asarray(meaning(*(v.astype(wide) for v in values))).astype(held(result, exact), copy=False)


def pointwise(root: T.Term, leaf: Callable[[T.Term], Array], exact: bool) -> Array:
    """The value of a term without folds, whose Index, Var and Load leaves `leaf` knows."""
    memo: dict[T.Term, Array] = {}
    for t in postorder(root):
        if isinstance(t, T.Const):
            memo[t] = np.asarray(t.value, dtype=held(t.type, exact))
        elif isinstance(t, T.Index | T.Var | T.Load):
            memo[t] = leaf(t)
        else:
            op, args = operands(t)
            memo[t] = compute(op, [memo[a] for a in args], [a.dtype for a in args], t.dtype, exact)
    return memo[root]


def fold(monoid: str, values: Array, axes: tuple[int, ...], dtype: DType, exact: bool) -> Array:
    """Fold array axes; `dtype` is the fold's type. Arg-folds give the first position along their one axis, NaN wins."""
    if MONOIDS[monoid].pair:
        (axis,) = axes
        if values.shape[axis] == 0:
            return np.zeros([e for k, e in enumerate(values.shape) if k != axis], dtype=np.int64)
        chosen = np.argmax if monoid == "argmax" else np.argmin
        return np.asarray(chosen(values, axis=axis)).astype(np.int64)
    wide = _accumulator(monoid, dtype, exact)
    start = np.asarray(identity(monoid, dtype)).astype(wide) + np.asarray(0).astype(wide)  # an empty sum is +0.0
    with np.errstate(all="ignore"):
        out = _UFUNCS[monoid].reduce(values.astype(wide), axis=axes, dtype=wide, initial=start[()])
        return np.asarray(out).astype(held(dtype, exact))


def scan(monoid: str, values: Array, axis: int, dtype: DType, exact: bool) -> Array:
    """Inclusive prefix folds along an array axis, in the conventions of `fold`."""
    if MONOIDS[monoid].pair:
        return _arg_scan(monoid, values, axis)
    wide = _accumulator(monoid, dtype, exact)
    with np.errstate(all="ignore"):
        out = _UFUNCS[monoid].accumulate(values.astype(wide), axis=axis, dtype=wide)
        return np.asarray(out).astype(held(dtype, exact))


def _accumulator(monoid: str, dtype: DType, exact: bool) -> type[np.generic]:
    return np.float64 if is_float(dtype) and monoid in ("add", "mul") else held(dtype, exact)


def _arg_scan(monoid: str, values: Array, axis: int) -> Array:
    rows = np.moveaxis(values, axis, 0)
    out = np.zeros(rows.shape, dtype=np.int64)
    better = np.greater if monoid == "argmax" else np.less
    for t in range(1, len(rows)):
        best = np.take_along_axis(rows, out[t - 1 : t], axis=0)[0]
        wins = better(rows[t], best) | (np.isnan(rows[t]) & ~np.isnan(best))
        out[t] = np.where(wins, t, out[t - 1])
    return np.moveaxis(out, 0, axis)


def sum_of_products(
    x: Array,
    x_labels: Sequence[int],
    y: Array,
    y_labels: Sequence[int],
    out_labels: Sequence[int],
    dtype: DType,
    exact: bool,
) -> Array:
    """Contraction of two arrays over the labels absent from `out_labels`, accumulated as `fold` does."""
    wide = np.float64 if is_float(dtype) else numpy_type(dtype)
    with np.errstate(all="ignore"):
        out = np.einsum(
            x.astype(wide), list(x_labels), y.astype(wide), list(y_labels), list(out_labels), optimize=True
        )
        return np.asarray(out).astype(held(dtype, exact))


def scatter(
    monoid: str | None, base: Array, index: tuple[Array, ...], updates: Array, dtype: DType, exact: bool
) -> Array:
    """`base` with `updates` (a list of values at in-range positions) combined in; without a monoid the last one wins."""
    if monoid is None:
        out = base.copy()
        out[index] = updates
        return out
    wide = _accumulator(monoid, dtype, exact)
    total = base.astype(wide)
    with np.errstate(all="ignore"):
        _UFUNCS[monoid].at(total, index, updates.astype(wide))
    return convert(total, dtype, exact)
