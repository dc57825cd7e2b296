"""Losses over classes: logarithms of probabilities rounded to the input dtype, then gathered, as eager does."""

from __future__ import annotations

from eggtile.capture.build import (
    coordinates,
    full,
    mapped,
    mean,
    op,
    reciprocal_extent,
    reduce,
    reshape,
    select,
    source,
    view,
)
from eggtile.capture.composites import log_softmax
from eggtile.capture.table import Site, lowers
from ir.dtype import compute_type, is_float
from ir.tensor import Tensor

# ---- losses

_MEAN, _SUM = 1, 2


def _reduced(site: Site, loss: Tensor, reduction: int) -> Tensor:
    if reduction == _MEAN:
        return op(site.dtype, mean(tuple(range(len(loss.shape))), loss))
    if reduction == _SUM:
        return op(site.dtype, reduce("add", tuple(range(len(loss.shape))), loss))
    return op(site.dtype, loss)


@lowers("cross_entropy_loss")
def cross_entropy(
    site: Site,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    d = 0 if len(x.shape) == 1 else 1
    inside = Site("log_softmax", site.outs)
    logs = op(x.dtype, log_softmax(inside, x, d))
    if is_float(target.dtype):
        return _soft_target_loss(site, logs, target, weight, reduction, label_smoothing, d)
    smooth = label_smoothing
    return _class_loss(site, logs, target, weight, reduction, ignore_index, smooth, d)


def _soft_target_loss(
    site: Site, logs: Tensor, target: Tensor, weight: Tensor | None, reduction: int, smoothing: float, d: int
) -> Tensor:
    classes = logs.shape[d]
    if smoothing:
        share = mapped("mul", reciprocal_extent([classes], compute_type(target.dtype)), smoothing)
        target = mapped("add", mapped("mul", target, 1 - smoothing), share)
    terms = mapped("mul", logs, target)
    if weight is not None:
        terms = mapped("mul", terms, _class_weight(weight, logs, d))
    loss = mapped("neg", reduce("add", (d,), terms))
    if reduction == _MEAN:
        rows = [e for k, e in enumerate(logs.shape) if k != d]
        total = reduce("add", tuple(range(len(loss.shape))), loss)
        return op(site.dtype, mapped("mul", total, reciprocal_extent(rows, loss.dtype)))
    return _reduced(site, loss, reduction)


def _class_loss(
    site: Site,
    logs: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    d: int,
) -> Tensor:
    wide = compute_type(logs.dtype)
    known = mapped("ne", target, ignore_index)
    weights = _at_class(weight, target, 0) if weight is not None else full(1, wide, target.shape)
    weights = select(known, weights, 0, wide)
    loss = mapped("neg", _at_class(logs, target, d))
    loss = select(known, mapped("mul", loss, weights) if weight is not None else loss, 0, wide)
    if smoothing:
        per_class = logs if weight is None else mapped("mul", logs, _class_weight(weight, logs, d))
        even = mapped("neg", reduce("add", (d,), per_class))
        even = mapped("mul", even, mapped("mul", reciprocal_extent([logs.shape[d]], wide), smoothing))
        loss = select(known, mapped("add", mapped("mul", loss, 1 - smoothing), even), 0, wide)
    if reduction != _MEAN:
        return _reduced(site, loss, reduction)
    every = tuple(range(len(loss.shape)))
    return op(site.dtype, mapped("div", reduce("add", every, loss), reduce("add", every, weights)))


def _class_weight(weight: Tensor, logs: Tensor, d: int) -> Tensor:
    """The weight of each class, in a shape that broadcasts against logs."""
    return reshape(weight, (*weight.shape, *(1,) * (len(logs.shape) - 1 - d)))


def _at_class(x: Tensor, target: Tensor, d: int) -> Tensor:
    """x at the class of each target; x has the classes in dimension d and otherwise the target's shape."""
    at = source(0, "i64", len(target.shape))
    rest = list(coordinates(target.shape)) if len(x.shape) > 1 else []
    index = (*rest[:d], at, *rest[d:])
    return view(x, target.shape, index, sources=(op("i64", target),))


@lowers("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(
    site: Site,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
) -> Tensor:
    return _class_loss(site, x, target, weight, reduction, ignore_index, 0.0, 0 if len(x.shape) == 1 else 1)
