"""Elementwise operators: arithmetic, comparisons, logic and bits."""

from __future__ import annotations

import math

from eggtile.capture.build import broadcast, full, lifted, mapped, op, select
from eggtile.capture.table import Site, lowers
from eggtile.capture.types import Operand, Scalar, Unsupported, promoted
from ir.dtype import compute_type, is_float
from ir.tensor import Map, Tensor


def common(site: Site, *operands: Operand) -> str:
    """The dtype in which an operator with a result computes: the promoted one, or the result's where that is a float."""
    dtype = promoted(*operands)
    return site.dtype if is_float(site.dtype) and not is_float(dtype) else dtype


def elementwise(site: Site, name: str, *operands: Operand, wide: bool = True) -> Tensor:
    """A row of the operator table on promoted operands, rounded to the result's dtype."""
    dtype = common(site, *operands)
    return op(site.dtype, mapped(name, *(lifted(x, dtype, site.shape, wide) for x in operands)))


def _rows(text: str) -> dict[str, str]:
    """Overload packets and the rows of the operator table that they are: `name` or `name:row`."""
    return {name: row or name for name, _, row in (word.partition(":") for word in text.split())}


_UNARY = _rows(
    "abs exp exp2 special_exp2:exp2 expm1 log log2 log1p sqrt rsqrt reciprocal:recip sin cos tan asin acos atan sinh "
    "cosh tanh sigmoid special_expit:sigmoid erf special_erf:erf neg isnan"
)
_ROUNDING = _rows("floor ceil trunc fix:trunc round:rint")
_BINARY = _rows(
    "atan2 maximum:max minimum:min eq ne lt le gt ge bitwise_and:and bitwise_or:or bitwise_xor:xor remainder:mod fmod "
    "__and__:and __or__:or __xor__:xor bitwise_left_shift:shl bitwise_right_shift:shr __lshift__:shl __rshift__:shr"
)
_WIDE_NUMBERS = ("eq", "ne")
"""Rows of which the CUDA kernels take a Python number in the compute type; the others round it first."""


def _overloads(name: str) -> tuple[str, ...]:
    return tuple(f"{name}.{kind}" for kind in ("Tensor", "Scalar", "default", "Scalar_Tensor", "Tensor_Scalar"))


def _register_tables() -> None:
    for name, row in _UNARY.items():

        def unary(site: Site, x: Tensor, row: str = row) -> Tensor:
            return elementwise(site, row, x)

        lowers(name)(unary)
    for name, row in _ROUNDING.items():

        def rounding(site: Site, x: Tensor, row: str = row) -> Tensor:
            return elementwise(site, row, x) if is_float(x.dtype) else x

        lowers(name)(rounding)
    for name, row in _BINARY.items():

        def binary(site: Site, x: Operand, y: Operand, row: str = row) -> Tensor:
            return elementwise(site, row, x, y, wide=row in _WIDE_NUMBERS)

        lowers(*_overloads(name))(binary)


_register_tables()


# ---- arithmetic


def _scaled(y: Operand, alpha: Scalar, dtype: str) -> Operand:
    if alpha == 1:
        return y
    if not isinstance(y, Tensor):
        return y * alpha
    return mapped("mul", op(dtype, y), alpha)


@lowers(*_overloads("add"))
def add(site: Site, x: Operand, y: Operand, alpha: Scalar = 1) -> Tensor:
    dtype = common(site, x, y)
    if dtype == "bool":
        return elementwise(site, "or", x, y)
    terms = (_widened(x, dtype, site), _widened(_scaled(y, alpha, dtype), dtype, site))
    return op(site.dtype, mapped("add", *terms))


@lowers(*_overloads("sub"))
def sub(site: Site, x: Operand, y: Operand, alpha: Scalar = 1) -> Tensor:
    dtype = common(site, x, y)
    terms = (_widened(x, dtype, site), _widened(_scaled(y, alpha, dtype), dtype, site))
    return op(site.dtype, mapped("sub", *terms))


def _widened(x: Operand, dtype: str, site: Site) -> Tensor:
    """As `lifted`, but a tensor that is already in the compute type stays there."""
    if isinstance(x, Tensor) and x.dtype == compute_type(dtype):
        return broadcast(x, site.shape)
    return lifted(x, dtype, site.shape)


@lowers("rsub.Tensor", "rsub.Scalar")
def rsub(site: Site, x: Tensor, y: Operand, alpha: Scalar = 1) -> Tensor:
    dtype = common(site, x, y)
    return op(
        site.dtype, mapped("sub", lifted(y, dtype, site.shape), _widened(_scaled(x, alpha, dtype), dtype, site))
    )


@lowers(*_overloads("mul"))
def mul(site: Site, x: Operand, y: Operand) -> Tensor:
    return elementwise(site, "and" if site.dtype == "bool" else "mul", x, y)


@lowers(*_overloads("div"))
def div(site: Site, x: Operand, y: Operand) -> Tensor:
    if isinstance(y, Tensor) or y == 0:
        return elementwise(site, "div", x, y)
    # PyTorch's CUDA kernel multiplies by the reciprocal of a number.
    return elementwise(site, "mul", x, 1 / y)


