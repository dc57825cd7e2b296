"""Folds and prefix folds: sums, extrema, norms, variances and positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from eggtile.capture.build import (
    axes,
    axis,
    cast,
    full,
    insert,
    iota,
    lowest,
    mapped,
    mean,
    op,
    reciprocal_extent,
    reduce,
    reshape,
    restored,
    select,
)
from eggtile.capture.operators_pointwise import truth
from eggtile.capture.table import Site, Value, lowers
from eggtile.capture.types import Scalar, Unsupported
from ir.dtype import compute_type, is_float
from ir.tensor import Scan, Tensor

Dims = int | Sequence[int] | None


def summand(site: Site, x: Tensor) -> Tensor:
    """x in the type in which it is accumulated: a wider result takes it as it is, any other converts it first."""
    widens = compute_type(x.dtype) == site.dtype
    return x if widens else cast(site.dtype, x)


def folded(monoid: str, x: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    """Fold over dimensions as the program names them."""
    chosen = axes(dims, len(x.shape))
    out = reduce(monoid, chosen, x)
    return restored(out, chosen) if keepdim else out


@lowers("sum.dim_IntList", "sum")
def sum_(
    site: Site, x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    return op(site.dtype, folded("add", summand(site, x), dim, keepdim))


@lowers("prod.dim_int", "prod")
def prod(
    site: Site, x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    return op(site.dtype, folded("mul", summand(site, x), dim, keepdim))


@lowers("mean.dim", "mean")
def mean_(
    site: Site, x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    chosen = axes(dim, len(x.shape))
    out = op(site.dtype, mean(chosen, summand(site, x)))
    return restored(out, chosen) if keepdim else out


@lowers("amax", "amin")
def amax(site: Site, x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return folded(site.target[1:4], x, dim, keepdim)


@lowers("max", "min")
def max_all(site: Site, x: Tensor) -> Tensor:
    return folded(site.target[:3], x, None, False)


@lowers("max.other", "min.other")
def max_other(site: Site, x: Tensor, y: Tensor) -> Tensor:
    return mapped(site.target[:3], op(site.dtype, x), op(site.dtype, y))


@lowers("max.dim", "min.dim")
def max_dim(site: Site, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    name = site.target[:3]
    return folded(name, x, dim, keepdim), _position(f"arg{name}", x, dim, keepdim)


def _position(monoid: str, x: Tensor, dim: int, keepdim: bool) -> Tensor:
    return folded(monoid, x, dim, keepdim) if x.shape else full(0, "i64")


@lowers("argmax", "argmin")
def argmax(site: Site, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    monoid = site.target.split(".")[0]
    if dim is not None:
        return _position(monoid, x, dim, keepdim)
    flat = reshape(x, (math.prod(_numbers(x.shape)),))
    return reshape(_position(monoid, flat, 0, False), site.shape)


def _numbers(shape: Sequence[int | str]) -> list[int]:
    numbers = [e for e in shape if isinstance(e, int)]
    if len(numbers) != len(shape):
        raise Unsupported("it flattens symbolic extents")
    return numbers


@lowers("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def any_(site: Site, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    monoid = "or" if site.target.startswith("any") else "and"
    return op(site.dtype, folded(monoid, truth(x, x.shape), dim, keepdim))


# ---- variance


def centred_squares(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The mean over `dims` and the sum of squared differences from it, in two passes."""
    average = mean(dims, x)
    gap = mapped("sub", x, restored(average, sorted(dims), x.shape))
    return average, reduce("add", dims, mapped("mul", gap, gap))


def _correction(args: tuple[object, ...], correction: Scalar | None) -> tuple[Dims, float]:
    """The dimensions and the correction of the three ways to call a variance."""
    dim: Dims = None
    for a in args:
        if isinstance(a, bool):
            correction = int(a)
        elif a is not None:
            dim = a  # type: ignore[assignment]
    return dim, 1.0 if correction is None else float(correction)


@lowers(
    *(
        f"{name}.{kind}"
        for name in ("var", "std", "var_mean", "std_mean")
        for kind in ("correction", "dim", "default")
    )
)
def var(
    site: Site,
    x: Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Scalar | None = None,
) -> Value:
    chosen_dim, less = _correction((dim, unbiased), correction)
    chosen = axes(chosen_dim, len(x.shape))
    average, squares = centred_squares(x, chosen)
    spread = mapped("mul", squares, reciprocal_extent([x.shape[d] for d in chosen], compute_type(x.dtype), less))
    if site.target.startswith("std"):
        spread = mapped("sqrt", spread)
    outs = [op(site.dtype, t) for t in (spread, average)]
    first, second = (restored(t, chosen) if keepdim else t for t in outs)
    return (first, second) if len(site.outs) == 2 else first


