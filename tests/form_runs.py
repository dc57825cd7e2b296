"""Forms of a program run by the loop interpreter, on hard inputs in several layouts, and held to eager and to float64."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from eggtile.check import judge, longest_folds
from eggtile.conditioning import Sways, hidden
from eggtile.pipeline import Compiled, Options, Region, capture_and_lower, choose_forms
from eggtile.plan import Plan, Work
from eggtile.planning import plan_of
from eggtile.reference import (
    FLOATS,
    private_copy,
    relative_error,
    run_eager,
    run_in_float64,
    run_traced,
    unit_roundoff,
    widened,
)
from eggtile.runtime import Execution
from eggtile.trials import CASES
from ir.dtype import DTYPES, is_float
from ir.loop_interp import run_form

Tensors = list[torch.Tensor]
EXACT, ROUGH = 1e-12, 1e-4
MASK = 1e100
OFFSET_ERROR = 1e4 * 2.0**-24  # what a difference of two values near 1e4 may be off by, in f32

# ---- inputs


def stepped(t: torch.Tensor) -> torch.Tensor:
    """Every second element of the memory along the last dimension."""
    wide = t.new_empty((*t.shape[:-1], 2 * t.shape[-1]))
    return wide[..., ::2].copy_(t)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t.contiguous(),
    "transposed": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
    "step 2": lambda t: stepped(t) if t.dim() else t,
    "expanded": lambda t: t[:1].expand(t.shape) if t.dim() > 1 else t,
}


def as_reported(inputs: Sequence[torch.Tensor]) -> Tensors:
    return list(inputs)


def drawn(case: str, power: float = 1.0) -> Callable[[Sequence[torch.Tensor]], Tensors]:
    """Float values of a case of the gate's, as large as their type's largest to a power; the rest as reported."""

    def make(inputs: Sequence[torch.Tensor]) -> Tensors:
        rng = np.random.default_rng([ord(c) for c in case])

        def values(t: torch.Tensor) -> torch.Tensor:
            most = min(torch.finfo(t.dtype).max ** power, 1e30)
            return torch.from_numpy(CASES[case].draw(rng, t.numel(), most)).reshape(t.shape).to(t.dtype)

        return [values(t) if t.dtype in FLOATS else t for t in inputs]

    return make


def masked(inputs: Sequence[torch.Tensor]) -> Tensors:
    """Random values; -inf in the first half of every row, in all of the first, and in all but the last of the second."""
    out = drawn("random")(inputs)
    for t in out:
        if t.dtype in FLOATS and t.dim():
            rows = t.view(-1, t.shape[-1]) if t.numel() else t[None, :0]
            rows[:, : t.shape[-1] // 2] = -torch.inf
            rows[:1], rows[1:2, :-1] = -torch.inf, -torch.inf
    return out


VALUES: dict[str, Callable[[Sequence[torch.Tensor]], Tensors]] = {
    "reported": as_reported,
    **{case: drawn(case) for case in CASES},
    "large": drawn("huge", 0.3),
    "masked": masked,
}
UNUSUAL = ("huge", "large", "special", "masked")
FOR_STRICT = ("huge",)
"""Products of huge values overflow: laws that are not exact promise nothing there."""


def typed(inputs: Sequence[torch.Tensor], dtype: torch.dtype | None) -> Tensors:
    """The inputs with floats converted to the type; None leaves them."""
    return [t.to(dtype) if dtype and t.dtype in FLOATS else t for t in inputs]


def laid(inputs: Sequence[torch.Tensor], layout: str) -> Tensors:
    """The inputs in a layout."""
    return [LAYOUTS[layout](t) for t in inputs]


# ---- forms


class Interpreter:
    """Launches the forms of a number by interpreting their terms, every float in float64 where `exact`."""

    def __init__(self, plan: Plan, compiled: Compiled, number: int, exact: bool) -> None:
        self.number, self.exact = number, exact
        self.regions = {id(w): r for w, r in zip(plan.steps, compiled.steps, strict=True) if isinstance(r, Region)}

    def launch(self, work: Work, tensors: Mapping[str, torch.Tensor], *_: object) -> None:
        region = self.regions[id(work)]
        form = region.listed[min(self.number, len(region.listed) - 1)]
        made = run_form(form, {n: numbers(tensors[n]) for n in work.filled}, self.exact)
        for name in made.keys() & {b.name for b in region.program.buffers}:
            tensors[name].copy_(torch.from_numpy(np.asarray(made[name])))


def numbers(t: torch.Tensor) -> Any:
    return (t.float() if t.dtype is torch.bfloat16 else t).numpy()


def in_float64(plan: Plan) -> Plan:
    """The plan with all floats that it makes or holds in float64."""
    made = tuple(replace(b, dtype="f64") if is_float(b.dtype) else b for b in plan.made)
    return replace(plan, made=made, constants={n: widened(t) for n, t in plan.constants.items()})


@dataclass(frozen=True)
class Forms:
    """A program whose forms are chosen, ready to be run by their numbers."""

    fn: Callable[..., Any]
    compiled: Compiled

    @classmethod
    def of(cls, fn: Callable[..., Any], inputs: Sequence[torch.Tensor], options: Options) -> Forms:
        return cls(fn, choose_forms(capture_and_lower(fn, inputs, "p", options)))

    @property
    def count(self) -> int:
        """The number of forms of the region that has the most; 1 where all is a call."""
        return max((len(r.listed) for r in self.compiled.regions), default=1)

    def run(self, number: int, inputs: Sequence[torch.Tensor], exact: bool) -> Tensors:
        """Outputs, then inputs as the program leaves them."""
        plan = plan_of(self.compiled)
        plan = in_float64(plan) if exact else plan
        launcher = Interpreter(plan, self.compiled, number, exact)
        own = [widened(t) if exact else private_copy(t) for t in inputs]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return Execution(plan, launcher, torch.device("cpu"), poison=True).outputs_and_inputs(own)

    def slack(self) -> float:
        """What rounding may cost relative to the largest value: of sums in f32 in any order, and of moved roundings."""
        regions = self.compiled.regions
        longest = longest_folds(self.compiled)
        n = max(longest.terms, longest.factors)
        floats = [DTYPES[b.dtype].unit_roundoff for r in regions for b in r.program.buffers if is_float(b.dtype)]
        moved = 0.0 if self.compiled.options.numerics == "strict" else max(floats, default=0.0)
        return (math.log2(max(n, 2)) + math.sqrt(n)) * 2.0**-24 + moved

    def wrong(self, inputs: Sequence[torch.Tensor], values: str = "reported") -> Iterator[tuple[int, str]]:
        """Numbers of forms that give a wrong value, and what is wrong; the form as written comes first.

        In float64 the form as written decides. It is held to PyTorch as far as ROUGH, for an epsilon may be one of a
        type, or as near as eager comes. On values in UNUSUAL where it is not eager's, it decides alone. The others may
        err as much as it does, and lose no element; on special values, laws that are not exact are held to what is
        finite, and where results grow with the size of a mask, for which -inf stands, infinity is as good as NaN: by the
        order of the terms a sum of infinities is either. An overflow of eager's is demanded as reported, elsewhere what
        float64 gives is as good.
        """
        written, slack = self.count - 1, self.slack() + (OFFSET_ERROR if values == "offset" else 0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eager, right = run_eager(self.fn, inputs), run_in_float64(self.fn, inputs)

        def judged(got: Tensors, eager: Tensors, right: Tensors) -> str:
            why = judge("cpu", got, eager, right, (), slack, partial(run_traced, self.fn, inputs)).reason
            return "" if values != "reported" and is_near(got, right, slack) else why

        swayed = Sways(self.fn, inputs, right)
        times = max(1.0, math.sqrt(longest_folds(self.compiled).passed(torch.float32)))

        def lost(got: Tensors, eager: Tensors, right: Tensors) -> str:
            each = enumerate(zip(got, eager, right, strict=True))
            return next(filter(None, (hidden(*ys, swayed, k, times) for k, ys in each)), "")

        wide, narrow = self.run(written, inputs, True), self.run(written, inputs, False)
        why = judged(narrow, eager, right) or errors(wide, right, max(ROUGH, 2 * worst(eager, right)))
        if why:
            yield written, why
        if why and values in UNUSUAL:
            eager, right = narrow, wide
        loose = self.compiled.options.numerics != "strict"
        grown = (
            self.run(written, [with_finite_masks(t) for t in inputs], True) if values == "masked" and loose else []
        )
        error = worst(narrow, right)
        slack += 2 * error if math.isfinite(error) else 0.0
        for number in range(written):
            found, precise = self.run(number, inputs, False), self.run(number, inputs, True)
            if values == "special" and loose:
                found, near, exact = where_finite(found, eager, right)
                precise, goal = where_finite(precise, wide)
            else:
                found, near, exact = (of_one_kind(x, grown) for x in (found, eager, right))
                precise, goal = of_one_kind(precise, grown), of_one_kind(wide, grown)
            why = errors(precise, goal, EXACT) or judged(found, near, exact) or lost(found, near, exact)
            if why:
                yield number, why


def is_near(got: Tensors, right: Tensors, slack: float) -> bool:
    pairs = zip(got, right, strict=True)
    return all(relative_error(y, r) <= 2 * unit_roundoff(y.dtype) + slack for y, r in pairs)


def where_finite(got: Tensors, *others: Tensors) -> list[Tensors]:
    """All of them, with 0 in the places where one of the others is not finite."""
    out: list[Tensors] = [[] for _ in (got, *others)]
    for values in zip(got, *others, strict=True):
        finite = torch.stack([v.isfinite() for v in values[1:]]).all(0)
        for kept, v in zip(out, values, strict=True):
            kept.append(torch.where(finite, v, torch.zeros((), dtype=v.dtype)))
    return out


def with_finite_masks(t: torch.Tensor) -> torch.Tensor:
    """A copy in float64, in which a large number stands for -inf."""
    out = widened(t)
    if out.dtype.is_floating_point:
        memory = out.as_strided((out.untyped_storage().nbytes() // out.element_size(),), (1,), 0)
        memory.masked_fill_(memory == -torch.inf, -MASK)
    return out


def of_one_kind(got: Tensors, grown: Tensors) -> Tensors:
    """The values with NaN for infinities in the places that a mask makes large."""
    if not grown:
        return got
    return [
        torch.where(~(g.abs() < MASK**0.5) & y.isinf(), torch.nan, y) if y.dtype.is_floating_point else y
        for y, g in zip(got, grown, strict=True)
    ]


def worst(got: Tensors, right: Tensors) -> float:
    return max((relative_error(y, r) for y, r in zip(got, right, strict=True)), default=0.0)


def errors(got: Tensors, right: Tensors, bound: float) -> str:
    """The largest error in float64, where it is larger than the bound."""
    return "" if (error := worst(got, right)) <= bound else f"error {error:.1e} in float64"
