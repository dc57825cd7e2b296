"""How far roundings move a program's results, and which errors that explains.

An algorithm is not to blame for an error that the program's own roundings make (Higham, Accuracy and Stability of
Numerical Algorithms, 2002, 1.5). They are tried at random, as Monte Carlo arithmetic does (Parker, 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from eggtile.reference import relative_error, run_in_float64, unit_roundoff, widened
from eggtile.runtime import flat_memory

TRIALS = 3
"""Random roundings of the program that are tried."""
LEFT = 1 / 8
"""Share of an element by which it may err where larger ones hide it."""
LUCK = 16.0
"""By how much errors may be above the ones that are seen of so few trials."""
NOISE = 2.0**-44
"""What float64 itself may err by, relative to the largest element."""


class Sways:
    """How far each element of each output in float64 moves by the program's roundings, up or down at random.

    Inputs and parameters change by half of their last place, and so does what a call computes where it is no number of
    the `narrow` type. 0 for what is not of a floating type, or not finite. Found when first asked for.
    """

    def __init__(
        self, fn: Callable[..., Any], inputs: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
    ) -> None:
        self.fn, self.inputs, self.exact = fn, inputs, exact
        held = [*fn.parameters(), *fn.buffers()] if isinstance(fn, torch.nn.Module) else []
        self.types = {t.dtype for t in (*inputs, *held) if t.dtype.is_floating_point}
        self.found: dict[torch.dtype, list[torch.Tensor]] = {}

    def __call__(self, output: int, coarse: bool = False) -> torch.Tensor:
        """Of the output with this number (mutated inputs come after the outputs).

        A call computes in f64 where a tensor of the program is of that type, else in f32; coarsely, in the type of
        fewest digits that the program has.
        """
        finest = torch.float64 if torch.float64 in self.types else torch.float32
        narrow = max(self.types, key=unit_roundoff, default=finest) if coarse else finest
        if narrow not in self.found:
            self.found[narrow] = self._tried(narrow)
        return self.found[narrow][output]

    def _tried(self, narrow: torch.dtype) -> list[torch.Tensor]:
        found = [torch.zeros(y.shape, dtype=torch.float64, device=y.device) for y in self.exact]
        for seed in range(TRIALS):
            random = torch.Generator().manual_seed(seed)
            given = partial(roundings_away, random=random)
            ys = run_in_float64(self.fn, self.inputs, given, partial(rounded_away, narrow=narrow, random=random))
            for most, y, y64 in zip(found, ys, self.exact, strict=True):
                if y.dtype.is_floating_point and y.shape == most.shape:
                    torch.maximum(most, (y - y64).abs().nan_to_num(0.0, 0.0, 0.0), out=most)
        return found


def roundings_away(t: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """The tensor in float64, each element of a floating type half of its last place away (a whole one in f64)."""
    wide = widened(t)
    if t.dtype.is_floating_point:
        memory = flat_memory(wide)
        memory.copy_(_away(memory, t.dtype, random))
    return wide


def rounded_away(t: torch.Tensor, narrow: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """A tensor in float64 with each element that is no number of a type half of its last place away.

    Numbers of type f64 are not told from rounded ones: all but whole ones change, by their last place.
    """
    if t.dtype != torch.float64:
        return t
    kept = t == (t.round() if narrow == torch.float64 else t.to(narrow).double())
    return torch.where(kept, t, _away(t, narrow, random))


def _away(t: torch.Tensor, narrow: torch.dtype, random: torch.Generator) -> torch.Tensor:
    sides = torch.randint(0, 2, t.shape, generator=random).to(t) * 2 - 1
    if narrow == torch.float64:
        return torch.nextafter(t, sides * torch.inf)
    return t * (1 + unit_roundoff(narrow) * sides)


def beyond(y: torch.Tensor, y64: torch.Tensor, room: torch.Tensor) -> float:
    """The relative error of what each element errs by beyond its room."""
    room = room.to(y.device)
    near = y64 + torch.minimum(torch.maximum(y.double() - y64, -room), room)
    return relative_error(y, torch.where(torch.isfinite(near), near, y64))


def hidden(y: torch.Tensor, e: torch.Tensor, y64: torch.Tensor, moved: Callable[[], torch.Tensor]) -> str:
    """Where an element is wrong as a whole, though its error is small beside the largest element; "" if none is.

    It has lost most of its digits, eager's has not, and no rounding explains it (`moved`, asked where it is needed).
    """
    if not y.dtype.is_floating_point or not y.numel():
        return ""
    error, off = (y.double() - y64).abs(), (e.double() - y64).abs()
    range_of = torch.finfo(torch.float64 if y.dtype == torch.float64 else torch.float32)
    subnormal = torch.finfo(y.dtype).smallest_normal * torch.finfo(y.dtype).eps
    least = max(range_of.smallest_normal, 8 * subnormal)  # below it numbers lose digits
    least = max(least, NOISE * float(y64.abs().nan_to_num(0.0, 0.0, 0.0).max()))
    lost = torch.isfinite(error) & (error > least + LEFT * y64.abs() + LUCK * off)
    if not lost.any():
        return ""
    lost &= error > least + LUCK * moved().to(y.device)
    if not lost.any():
        return ""
    place = tuple(map(int, lost.nonzero()[0]))
    return f"{float(y[place]):.3g} at {place}, where float64 gives {float(y64[place]):.3g} and eager {float(e[place]):.3g}"
