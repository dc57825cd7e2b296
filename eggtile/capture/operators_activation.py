"""Activation functions: everything in the compute type, one rounding at the end."""

from __future__ import annotations

import math

from eggtile.capture.build import mapped, op, select
from eggtile.capture.operators_select import clamp
from eggtile.capture.table import Site, lowers
from eggtile.capture.types import Scalar
from ir.dtype import compute_type
from ir.tensor import Tensor


def _either(site: Site, p: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return op(site.dtype, select(p, x, y, compute_type(site.dtype)))


@lowers("relu")
def relu(site: Site, x: Tensor) -> Tensor:
    return clamp(site, x, 0)


@lowers("relu6")
def relu6(site: Site, x: Tensor) -> Tensor:
    return clamp(site, x, 0, 6)


@lowers("hardtanh")
def hardtanh(site: Site, x: Tensor, min_val: Scalar = -1, max_val: Scalar = 1) -> Tensor:
    return clamp(site, x, min_val, max_val)


@lowers("leaky_relu")
def leaky_relu(site: Site, x: Tensor, negative_slope: Scalar = 0.01) -> Tensor:
    return _either(site, mapped("gt", x, 0), x, mapped("mul", x, negative_slope))


@lowers("elu")
def elu(site: Site, x: Tensor, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Tensor:
    below = mapped("mul", mapped("expm1", _times(x, input_scale)), alpha * scale)
    return _either(site, mapped("gt", x, 0), _times(x, scale), below)


def _times(x: Tensor, factor: Scalar) -> Tensor:
    return x if factor == 1 else mapped("mul", x, factor)


@lowers("gelu")
def gelu(site: Site, x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        inner = mapped("erf", mapped("mul", x, math.sqrt(0.5)))
        return op(site.dtype, mapped("mul", mapped("mul", x, 0.5), mapped("add", inner, 1)))
    cube = mapped("mul", mapped("mul", x, x), x)
    inner = mapped("mul", mapped("add", x, mapped("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
    return op(site.dtype, mapped("mul", mapped("mul", x, 0.5), mapped("add", mapped("tanh", inner), 1)))


@lowers("silu")
def silu(site: Site, x: Tensor) -> Tensor:
    return op(site.dtype, mapped("mul", x, mapped("sigmoid", x)))


def _softplus(x: Tensor, beta: Scalar, threshold: Scalar) -> Tensor:
    scaled = _times(x, beta)
    soft = _times(mapped("log1p", mapped("exp", scaled)), 1 / beta)
    return select(mapped("gt", scaled, threshold), x, soft, compute_type(x.dtype))


@lowers("softplus")
def softplus(site: Site, x: Tensor, beta: Scalar = 1, threshold: Scalar = 20) -> Tensor:
    return op(site.dtype, _softplus(x, beta, threshold))


def _gate(x: Tensor) -> Tensor:
    raised = mapped("add", x, 3)
    return mapped("mul", mapped("min", mapped("max", raised, 0), 6), 1 / 6)


@lowers("hardswish")
def hardswish(site: Site, x: Tensor) -> Tensor:
    return op(site.dtype, mapped("mul", x, _gate(x)))


@lowers("hardsigmoid")
def hardsigmoid(site: Site, x: Tensor) -> Tensor:
    return op(site.dtype, _gate(x))


@lowers("log_sigmoid")
def log_sigmoid(site: Site, x: Tensor) -> Tensor:
    tail = mapped("log1p", mapped("exp", mapped("neg", mapped("abs", x))))
    return op(site.dtype, mapped("sub", mapped("min", x, 0), tail))
