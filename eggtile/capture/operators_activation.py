"""Activation functions: everything in the compute type, one rounding at the end."""

from __future__ import annotations

import math

from eggtile.capture.build import axis, full, mapped, op, reshape, select, window
from eggtile.capture.operators_pointwise import clamp
from eggtile.capture.table import Site, lowers
from eggtile.capture.types import Scalar, Unsupported
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


@lowers("prelu")
def prelu(site: Site, x: Tensor, weight: Tensor) -> Tensor:
    channels = reshape(weight, (*weight.shape, *(1,) * max(len(x.shape) - 2, 0)))
    return _either(site, mapped("gt", x, 0), x, mapped("mul", x, channels))


@lowers("elu")
def elu(site: Site, x: Tensor, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Tensor:
    below = mapped("mul", mapped("expm1", _times(x, input_scale)), alpha * scale)
    return _either(site, mapped("gt", x, 0), _times(x, scale), below)


def _times(x: Tensor, factor: Scalar) -> Tensor:
    return x if factor == 1 else mapped("mul", x, factor)


@lowers("selu")
def selu(site: Site, x: Tensor) -> Tensor:
    return elu(site, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@lowers("celu")
def celu(site: Site, x: Tensor, alpha: Scalar = 1.0) -> Tensor:
    return elu(site, x, alpha, 1, 1 / alpha)


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


@lowers("glu")
def glu(site: Site, x: Tensor, dim: int = -1) -> Tensor:
    d = axis(dim, len(x.shape))
    half = site.shape[d]
    a, b = window(x, d, half, 0), window(x, d, half, half)
    return op(site.dtype, mapped("mul", a, mapped("sigmoid", b)))


def _softplus(x: Tensor, beta: Scalar, threshold: Scalar) -> Tensor:
    scaled = _times(x, beta)
    soft = _times(mapped("log1p", mapped("exp", scaled)), 1 / beta)
    return select(mapped("gt", scaled, threshold), x, soft, compute_type(x.dtype))


@lowers("softplus")
def softplus(site: Site, x: Tensor, beta: Scalar = 1, threshold: Scalar = 20) -> Tensor:
    return op(site.dtype, _softplus(x, beta, threshold))


@lowers("mish")
def mish(site: Site, x: Tensor) -> Tensor:
    return op(site.dtype, mapped("mul", x, mapped("tanh", mapped("log1p", mapped("exp", x)))))


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


@lowers("hardshrink")
def hardshrink(site: Site, x: Tensor, lambd: Scalar = 0.5) -> Tensor:
    return select(mapped("le", mapped("abs", x), lambd), 0, x, site.dtype)


@lowers("softshrink")
def softshrink(site: Site, x: Tensor, lambd: Scalar = 0.5) -> Tensor:
    low = select(mapped("lt", x, -lambd), mapped("add", x, lambd), mapped("mul", x, 0), compute_type(x.dtype))
    return _either(site, mapped("gt", x, lambd), mapped("sub", x, full(lambd, low.dtype)), low)


@lowers("threshold")
def threshold(site: Site, x: Tensor, limit: Scalar, value: Scalar) -> Tensor:
    return select(mapped("le", x, limit), value, x, site.dtype)


@lowers("logit")
def logit(site: Site, x: Tensor, eps: float | None = None) -> Tensor:
    p = op(site.dtype, x) if eps is None else clamp(site, x, eps, 1 - eps)
    rest = mapped("add", mapped("neg", p), 1)
    return op(site.dtype, mapped("log", mapped("div", p, rest)))


@lowers("atanh")
def atanh(site: Site, x: Tensor) -> Tensor:
    if x.dtype != site.dtype:
        raise Unsupported("its operand is not a float")
    twice = mapped("mul", x, 2)
    ratio = mapped("div", twice, mapped("add", mapped("neg", x), 1))
    return op(site.dtype, mapped("mul", mapped("log1p", ratio), 0.5))


@lowers("logaddexp")
def logaddexp(site: Site, x: Tensor, y: Tensor) -> Tensor:
    larger = mapped("max", x, y)
    gap = mapped("neg", mapped("abs", mapped("sub", x, y)))
    out = mapped("add", larger, mapped("log1p", mapped("exp", gap)))
    equal_infinities = mapped("and", mapped("eq", mapped("abs", x), math.inf), mapped("eq", x, y))
    return _either(site, equal_infinities, larger, out)
