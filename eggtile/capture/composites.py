"""Composite operators, lowered with the roundings of PyTorch's CUDA kernels: f32 inside, one rounding at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from eggtile.capture.build import (
    axis,
    cast,
    coordinates,
    divided,
    full,
    insert,
    iota,
    mapped,
    mean,
    op,
    over,
    reciprocal_extent,
    reduce,
    reshape,
    restored,
    select,
    view,
)
from eggtile.capture.operators_contract import contract
from eggtile.capture.operators_reduce import centred_squares
from eggtile.capture.table import Site, lowers
from eggtile.capture.types import TORCH_DTYPES, Unsupported
from ir.dtype import compute_type
from ir.tensor import Tensor
from ir.term import number

# ---- softmax


def _exponents(site: Site, x: Tensor, dim: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """x - max, the sum of its exponentials, and the dimensions."""
    value = x if compute_type(x.dtype) == site.dtype else cast(site.dtype, x)
    dims = (axis(dim, len(x.shape)),) if x.shape else ()
    shifted = mapped("sub", value, over("max", dims, value))
    return shifted, over("add", dims, mapped("exp", shifted)), dims


@lowers("softmax.int", "_softmax", "special_softmax")
def softmax(site: Site, x: Tensor, dim: int, dtype: torch.dtype | bool | None = None) -> Tensor:
    shifted, total, _ = _exponents(site, x, dim)
    return op(site.dtype, mapped("div", mapped("exp", shifted), total))


@lowers("log_softmax.int", "_log_softmax", "special_log_softmax")
def log_softmax(site: Site, x: Tensor, dim: int, dtype: torch.dtype | bool | None = None) -> Tensor:
    shifted, total, _ = _exponents(site, x, dim)
    return op(site.dtype, mapped("sub", shifted, mapped("log", total)))


# ---- norms


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = mapped("mul", x, weight)
    return x if bias is None else mapped("add", x, bias)


def _standardised(x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(var + eps) over `dims`, with the mean and the reciprocal deviation."""
    average, squares = centred_squares(x, dims)
    wide = compute_type(x.dtype)
    variance = mapped("mul", squares, reciprocal_extent([x.shape[d] for d in dims], wide))
    scale = mapped("rsqrt", mapped("add", variance, eps))
    gap = mapped("sub", x, restored(average, dims, x.shape))
    return mapped("mul", gap, restored(scale, dims, x.shape)), average, scale


def _trailing(x: Tensor, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(len(x.shape) - len(normalized_shape), len(x.shape)))


