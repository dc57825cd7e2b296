"""Operators that make tensors from numbers."""

from __future__ import annotations

from eggtile.capture.build import cast, full, insert, iota, mapped, op, select
from eggtile.capture.table import Ignored, Site, lowers
from eggtile.capture.types import Scalar
from ir.dtype import compute_type, is_float
from ir.tensor import Iota, Tensor


@lowers("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty", "empty_strided")
def zeros(site: Site, *args: Ignored, **kwargs: Ignored) -> Tensor:
    return full(0, site.dtype, site.shape)


@lowers("ones", "ones_like", "new_ones")
def ones(site: Site, *args: Ignored, **kwargs: Ignored) -> Tensor:
    return full(1, site.dtype, site.shape)


@lowers("full", "full_like", "new_full")
def full_(site: Site, shape_or_like: Ignored, value: Scalar, *args: Ignored, **kwargs: Ignored) -> Tensor:
    number = args[0] if site.target.startswith("new_full") and args else value
    return full(number, site.dtype, site.shape)


@lowers("scalar_tensor")
def scalar_tensor(site: Site, value: Scalar, **kwargs: Ignored) -> Tensor:
    return full(value, site.dtype)


def _progression(site: Site, start: Scalar, step: Scalar) -> Tensor:
    count = Iota(site.shape[0])
    if not is_float(site.dtype):
        scaled = count if step == 1 else mapped("mul", count, int(step))
        return cast(site.dtype, scaled if start == 0 else mapped("add", scaled, int(start)))
    wide = cast(compute_type(site.dtype), count)
    scaled = wide if step == 1 else mapped("mul", wide, step)
    return op(site.dtype, scaled if start == 0 else mapped("add", scaled, start))


@lowers("arange")
def arange(site: Site, end: Scalar, **kwargs: Ignored) -> Tensor:
    return _progression(site, 0, 1)


@lowers("arange.start", "arange.start_step")
def arange_start(site: Site, start: Scalar, end: Scalar, step: Scalar = 1, **kwargs: Ignored) -> Tensor:
    return _progression(site, start, step)


@lowers("eye", "eye.m")
def eye(site: Site, *args: Ignored, **kwargs: Ignored) -> Tensor:
    return select(mapped("eq", iota(site.shape, 0), iota(site.shape, 1)), 1, 0, site.dtype)


@lowers("one_hot")
def one_hot(site: Site, x: Tensor, num_classes: int = -1) -> Tensor:
    rank = len(x.shape)
    return cast("i64", mapped("eq", insert(x, rank, site.shape[rank]), iota(site.shape, rank)))
