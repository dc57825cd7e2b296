"""Tests see no measurements but their own."""

from __future__ import annotations

import gc
import os

os.environ["EGGTILE_EVIDENCE"] = "none"


def pytest_collection_finish() -> None:
    """What was imported and collected stays: each full collection would walk it for 0.3 s."""
    gc.freeze()
