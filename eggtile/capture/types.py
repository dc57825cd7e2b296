"""What torch and Tensor IR call the same things: dtypes, extents, promotion, and the types of an exported value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from eggtile.reference import DTYPE_NAMES as _NAMES
from eggtile.reference import TORCH_DTYPES as TORCH_DTYPES
from ir.dtype import DType, is_float
from ir.tensor import Dim, Tensor

Scalar = bool | int | float
Operand = Tensor | Scalar


class CaptureError(Exception):
    """A program that cannot be captured; the message is one sentence."""


class OneCall(Exception):
    """A program that cannot be split into operators; the message says why."""


class Unsupported(Exception):
    """A call of an operator that no rule states in Tensor IR; it becomes a `Call`."""


def first_sentence(text: str) -> str:
    """The first non-empty line, as an error message wants it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else "no reason is given"


def dtype_name(dtype: torch.dtype) -> DType:
    """The name of a torch dtype; raises `CaptureError` for one that Tensor IR lacks."""
    if dtype not in _NAMES:
        raise CaptureError(f"tensors of {dtype} are not supported; supported are {', '.join(TORCH_DTYPES)}")
    return _NAMES[dtype]


def dim(extent: int | torch.SymInt) -> Dim:
    """An extent of a traced tensor: a number, or the text of its expression."""
    return extent if isinstance(extent, int) else str(extent.node.expr)


@dataclass(frozen=True)
class Spec:
    """Type of a traced tensor; strides in elements."""

    dtype: DType
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim


def spec_of(value: torch.Tensor) -> Spec:
    """The type of a tensor, real or traced."""
    strides = tuple(map(dim, value.stride()))
    return Spec(dtype_name(value.dtype), tuple(map(dim, value.shape)), strides, dim(value.storage_offset()))


def promoted(*operands: Operand) -> DType:
    """The common dtype of operands as PyTorch finds it: tensors first, then 0-d tensors, then Python numbers."""
    ranks: list[DType | None] = [None, None, None]
    for x in operands:
        match x:
            case Tensor():
                rank, dtype = int(not x.shape), x.dtype
            case bool():
                rank, dtype = 2, "bool"
            case int():
                rank, dtype = 2, "i64"
            case float():
                rank, dtype = 2, dtype_name(torch.get_default_dtype())
        ranks[rank] = promote(ranks[rank], dtype)
    return _outranked(ranks[0], _outranked(ranks[1], ranks[2])) or "f32"


def promote(a: DType | None, b: DType | None) -> DType | None:
    """The smallest dtype that holds both."""
    if a is None or b is None:
        return a or b
    return _NAMES[torch.promote_types(TORCH_DTYPES[a], TORCH_DTYPES[b])]


def _outranked(high: DType | None, low: DType | None) -> DType | None:
    if high is None or (high == "bool" and low) or (low and is_float(low) and not is_float(high)):
        return promote(high, low)
    return high


def renamed(spec: Spec, names: Mapping[str, str]) -> Spec:
    """The type with other names for its symbols."""
    if not names:
        return spec

    def text(e: Dim) -> Dim:
        return e if isinstance(e, int) else re.sub(r"[A-Za-z_]\w*", lambda m: names.get(m.group(), m.group()), e)

    return Spec(spec.dtype, tuple(map(text, spec.shape)), tuple(map(text, spec.strides)), text(spec.offset))
