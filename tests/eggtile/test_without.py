"""Without a law there are fewer forms: the best of them is never cheaper, and where one is, the report says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from eggtile.cli_explain import ablated, ablation_note
from eggtile.pipeline import Compiled, Options, capture_and_lower, choose_forms
from tests.eggtile.test_choice import F16, F32, PROGRAMS, Program, tensors


def layer_norm(k: int) -> Callable[..., torch.Tensor]:
    return lambda x, w: F.layer_norm(x, (k,)) @ w


CASES: dict[str, Program] = {
    "a layer norm before a product in one kernel": (layer_norm(512), tensors(F32, (64, 512), (512, 256))),
    "the same of few rows": (layer_norm(300), tensors(F32, (16, 300), (300, 64))),
    "a variance": (lambda x: x.var(-1), tensors(F16, (64, 512))),
    **{
        name: PROGRAMS[name]
        for name in ("the same in f32", "a norm before two products", "logsumexp of f32", "masked attention")
    },
}


def compiled(name: str) -> Compiled:
    fn, inputs = CASES[name]
    return choose_forms(capture_and_lower(fn, inputs, "p", Options(explain=True)))


@pytest.mark.parametrize("name", CASES)
def test_no_law_that_made_the_best_form_makes_it_dearer(name: str) -> None:
    found = compiled(name)
    laws = list(found.regions[0].chosen.laws)
    (row,), cuts = ablated(found, laws)
    assert not cuts
    for other in row["without"]:
        assert other["cost_us"] >= row["best"]["cost_us"] * (1 - 1e-9), other["without"]
        assert other["note"] is None


def test_a_best_form_that_is_dearer_than_one_without_a_law_is_said_to_be() -> None:
    assert ablation_note(10.0, 10.0) is None and ablation_note(10.0, 11.0) is None
    note = ablation_note(10.0, 9.0)
    assert note is not None and "10.00% cheaper" in note