@lowers("layer_norm")
def layer_norm(
    site: Site,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    out, _, _ = _standardised(x, _trailing(x, normalized_shape), eps)
    return op(site.dtype, _affine(out, weight, bias))


@lowers("native_layer_norm")
def native_layer_norm(
    site: Site,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, ...]:
    dims = _trailing(x, normalized_shape)
    out, average, scale = _standardised(x, dims, eps)
    values = (_affine(out, weight, bias), restored(average, dims), restored(scale, dims))
    return tuple(op(spec.dtype, v) for spec, v in zip(site.outs, values, strict=True))


@lowers("rms_norm", "_fused_rms_norm")
def rms_norm(
    site: Site,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | tuple[Tensor, ...]:
    dims = _trailing(x, normalized_shape)
    wide = compute_type(x.dtype)
    small = torch.finfo(TORCH_DTYPES[wide]).eps if eps is None else eps
    scale = mapped("rsqrt", mapped("add", mean(dims, mapped("mul", x, x)), small))
    out = op(site.dtype, _affine(mapped("mul", x, restored(scale, dims, x.shape)), weight, None))
    return out if len(site.outs) == 1 else (out, op(site.outs[1].dtype, restored(scale, dims)))


@lowers("group_norm")
def group_norm(
    site: Site,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise Unsupported("the number of channels is symbolic")
    grouped = reshape(x, (x.shape[0], num_groups, channels // num_groups, *x.shape[2:]))
    out, _, _ = _standardised(grouped, tuple(range(2, len(grouped.shape))), eps)
    return op(site.dtype, _affine(reshape(out, x.shape), channel(weight, x), channel(bias, x)))


def channel(w: Tensor | None, x: Tensor) -> Tensor | None:
    """A vector over dimension 1 of x, in a shape that broadcasts against x."""
    return None if w is None else reshape(w, (*w.shape, *(1,) * (len(x.shape) - 2)))


@lowers("batch_norm", "instance_norm")
def batch_norm(
    site: Site,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_batch: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    if use_batch:
        if running_mean is not None:
            raise Unsupported("it updates running statistics")
        first = 2 if site.target.startswith("instance") else 0
        out, _, _ = _standardised(x, [d for d in range(first, len(x.shape)) if d != 1], eps)
    else:
        average, variance = channel(running_mean, x), channel(running_var, x)
        if average is None or variance is None:
            raise Unsupported("it has no statistics")
        scale = mapped("rsqrt", mapped("add", variance, eps))
        out = mapped("mul", mapped("sub", x, average), scale)
    return op(site.dtype, _affine(out, channel(weight, x), channel(bias, x)))


@lowers("_native_batch_norm_legit_no_training")
def native_batch_norm(
    site: Site,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    out = batch_norm(site, x, weight, bias, running_mean, running_var, False, momentum, eps)
    return (out, *(full(0, spec.dtype, spec.shape) for spec in site.outs[1:]))


# ---- attention


@lowers("scaled_dot_product_attention")
def attention(
    site: Site,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p:
        raise Unsupported("it draws random numbers")
    if enable_gqa:
        k, v = _repeated_heads(k, q), _repeated_heads(v, q)
    batch = tuple(f"b{j}" for j in range(max(len(t.shape) for t in (q, k, v)) - 2))
    scores = contract(q, _last(batch, q, "m", "e"), k, _last(batch, k, "n", "e"), (*batch, "m", "n"))
    factor = _default_scale(q) if scale is None else scale
    scores = mapped("mul", scores, factor)
    if attn_mask is not None:
        masked = attn_mask.dtype == "bool"
        scores = select(attn_mask, scores, -math.inf, scores.dtype) if masked else mapped("add", scores, attn_mask)
    rank = len(scores.shape)
    if is_causal:
        below = mapped("le", iota(scores.shape, rank - 1), iota(scores.shape, rank - 2))
        scores = select(below, scores, -math.inf, scores.dtype)
    keys = scores.shape[rank - 1]
    return _weighted(site, scores, v, batch, attn_mask is not None or not isinstance(keys, int) or not keys)


def _weighted(site: Site, scores: Tensor, v: Tensor, batch: tuple[str, ...], may_be_empty: bool) -> Tensor:
    """softmax(scores) @ v; the weights are rounded before the product and divided by their sum after it."""
    last = (len(scores.shape) - 1,)
    top = reduce("max", last, scores)
    if may_be_empty:  # a row without a key: its weights are 0, and so is the result
        top = select(mapped("eq", top, -math.inf), 0, top, top.dtype)
    weights = mapped("exp", mapped("sub", scores, restored(top, last, scores.shape)))
    total = insert(reduce("add", last, weights), last[0])
    out = contract(op(site.dtype, weights), (*batch, "m", "n"), v, _last(batch, v, "n", "e"), (*batch, "m", "e"))
    quotient = mapped("div", out, total)
    if may_be_empty:
        quotient = select(mapped("eq", total, 0), 0, quotient, quotient.dtype)
    return op(site.dtype, quotient)


def _last(batch: tuple[str, ...], x: Tensor, *labels: str) -> tuple[str, ...]:
    return (*batch[len(batch) - (len(x.shape) - 2) :], *labels)


def _default_scale(q: Tensor) -> float:
    if not isinstance(q.shape[-1], int):
        raise Unsupported("the head dimension is symbolic")
    return 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0


def _repeated_heads(x: Tensor, q: Tensor) -> Tensor:
    have, want = x.shape[-3], q.shape[-3]
    if not isinstance(have, int) or not isinstance(want, int):
        raise Unsupported("the number of heads is symbolic")
    if have == want:
        return x
    shape = (*x.shape[:-3], want, *x.shape[-2:])
    index = list(coordinates(shape))
    index[-3] = divided(index[-3], number(want // have))
    return view(x, shape, tuple(index))
