"""Tests see no measurements but their own."""

from __future__ import annotations

import os

os.environ["EGGTILE_EVIDENCE"] = "none"
