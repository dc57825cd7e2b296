"""Row programs over many sizes: row lengths at one number of elements, and row counts at one length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench.cases import rows
from bench.cases.spec import Built, Case

ELEMENTS = 2**25
"""Of the sweep over lengths: in bf16 as much as the L2 cache holds, so that cold rows come from memory."""
LENGTHS = tuple(2**k for k in range(5, 19))
ODD: Mapping[int, int] = {1000: 1024, 4095: 4096, 4097: 4160}
"""Lengths that are no multiple of 64, and the next one that is."""
COUNTS = tuple(4**k for k in range(9))
LENGTH = 4096
"""Of the sweep over counts."""


def _softmax(M: int, N: int) -> Built:
    return rows.softmax(1, M, N)


PROGRAMS = {"rmsnorm": rows.rmsnorm, "softmax": _softmax}
TYPES = ("bf16", "fp32")


def name(program: str, dtype: str, count: int, length: int) -> str:
    """The name of a point."""
    return f"sweep.{program}_{dtype}_{count}x{length}"


def count_at(length: int) -> int:
    """Rows of the sweep over lengths."""
    return ELEMENTS // length


def points() -> list[tuple[int, int]]:
    """(rows, length) of every point of both sweeps."""
    lengths = sorted({*LENGTHS, *ODD, *ODD.values()})
    return list(dict.fromkeys([*((count_at(n), n) for n in lengths), *((m, LENGTH) for m in COUNTS)]))


def _cases() -> Iterator[Case]:
    for count, length in points():
        for program, build in PROGRAMS.items():
            for dtype in TYPES:
                tiny = {"M": min(count, 8), "N": min(length, 64)}
                yield Case(name(program, dtype, count, length), 5, build, {"M": count, "N": length}, tiny, dtype)


SWEEP: tuple[Case, ...] = tuple(_cases())
