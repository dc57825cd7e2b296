"""Elementwise operators that select, limit, convert or copy."""

from __future__ import annotations

import torch

from eggtile.capture.build import broadcast, cast, full, lifted, mapped, select
from eggtile.capture.operators_pointwise import truth
from eggtile.capture.table import Ignored, Site, lowers
from eggtile.capture.types import Operand, Unsupported, dtype_name
from ir.tensor import Tensor

# ---- selection


@lowers("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(site: Site, p: Tensor, x: Operand, y: Operand) -> Tensor:
    return broadcast(select(truth(p, p.shape), x, y, site.dtype), site.shape)


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(site: Site, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return select(mask, value, broadcast(x, site.shape), site.dtype)


@lowers("clamp", "clip")
def clamp(site: Site, x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    out = lifted(x, site.dtype, site.shape)
    if min is not None:
        out = mapped("max", out, lifted(min, site.dtype, site.shape, wide=False))
    if max is not None:
        out = mapped("min", out, lifted(max, site.dtype, site.shape, wide=False))
    return out


@lowers("clamp.Tensor", "clip.Tensor")
def clamp_tensor(site: Site, x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    return clamp(site, x, min, max)


@lowers("clamp_min", "clamp_min.Tensor")
def clamp_min(site: Site, x: Tensor, min: Operand) -> Tensor:
    return clamp(site, x, min)


@lowers("clamp_max", "clamp_max.Tensor")
def clamp_max(site: Site, x: Tensor, max: Operand) -> Tensor:
    return clamp(site, x, None, max)


# ---- conversions and copies


@lowers("to.dtype", "to.dtype_layout", "to.device", "to.other", "to.prim_Device", "_to_copy", "type_as")
def to(site: Site, x: Tensor, *args: Ignored, **kwargs: Ignored) -> Tensor:
    return cast(site.dtype, x)


@lowers("view.dtype")
def view_dtype(site: Site, x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype_name(dtype) != x.dtype:
        raise Unsupported("the bits are read as another dtype")
    return x


@lowers(
    "clone", "contiguous", "detach", "alias", "lift", "lift_fresh", "lift_fresh_copy", "detach_copy", "alias_copy"
)
def same(site: Site, x: Tensor, **kwargs: Ignored) -> Tensor:
    return x


@lowers("dropout", "feature_dropout", "alpha_dropout", "native_dropout")
def dropout(site: Site, x: Tensor, p: float, train: bool | None) -> Tensor:
    if p and train is not False:
        raise Unsupported("it draws random numbers")
    if len(site.outs) > 1:
        raise Unsupported("it returns its mask")
    return x


@lowers("copy")
def copy(site: Site, x: Tensor, y: Tensor, non_blocking: bool = False) -> Tensor:
    return broadcast(cast(site.dtype, y), site.shape)


@lowers("fill.Scalar", "fill.Tensor")
def fill(site: Site, x: Tensor, value: Operand) -> Tensor:
    return lifted(value, site.dtype, site.shape, wide=False)


@lowers("zero")
def zero(site: Site, x: Tensor) -> Tensor:
    return full(0, site.dtype, site.shape)
