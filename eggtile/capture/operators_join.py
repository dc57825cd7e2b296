"""Operators that put tensors together: joins, padding, triangles, and parts replaced."""

from __future__ import annotations

from collections.abc import Sequence

from eggtile.capture.build import (
    Shape,
    axis,
    cast,
    coordinate,
    divided,
    extent_value,
    full,
    insert,
    iota,
    mapped,
    minus,
    select,
    view,
)
from eggtile.capture.operators_shape import position_of, start_of
from eggtile.capture.symbols import dim_term
from eggtile.capture.table import Site, lowers
from eggtile.capture.types import Scalar, Unsupported
from ir.dtype import DType, bits_of
from ir.tensor import Dim, Map, Tensor
from ir.term import Binary, Const, Term, Unary, binary, number

# ---- joins


def _joined(parts: Sequence[tuple[Tensor, Dim]], d: int, shape: Shape) -> Tensor:
    """Tensors one after the other along dimension d; each comes with its extent there."""
    out: Tensor | None = None
    for x, start in reversed(parts):
        at = binary(
            "add", coordinate(d), Unary("neg", dim_term(start)) if isinstance(start, str) else number(-start)
        )
        moved = view(x, shape, tuple(at if k == d else coordinate(k) for k in range(len(shape))))
        if out is None:
            out = moved
        else:
            here = mapped("lt", iota(shape, d), extent_value((_plus(start, x.shape[d]),), "i64"))
            out = Map("select", (here, moved, out))
    if out is None:
        raise Unsupported("nothing is joined")
    return out


def _plus(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return b if a == 0 else f"{a} + {b}"


@lowers("cat", "concat", "concatenate")
def cat(site: Site, xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    d = axis(dim, len(site.shape))
    parts: list[tuple[Tensor, Dim]] = []
    start: Dim = 0
    for x in xs:
        if x.shape == (0,) or x.shape[d] == 0:
            continue
        parts.append((cast_op(site.dtype, x), start))
        start = _plus(start, x.shape[d])
    return _joined(parts, d, site.shape) if parts else full(0, site.dtype, site.shape)


def cast_op(dtype: DType, x: Tensor) -> Tensor:
    """x in the dtype to which an operator promotes it."""
    return x if x.dtype == dtype else cast(dtype, x)


@lowers("stack")
def stack(site: Site, xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    d = axis(dim, len(site.shape))
    return cat(site, [insert(x, d) for x in xs], d)


# ---- padding


@lowers("constant_pad_nd")
def constant_pad_nd(site: Site, x: Tensor, pad: Sequence[int], value: Scalar = 0) -> Tensor:
    before = _before(pad, len(x.shape))
    index = tuple(binary("add", coordinate(k), number(-before[k])) for k in range(len(x.shape)))
    valid = _all(
        [
            Binary("and", Binary("le", number(0), at), Binary("lt", at, dim_term(e)))
            for at, e, out, shift in zip(index, x.shape, site.shape, before, strict=True)
            if e != out or shift
        ]
    )
    if 0 in x.shape:
        return full(value, x.dtype, site.shape)
    return view(x, site.shape, index, valid, bits_of(x.dtype, value))


def _before(pad: Sequence[int], rank: int) -> list[int]:
    return [pad[2 * (rank - 1 - k)] if 2 * (rank - 1 - k) < len(pad) else 0 for k in range(rank)]


def _all(conditions: list[Term]) -> Term | None:
    out: Term | None = None
    for c in conditions:
        out = c if out is None else Binary("and", out, c)
    return out


@lowers("pad")
def pad_(site: Site, x: Tensor, pad: Sequence[int], mode: str = "constant", value: Scalar | None = None) -> Tensor:
    if mode == "constant":
        return constant_pad_nd(site, x, pad, value or 0)
    before, index = _before(pad, len(x.shape)), []
    for k, e in enumerate(x.shape):
        at = binary("add", coordinate(k), number(-before[k]))
        last = binary("add", dim_term(e), number(-1))
        if e == site.shape[k] and not before[k]:
            index.append(coordinate(k))
        elif mode == "reflect":
            index.append(minus(last, Unary("abs", minus(last, Unary("abs", at)))))
        elif mode == "replicate":
            index.append(Binary("min", Binary("max", at, number(0)), last))
        else:
            index.append(Binary("mod", at, dim_term(e)))
    return view(x, site.shape, tuple(index))


# ---- triangles


def _triangle(site: Site, x: Tensor, diagonal: int, keep_low: bool) -> Tensor:
    rank = len(x.shape)
    row = mapped("add", iota(site.shape, rank - 2), diagonal) if diagonal else iota(site.shape, rank - 2)
    column = iota(site.shape, rank - 1)
    return select(mapped("le", *((column, row) if keep_low else (row, column))), x, 0, site.dtype)


@lowers("tril")
def tril(site: Site, x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(site, x, diagonal, True)


@lowers("triu")
def triu(site: Site, x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(site, x, diagonal, False)


# ---- parts replaced


@lowers("slice_scatter")
def slice_scatter(
    site: Site, x: Tensor, y: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    d = axis(dim, len(x.shape))
    first, count = start_of(start, x.shape[d]), y.shape[d]
    if not isinstance(count, int):
        raise Unsupported("the part has a symbolic extent")
    at = divided(binary("add", coordinate(d), number(-first)), number(step))
    part = view(cast_op(x.dtype, y), x.shape, tuple(at if k == d else coordinate(k) for k in range(len(x.shape))))
    position = iota(x.shape, d)
    inside = mapped("and", mapped("ge", position, first), mapped("lt", position, first + count * step))
    if step != 1:
        inside = mapped("and", inside, mapped("eq", mapped("mod", mapped("add", position, -first), step), 0))
    return x if count == 0 else Map("select", (inside, part, x))


@lowers("select_scatter")
def select_scatter(site: Site, x: Tensor, y: Tensor, dim: int, index: int) -> Tensor:
    d = axis(dim, len(x.shape))
    at = position_of(index, x.shape[d])
    if not isinstance(at, Const):
        raise Unsupported("a position is counted from the end of a symbolic extent")
    here = mapped("eq", iota(x.shape, d), int(at.value))
    return Map("select", (here, insert(cast_op(x.dtype, y), d, x.shape[d]), x))


@lowers("diagonal_scatter")
def diagonal_scatter(site: Site, x: Tensor, y: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rank = len(x.shape)
    a, b = axis(dim1, rank), axis(dim2, rank)
    along = coordinate(a) if offset >= 0 else coordinate(b)
    rest = tuple(coordinate(k) for k in range(rank) if k not in (a, b))
    here = mapped("eq", mapped("add", iota(x.shape, a), offset), iota(x.shape, b))
    return Map("select", (here, view(cast_op(x.dtype, y), x.shape, (*rest, along)), x))
