"""The Python door: `optimize` a function or module, `load` a saved one, and the `torch.compile` backend."""

from __future__ import annotations

from torch._dynamo import list_backends, register_backend

from eggtile.dynamo import backend
from eggtile.optimized import Optimized, optimize
from eggtile.saved import Saved, load

__all__ = ["Optimized", "Saved", "backend", "load", "optimize"]

if "eggtile" not in list_backends(exclude_tags=None):  # an installed package registers it by its entry point
    register_backend(backend, name="eggtile")
