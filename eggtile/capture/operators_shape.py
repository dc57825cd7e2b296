"""Operators that only move elements: their index maps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eggtile.capture.build import (
    Shape,
    axis,
    broadcast,
    cast,
    coordinate,
    coordinates,
    divided,
    extent_value,
    full,
    insert,
    iota,
    mapped,
    minus,
    permute,
    pick,
    reshape,
    select,
    swap,
    view,
    window,
)
from eggtile.capture.symbols import dim_term
from eggtile.capture.table import Ignored, Site, lowers
from eggtile.capture.types import Scalar, Unsupported
from ir.dtype import DType
from ir.tensor import Dim, Map, Tensor
from ir.term import Binary, Const, Term, Unary, binary, bits_of, number

Parts = tuple[Tensor, ...]


# ---- reshapes: the traced type has the shape


@lowers(
    *("view", "_unsafe_view", "reshape", "view_as", "reshape_as", "flatten.using_ints", "ravel", "unflatten.int"),
    *("squeeze", "squeeze.dim", "squeeze.dims", "view_copy", "squeeze_copy", "squeeze_copy.dim", "unsqueeze_copy"),
    *("atleast_1d", "atleast_2d", "atleast_3d"),
)
def reshaped(site: Site, x: Tensor, *args: Ignored, **kwargs: Ignored) -> Tensor:
    return reshape(x, site.shape)


@lowers("unsqueeze")
def unsqueeze(site: Site, x: Tensor, dim: int) -> Tensor:
    return insert(x, axis(dim, len(x.shape) + 1))


@lowers("expand", "expand_as", "broadcast_to", "expand_copy")
def expand(site: Site, x: Tensor, *args: Ignored, **kwargs: Ignored) -> Tensor:
    return broadcast(x, site.shape)


# ---- permutations


@lowers("permute", "permute_copy")
def permuted(site: Site, x: Tensor, dims: Sequence[int]) -> Tensor:
    return permute(x, [axis(d, len(x.shape)) for d in dims])


@lowers("transpose.int", "swapaxes", "swapdims", "transpose_copy.int")
def transpose(site: Site, x: Tensor, a: int, b: int) -> Tensor:
    rank = len(x.shape)
    return swap(x, axis(a, rank), axis(b, rank)) if rank else x


@lowers("t", "t_copy")
def t(site: Site, x: Tensor) -> Tensor:
    return swap(x) if len(x.shape) == 2 else x


# ---- parts


def _start(position: int | None, extent: Dim) -> int:
    """A slice's first position; a symbolic extent only admits positions counted from the front."""
    if not position:
        return 0
    if isinstance(extent, int):
        return min(max(position + extent if position < 0 else position, 0), extent)
    if position < 0:
        raise Unsupported("a position is counted from the end of a symbolic extent")
    return position


@lowers("slice.Tensor", "slice_copy.Tensor")
def slice_(
    site: Site, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    d = axis(dim, len(x.shape))
    return window(x, d, site.shape[d], _start(start, x.shape[d]), step)


@lowers("narrow", "narrow_copy")
def narrow(site: Site, x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return slice_(site, x, dim, start)


@lowers("select.int", "select_copy.int")
def select_(site: Site, x: Tensor, dim: int, index: int) -> Tensor:
    d = axis(dim, len(x.shape))
    return pick(x, d, _position(index, x.shape[d]))


def _position(index: int, extent: Dim) -> Term:
    return number(index) if index >= 0 else binary("add", dim_term(extent), number(index))


@lowers("unbind.int", "unbind_copy.int")
def unbind(site: Site, x: Tensor, dim: int = 0) -> Parts:
    d = axis(dim, len(x.shape))
    return tuple(pick(x, d, number(k)) for k in range(len(site.outs)))


@lowers(
    *("split.Tensor", "split.sizes", "split_with_sizes", "chunk", "tensor_split.sections", "tensor_split.indices"),
    *(
        "unsafe_split.Tensor",
        "unsafe_split_with_sizes",
        "unsafe_chunk",
        "split_copy.Tensor",
        "split_with_sizes_copy",
    ),
)
def split(site: Site, x: Tensor, sizes: Ignored = None, dim: int = 0) -> Parts:
    d = axis(dim, len(x.shape))
    parts, start = [], 0
    for out in site.outs:
        extent = out.shape[d]
        if not isinstance(extent, int):
            raise Unsupported("a part has a symbolic extent")
        parts.append(window(x, d, extent, start))
        start += extent
    return tuple(parts)


@lowers("unfold", "unfold_copy")
def unfold(site: Site, x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    d = axis(dimension, len(x.shape))
    at = binary("add", binary("mul", coordinate(d), number(step)), coordinate(len(x.shape)))
    index = tuple(at if k == d else coordinate(k) for k in range(len(x.shape)))
    return view(x, site.shape, index)


@lowers("diagonal", "diagonal_copy", "linalg_diagonal")
def diagonal(site: Site, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rank = len(x.shape)
    a, b = axis(dim1, rank), axis(dim2, rank)
    along = coordinate(rank - 2)
    rest = iter(range(rank))
    place = {a: binary("add", along, number(max(-offset, 0))), b: binary("add", along, number(max(offset, 0)))}
    return view(x, site.shape, tuple(place[k] if k in place else coordinate(next(rest)) for k in range(rank)))


# ---- reversals, rotations, repetitions


@lowers("flip")
def flip(site: Site, x: Tensor, dims: Sequence[int]) -> Tensor:
    turned = {axis(d, len(x.shape)) for d in dims}
    last = [binary("add", dim_term(e), number(-1)) for e in x.shape]
    index = (minus(last[k], coordinate(k)) if k in turned else coordinate(k) for k in range(len(x.shape)))
    return view(x, x.shape, tuple(index))


@lowers("roll")
def roll(site: Site, x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Tensor:
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    along = [dims] if isinstance(dims, int) else list(dims)
    if not along:
        flat = reshape(x, (math.prod(e for e in x.shape if isinstance(e, int)),))
        return reshape(roll(site, flat, moves, [0]), x.shape)
    index = list(coordinates(x.shape))
    for shift, d in zip(moves, along, strict=True):
        k = axis(d, len(x.shape))
        index[k] = Binary("mod", binary("add", index[k], number(-shift)), dim_term(x.shape[k]))
    return view(x, x.shape, tuple(index))


@lowers("repeat", "tile")
def repeat(site: Site, x: Tensor, repeats: Sequence[int]) -> Tensor:
    lead = len(site.shape) - len(x.shape)
    index = (
        coordinate(lead + k) if site.shape[lead + k] == e else Binary("mod", coordinate(lead + k), dim_term(e))
        for k, e in enumerate(x.shape)
    )
    return view(x, site.shape, tuple(index))


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
    first, count = _start(start, x.shape[d]), y.shape[d]
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
    at = _position(index, x.shape[d])
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