@lowers("div.Tensor_mode", "div.Scalar_mode")
def div_mode(site: Site, x: Operand, y: Operand, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return div(site, x, y)
    return floor_divide(site, x, y) if rounding_mode == "floor" else elementwise(site, "truncdiv", x, y)


@lowers("floor_divide", "floor_divide.Scalar")
def floor_divide(site: Site, x: Operand, y: Operand) -> Tensor:
    if not is_float(site.dtype):
        return elementwise(site, "floordiv", x, y)
    # floor(x / y) is wrong where the quotient rounds up to an integer: the remainder goes first, as in C's fmod
    dtype = common(site, x, y)
    a, b = (lifted(t, dtype, site.shape) for t in (x, y))
    quotient = mapped("div", mapped("sub", a, mapped("mod", a, b)), b)
    whole = mapped("floor", mapped("add", quotient, 0.5))
    return op(site.dtype, select(mapped("eq", b, 0), mapped("div", a, b), whole, compute_type(dtype)))


@lowers("positive", "conj", "real", "resolve_conj", "resolve_neg")
def positive(site: Site, x: Tensor) -> Tensor:
    return x


@lowers("pow.Tensor_Scalar")
def pow_scalar(site: Site, x: Tensor, exponent: Scalar) -> Tensor:
    dtype = common(site, x, exponent)
    if not is_float(dtype):
        if exponent < 0:
            raise Unsupported("the exponent of an integer is negative")
        return _power(op(site.dtype, x), int(exponent))
    base = op(dtype, x)
    match float(exponent):
        case 0.0:
            return full(1, dtype, site.shape)
        case 1.0:
            return base
        case 2.0:
            return op(dtype, mapped("mul", base, base))
        case 3.0:
            # the square is rounded: the kernel multiplies in the element type
            return op(dtype, mapped("mul", op(dtype, mapped("mul", base, base)), base))
        case -1.0:
            return op(dtype, mapped("recip", base))
        case -2.0:
            return op(dtype, mapped("recip", op(dtype, mapped("mul", base, base))))
        case 0.5:
            return op(dtype, mapped("sqrt", base))
        case -0.5:
            return op(dtype, mapped("rsqrt", base))
    return op(dtype, mapped("pow", base, float(exponent)))


def _power(base: Tensor, exponent: int) -> Tensor:
    out: Tensor = full(1, base.dtype, base.shape)
    while exponent:
        if exponent & 1:
            out = mapped("mul", out, base)
        base, exponent = mapped("mul", base, base), exponent >> 1
    return out


@lowers("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(site: Site, x: Operand, exponent: Tensor) -> Tensor:
    if not is_float(site.dtype):
        raise Unsupported("an integer is raised to a tensor")
    return elementwise(site, "pow", x, exponent)


@lowers("square")
def square(site: Site, x: Tensor) -> Tensor:
    return pow_scalar(site, x, 2)


@lowers("sign", "sgn")
def sign(site: Site, x: Tensor) -> Tensor:
    if x.dtype == "bool":
        return x
    below = select(mapped("lt", x, 0), -1, 0, x.dtype) if x.dtype != "u8" else full(0, "u8", x.shape)
    return select(mapped("gt", x, 0), 1, below, x.dtype)


@lowers("fmax", "fmin")
def fmax(site: Site, x: Tensor, y: Tensor) -> Tensor:
    name = "max" if site.target.startswith("fmax") else "min"
    both = elementwise(site, name, x, y)
    if not is_float(site.dtype):
        return both
    a, b = (lifted(t, site.dtype, site.shape) for t in (x, y))
    return select(mapped("isnan", a), b, select(mapped("isnan", b), a, both, site.dtype), site.dtype)


# ---- predicates and logic


@lowers("isinf")
def isinf(site: Site, x: Tensor) -> Tensor:
    return mapped("eq", mapped("abs", x), math.inf) if is_float(x.dtype) else full(False, "bool", site.shape)


@lowers("isfinite")
def isfinite(site: Site, x: Tensor) -> Tensor:
    return mapped("lt", mapped("abs", x), math.inf) if is_float(x.dtype) else full(True, "bool", site.shape)


def truth(x: Operand, shape: tuple[int | str, ...]) -> Tensor:
    """Whether x is not 0."""
    if not isinstance(x, Tensor):
        return full(bool(x), "bool", shape)
    return broadcast(x if x.dtype == "bool" else mapped("ne", x, 0), shape)


@lowers("logical_and", "logical_or", "logical_xor")
def logical(site: Site, x: Operand, y: Operand) -> Tensor:
    name = site.target.removeprefix("logical_").split(".")[0]
    return Map(name, (truth(x, site.shape), truth(y, site.shape)))


@lowers("logical_not")
def logical_not(site: Site, x: Tensor) -> Tensor:
    return Map("not", (truth(x, site.shape),))


@lowers("bitwise_not")
def bitwise_not(site: Site, x: Tensor) -> Tensor:
    return Map("not" if x.dtype == "bool" else "invert", (x,))
