"""The gate on values: emitted text against float64 and against eager PyTorch, on the CPU or on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import torch

from eggtile.pipeline import Compiled, Options, RequestError, compile_program
from eggtile.planning import plan_of
from eggtile.reference import (
    private_copy,
    relative_error,
    run_eager,
    run_in_float64,
    run_traced,
    unit_roundoff,
    widened,
)
from eggtile.runtime import execution_for, flat_memory
from extract.facts import swept
from ir import term as T
from ir.node import postorder

EAGER_FACTOR = 2.0
ORDERS = ("forward", "random")
SWAYS = 3
"""Random changes of the inputs that are tried to find how far they move an output."""


@dataclass(frozen=True)
class Verdict:
    """Errors against float64 (max|y - y64| / max|y64|, the largest over outputs and mutated inputs)."""

    on: str
    max_rel_err: float
    eager_rel_err: float
    ok: bool
    reason: str = ""
    notes: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """The verdict as JSON values; infinite errors become null."""
        row = asdict(self)
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def judge(
    on: str,
    got: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    notes: tuple[str, ...] = (),
    slack: float = 0.0,
    traced: Callable[[], Sequence[torch.Tensor]] = tuple,
    longest: tuple[int, int] = (1, 1),
    swayed: Callable[[], Sequence[torch.Tensor]] = tuple,
) -> Verdict:
    """Compare values: an error above twice eager's plus one unit roundoff of the output's type (and slack) is wrong.

    The `longest` sum and product may also err by the root of the roundings that a term and a factor pass (Higham and
    Mary, 2019), in roundoffs of what they are taken in: of few results eager's may be near by luck. A sum is a tree; in
    float64, where what is exact elsewhere is eager's own result, it may be one term after another. Strides are eager's,
    or those of `traced`, which is asked only where they are not. A larger error of an element is right too where
    inputs that change by half of their last place change this element by as much (`swayed`, asked where it is needed): no
    algorithm in their type is surely better (Higham, Accuracy and Stability of Numerical Algorithms, 2002, 1.5).
    """
    if not len(got) == len(eager) == len(exact):
        return Verdict(on, math.inf, math.inf, False, f"{len(got)} outputs where eager gives {len(eager)}", notes)
    worst, worst_eager, reason = 0.0, 0.0, ""
    for k, (y, e, y64) in enumerate(zip(got, eager, exact, strict=True)):
        e, y64 = e.to(y.device), y64.to(y.device)
        laid_out = _steps(y) == _steps(e) or [_steps(y)] == [_steps(t) for t in traced()[k : k + 1]]
        if y.dtype != e.dtype or y.shape != e.shape or not laid_out:
            reason = reason or f"output {k} is {_kind(y)}, eager gives {_kind(e)}"
        error, eager_error = relative_error(y, y64), relative_error(e, y64)
        if not math.isfinite(eager_error) and y.shape == e.shape:
            error, eager_error = either(y, e, y64)
        terms, factors = longest
        passed = max(terms if y.dtype == torch.float64 else math.log2(terms), factors - 1)
        added = math.sqrt(passed) * min(unit_roundoff(y.dtype), unit_roundoff(torch.float32))
        allowed = EAGER_FACTOR * eager_error + unit_roundoff(y.dtype) + added + slack
        if error > allowed:
            why = f"output {k} has error {error:.3g}, eager {eager_error:.3g}"
            moved = swayed()[k : k + 1] if math.isfinite(error) else ()
            if moved and beyond(y, y64, EAGER_FACTOR * moved[0]) <= allowed:
                notes += (f"{why}; no more than the inputs move it where they change by half of their last place",)
            else:
                reason = reason or why
        worst, worst_eager = max(worst, error), max(worst_eager, eager_error)
    return Verdict(on, worst, worst_eager, not reason, reason, notes)


def _steps(t: torch.Tensor) -> list[int]:
    """The strides that lead from one element to another."""
    return [s for e, s in zip(t.shape, t.stride(), strict=True) if e > 1] if t.numel() else []


def _kind(t: torch.Tensor) -> str:
    return f"{t.dtype} {tuple(t.shape)} strides {t.stride()}".removeprefix("torch.")


def check_compiled(
    compiled: Compiled, fn: Callable[..., Any], inputs: Sequence[torch.Tensor], on: str = "cpu", slack: float = 0.0
) -> Verdict:
    """Run the kernels on poisoned outputs, twice: the bits must agree and pass the gate, which may leave some slack.

    On the CPU the emitted text runs in two thread orders; on a GPU (cuda) the cubins are launched twice.
    """
    device = torch.device(on)
    given = [private_copy(t, device) if on != "cpu" else t for t in inputs]
    program = fn.to(device) if isinstance(fn, torch.nn.Module) else fn
    try:
        eager, exact = run_eager(program, given), run_in_float64(program, given)
    except Exception as error:  # whatever the user's program raises where PyTorch runs it
        raise RequestError(f"PyTorch itself fails on the program: {str(error).strip().splitlines()[0]}") from error
    notes = compiled.captured.program.notes
    plan, runs = plan_of(compiled), []
    for order in ORDERS:
        execution = execution_for(plan, device, poison=True, order=order)
        runs.append(execution.outputs_and_inputs([private_copy(t) for t in given]))
    if not all(_same_bits(a, b) for a, b in zip(*runs, strict=True)):
        return Verdict(on, math.inf, 0.0, False, "two runs give different bits", notes)
    traced = partial(run_traced, fn, inputs) if on == "cpu" else tuple
    swayed = cache(partial(sways, program, given, exact))
    return judge(on, runs[0], eager, exact, notes, slack, traced, longest_folds(compiled), swayed)


def longest_folds(compiled: Compiled) -> tuple[int, int]:
    """The terms of the longest fold of the program as it is written, and the factors of its longest product."""
    sizes = {False: 1, True: 1}
    for r in compiled.regions:
        for t in postorder(*(s.value for s in r.program.results)):
            product = isinstance(t, T.Fold | T.Scan) and t.monoid == "mul"
            sizes[product] = max(sizes[product], math.prod(r.program.axes[a] for a in swept(t)))
    return sizes[False], sizes[True]


def either(y: torch.Tensor, e: torch.Tensor, y64: torch.Tensor) -> tuple[float, float]:
    """The errors of values and of eager's where float64 and eager differ in kind: there values may be like either."""
    if not y.dtype.is_floating_point:
        return relative_error(y, torch.where(y == e, e, y64.to(e.dtype))), 0.0
    lost = _kinds(e) != _kinds(y64.to(e.dtype))
    wanted = torch.where(lost & (_kinds(y) == _kinds(e)), e.double(), y64)
    return relative_error(y, wanted), relative_error(torch.where(lost, y64.to(e.dtype), e), y64)


