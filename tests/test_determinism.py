"""Hash seeds change neither a graph nor a choice; `python -m tests.determinism` asks more, and of other egglogs."""

from __future__ import annotations

import sys

from tests.determinism import asked


def test_two_hash_seeds_give_one_graph_and_one_choice() -> None:
    found = [asked(sys.executable, seed, most=3)[1] for seed in ("1", "77")]
    assert len(found[0]) == 3
    assert found[0] == found[1]
