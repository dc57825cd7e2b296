"""The gate on one kernel's binary: launched between guards on the inputs of every trial, and held to what it must do.

An error may be FACTOR times its bound. Nothing but what the kernel stores may change, and two launches give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import numpy as np

from codegen.trial import Expected, Trial, largest, periods, span
from ir.dtype import DTYPES, Array, DType, from_storage, storage_type
from ir.loop import Buffer
from ir.node import IRError

FACTOR = 4.0
OTHER_ROUNDOFFS = 64  # between two kernels, where no element has a bound of its own
GUARD_BYTES = 4096
GUARD = 0xA5
CHUNK = 1 << 18


class GateError(IRError):
    """A kernel whose memory, once it has run, is not what it must be; the message is one sentence."""


Run = Callable[[int, Sequence[Array]], None]
"""Launches a kernel on the memory of the trial with this number, and leaves the images of its buffers in the arrays."""


@dataclass(frozen=True)
class Verdict:
    """Whether a kernel passed; error and bound in the first trial, of the buffer that came nearest to its bound."""

    status: str
    error: float = 0.0
    bound: float = 0.0
    reason: str = ""


class Gate:
    """The trials of a kernel with their memory, which stands for all candidates.

    `images` are the bytes of every buffer before the launch, by trial: between guards, from `starts`, which are aligned
    as promised and no better. `fresh` buffers hold poison at first.
    """

    def __init__(self, buffers: Sequence[Buffer], trials: Sequence[Trial], fresh: Set[str], extent: int) -> None:
        self.buffers, self.trials = tuple(buffers), tuple(trials)
        self.starts = [GUARD_BYTES + b.alignment for b in buffers]
        self.images = [self._images(periods(t.case, buffers, fresh, extent)) for t in trials]
        self.after = [np.empty_like(i) for i in self.images[0]]
        self.reference: dict[int, tuple[Array, float]] = {}

    def _images(self, stored: Sequence[Array]) -> list[Array]:
        out = []
        for b, start, period in zip(self.buffers, self.starts, stored, strict=True):
            end = start + span(b) * period.itemsize
            made = np.empty(end + GUARD_BYTES, np.uint8)
            made[:start] = made[end:] = GUARD
            body, whole = made[start:end].view(period.dtype), span(b) // max(1, period.size) * period.size
            body[:whole].reshape(-1, max(1, period.size))[:] = period
            body[whole:] = period[: body.size - whole]
            out.append(made)
        return out

    def verdict(self, run: Run) -> Verdict:
        """Launch on every trial, twice on the first."""
        error = bound = 0.0
        try:
            for k, trial in enumerate(self.trials):
                after = self._launched(run, k)
                if k == 0 and trial.same_twice:
                    first = {n: after[n].copy() for n, b in enumerate(self.buffers) if b.role == "output"}
                    after = self._launched(run, k)
                    if not all(_same(after[n], x) for n, x in first.items()):
                        raise GateError("two launches give different bits")
                self._check_kept(k, after)
                for e in trial.expected:
                    off = check_values(e, self.buffers[e.buffer], trial.case, after[e.buffer])
                    if k == 0 and off * bound >= error * e.bound:
                        error, bound = off, e.bound
                if k == 0:
                    self._check_alike(trial, after)
        except GateError as e:
            return Verdict("wrong", error, bound, str(e))
        return Verdict("ok", error, bound)

    def hold_to(self, run: Run) -> None:
        """Hold later candidates to what this kernel leaves in the first trial; raises where it is wrong itself."""
        verdict = self.verdict(run)
        if verdict.status != "ok":
            raise GateError(f"the fall-back is {verdict.status}: {verdict.reason}")
        for n, (b, x) in enumerate(zip(self.buffers, self._launched(run, 0), strict=True)):
            if b.role == "output":
                self.reference[n] = x.copy(), _scale(x, b.dtype)

    def _launched(self, run: Run, k: int) -> list[Array]:
        """The storage of every buffer after a launch; raises where bytes around one have changed."""
        run(k, self.after)
        out = []
        for b, made, old, start in zip(self.buffers, self.after, self.images[k], self.starts, strict=True):
            end = old.size - GUARD_BYTES
            for side, guard in (("before", made[:start]), ("past", made[end:])):
                if (guard != GUARD).any():
                    raise GateError(f"{b.name} is written {side} its {'start' if side == 'before' else 'end'}")
            out.append(made[start:end].view(storage_type(b.dtype)))
        return out

    def _check_kept(self, k: int, after: Sequence[Array]) -> None:
        """Elements that the kernel must not write are as they were."""
        trial = self.trials[k]
        for n, (b, new, start) in enumerate(zip(self.buffers, after, self.starts, strict=True)):
            if b.role == "output" and not trial.whole:
                continue
            old = self.images[k][n][start:-GUARD_BYTES].view(new.dtype)
            if b.role == "output":
                kept = np.ones(new.size, bool)
                kept[trial.written.get(n, np.zeros(0, np.int64))] = False
                old, new = old[kept], new[kept]
            if not _same(old, new):
                raise GateError(f"{trial.case}: {b.name} has changed where nothing is stored")

    def _check_alike(self, trial: Trial, after: Sequence[Array]) -> None:
        """Every element is what another kernel of the same terms left, within what both may err."""
        bounds = {e.buffer: e.bound for e in trial.expected}
        for n, (other, scale) in self.reference.items():
            b, bits = self.buffers[n], f"u{other.itemsize}"
            places = np.flatnonzero(after[n].view(bits) != other.view(bits))
            x, y = (from_storage(v[places], b.dtype).astype(np.float64) for v in (after[n], other))
            finite = np.isfinite(y)
            if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
                raise GateError(f"{b.name}: NaN and infinities differ from the fall-back's")
            off = float(np.abs(x - y)[finite].max(initial=0.0)) / scale
            if not off <= 2 * FACTOR * bounds.get(n, OTHER_ROUNDOFFS * DTYPES[b.dtype].unit_roundoff):
                raise GateError(f"{b.name} differs from the fall-back by {off:.3g}")


def _scale(stored: Array, dtype: DType) -> float:
    """What errors of these elements are relative to, found by parts that stay in cache."""
    found = 0.0
    for k in range(0, stored.size, CHUNK):
        values = from_storage(stored[k : k + CHUNK], dtype).astype(np.float64)
        found = max(found, float(np.abs(values[np.isfinite(values)]).max(initial=0.0)))
    return found or 1.0


def _same(x: Array, y: Array) -> bool:
    """Whether two arrays of one type hold equal bits."""
    x, y = x.view(np.uint8), y.view(np.uint8)
    whole = x.size & ~7
    return np.array_equal(x[:whole].view(np.uint64), y[:whole].view(np.uint64)) and np.array_equal(
        x[whole:], y[whole:]
    )


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