# ---- norms and exponentials


@lowers("logsumexp")
def logsumexp(site: Site, x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    value = op(site.dtype, x)
    chosen = axes(dim, len(x.shape))
    top = reduce("max", chosen, value)
    finite = select(mapped("eq", mapped("abs", top), math.inf), 0, top, top.dtype)
    parts = mapped("exp", mapped("sub", value, restored(finite, chosen, value.shape)))
    out = op(site.dtype, mapped("add", mapped("log", reduce("add", chosen, parts)), finite))
    return restored(out, chosen) if keepdim else out


@lowers("linalg_vector_norm")
def vector_norm(
    site: Site,
    x: Tensor,
    ord: Scalar = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    value = summand(site, x)
    chosen = axes(dim, len(x.shape))
    size = mapped("abs", value)
    match float(ord):
        case 2.0:
            out = mapped("sqrt", reduce("add", chosen, mapped("mul", value, value)))
        case 1.0:
            out = reduce("add", chosen, size)
        case 0.0:
            out = reduce("add", chosen, cast(compute_type(value.dtype), mapped("ne", value, 0)))
        case math.inf:
            out = reduce("max", chosen, size)
        case p if p == -math.inf:
            out = reduce("min", chosen, size)
        case p:
            out = mapped("pow", reduce("add", chosen, mapped("pow", size, p)), 1 / p)
    out = op(site.dtype, out)
    return restored(out, chosen) if keepdim else out


# ---- prefix folds


@lowers("cumsum", "cumprod")
def cumsum(site: Site, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    value = summand(site, x)
    if not x.shape:
        return op(site.dtype, value)
    monoid = "add" if site.target.startswith("cumsum") else "mul"
    return op(site.dtype, Scan(monoid, axis(dim, len(x.shape)), value))


# ---- ranking

RANKED_EXTENT, RANKED_RESULTS = 1024, 64
"""The largest extent, and number of results along it, that are found by comparing all pairs."""


def _ranked(x: Tensor, d: int, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The first `count` values along d in order, and their positions; the lower position wins among equals."""
    extent = x.shape[d]
    if not isinstance(extent, int) or extent > RANKED_EXTENT or count > RANKED_RESULTS or x.dtype == "bool":
        raise Unsupported(f"it orders {extent} values")
    rank = _ranks(x, d, largest)
    shape = (*x.shape[: d + 1], count, *x.shape[d + 1 :])
    chosen = mapped("eq", insert(rank, d + 1, count), cast("i32", iota(shape, d + 1)))
    values = reduce("max", (d,), select(chosen, insert(x, d + 1, count), lowest(x.dtype), x.dtype))
    positions = reduce("max", (d,), select(chosen, iota(shape, d), -1, "i64"))
    return values, positions


def _ranks(x: Tensor, d: int, largest: bool) -> Tensor:
    """At each position of d: how many others come before it (i32). NaN counts as the greatest value."""
    extent = x.shape[d]
    shape = (*x.shape[: d + 1], extent, *x.shape[d + 1 :])
    this, other = insert(x, d + 1, extent), insert(x, d, extent)
    before = mapped("gt" if largest else "lt", other, this)
    equal = mapped("eq", other, this)
    if is_float(x.dtype):
        nan_this, nan_other = mapped("isnan", this), mapped("isnan", other)
        ahead, behind = (nan_other, nan_this) if largest else (nan_this, nan_other)
        before = mapped("or", before, mapped("and", ahead, mapped("not", behind)))
        equal = mapped("or", equal, mapped("and", nan_this, nan_other))
    earlier = mapped("lt", iota(shape, d + 1), iota(shape, d))
    wins = mapped("or", before, mapped("and", equal, earlier))
    return reduce("add", (d + 1,), cast("i32", wins))


@lowers("topk")
def topk(
    site: Site, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    if not x.shape:
        raise Unsupported("its operand has no dimension")
    return _ranked(x, axis(dim, len(x.shape)), k, largest)


@lowers("sort", "sort.stable")
def sort(
    site: Site, x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Tensor, Tensor]:
    d = axis(dim, len(x.shape))
    if not x.shape or not isinstance(x.shape[d], int):
        raise Unsupported("it orders a symbolic extent or none")
    return _ranked(x, d, int(x.shape[d]), descending)


@lowers("argsort", "argsort.stable")
def argsort(site: Site, x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:
    return sort(site, x, dim, descending)[1]
