"""A trial of a kernel: hard inputs by seed, and the elements that it is held to with how far they may be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from ir.dtype import DTYPES, Array, is_float, rounded, storage_type, to_storage
from ir.loop import Buffer

PERIOD = 1_000_003  # values repeat after a prime number of elements, so rows of large buffers still differ


# ---- inputs

Draw = Callable[[np.random.Generator, int, float], Array]
"""Float values from a generator: their number, and the greatest value of their type."""


def _with(x: Array, rng: np.random.Generator, values: Sequence[float], one_in: int) -> Array:
    where = rng.integers(0, one_in, x.size) == 0
    return np.where(where, rng.choice(np.array(values), x.size), x)


@dataclass(frozen=True)
class Case:
    """Inputs of one kind: floats by `draw`, masks with a share of True, integers up to `past` outside the axes."""

    draw: Draw
    true: float = 0.5
    past: int = 0


FIRST, SPECIAL = "random", "special"
CASES = {
    "random": Case(lambda rng, n, most: rng.standard_normal(n)),
    "offset": Case(lambda rng, n, most: rng.standard_normal(n) + 1e4, past=3),
    "huge": Case(lambda rng, n, most: rng.uniform(-1, 1, n) * min(most, 1e30), true=1.0),
    "zeros": Case(lambda rng, n, most: _with(rng.standard_normal(n), rng, (0.0, -0.0), 2), true=0.0),
    SPECIAL: Case(lambda rng, n, most: _with(rng.standard_normal(n), rng, (np.nan, np.inf, -np.inf), 97)),
}
MOST: Mapping[str, float] = {"f16": 65504.0}


def span(b: Buffer) -> int:
    """Elements from the first to the last of a strided buffer."""
    return 1 + sum((n - 1) * s for n, s in zip(b.shape, b.strides, strict=True)) if b.size else 0


def periods(case: str, buffers: Sequence[Buffer], fresh: Set[str], extent: int) -> list[Array]:
    """The memory of every buffer before the launch, in the storage type, up to where it repeats.

    `fresh` buffers hold poison; integers index up to `extent` positions, and some beyond.
    """
    rng = np.random.default_rng([ord(c) for c in case])
    return [_poison(b, CASES[case]) if b.name in fresh else _drawn(b, CASES[case], rng, extent) for b in buffers]


def _poison(b: Buffer, case: Case) -> Array:
    pattern = 0xFF if is_float(b.dtype) else int(case.true == 0) if b.dtype == "bool" else 0x5A
    count = min(span(b), PERIOD)
    return np.full(count * DTYPES[b.dtype].bytes, pattern, np.uint8).view(storage_type(b.dtype))


def _drawn(b: Buffer, case: Case, rng: np.random.Generator, extent: int) -> Array:
    count = min(span(b), PERIOD)
    if is_float(b.dtype):
        values = case.draw(rng, count, MOST.get(b.dtype, math.inf))
    elif b.dtype == "bool":
        values = rng.random(count) < case.true
    else:
        values = rng.integers(-case.past, max(1, extent) + case.past, count)
    return to_storage(rounded(values, b.dtype), b.dtype)


# ---- expected values


@dataclass(frozen=True)
class Expected:
    """Elements of a buffer: at `places` the `values`, within `bound` of their largest; at `odd` NaN and infinities."""

    buffer: int
    places: Array
    values: Array
    bound: float
    odd: Array
    odd_values: Array


@dataclass(frozen=True)
class Trial:
    """One case of a kernel; where `whole`, every element outside `written` (by buffer) must stay as it was."""

    case: str
    expected: tuple[Expected, ...] = ()
    written: Mapping[int, Array] = field(default_factory=dict)
    whole: bool = False
    same_twice: bool = False


def largest(y: Array) -> float:
    """What errors are relative to: 1 where all values are 0."""
    return float(np.abs(y).max(initial=0.0)) or 1.0
