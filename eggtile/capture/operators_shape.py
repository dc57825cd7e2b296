"""Operators that only move elements: their index maps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eggtile.capture.build import (
    axis,
    broadcast,
    coordinate,
    coordinates,
    insert,
    minus,
    permute,
    pick,
    reshape,
    swap,
    view,
    window,
)
from eggtile.capture.symbols import dim_term
from eggtile.capture.table import Ignored, Site, lowers
from eggtile.capture.types import Unsupported
from ir.tensor import Dim, Tensor
from ir.term import Binary, Term, binary, number

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


def start_of(position: int | None, extent: Dim) -> int:
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
    return window(x, d, site.shape[d], start_of(start, x.shape[d]), step)


@lowers("narrow", "narrow_copy")
def narrow(site: Site, x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return slice_(site, x, dim, start)


@lowers("select.int", "select_copy.int")
def select_(site: Site, x: Tensor, dim: int, index: int) -> Tensor:
    d = axis(dim, len(x.shape))
    return pick(x, d, position_of(index, x.shape[d]))


def position_of(index: int, extent: Dim) -> Term:
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
