"""How far roundings move a program's results, and which errors that explains.

An algorithm is not to blame for an error that the program's own roundings make (Higham, Accuracy and Stability of
Numerical Algorithms, 2002, 1.5). They are tried at random, as Monte Carlo arithmetic does (Parker, 1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from eggtile.reference import doubled, relative_error, unit_roundoff, widened
from eggtile.runtime import flat_memory

FACTOR = 2.0
"""By how much an error may be above eager's."""
TRIALS, MOST_TRIALS = 6, 48
"""Random roundings of the program that are tried at a time, and in all while an error is not explained."""
LUCK = 16.0
"""By how much errors may be above the ones that are seen of so few trials.

A trial moves a result by half a place at most, where a function of CUDA's library errs by up to two places.
"""
FINE = 8.0
"""Half places of a number of type f64 by which it moves: one alone is lost in the arithmetic of the trial."""


@dataclass
class Trials:
    """How far the elements of each output move at most, and the whole numbers of each that roundings choose among."""

    sways: list[torch.Tensor]
    seen: list[list[torch.Tensor]]
    count: int = 0


class Draws:
    """Random numbers of one trial, drawn on the device of what they change."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def like(self, t: torch.Tensor) -> torch.Tensor:
        """Numbers between -1 and 1, one for each element."""
        if t.device not in self.generators:
            self.generators[t.device] = torch.Generator(t.device).manual_seed(self.seed)
        generator = self.generators[t.device]
        return torch.rand(t.shape, generator=generator, dtype=torch.float64, device=t.device) * 2 - 1


class Sways:
    """How far each element of each output in float64 moves by the program's roundings, taken at random.

    Inputs and parameters move by up to half a place of a type, and so does what a call computes where it is no number of
    that type. The results that are no floats move by what calls compute alone. Found when first asked for; 0 where it is
    not finite.
    """

    def __init__(
        self, fn: Callable[..., Any], inputs: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
    ) -> None:
        self.fn, self.inputs, self.exact = fn, inputs, exact
        held = [*fn.parameters(), *fn.buffers()] if isinstance(fn, torch.nn.Module) else []
        self.types = {t.dtype for t in (*inputs, *held) if t.dtype.is_floating_point}
        self.found: dict[tuple[torch.dtype, bool], Trials] = {}

    def __call__(self, output: int, of: torch.dtype, coarse: bool = False) -> torch.Tensor:
        """Of the output with this number and type (mutated inputs come after the outputs).

        The type that is rounded to is f64 where the output or a tensor of the program is of it, else f32; coarsely, that
        of fewest digits which the program has. Without floats it is coarse.
        """
        return self._tried(*self._asked(of, coarse)).sways[output]

    def room(self, output: int, of: torch.dtype, coarse: bool = False) -> torch.Tensor:
        """By how much elements of an output may err: what is seen, times what so many trials may fall short by."""
        found = self._tried(*self._asked(of, coarse))
        return found.sways[output] * (LUCK * math.sqrt(TRIALS / found.count))

    def seen(self, output: int, of: torch.dtype) -> list[torch.Tensor]:
        """What the trials gave, of an output that numbers places or chooses; none of one that adds up."""
        return self._tried(*self._asked(of, False)).seen[output]

    def noise(self, output: int) -> torch.Tensor:
        """By how much float64 itself may err."""
        return LUCK * self._tried(torch.float64, True).sways[output]

    def more(self, of: torch.dtype, coarse: bool = False) -> bool:
        """Try more for outputs of a type, since a few trials may all leave an element near; False where it is enough."""
        asked = self._asked(of, coarse)
        if self._tried(*asked).count >= MOST_TRIALS:
            return False
        self._try(*asked)
        return True

    def _asked(self, of: torch.dtype, coarse: bool) -> tuple[torch.dtype, bool]:
        finest = torch.float64 if torch.float64 in {of, *self.types} else torch.float32
        coarse |= not of.is_floating_point
        return max(self.types, key=unit_roundoff, default=finest) if coarse else finest, of.is_floating_point

    def _tried(self, narrow: torch.dtype, given: bool) -> Trials:
        if (narrow, given) not in self.found:
            still = [torch.zeros(y.shape, dtype=torch.float64, device=y.device) for y in self.exact]
            self.found[narrow, given] = Trials(still, [[] for _ in self.exact])
            self._try(narrow, given)
        return self.found[narrow, given]

    def _try(self, narrow: torch.dtype, given: bool) -> None:
        found = self.found[narrow, given]
        for seed in range(found.count, found.count + TRIALS):
            random = Draws(seed)
            moved = partial(roundings_away, narrow=narrow, random=random) if given else widened
            tried = doubled(self.fn, self.inputs, moved, partial(rounded_away, narrow=narrow, random=random))
            for k, (y, y64) in enumerate(zip(tried.values, self.exact, strict=True)):
                if y.shape != y64.shape:
                    continue
                off = (y.double() - y64.double()).abs()
                torch.maximum(found.sways[k], off.nan_to_num(0.0, 0.0, 0.0), out=found.sways[k])
                if not y.is_floating_point() and not tried.totals[k]:
                    found.seen[k].append(y)
        found.count += TRIALS


def roundings_away(t: torch.Tensor, narrow: torch.dtype, random: Draws) -> torch.Tensor:
    """The tensor in float64, each element of a floating type up to half a place of a type away."""
    wide = widened(t)
    if t.dtype.is_floating_point:
        memory = flat_memory(wide)
        memory.copy_(_away(memory, narrow, random))
    return wide


def rounded_away(
    t: torch.Tensor, argument: torch.Tensor | None, narrow: torch.dtype, random: Draws
) -> torch.Tensor:
    """A tensor in float64 with each element that is no number of a type up to half a place of it away.

    Numbers of type f64 are not told from rounded ones: all but whole ones move, and those of a function by half places of
    its argument too, which it may cancel.
    """
    if t.dtype != torch.float64:
        return t
    if narrow != torch.float64:
        return torch.where(t == t.to(narrow).double(), t, _away(t, narrow, random))
    moved = torch.where(t == t.round(), t, _away(t, narrow, random))
    if argument is not None and argument.shape == t.shape:
        moved += _away(argument, narrow, random) - argument
    return moved


def _away(t: torch.Tensor, narrow: torch.dtype, random: Draws) -> torch.Tensor:
    places = FINE if narrow == torch.float64 else 1.0
    return t * (1 + places * unit_roundoff(narrow) * random.like(t))


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

    What is allowed of all follows from what eager errs by beyond the roundings. Of whole numbers that add nothing up,
    those are right which eager, float64 or a trial gives.
    """
    while True:
        if not y.dtype.is_floating_point:
            given = [e, y64, *(t.to(y.device) for t in swayed.seen(output, y.dtype))]
            right = torch.stack([y == t for t in given]).any(0)
            sway = swayed(output, y.dtype).to(y.device)
            near = right if len(given) > 2 else right | ((y.double() - y64.double()).abs() <= sway)
            ok = bool(near.all())
        else:
            room = times * swayed.room(output, y.dtype).to(y.device)
            off = (e.double() - y64).abs().nan_to_num(0.0, 0.0, 0.0)
            ok = beyond(y, y64, room + FACTOR * off) <= allowed(beyond(e, y64, room))
        if ok or not swayed.more(y.dtype):
            return ok


def beyond(y: torch.Tensor, y64: torch.Tensor, room: torch.Tensor) -> float:
    """The relative error of what each element errs by beyond its room."""
    room = room.to(y.device)
    near = y64 + torch.minimum(torch.maximum(y.double() - y64, -room), room)
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
    off = math.sqrt(unit_roundoff(y.dtype)) * y64.abs() + LUCK * off
    lost = torch.isfinite(error) & (error > least + off)
    if not lost.any():
        return ""
    lost &= error > least + off + swayed.noise(output).to(y.device)
    if not lost.any():
        return ""
    while True:
        lost &= error > least + times * swayed.room(output, y.dtype, coarse=True).to(y.device)
        if not lost.any():
            return ""
        if not swayed.more(y.dtype, coarse=True):
            break
    place = tuple(map(int, lost.nonzero()[0]))
    return f"{float(y[place]):.3g} at {place}, where float64 gives {float(y64[place]):.3g} and eager {float(e[place]):.3g}"
