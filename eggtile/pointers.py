"""Buffers of a program as parameters of its kernels."""

from __future__ import annotations

from dataclasses import replace

from ir.dtype import DTYPES
from ir.loop import Buffer


def at_pointer(buffer: Buffer) -> Buffer:
    """The buffer as a kernel's parameter: the pointer stands at its first element, so only alignment keeps the offset."""
    if not buffer.offset:
        return buffer
    offset_bytes = buffer.offset * DTYPES[buffer.dtype].bytes
    return replace(buffer, offset=0, alignment=min(buffer.alignment, offset_bytes & -offset_bytes))
