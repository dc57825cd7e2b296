"""The scalar operators as data: their kind, algebra and meaning in numpy. Texts of a target stand with the target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ir.dtype import Array

Meaning = Callable[..., Array]


@dataclass(frozen=True)
class Op:
    """A scalar operator.

    `result` says how the dtype follows: `compute` (the compute type of the joined operands), `same`
    (the joined operands' own type, exact), `bool`, or `logic` (bool or integer operands, kept).
    """

    name: str
    meaning: Meaning
    result: str = "compute"
    commutes: bool = False
    floats_only: bool = False


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _float_erf(x: Array) -> Array:
    return np.asarray(_erf(x)).astype(x.dtype)


def _sigmoid(x: Array) -> Array:
    return (1 / (1 + np.exp(-x))).astype(x.dtype)


def _recip(x: Array) -> Array:
    return np.asarray(np.ones_like(x) / x)


def _rsqrt(x: Array) -> Array:
    return np.asarray(np.ones_like(x) / np.sqrt(x))


def _mulz(x: Array, y: Array) -> Array:
    """x * y, y taken as 0 where it is not finite: 0 * y is 0, whatever y is, and NaN * 0 is NaN."""
    return np.asarray(x * np.where(np.isfinite(y), y, np.zeros_like(y)))


def _addz(x: Array, y: Array) -> Array:
    """x + y, but -inf where x is -inf, whatever y is."""
    return np.where(np.isneginf(x), x, x + y)


def _truncdiv(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(np.trunc(x / y))
    safe = np.where(y == 0, np.ones_like(y), y)
    below = (np.mod(x, safe) != 0) & ((x < 0) != (safe < 0))
    return np.asarray((np.floor_divide(x, safe) + below).astype(x.dtype))


def _floordiv(x: Array, y: Array) -> Array:
    return np.asarray(
        np.floor_divide(x, np.where(y == 0, np.ones_like(y), y)) if x.dtype.kind in "iu" else np.floor(x / y)
    )


def _mod(x: Array, y: Array) -> Array:
    """Remainder with the sign of the divisor."""
    return np.asarray(np.mod(x, np.where(y == 0, np.ones_like(y), y)) if x.dtype.kind in "iu" else np.mod(x, y))


def _neg(x: Array) -> Array:
    return np.asarray(np.negative(x) if x.dtype.kind != "b" else ~x)


UNARY: dict[str, Op] = {
    op.name: op
    for op in (
        Op("neg", _neg, "same"),
        Op("abs", np.abs, "same"),
        Op("exp", np.exp, floats_only=True),
        Op("exp_coarse", np.exp, floats_only=True),  # the coarse ones in few instructions, not to the last bits
        Op("exp2", np.exp2, floats_only=True),
        Op("expm1", np.expm1, floats_only=True),
        Op("log", np.log, floats_only=True),
        Op("log2", np.log2, floats_only=True),
        Op("log1p", np.log1p, floats_only=True),
        Op("sqrt", np.sqrt, floats_only=True),
        Op("rsqrt", _rsqrt, floats_only=True),
        Op("recip", _recip, floats_only=True),
        Op("sin", np.sin, floats_only=True),
        Op("cos", np.cos, floats_only=True),
        Op("tan", np.tan, floats_only=True),
        Op("asin", np.arcsin, floats_only=True),
        Op("acos", np.arccos, floats_only=True),
        Op("atan", np.arctan, floats_only=True),
        Op("sinh", np.sinh, floats_only=True),
        Op("cosh", np.cosh, floats_only=True),
        Op("tanh", np.tanh, floats_only=True),
        Op("sigmoid", _sigmoid, floats_only=True),
        Op("sigmoid_coarse", _sigmoid, floats_only=True),
        Op("erf", _float_erf, floats_only=True),
        Op("floor", np.floor, "same", floats_only=True),
        Op("ceil", np.ceil, "same", floats_only=True),
        Op("trunc", np.trunc, "same", floats_only=True),
        Op("rint", np.rint, "same", floats_only=True),
        Op("isnan", np.isnan, "bool"),
        Op("not", np.logical_not, "bool"),
        Op("invert", np.invert, "logic"),
    )
}

BINARY: dict[str, Op] = {
    op.name: op
    for op in (
        Op("add", np.add, commutes=True),
        Op("mul", np.multiply, commutes=True),
        Op("max", np.maximum, "same", commutes=True),  # a NaN operand wins, as in PyTorch
        Op("min", np.minimum, "same", commutes=True),
        Op("pow", np.power),
        Op("atan2", np.arctan2, floats_only=True),
        Op("floordiv", _floordiv),
        Op("truncdiv", _truncdiv),
        Op("mod", _mod),
        Op("fmod", np.fmod),
        Op("mulz", _mulz, floats_only=True),
        Op("addz", _addz, floats_only=True),
        Op("lt", np.less, "bool"),
        Op("le", np.less_equal, "bool"),
        Op("eq", np.equal, "bool", commutes=True),
        Op("ne", np.not_equal, "bool", commutes=True),
        Op("and", np.bitwise_and, "logic", commutes=True),
        Op("or", np.bitwise_or, "logic", commutes=True),
        Op("xor", np.bitwise_xor, "logic", commutes=True),
        Op("shl", np.left_shift, "logic"),
        Op("shr", np.right_shift, "logic"),
    )
}


@dataclass(frozen=True)
class Monoid:
    """An associative operator with an identity.

    `combine` names the binary operator; an arg-fold (`argmax`, `argmin`) keeps a pair (value, position), prefers
    the first position among equals, lets NaN win, and yields the position (i64).
    """

    name: str
    combine: str
    pair: bool = False


MONOIDS: dict[str, Monoid] = {
    m.name: m
    for m in (
        Monoid("add", "add"),
        Monoid("mul", "mul"),
        Monoid("max", "max"),
        Monoid("min", "min"),
        Monoid("and", "and"),
        Monoid("or", "or"),
        Monoid("argmax", "max", pair=True),
        Monoid("argmin", "min", pair=True),
    )
}
