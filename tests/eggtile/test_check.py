"""The gate on values lets pass what another order of sums may cost, and no more."""

import math

import pytest
import torch

from eggtile.check import judge

ROUNDOFF = 2.0**-24


@pytest.mark.parametrize(
    ("dtype", "roundoffs", "terms", "ok"),
    [
        (torch.float32, 1, 1, True),
        (torch.float32, 2, 1, False),
        (torch.float32, 4, 1024, True),
        (torch.float32, 6, 1024, False),
        (torch.float64, 1, 1024, False),
    ],
)
def test_an_error_is_held_to_the_roundoffs_of_a_sum(
    dtype: torch.dtype, roundoffs: int, terms: int, ok: bool
) -> None:
    exact = torch.ones(3, dtype=torch.float64)
    got = (exact * (1 + 0.99 * roundoffs * ROUNDOFF)).to(torch.float64)
    verdict = judge("cpu", [got.to(dtype)], [exact.to(dtype)], [exact], terms=terms)
    assert verdict.ok == ok, verdict


def test_integers_have_no_roundoff() -> None:
    exact = torch.tensor([math.prod(range(1, 8))])
    assert not judge("cpu", [exact + 1], [exact], [exact], terms=1 << 20).ok
