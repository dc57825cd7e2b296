"""Loop IR in numpy: the meaning of a loop program, and of a form kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ir import meaning
from ir import term as T
from ir.dtype import Array, DType, is_float
from ir.loop import Buffer, Form, LoopProgram, Store
from ir.node import IRError
from ir.steps import CallStep, Lowered
from ir.term_interp import Evaluator


def evaluate(
    term: T.Term,
    axes: Mapping[str, int],
    buffers: Mapping[str, Array],
    order: tuple[str, ...],
    exact: bool,
    values: Mapping[str, Array] | None = None,
) -> Array:
    """The value of `term` as an array over the axes in `order`, which hold all its free axes.

    `axes` gives extents, `buffers` logical arrays of values, `values` the arrays of `Var`s over their own axes.
    """
    return Evaluator((term,), axes, buffers, exact, values or {}).over(term, order)


def run_loop(program: LoopProgram, inputs: Mapping[str, Array], exact: bool) -> dict[str, Array]:
    """The buffers that the results store, by name; a mutated input appears with its new content."""
    memory = _memory(program.buffers, inputs, exact)
    return _run_stores(program.results, program.axes, program.buffers, memory, exact)


def run_form(form: Form, inputs: Mapping[str, Array], exact: bool) -> dict[str, Array]:
    """The buffers that the kernels store, by name, run in order; a kernel's loads see memory as it was before it."""
    memory = _memory(form.buffers, inputs, exact)
    stored: dict[str, Array] = {}
    for kernel in form.kernels:
        made = _run_stores(kernel.stores, form.axes, form.buffers, memory, exact)
        memory.update(made)
        stored.update(made)
    return stored


def run_lowered(
    lowered: Lowered, inputs: Mapping[str, Array], exact: bool, calls: Mapping[int, Callable[..., Sequence[Array]]]
) -> dict[str, Array]:
    """The outputs and mutated inputs of all steps, by name; `calls` maps a call's key to its function, as `run_tensor`."""
    memory = _memory(lowered.buffers, inputs, exact)
    kinds = {b.name: b for b in lowered.buffers}
    stored: set[str] = set()
    for step in lowered.steps:
        if isinstance(step, CallStep):
            given = calls[step.key](*(memory[n] for n in step.operands))
            made = {n: meaning.convert(np.asarray(given[k]), kinds[n].dtype, exact) for k, n in step.results}
        else:
            made = run_loop(step, memory, exact)
        memory.update(made)
        stored.update(made)
    return {n: memory[n] for n in sorted(stored) if kinds[n].role != "scratch"}


def poison(shape: tuple[int, ...], dtype: DType, exact: bool) -> Array:
    """What a buffer holds before anything is stored: NaN, or 91."""
    return np.full(shape, np.nan if is_float(dtype) else 91, dtype=meaning.held(dtype, exact))


def _memory(buffers: Sequence[Buffer], inputs: Mapping[str, Array], exact: bool) -> dict[str, Array]:
    memory = {}
    for b in buffers:
        if b.role != "input":
            memory[b.name] = poison(b.shape, b.dtype, exact)
        elif b.name not in inputs:
            raise IRError(f"no value is given for input {b.name}")
        elif np.shape(inputs[b.name]) != b.shape:
            raise IRError(f"input {b.name}: the value has shape {np.shape(inputs[b.name])}, the buffer {b.shape}")
        else:
            memory[b.name] = meaning.convert(np.asarray(inputs[b.name]), b.dtype, exact)
    return memory


def _run_stores(
    stores: Sequence[Store],
    axes: Mapping[str, int],
    buffers: Sequence[Buffer],
    memory: Mapping[str, Array],
    exact: bool,
) -> dict[str, Array]:
    """The new contents of the stored buffers, computed from `memory` as it is."""
    evaluator = Evaluator([t for s in stores for t in (*s.index, s.value)], axes, memory, exact, {})
    made: dict[str, Array] = {}
    by_name = {b.name: b for b in buffers}
    for s in stores:
        target = by_name[s.buffer]
        order = tuple(sorted(s.axes))
        out = made.setdefault(s.buffer, memory[s.buffer].copy())
        value = evaluator.over(s.value, order, target.dtype)
        index = [evaluator.over(t, order).astype(np.int64) for t in s.index]
        inside = np.ones(value.shape, dtype=bool)
        for i, e in zip(index, target.shape, strict=True):
            inside &= (i >= 0) & (i < e)
        updates = value[inside]
        if s.monoid is None:
            updates = meaning.convert(updates, target.dtype, exact)
        where = (np.zeros(updates.shape, dtype=np.int64), *(i[inside] for i in index))
        made[s.buffer] = meaning.scatter(s.monoid, out[None], where, updates, target.dtype, exact)[0]
    return made
