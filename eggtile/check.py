"""The gate on values: emitted text against float64 and against eager PyTorch, on the CPU or on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from eggtile.conditioning import FACTOR, Sways, explained, hidden
from eggtile.pipeline import Compiled, Options, RequestError, compile_program
from eggtile.planning import plan_of
from eggtile.reference import (
    doubled,
    private_copy,
    relative_error,
    run_eager,
    run_traced,
    unit_roundoff,
    with_buffers,
)
from eggtile.runtime import Execution, execution_for
from extract.facts import swept
from ir import term as T
from ir.node import postorder
from ir.tile import Statement, Stream, TilePart

ILL = 64.0
"""Times the least error that is allowed: where eager's is larger, it is held to be that of a few elements."""
ORDERS = ("forward", "random")


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


@dataclass(frozen=True)
class Longest:
    """The terms of the longest sum, the factors of the longest product, and the steps of the longest stream."""

    terms: int = 1
    factors: int = 1
    steps: int = 1

    def passed(self, dtype: torch.dtype) -> float:
        """The most roundings that a term or a factor passes.

        A sum is a tree over what each step of a stream adds to what it carries; in float64, where what is exact
        elsewhere is eager's own result, it may be one term after another.
        """
        tree = self.terms if dtype == torch.float64 else math.log2(self.terms)
        return max(tree, self.steps - 1, self.factors - 1)


def judge(
    on: str,
    got: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    notes: tuple[str, ...] = (),
    slack: float = 0.0,
    traced: Callable[[], Sequence[torch.Tensor]] = tuple,
    longest: Longest | None = None,
    swayed: Sways | None = None,
) -> Verdict:
    """Compare values: an error above twice eager's plus one unit roundoff of the output's type (and slack) is wrong.

    The `longest` sum and product may also err by the root of the roundings that a term and a factor pass (Higham and
    Mary, 2019), in roundoffs of what they are taken in: of few results eager's may be near by luck. Strides are eager's,
    or those of `traced`, which is asked only where they are not. A larger error of an element is right too where the
    program's own roundings change this element by as much (`swayed`, asked where it is needed), and a small one is wrong
    where the element is lost in it. So eager's error in an ill-conditioned row allows none in the others.
    """
    if not len(got) == len(eager) == len(exact):
        return Verdict(on, math.inf, math.inf, False, f"{len(got)} outputs where eager gives {len(eager)}", notes)
    worst, worst_eager, reason = 0.0, 0.0, ""
    for k, (y, e, y64) in enumerate(zip(got, eager, exact, strict=True)):
        e, y64 = e.to(y.device), y64.to(y.device)
        laid_out = _steps(y) == _steps(e) or [_steps(y)] == [_steps(t) for t in traced()[k : k + 1]]
        alike = y.dtype == e.dtype and y.shape == e.shape
        if not (alike and laid_out):
            reason = reason or f"output {k} is {_kind(y)}, eager gives {_kind(e)}"
        if not alike:
            worst = math.inf
            continue
        error, eager_error = relative_error(y, y64), relative_error(e, y64)
        if not math.isfinite(eager_error):
            e, y64 = either(y, e, y64)
            error, eager_error = relative_error(y, y64), relative_error(e, y64)
        roundings = math.sqrt(longest.passed(y.dtype)) if longest else 0.0
        floor = (
            unit_roundoff(y.dtype) + roundings * min(unit_roundoff(y.dtype), unit_roundoff(torch.float32)) + slack
        )
        allowed = partial(_allowed, floor=floor)
        wrong, ill = error > allowed(eager_error), eager_error > ILL * floor
        if wrong or (ill and swayed):
            why = f"output {k} has error {error:.3g}, eager {eager_error:.3g}"
            if not (
                swayed and y.shape == y64.shape and explained(y, e, y64, swayed, k, max(1.0, roundings), allowed)
            ):
                reason = reason or why
            elif wrong:
                notes += (f"{why}; no more than the roundings of the program move it",)
                error = error if math.isfinite(error) else 0.0
        if not reason and swayed and (lost := hidden(y, e, y64, swayed, k, max(1.0, roundings))):
            reason = f"output {k} is {lost}"
        worst, worst_eager = max(worst, error), max(worst_eager, eager_error)
    return Verdict(on, worst, worst_eager, not reason, reason, notes)


def _allowed(eager_error: float, floor: float) -> float:
    return FACTOR * (eager_error if math.isfinite(eager_error) else 0.0) + floor


def _steps(t: torch.Tensor) -> list[int]:
    """The strides that lead from one element to another."""
    return [s for e, s in zip(t.shape, t.stride(), strict=True) if e > 1] if t.numel() else []


def _kind(t: torch.Tensor) -> str:
    return f"{t.dtype} {tuple(t.shape)} strides {t.stride()}".removeprefix("torch.")


