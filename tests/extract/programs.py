"""Hand-written loop programs, and a check that a form computes what its program says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ir import term as T
from ir.dtype import Array
from ir.loop import Buffer, Form, LoopProgram, Store, contiguous
from ir.loop_interp import run_form, run_loop
from ir.text import Scope, parse_term

Result = tuple[str, tuple[str, ...], T.Term | str]
Inputs = Mapping[str, tuple[str, tuple[str | int, ...]]]


def program(axes: Mapping[str, int], inputs: Inputs, results: Sequence[Result], lets: str = "") -> LoopProgram:
    """Inputs are name -> (dtype, dims as axes or numbers); results are (buffer, index texts, value).

    A result's buffer is made as an output over its plain axes unless it is an input. `lets` are lines `name = term`.
    """
    buffers = []
    for name, (dtype, dims) in inputs.items():
        shape = tuple(axes[d] if isinstance(d, str) else d for d in dims)
        buffers.append(Buffer(name, dtype, shape, contiguous(shape)))
    scope = Scope({n: d for n, (d, _) in inputs.items()}, axes)
    for line in lets.strip().splitlines():
        name, text = line.split(" = ", 1)
        scope.shared[name.strip()] = parse_term(text, scope)
    stores = []
    for buffer, index, value in results:
        term = parse_term(value, scope) if isinstance(value, str) else value
        places = tuple(parse_term(i, scope) for i in index)
        if buffer not in inputs and buffer not in {b.name for b in buffers}:
            shape = tuple(axes[i] for i in index)
            buffers.append(Buffer(buffer, term.dtype, shape, contiguous(shape), role="output"))
        stores.append(Store(buffer, places, term))
    return LoopProgram("p", dict(axes), tuple(buffers), tuple(stores))


def values(p: LoopProgram, seed: int = 0) -> dict[str, Array]:
    """Random inputs; integers are positions in the first axis' extent."""
    rng = np.random.default_rng(seed)
    most = min(p.axes.values())
    out: dict[str, Array] = {}
    for b in p.buffers:
        if b.role == "input":
            whole = b.dtype in ("i64", "i32")
            out[b.name] = rng.integers(0, most, b.shape) if whole else rng.standard_normal(b.shape)
    return out


def error(form: Form, p: LoopProgram, seed: int = 0) -> float:
    """The largest relative error over the results, everything in float64."""
    inputs = values(p, seed)
    with np.errstate(all="ignore"):
        want = run_loop(p, inputs, exact=True)
        got = run_form(form, inputs, exact=True)
    worst = 0.0
    for name, w in want.items():
        scale = max(1e-30, float(np.abs(w.astype(float)).max(initial=0.0)))
        worst = max(worst, float(np.abs(got[name].astype(float) - w.astype(float)).max(initial=0.0)) / scale)
    return worst


def resized(p: LoopProgram, axes: Mapping[str, int], shapes: Inputs) -> LoopProgram:
    """The program over other extents (so that a form chosen at real sizes runs at small ones)."""
    buffers = []
    for b in p.buffers:
        dims = shapes.get(b.name)
        if dims is not None:
            shape = tuple(axes[d] if isinstance(d, str) else d for d in dims[1])
        else:
            store = next(s for s in p.results if s.buffer == b.name)
            shape = tuple(axes[t.axis] for t in store.index if isinstance(t, T.Index))
        buffers.append(Buffer(b.name, b.dtype, shape, contiguous(shape), role=b.role))
    return LoopProgram(p.name, dict(axes), tuple(buffers), p.results)
