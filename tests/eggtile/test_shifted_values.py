"""What is less its mean is right however large the mean: a difference cancels what the mean is off by in every form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from eggtile.pipeline import Options, capture_and_lower
from ir.loop import Form, LoopProgram
from ir.loop_interp import run_form, run_loop
from tests.two_orders import all_forms, in_two_orders

ROWS, COLUMNS, OFFSET = 64, 1000, 1e4
ROUNDING, TWO_ORDERS = 2e-6, 1e-4
"""What a form may err by more than the one as written: as it is; where sums differ from kernel to kernel, by 2^-20."""


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, True)


def normalised(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (COLUMNS,))


def between(x: torch.Tensor) -> torch.Tensor:
    least = x.amin(-1, True)
    return (x - least) / (x.amax(-1, True) - least)


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normalised twice": lambda x: normalised(normalised(x)),
    "centred, then normalised": lambda x: normalised(centred(x)),
    "centred twice": lambda x: centred(centred(x)),
    "less half its mean, then normalised": lambda x: normalised(x - 0.5 * x.mean(-1, True)),
    "centred, less its maximum": lambda x: centred(x) - centred(x).amax(-1, True),
    "centred, between its extremes": lambda x: between(centred(x)),
    "centred, the logarithms of its shares": lambda x: torch.log_softmax(centred(x), -1),
    "normalised once": normalised,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_form_errs_more_than_the_one_as_written(name: str) -> None:
    inputs = [torch.empty(ROWS, COLUMNS, device="meta")]
    (program,) = capture_and_lower(PROGRAMS[name], inputs, "p", Options()).lowered.steps
    assert isinstance(program, LoopProgram)
    given = {"x": np.float32(OFFSET + np.random.default_rng(0).standard_normal((ROWS, COLUMNS)))}
    (want,) = run_loop(program, given, exact=True).values()
    (result,) = (b.name for b in program.buffers if b.role == "output")

    def errors(form: Form) -> list[float]:
        """As it is, and with either half of its kernels in another order."""
        runs = form, in_two_orders(form, 0), in_two_orders(form, 1)
        got = (run_form(f, given, exact=False)[result] for f in runs)
        return [float(np.max(np.abs(y - want)) / np.max(np.abs(want))) for y in got]

    as_written, *others = map(errors, all_forms(program))
    for found in others:
        assert found[0] <= 1.5 * as_written[0] + ROUNDING, found
        assert max(found) <= 1.5 * max(as_written) + TWO_ORDERS, found