def check_compiled(
    compiled: Compiled, fn: Callable[..., Any], inputs: Sequence[torch.Tensor], on: str = "cpu", slack: float = 0.0
) -> Verdict:
    """Run the kernels on poisoned outputs, twice: the bits must agree and pass the gate, which may leave some slack.

    On the CPU the emitted text runs in two thread orders; on a GPU (cuda) the cubins are launched twice. Where no law may
    move a rounding that the program writes, float64 rounds there too.
    """
    device = torch.device(on)
    program, held = with_buffers(fn)
    inputs = [*inputs, *held]
    given = [private_copy(t, device) if on != "cpu" else t for t in inputs]
    if isinstance(fn, torch.nn.Module):
        fn.to(device)
    try:
        eager, exact = run_eager(program, given), doubled(program, given, kept=True)
        loose = [m and compiled.options.numerics != "strict" for m in exact.sums_casts]
        right = doubled(program, given).values if any(loose) else exact.values
    except Exception as error:  # whatever the user's program raises where PyTorch runs it
        raise RequestError(f"PyTorch itself fails on the program: {str(error).strip().splitlines()[0]}") from error
    if exact.random:
        raise RequestError("the program draws random numbers, so that its values cannot be compared")
    right = [a if m else b for m, a, b in zip(loose, right, exact.values, strict=True)]
    notes = compiled.captured.program.notes
    plan = plan_of(compiled)
    runs = [_run(execution_for(plan, device, poison=True, order=order), given, held) for order in ORDERS]
    if not all(_same_bits(a, b) for a, b in zip(*runs, strict=True)):
        return Verdict(on, math.inf, 0.0, False, "two runs give different bits", notes)
    traced = partial(run_traced, program, inputs) if on == "cpu" else tuple
    swayed = Sways(program, given, right, [not m for m in loose])
    return judge(on, runs[0], eager, right, notes, slack, traced, longest_folds(compiled), swayed)


def _run(execution: Execution, given: Sequence[torch.Tensor], held: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of a program, then its inputs and buffers as it leaves them; `given` ends with the buffers, `held` by it.

    What the program holds is as before when it has run.
    """
    names = {t.data_ptr(): n for n, t in execution.plan.constants.items()}
    state = [execution.constants.get(names.get(t.data_ptr(), ""), t) for t in held]
    written = [t.detach() for n, t in execution.constants.items() if n in execution.plan.writes]
    before = [t.clone() for t in written]
    inputs = [private_copy(t) for t in given[: len(given) - len(held)]]
    try:
        return [*execution.outputs_and_inputs(inputs), *(t.detach().clone() for t in state)]
    finally:
        for t, old in zip(written, before, strict=True):
            t.copy_(old)


def longest_folds(compiled: Compiled) -> Longest:
    """The longest folds of the program as it is written, and streams of its kernels, where they are made."""
    sizes = {False: 1, True: 1}
    for r in compiled.regions:
        for t in postorder(*(s.value for s in r.program.results)):
            product = isinstance(t, T.Fold | T.Scan) and t.monoid == "mul"
            sizes[product] = max(sizes[product], math.prod(r.program.axes[a] for a in swept(t)))
    steps = (carried_steps(part, part.body) for x in compiled.launches for part in x.tile.parts)
    return Longest(sizes[False], sizes[True], max(steps, default=1))


def carried_steps(part: TilePart, body: Sequence[Statement]) -> int:
    """The most steps of a stream that add to what they carry, with those of the streams inside."""
    streams = [s for s in body if isinstance(s, Stream)]
    return max(
        ((part.axis(s.axis).tiles if s.carried else 1) * carried_steps(part, s.body) for s in streams), default=1
    )


def either(y: torch.Tensor, e: torch.Tensor, y64: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eager's values and float64's where the two differ in kind: there values may be like either."""
    if not y.dtype.is_floating_point:
        wanted = torch.where(y == e, e, y64.to(e.dtype))
        return wanted, wanted
    lost = _kinds(e) != _kinds(y64.to(e.dtype))
    wanted = torch.where(lost & (_kinds(y) == _kinds(e)), e.double(), y64)
    return torch.where(lost, wanted.to(e.dtype), e), wanted


def _kinds(t: torch.Tensor) -> torch.Tensor:
    """0 for numbers, 1 and -1 for infinities, 2 for NaN."""
    return torch.where(t.isnan(), 2, torch.where(t.isinf(), torch.sign(t).nan_to_num(), 0).to(torch.int8))


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(a.isnan(), b.isnan())


def check_on_cpu(
    fn: Callable[..., Any], inputs: Sequence[torch.Tensor], name: str = "program", options: Options | None = None
) -> Verdict:
    """The whole way from a PyTorch program to a verdict on its emitted text, without a GPU."""
    return check_compiled(compile_program(fn, inputs, name, options), fn, inputs)