def _kinds(t: torch.Tensor) -> torch.Tensor:
    """0 for numbers, 1 and -1 for infinities, 2 for NaN."""
    return torch.where(t.isnan(), 2, torch.where(t.isinf(), torch.sign(t).nan_to_num(), 0).to(torch.int8))


def sways(
    fn: Callable[..., Any], inputs: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """How far each element of the outputs in float64 moves where every input does by half of its last place.

    Up or down at random; 0 for what is not of a floating type, or not finite.
    """
    found = [torch.zeros(y64.shape, dtype=torch.float64, device=y64.device) for y64 in exact]
    for seed in range(SWAYS):
        random = torch.Generator().manual_seed(seed)
        moved = run_in_float64(fn, [roundings_away(t, random) for t in inputs])
        for most, y, y64 in zip(found, moved, exact, strict=True):
            if y.dtype.is_floating_point and y.shape == most.shape:
                torch.maximum(most, (y - y64).abs().nan_to_num(0.0, 0.0, 0.0), out=most)
    return found


def beyond(y: torch.Tensor, y64: torch.Tensor, room: torch.Tensor) -> float:
    """The relative error of what each element errs by beyond its room."""
    room = room.to(y.device)
    near = y64 + torch.minimum(torch.maximum(y.double() - y64, -room), room)
    return relative_error(y, torch.where(torch.isfinite(near), near, y64))


def roundings_away(t: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """The tensor in float64, each element of a floating type half of its last place away."""
    wide = widened(t)
    if t.dtype.is_floating_point:
        memory = flat_memory(wide)
        sides = torch.randint(0, 2, memory.shape, generator=random).to(memory.device) * 2 - 1
        memory.mul_(1 + unit_roundoff(t.dtype) * sides)
    return wide


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(a.isnan(), b.isnan())


def check_on_cpu(
    fn: Callable[..., Any], inputs: Sequence[torch.Tensor], name: str = "program", options: Options | None = None
) -> Verdict:
    """The whole way from a PyTorch program to a verdict on its emitted text, without a GPU."""
    return check_compiled(compile_program(fn, inputs, name, options), fn, inputs)
