"""A captured program against eager PyTorch: values by the Tensor IR interpreter, and the strides of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from eggtile.capture import Captured, capture
from ir.tensor_interp import run_tensor

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 2e-5, torch.float64: 1e-6}


def values(t: torch.Tensor) -> Any:
    t = t.detach()
    return (t.float() if t.dtype is torch.bfloat16 else t).numpy()


def fresh(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t if 0 in t.stride() else t.clone() for t in inputs]


def interpreted(captured: Captured) -> dict[str, Any]:
    def callee(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *a: [values(t) for t in f(*(torch.from_numpy(np.ascontiguousarray(x)) for x in a))]

    calls = {key: callee(f) for key, f in captured.calls.items()}
    inputs = {i.name: values(t) for i, t in zip(captured.program.inputs, captured.tensors, strict=True)}
    return run_tensor(captured.program, inputs, False, calls)


def check(
    fn: Callable[..., Any], *inputs: torch.Tensor, calls: bool = False, tolerance: float | None = None
) -> Captured:
    """fn captured, with every result compared to eager's; fails where a call is made but `calls` does not say so."""
    before = [values(t).copy() for t in inputs]
    captured = capture(fn, inputs)
    assert all(np.array_equal(a, values(t), equal_nan=True) for a, t in zip(before, inputs, strict=True))
    assert bool(captured.calls) == calls, captured.program.notes
    got = interpreted(captured)
    mutable = fresh(inputs)
    with torch.no_grad():
        wanted = [t for t in pytree.tree_leaves(fn(*mutable)) if isinstance(t, torch.Tensor)]
    results = [r for r in captured.program.results if r.writes is None]
    assert len(results) == len(wanted)
    for r, w in zip(results, wanted, strict=True):
        assert r.strides == w.stride() or w.numel() < 2
        close(got[r.name], w, tolerance)
    names = [i.name for i in captured.program.inputs]
    written = {r.writes: got[r.name] for r in captured.program.results if r.writes is not None}
    for name, t in zip(names, mutable, strict=False):
        close(written.get(name, got_input(captured, name)), t, tolerance)
    return captured


def got_input(captured: Captured, name: str) -> Any:
    names = [i.name for i in captured.program.inputs]
    tensor = captured.tensors[names.index(name)]
    assert tensor is not None
    return values(tensor)


def close(got: Any, wanted: torch.Tensor, tolerance: float | None = None) -> None:
    w = values(wanted)
    assert got.shape == w.shape
    bound = TOLERANCE.get(wanted.dtype, 0) if tolerance is None else tolerance
    np.testing.assert_allclose(got.astype(np.float64), w.astype(np.float64), rtol=bound, atol=bound, equal_nan=True)
