"""Gathers and scatters: operators whose positions are values of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from eggtile.capture.build import (
    Shape,
    axis,
    broadcast,
    broadcast_shape,
    coordinate,
    coordinates,
    full,
    insert,
    op,
    source,
    view,
    window,
)
from eggtile.capture.symbols import dim_term
from eggtile.capture.table import Site, lowers
from eggtile.capture.types import Operand, Scalar, Unsupported
from ir.dtype import DType, compute_type, is_float
from ir.tensor import Dim, Scatter, Tensor
from ir.term import Binary, Select, Term, binary, number


def _wrapped(at: Term, extent: Dim) -> Term:
    """A position that counts from the end where it is negative."""
    return Select(Binary("lt", at, number(0)), binary("add", at, dim_term(extent)), at)


def _positions(index: Tensor) -> Tensor:
    if index.dtype == "bool" or is_float(index.dtype):
        raise Unsupported(f"its positions are {index.dtype}")
    return op("i64", index)


# ---- gathers


@lowers("gather", "take_along_dim")
def gather(site: Site, x: Tensor, dim: int | Tensor, index: Tensor | int, sparse_grad: bool = False) -> Tensor:
    if isinstance(dim, Tensor) or not isinstance(index, Tensor):
        dim, index = index, dim  # take_along_dim has the positions first
    if not isinstance(dim, int) or not isinstance(index, Tensor):
        raise Unsupported("it flattens its operand")
    if not x.shape:
        return broadcast(x, site.shape)
    d = axis(dim, len(x.shape))
    at = source(0, "i64", len(site.shape))
    index_terms = tuple(
        at if k == d else (number(0) if e == 1 and site.shape[k] != 1 else coordinate(k))
        for k, e in enumerate(x.shape)
    )
    return view(x, site.shape, index_terms, sources=(broadcast(_positions(index), site.shape),))


@lowers("index_select")
def index_select(site: Site, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.shape:
        return broadcast(x, site.shape)
    d = axis(dim, len(x.shape))
    along = view(_positions(index), site.shape, (coordinate(d),) if index.shape else ())
    at = source(0, "i64", len(site.shape))
    return view(
        x, site.shape, tuple(at if k == d else c for k, c in enumerate(coordinates(x.shape))), sources=(along,)
    )


@lowers("embedding")
def embedding(
    site: Site,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    rank = len(site.shape)
    rows = insert(_positions(indices), rank - 1, site.shape[-1])
    return view(weight, site.shape, (source(0, "i64", rank), coordinate(rank - 1)), sources=(rows,))


class _Advanced:
    """Where advanced indexing puts the dimensions of x and of the positions in its result."""

    def __init__(self, x: Tensor, indices: Sequence[Tensor | None]) -> None:
        self.at = [k for k, i in enumerate(indices) if i is not None]
        given = [_positions(i) for i in indices if i is not None]
        self.block = broadcast_shape(*(i.shape for i in given))
        adjacent = self.at == list(range(self.at[0], self.at[0] + len(self.at)))
        self.place = self.at[0] if adjacent else 0
        self.rest = [k for k in range(len(x.shape)) if k not in self.at]
        kept = [x.shape[k] for k in self.rest]
        self.shape: Shape = (*kept[: self.place], *self.block, *kept[self.place :])
        rank = len(self.shape)
        outside = [k for k in range(rank) if not self.place <= k < self.place + len(self.block)]
        self.sources = tuple(self._spread(i) for i in given)
        terms: dict[int, Term] = {k: coordinate(o) for k, o in zip(self.rest, outside, strict=True)}
        for n, k in enumerate(self.at):
            terms[k] = _wrapped(source(n, "i64", rank), x.shape[k])
        self.index = tuple(terms[k] for k in range(len(x.shape)))

    def _spread(self, index: Tensor) -> Tensor:
        inner = broadcast(index, self.block)
        terms = tuple(coordinate(self.place + k) for k in range(len(self.block)))
        return view(inner, self.shape, terms)


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index_(site: Site, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    where = _Advanced(x, indices)
    return view(x, where.shape, where.index, sources=where.sources)


# ---- scatters


def _accumulated(
    monoid: str | None, base: Tensor, updates: Tensor, index: tuple[Term, ...], sources: Sequence[Tensor]
) -> Tensor:
    """Scatter; sums and products of narrow floats are kept in the compute type and rounded once."""
    dtype: DType = compute_type(base.dtype) if monoid in ("add", "mul") else base.dtype
    out = Scatter(monoid, op(dtype, base), op(dtype, updates), index, tuple(sources))
    return op(base.dtype, out)


_REDUCTIONS = {"add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min"}


@lowers(
    "scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_add", "scatter_reduce.two"
)
def scatter(
    site: Site,
    x: Tensor,
    dim: int,
    index: Tensor,
    src: Operand,
    reduce: str | None = None,
    *,
    include_self: bool = True,
) -> Tensor:
    name = "add" if site.target.startswith("scatter_add") else reduce
    if name == "mean" or not include_self or not x.shape:
        raise Unsupported("it averages, leaves its first operand out, or has no dimension")
    d = axis(dim, len(x.shape))
    updates = _cut(src, index.shape) if isinstance(src, Tensor) else full(src, x.dtype, index.shape)
    at = source(0, "i64", len(index.shape))
    terms = tuple(at if k == d else c for k, c in enumerate(coordinates(index.shape)))
    return _accumulated(_REDUCTIONS[name] if name else None, x, updates, terms, (_positions(index),))


def _cut(x: Tensor, shape: Shape) -> Tensor:
    for d, e in enumerate(shape):
        x = window(x, d, e, 0)
    return x


@lowers("index_add", "index_copy", "index_fill.int_Scalar", "index_fill.int_Tensor")
def index_add(site: Site, x: Tensor, dim: int, index: Tensor, updates: Operand, *, alpha: Scalar = 1) -> Tensor:
    if alpha != 1 or not x.shape:
        raise Unsupported("it scales its updates or has no dimension")
    d = axis(dim, len(x.shape))
    rows = index if index.shape else insert(index, 0)
    shape = (*x.shape[:d], *rows.shape, *x.shape[d + 1 :])
    if isinstance(updates, Tensor):
        values = broadcast(updates, shape) if len(updates.shape) <= len(shape) else updates
    else:
        values = full(updates, x.dtype, shape)
    at = source(0, "i64", len(shape))
    terms = tuple(at if k == d else c for k, c in enumerate(coordinates(shape)))
    monoid = "add" if site.target.startswith("index_add") else None
    return _accumulated(monoid, x, op(x.dtype, values), terms, (view(_positions(rows), shape, (coordinate(d),)),))


@lowers("index_put", "_unsafe_index_put")
def index_put(
    site: Site, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    where = _Advanced(x, indices)
    return _accumulated(
        "add" if accumulate else None, x, broadcast(values, where.shape), where.index, where.sources
    )
