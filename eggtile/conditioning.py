"""How far roundings move a program's results, and which errors that explains.

An algorithm is not to blame for an error that the program's own roundings make (Higham, Accuracy and Stability of
Numerical Algorithms, 2002, 1.5). They are tried at random, as Monte Carlo arithmetic does (Parker, 1997).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eggtile.reference import doubled, relative_error, unit_roundoff

FACTOR = 2.0
"""By how much an error may be above eager's."""
TRIALS, MOST_TRIALS = 6, 48
"""Random roundings of the program that are tried at a time, and in all while an error is not explained."""
PLACES = 4.0
"""Half places by which a trial moves a result at most: the two places that a function of CUDA's library errs by."""
SINGLE_TRIALS = 3
"""Trials beside them that move it by one, to tell what moves in step with roundings from what jumps."""
LUCK = 32.0
"""Half places that what moves in step is given, as all of few trials may move it by little."""
FINE = 8.0
"""Times that numbers of type f64 move by as much: half a place is lost in the arithmetic of the trial."""


Asked = tuple[torch.dtype, bool, bool]
"""The type of which trials round, whether they do so for all types, and whether casts are kept."""


class Trial:
    """Roundings of one run, drawn on the device of what they change.

    What a call computes moves by up to `places` half places of the type that it has in the program, or of `type` where this
    has more digits, or for `all`; the operands of what computes with several elements at once by as many fewer as one is of
    PLACES. Numbers of a type, of which f64's are not told from rounded ones but for whole ones, are not rounded to it.
    Trials of numbers 2 n and 2 n + 1 move the other way.
    """

    def __init__(self, number: int, asked: Asked, places: float, selecting: MutableMapping[int, bool]) -> None:
        self.seed, (self.type, self.all, _), self.selecting = number // 2, asked, selecting
        self.places = places * (1 - 2 * (number % 2))
        self.generators: dict[torch.device, torch.Generator] = {}

    def operand(self, t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor with each element moved."""
        return self._moved(t, self._narrow(dtype), 1 / PLACES)

    def result(self, t: torch.Tensor, dtype: torch.dtype, argument: torch.Tensor | None) -> torch.Tensor:
        """The tensor with each element moved that is no number of its type, and rounded to it.

        In f64 what is a function of an `argument` alone moves by half places of this too, which it may cancel.
        """
        narrow = self._narrow(dtype)
        if narrow != torch.float64:
            return torch.where(t == t.to(narrow).double(), t, self._moved(t, narrow).to(narrow).double())
        moved = torch.where(t == t.round(), t, self._moved(t, narrow))
        if argument is not None and argument.shape == t.shape:
            moved += self._moved(argument, narrow) - argument
        return moved

    def _narrow(self, dtype: torch.dtype) -> torch.dtype:
        return self.type if self.all else min((dtype, self.type), key=unit_roundoff)

    def _moved(self, t: torch.Tensor, narrow: torch.dtype, share: float = 1.0) -> torch.Tensor:
        if t.device not in self.generators:
            self.generators[t.device] = torch.Generator(t.device).manual_seed(self.seed)
        generator = self.generators[t.device]
        random = torch.rand(t.shape, generator=generator, dtype=torch.float64, device=t.device)
        most = share * self.places * (FINE if narrow == torch.float64 else 1.0) * unit_roundoff(narrow)
        return random.mul_(2 * most).add_(1 - most).mul_(t)


@dataclass
class Seen:
    """What trials give of one output: the least and most of each element, and how far a single half place moves it.

    Where float64 gives no number, the least is above the most until a trial gives one. At its `edge` an element is a number
    in some and none in others. `chosen` are the whole numbers of an output that numbers places or chooses; none of one that
    adds up.
    """

    least: torch.Tensor
    most: torch.Tensor
    single: torch.Tensor
    edge: torch.Tensor
    chosen: list[torch.Tensor]

    def add(self, y: torch.Tensor, y64: torch.Tensor, single: bool, total: bool) -> None:
        """Take in what one trial gives."""
        wide, right = y.double(), y64.double()
        low = high = wide
        if not bool(torch.isfinite(wide.sum() + right.sum())):
            finite = torch.isfinite(wide)
            self.edge |= finite != torch.isfinite(right)
            low, high = torch.where(finite, wide, self.least), torch.where(finite, wide, self.most)
        torch.minimum(self.least, low, out=self.least)
        torch.maximum(self.most, high, out=self.most)
        if single:
            torch.maximum(self.single, (wide - right).abs_().nan_to_num_(0.0, 0.0, 0.0), out=self.single)
        if not y.is_floating_point() and not total:
            self.chosen.append(y)


class Sways:
    """How far each element of each output in float64 moves by the program's roundings, taken at random when asked for.

    They are of the types that the program computes in, with f32 in place of narrower ones for results that are floats;
    coarsely, of the narrowest alone, since what is fused may compute in it too. Mutated inputs come after the outputs.
    `kept` says of each whether its casts round, as in `doubled`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[torch.Tensor],
        exact: Sequence[torch.Tensor],
        kept: Sequence[bool] | None = None,
    ) -> None:
        self.fn, self.inputs, self.exact, self.kept = fn, inputs, exact, kept or [False] * len(exact)
        self.types: frozenset[torch.dtype] = frozenset()
        self.selecting: dict[int, bool] = {}
        self.found: dict[Asked, list[Seen]] = {}
        self.counts: Counter[Asked] = Counter()

    def seen(self, output: int, of: torch.dtype, coarse: bool = False) -> Seen:
        """What the trials give of an output of a type."""
        return self._tried(self._asked(output, of, coarse))[output]

    def room(
        self, output: int, of: torch.dtype, times: float = 1.0, coarse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """By how much elements of an output may err to below and to above; 0 where they are not finite.

        It is what is seen, and so many `times` what moves in step with the roundings, by what few trials may fall short of.
        What a single half place moves as far as several, or not at all, jumps, and lands nowhere else.
        """
        return self._room(output, self._asked(output, of, coarse), times)

    def at_edge(self, output: int, y: torch.Tensor, coarse: bool = False) -> torch.Tensor:
        """Where a rounding decides between a number and none, and values are none, or one as far from what trials give."""
        seen, there = self.seen(output, y.dtype, coarse), torch.isfinite(self.exact[output])
        wide, span = y.double().to(there.device), seen.most - seen.least
        near = (wide >= seen.least - span) & (wide <= seen.most + span)
        return (seen.edge & torch.where(there, ~torch.isfinite(wide), ~torch.isfinite(wide) | near)).to(y.device)

    def noise(self, output: int) -> torch.Tensor:
        """By how much float64 itself may err."""
        return torch.maximum(*self._room(output, (torch.float64, True, self.kept[output]), 1.0))

    def more(self, output: int, of: torch.dtype, coarse: bool = False) -> bool:
        """Try more for an output of a type, since a few trials may all leave an element near; False where it is enough."""
        asked = self._asked(output, of, coarse)
        self._tried(asked)
        if self.counts[asked] >= MOST_TRIALS:
            return False
        self._try(asked)
        return True

    def _room(self, output: int, asked: Asked, times: float) -> tuple[torch.Tensor, torch.Tensor]:
        seen, y64 = self._tried(asked)[output], self.exact[output].double()
        below, above = (t.nan_to_num(0.0, 0.0, 0.0) for t in (y64 - seen.least, seen.most - y64))
        in_step = (torch.maximum(below, above) - seen.single).clamp(min=0) / (PLACES - 1)
        steady = torch.minimum(in_step, PLACES * seen.single)
        steady *= times * LUCK * math.sqrt(TRIALS / self.counts[asked])
        return torch.maximum(below, steady), torch.maximum(above, steady)

    def _asked(self, output: int, of: torch.dtype, coarse: bool) -> Asked:
        kept = self.kept[output]
        fine = torch.float32, False, kept
        if not coarse and of.is_floating_point:
            return fine
        self._tried(fine)
        narrow = [t for t in self.types if unit_roundoff(t) > unit_roundoff(torch.float32)]
        return (max(narrow, key=unit_roundoff), coarse, kept) if narrow else fine

    def _tried(self, asked: Asked) -> list[Seen]:
        if asked not in self.found:
            self.found[asked] = [_nothing(y) for y in self.exact]
            self._try(asked)
        return self.found[asked]

    def _try(self, asked: Asked) -> None:
        first = self.counts[asked] * (TRIALS + SINGLE_TRIALS + 1)
        for n in range(TRIALS + SINGLE_TRIALS):
            single = n >= TRIALS
            trial = Trial(first + n, asked, 1.0 if single else PLACES, self.selecting)
            tried = doubled(self.fn, self.inputs, trial, kept=asked[-1])
            self.types = tried.types
            for seen, y, y64, total in zip(self.found[asked], tried.values, self.exact, tried.totals, strict=True):
                if y.shape == y64.shape:
                    seen.add(y, y64, single, total)
        self.counts[asked] += TRIALS


def _nothing(y64: torch.Tensor) -> Seen:
    wide, finite = y64.double(), torch.isfinite(y64)
    least, most = torch.where(finite, wide, math.inf), torch.where(finite, wide, -math.inf)
    return Seen(least, most, torch.zeros_like(wide), torch.zeros_like(finite), [])


def explained(
    y: torch.Tensor,
    e: torch.Tensor,
    y64: torch.Tensor,
    swayed: Sways,
    output: int,
    times: float,
    allowed: Callable[[float], float],
) -> bool:
    """Whether each element errs by no more than its own roundings, so many times, eager's error of it, and what is allowed.

    What is allowed of all follows from what eager errs by beyond the roundings. At the edge of a domain there may be a
    number or none. Of whole numbers that add nothing up, those are right which eager, float64 or a trial gives.
    """
    while True:
        seen = swayed.seen(output, y.dtype)
        if not y.dtype.is_floating_point:
            right = torch.stack([y == t.to(y.device) for t in (e, y64, *seen.chosen)]).any(0)
            among = (seen.least.to(y.device) <= y) & (y <= seen.most.to(y.device))
            ok = bool((right if seen.chosen else right | among).all())
        else:
            odd = swayed.at_edge(output, y)
            below, above = (t.to(y.device) for t in swayed.room(output, y.dtype, times))
            off = FACTOR * (e.double() - y64).abs().nan_to_num(0.0, 0.0, 0.0)
            error = beyond(torch.where(odd, y64, y.double()).to(y.dtype), y64, below + off, above + off)
            ok = error <= allowed(beyond(e, y64, below, above))
        if ok or not swayed.more(output, y.dtype):
            return ok


def beyond(y: torch.Tensor, y64: torch.Tensor, below: torch.Tensor, above: torch.Tensor) -> float:
    """The relative error of what each element errs by beyond its room to below and above."""
    near = y64 + torch.minimum(torch.maximum(y.double() - y64, -below), above)
    return relative_error(y, torch.where(torch.isfinite(near), near, y64))


def hidden(y: torch.Tensor, e: torch.Tensor, y64: torch.Tensor, swayed: Sways, output: int, times: float) -> str:
    """Where an element is wrong as a whole, though its error is small beside the largest element; "" if none is.

    It has lost half of its digits, eager's has not, and neither a rounding nor what float64 resolves explains it.
    """
    if not y.dtype.is_floating_point or not y.numel():
        return ""
    error, off = (y.double() - y64).abs(), (e.double() - y64).abs()
    range_of = torch.finfo(torch.float64 if y.dtype == torch.float64 else torch.float32)
    subnormal = torch.finfo(y.dtype).smallest_normal * torch.finfo(y.dtype).eps
    least = max(range_of.smallest_normal, 8 * subnormal)  # below it numbers lose digits
    off = math.sqrt(unit_roundoff(y.dtype)) * y64.abs() + FACTOR * PLACES * off
    lost = torch.isfinite(error) & (error > least + off)
    if not lost.any():
        return ""
    lost &= error > least + off + swayed.noise(output).to(y.device)
    if not lost.any():
        return ""
    while True:
        below, above = (t.to(y.device) for t in swayed.room(output, y.dtype, times, coarse=True))
        lost &= error > least + torch.where(y.double() < y64, below, above)
        lost &= ~swayed.at_edge(output, y, coarse=True)
        if not lost.any():
            return ""
        if not swayed.more(output, y.dtype, coarse=True):
            break
    place = tuple(map(int, lost.nonzero()[0]))
    return f"{float(y[place]):.3g} at {place}, where float64 gives {float(y64[place]):.3g} and eager {float(e[place]):.3g}"
