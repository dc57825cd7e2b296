"""The gate on one kernel's binary: launched between guards on the inputs of every trial, and held to what it must do.

An error may be FACTOR times its bound. Nothing but what the kernel stores may change, and two launches give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eggtile.trials import Expected, Trial, largest
from ir.dtype import DTYPES, Array, from_storage
from ir.loop import Buffer
from ir.node import IRError

FACTOR = 4.0
OTHER_ROUNDOFFS = 64  # between two kernels, where no element has a bound of its own
GUARD_BYTES = 4096
GUARD = 0xA5


class GateError(IRError):
    """A kernel whose memory, once it has run, is not what it must be; the message is one sentence."""


Run = Callable[[list[Array], list[int]], None]
"""Launches a kernel on byte images of its buffers, changed in place; the integers say where each buffer starts."""


def image(stored: Array, b: Buffer) -> tuple[Array, int]:
    """A buffer's bytes between guards, and where they start: aligned as promised, and no better."""
    start = GUARD_BYTES + b.alignment
    made = np.full(start + stored.nbytes + GUARD_BYTES, GUARD, np.uint8)
    made[start : start + stored.nbytes] = stored.view(np.uint8)
    return made, start


def launched(run: Run, buffers: Sequence[Buffer], before: Sequence[Array]) -> list[Array]:
    """The storage of every buffer after a launch; raises where bytes around one have changed."""
    images, starts = map(list, zip(*map(image, before, buffers), strict=True))
    run(images, starts)
    out = []
    for b, made, start, old in zip(buffers, images, starts, before, strict=True):
        for side, guard in (("before", made[:start]), ("past", made[start + old.nbytes :])):
            if (guard != GUARD).any():
                raise GateError(f"{b.name} is written {side} its {'start' if side == 'before' else 'end'}")
        out.append(made[start : start + old.nbytes].view(old.dtype))
    return out


@dataclass(frozen=True)
class Verdict:
    """Whether a kernel passed; error and bound in the first trial, of the buffer that came nearest to its bound."""

    status: str
    error: float = 0.0
    bound: float = 0.0
    reason: str = ""


def gate(
    run: Run,
    buffers: Sequence[Buffer],
    given: Sequence[tuple[Trial, list[Array]]],
    reference: Sequence[Array] | None = None,
) -> Verdict:
    """Launch on the memory of every trial; `reference` is what another kernel leaves in the first one."""
    error = bound = 0.0
    try:
        for k, (trial, before) in enumerate(given):
            after = launched(run, buffers, before)
            if k == 0 and trial.same_twice:
                again = launched(run, buffers, before)
                if any(x.tobytes() != y.tobytes() for x, y in zip(after, again, strict=True)):
                    raise GateError("two launches give different bits")
            check_kept(trial, buffers, before, after)
            for e in trial.expected:
                off = check_values(e, buffers[e.buffer], trial.case, after[e.buffer])
                if k == 0 and off * bound >= error * e.bound:
                    error, bound = off, e.bound
            if k == 0 and reference is not None:
                check_alike(trial, buffers, after, reference)
    except GateError as e:
        return Verdict("wrong", error, bound, str(e))
    return Verdict("ok", error, bound)


def check_kept(trial: Trial, buffers: Sequence[Buffer], before: Sequence[Array], after: Sequence[Array]) -> None:
    """Elements that the kernel must not write are as they were."""
    for k, (b, old, new) in enumerate(zip(buffers, before, after, strict=True)):
        if b.role == "output" and not trial.whole:
            continue
        kept = np.ones(old.size, bool)
        kept[trial.written.get(k, np.zeros(0, np.int64))] = False
        if (old[kept].view(np.uint8) != new[kept].view(np.uint8)).any():
            raise GateError(f"{trial.case}: {b.name} has changed where nothing is stored")


def check_values(e: Expected, b: Buffer, case: str, stored: Array) -> float:
    """The error of the elements of a buffer; raises where it is too large."""
    odd = from_storage(stored[e.odd], b.dtype)
    if not np.array_equal(odd.astype(np.float64), e.odd_values, equal_nan=True):
        raise GateError(f"{case}: NaN and infinities of {b.name} are not in place")
    got = from_storage(stored[e.places], b.dtype).astype(np.float64)
    with np.errstate(all="ignore"):
        off = float(np.abs(got - e.values).max(initial=0.0)) / largest(e.values)
    if not off <= FACTOR * e.bound:
        raise GateError(f"{case}: {b.name} has error {off:.3g}, its bound is {e.bound:.3g}")
    return off


def check_alike(
    trial: Trial, buffers: Sequence[Buffer], after: Sequence[Array], reference: Sequence[Array]
) -> None:
    """Every element is what another kernel of the same terms left, within what both may err."""
    bounds = {e.buffer: e.bound for e in trial.expected}
    for k, (b, x, y) in enumerate(zip(buffers, after, reference, strict=True)):
        if b.role != "output" or x.tobytes() == y.tobytes():
            continue
        got, other = (from_storage(v, b.dtype).astype(np.float64) for v in (x, y))
        finite = np.isfinite(other)
        if not np.array_equal(got[~finite], other[~finite], equal_nan=True):
            raise GateError(f"{b.name}: NaN and infinities differ from the fall-back's")
        off = float(np.abs(got - other)[finite].max(initial=0.0)) / largest(other[finite])
        if not off <= 2 * FACTOR * bounds.get(k, OTHER_ROUNDOFFS * DTYPES[b.dtype].unit_roundoff):
            raise GateError(f"{b.name} differs from the fall-back by {off:.3g}")
