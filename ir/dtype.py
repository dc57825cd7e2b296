"""Scalar types: names, widths, rounding, and the type in which PyTorch's CUDA operators accumulate."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class DTypeInfo:
    """A scalar type: `kind` is one of float, int, uint, bool, any; `mantissa` counts stored bits."""

    name: str
    kind: str
    bytes: int
    mantissa: int = 0
    max_exponent: int = 0

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to the next value; 0 for integers."""
        return 2.0 ** -(self.mantissa + 1) if self.kind == "float" else 0.0


_ROWS = (
    DTypeInfo("any", "any", 4),
    DTypeInfo("bool", "bool", 1),
    DTypeInfo("u8", "uint", 1),
    DTypeInfo("i8", "int", 1),
    DTypeInfo("i16", "int", 2),
    DTypeInfo("i32", "int", 4),
    DTypeInfo("i64", "int", 8),
    DTypeInfo("f16", "float", 2, 10, 15),
    DTypeInfo("bf16", "float", 2, 7, 127),
    DTypeInfo("f32", "float", 4, 23, 127),
    DTypeInfo("f64", "float", 8, 52, 1023),
)
DTYPES: dict[str, DTypeInfo] = {row.name: row for row in _ROWS}
DType = str

_NUMPY: dict[DType, type[np.generic]] = {
    "bool": np.bool_,
    "u8": np.uint8,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "f16": np.float16,
    "bf16": np.float32,  # values are held in f32 and rounded by `rounded`
    "f32": np.float32,
    "f64": np.float64,
}


def numpy_type(dtype: DType) -> type[np.generic]:
    """The numpy type that holds values of `dtype` exactly (bf16 values are held in float32)."""
    return _NUMPY[dtype]


def is_float(dtype: DType) -> bool:
    """Whether `dtype` is a floating-point type."""
    return DTYPES[dtype].kind == "float"


def is_integer(dtype: DType) -> bool:
    """Whether `dtype` is a signed or unsigned integer type (bool is not)."""
    return DTYPES[dtype].kind in ("int", "uint")


def compute_type(dtype: DType) -> DType:
    """The type in which arithmetic on `dtype` happens: f32 for f16 and bf16, else itself."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def rounded(values: Array, dtype: DType) -> Array:
    """Convert to `dtype` as a CUDA cast does, in the array type of `numpy_type(dtype)`.

    Floats round to nearest even; float to integer truncates; integers wrap.
    """
    if dtype == "bf16":
        wide = values.astype(np.float32)
        if values.dtype == np.float64:  # round to odd first, so that the second rounding is the only one
            wide = _round_to_odd(values)
        bits = wide.view(np.uint32)
        near = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(wide), np.float32(np.nan), near.view(np.float32))
    if dtype == "bool":
        return np.asarray(values != 0)
    with np.errstate(all="ignore"):
        if is_integer(dtype) and values.dtype.kind == "f":
            values = np.trunc(values).astype(np.int64)
        return np.asarray(values.astype(numpy_type(dtype)))


def _round_to_odd(values: Array) -> npt.NDArray[np.float32]:
    near = values.astype(np.float32)
    bits = near.view(np.uint32).copy()
    inexact = (near.astype(np.float64) != values) & np.isfinite(values)
    past = np.abs(near.astype(np.float64)) > np.abs(values.astype(np.float64))
    bits = np.where(inexact & past, bits - np.uint32(1), bits)
    bits = np.where(inexact, bits | np.uint32(1), bits)
    return bits.astype(np.uint32).view(np.float32)


def storage_type(dtype: DType) -> type[np.generic]:
    """The numpy type of the bytes in memory: as `numpy_type`, but bf16 is uint16."""
    return np.uint16 if dtype == "bf16" else numpy_type(dtype)


def to_storage(values: Array, dtype: DType) -> Array:
    """Values already rounded to `dtype`, as the array that lies in memory."""
    if dtype == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(numpy_type(dtype), copy=False)


def from_storage(stored: Array, dtype: DType) -> Array:
    """The values of an array in memory (bf16 as float32)."""
    if dtype == "bf16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored


def value_of(dtype: DType, bits: int) -> float | int | bool:
    """The number whose bit pattern in `dtype` is `bits`."""
    match dtype:
        case "f64":
            return float(struct.unpack("<d", struct.pack("<Q", bits))[0])
        case "f32":
            return float(struct.unpack("<f", struct.pack("<I", bits))[0])
        case "bf16":
            return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
        case "f16":
            return float(struct.unpack("<e", struct.pack("<H", bits))[0])
        case "bool":
            return bool(bits)
    info = DTYPES[dtype]
    size = 1 << (8 * info.bytes)
    return bits - size if info.kind == "int" and bits >= size // 2 else bits


def bits_of(dtype: DType, value: float | int | bool) -> int:
    """The bit pattern of `value` rounded to `dtype`."""
    if is_float(dtype):
        with np.errstate(all="ignore"):
            near = rounded(np.asarray(value, dtype=np.float64), dtype)
        match dtype:
            case "f64":
                return int(near.view(np.uint64))
            case "f32":
                return int(near.view(np.uint32))
            case "bf16":
                return int(near.view(np.uint32)) >> 16
            case _:
                return int(near.view(np.uint16))
    return int(bool(value)) if dtype == "bool" else int(value) % (1 << (8 * DTYPES[dtype].bytes))
