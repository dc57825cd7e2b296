"""A part of the seeded programs of chains: all forms are right, and no program takes more sweeps than the laws ask for."""

from __future__ import annotations

import pytest

from tests.streamed_programs import PROGRAMS, TOLERANCE, case, row


@pytest.mark.parametrize("seed", range(3, PROGRAMS, 10))
def test_a_program_of_chains_takes_the_fewest_sweeps_and_its_forms_are_right(seed: int) -> None:
    found = row(case(seed))
    assert found.error < TOLERANCE, (found, case(seed).text)
    assert found.found == found.bound, (found, case(seed).text)
