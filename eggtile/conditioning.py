"""How far roundings move a program's results, and which errors that explains.

An algorithm is not to blame for an error that the program's own roundings make (Higham, Accuracy and Stability of
Numerical Algorithms, 2002, 1.5). They are tried at random, as Monte Carlo arithmetic does (Parker, 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from eggtile.reference import relative_error, run_in_float64, unit_roundoff, widened
from eggtile.runtime import flat_memory

FACTOR = 2.0
"""By how much an error may be above eager's."""
TRIALS = 6
"""Random roundings of the program that are tried."""
LEFT = 1 / 8
"""Share of an element by which it may err where larger ones hide it."""
LUCK = 16.0
"""By how much errors may be above the ones that are seen of so few trials.

A trial moves a result by half a place at most, where a function of CUDA's library errs by up to two places.
"""
NOISE = 2.0**-44
"""What float64 itself may err by, relative to the largest number among the inputs and of the output."""
FINE = 8.0
"""Half places of a number of type f64 by which it moves: one alone is lost in the arithmetic of the trial."""


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
        self.held = [*fn.parameters(), *fn.buffers()] if isinstance(fn, torch.nn.Module) else []
        self.types = {t.dtype for t in (*inputs, *self.held) if t.dtype.is_floating_point}
        self.found: dict[tuple[torch.dtype, bool], list[torch.Tensor]] = {}

    @cached_property
    def largest(self) -> float:
        """The largest finite magnitude among inputs and parameters."""
        return max((largest(t) for t in (*self.inputs, *self.held)), default=0.0)

    def __call__(self, output: int, of: torch.dtype, coarse: bool = False) -> torch.Tensor:
        """Of the output with this number and type (mutated inputs come after the outputs).

        The type that is rounded to is f64 where the output or a tensor of the program is of it, else f32; coarsely, that
        of fewest digits which the program has. Without floats it is coarse.
        """
        finest = torch.float64 if torch.float64 in {of, *self.types} else torch.float32
        coarse |= not of.is_floating_point
        narrow = max(self.types, key=unit_roundoff, default=finest) if coarse else finest
        asked = narrow, of.is_floating_point
        if asked not in self.found:
            self.found[asked] = self._tried(*asked)
        return self.found[asked][output]

    def _tried(self, narrow: torch.dtype, given: bool) -> list[torch.Tensor]:
        found = [torch.zeros(y.shape, dtype=torch.float64, device=y.device) for y in self.exact]
        for seed in range(TRIALS):
            random = torch.Generator().manual_seed(seed)
            moved = partial(roundings_away, narrow=narrow, random=random) if given else widened
            ys = run_in_float64(self.fn, self.inputs, moved, partial(rounded_away, narrow=narrow, random=random))
            for most, y, y64 in zip(found, ys, self.exact, strict=True):
                if y.shape == most.shape:
                    off = (y.double() - y64.double()).abs()
                    torch.maximum(most, off.nan_to_num(0.0, 0.0, 0.0), out=most)
        return found


def roundings_away(t: torch.Tensor, narrow: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """The tensor in float64, each element of a floating type up to half a place of a type away."""
    wide = widened(t)
    if t.dtype.is_floating_point:
        memory = flat_memory(wide)
        memory.copy_(_away(memory, narrow, random))
    return wide


def rounded_away(t: torch.Tensor, narrow: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """A tensor in float64 with each element that is no number of a type up to half a place of it away.

    Numbers of type f64 are not told from rounded ones: all but whole ones move.
    """
    if t.dtype != torch.float64:
        return t
    kept = t == (t.round() if narrow == torch.float64 else t.to(narrow).double())
    return torch.where(kept, t, _away(t, narrow, random))


def _away(t: torch.Tensor, narrow: torch.dtype, random: torch.Generator) -> torch.Tensor:
    places = FINE if narrow == torch.float64 else 1.0
    share = torch.rand(t.shape, generator=random, dtype=torch.float64).to(t.device) * 2 - 1
    return t * (1 + places * unit_roundoff(narrow) * share)


def explained(
    y: torch.Tensor, e: torch.Tensor, y64: torch.Tensor, sway: torch.Tensor, allowed: Callable[[float], float]
) -> bool:
    """Whether each element errs by no more than its own roundings, eager's error of it, and what is allowed of all.

    What is allowed follows from what eager errs by beyond the roundings.
    """
    if not y.dtype.is_floating_point:
        return bool(((y == e) | ((y.double() - y64.double()).abs() <= sway)).all())
    off = (e.double() - y64).abs().nan_to_num(0.0, 0.0, 0.0)
    return beyond(y, y64, LUCK * sway + FACTOR * off) <= allowed(beyond(e, y64, LUCK * sway))


def beyond(y: torch.Tensor, y64: torch.Tensor, room: torch.Tensor) -> float:
    """The relative error of what each element errs by beyond its room."""
    room = room.to(y.device)
    near = y64 + torch.minimum(torch.maximum(y.double() - y64, -room), room)
    return relative_error(y, torch.where(torch.isfinite(near), near, y64))


def largest(t: torch.Tensor) -> float:
    """The largest finite magnitude of a tensor of a floating type; 0 of another."""
    return (
        float(t.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if t.dtype.is_floating_point and t.numel() else 0.0
    )


def hidden(y: torch.Tensor, e: torch.Tensor, y64: torch.Tensor, swayed: Sways, output: int) -> str:
    """Where an element is wrong as a whole, though its error is small beside the largest element; "" if none is.

    It has lost most of its digits, eager's has not, and no rounding explains it.
    """
    if not y.dtype.is_floating_point or not y.numel():
        return ""
    error, off = (y.double() - y64).abs(), (e.double() - y64).abs()
    range_of = torch.finfo(torch.float64 if y.dtype == torch.float64 else torch.float32)
    subnormal = torch.finfo(y.dtype).smallest_normal * torch.finfo(y.dtype).eps
    least = max(range_of.smallest_normal, 8 * subnormal)  # below it numbers lose digits
    off = LEFT * y64.abs() + LUCK * off
    lost = torch.isfinite(error) & (error > least + off)
    if not lost.any():
        return ""
    least = max(least, NOISE * max(largest(y64), swayed.largest))
    lost &= error > least + off
    if not lost.any():
        return ""
    lost &= error > least + LUCK * swayed(output, y.dtype, coarse=True).to(y.device)
    if not lost.any():
        return ""
    place = tuple(map(int, lost.nonzero()[0]))
    return f"{float(y[place]):.3g} at {place}, where float64 gives {float(y64[place]):.3g} and eager {float(e[place]):.3g}"
