"""eggtile: an e-graph based optimiser from PyTorch programs to measured CUDA kernels."""

import gc
import os
import signal
import sys
import time

STARTED = time.perf_counter()
"""When the package began to be imported."""

if (
    sys.argv[:1] == ["-m"] or os.path.basename(sys.argv[0]) == "eggtile"
):  # the command: it ends quietly while it starts
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

gc.disable()  # collections while torch is imported free nothing and take 0.3 s
from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

import torch  # noqa: E402, F401

gc.enable()

if TYPE_CHECKING:
    from eggtile.api import load, optimize

__all__ = ["load", "optimize"]

_HOMES = {"optimize": "eggtile.api", "load": "eggtile.saved"}
"""Found at first use: importing the optimiser takes as long as importing torch, and a saved program needs none of it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
