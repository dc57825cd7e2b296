"""The errors of forms in float64, against the program as written, at extents of moderate size."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from eggtile.deadline import UNLIMITED, Deadline
from eggtile.reduced import reduced
from extract.key import canonical
from ir.dtype import Array, is_float, numpy_type
from ir.loop import Form, KernelForm, LoopProgram
from ir.loop_interp import run_form, run_loop

POINTS = 1 << 18
"""Elements of the largest value and buffer."""
KEPT_BYTES = 1 << 28
"""Of what kernels made, for forms that have the same ones."""

Content = tuple[object, ...]
"""What tells contents from others: of an input its name, of what a kernel made the kernel's key and its operands'."""


def form_errors(
    program: LoopProgram, forms: Sequence[Form], deadline: Deadline = UNLIMITED, order: Iterable[int] | None = None
) -> list[float | None] | None:
    """Every form's error on seeded inputs; those that stand late in `order` are None where the deadline has come.

    None in all where the extents are part of what is computed and too large.
    """
    found: list[float | None] = [None] * len(forms)
    small = reduced(program, forms, POINTS)
    if small is None:
        return None
    if deadline.spent:
        return found
    program, forms = small
    runs = Runs(seeded_inputs(program), deadline)
    right = run_loop(program, runs.inputs, exact=True)
    for n in range(len(forms)) if order is None else order:
        made = runs.of(forms[n])
        if made is None:
            break
        found[n] = max((_error(made[name], y) for name, y in right.items()), default=0.0)
    return found


class Runs:
    """What forms of one program make of `inputs`; kernels that are equal but for names and read the same run once."""

    def __init__(self, inputs: Mapping[str, Array], deadline: Deadline = UNLIMITED) -> None:
        self.inputs, self.deadline = inputs, deadline
        self.made: OrderedDict[Content, dict[str, Array]] = OrderedDict()
        self.numbers: dict[Content, int] = {}
        self.kept_bytes = 0

    def of(self, form: Form) -> dict[str, Array] | None:
        """The buffers that the kernels of a form store, by name; None where the deadline comes before."""
        memory = dict(self.inputs)
        contents: dict[str, Content] = {name: (name,) for name in memory}
        stored: dict[str, Array] = {}
        for kernel in form.kernels:
            if self.deadline.spent:
                return None
            known = canonical(kernel, form)
            content: Content = known.key, *(contents.get(known.names[b.name], ()) for b in known.buffers)
            number = {old: new for new, old in known.names.items()}
            if content not in self.made:
                made = self._run(kernel, form, set(number), memory)
                self._keep(content, {number[name]: y for name, y in made.items()})
            own = {known.names[name]: y for name, y in self.made[content].items()}
            self.made.move_to_end(content)
            place = self.numbers.setdefault(content, len(self.numbers))
            contents |= {name: (place, number[name]) for name in own}
            memory |= own
            stored |= own
        return stored

    def _run(self, kernel: KernelForm, form: Form, used: set[str], memory: Mapping[str, Array]) -> dict[str, Array]:
        """What one kernel stores, given what its buffers hold."""
        buffers = (replace(b, role="input") if b.name in memory else b for b in form.buffers if b.name in used)
        return run_form(replace(form, kernels=(kernel,), buffers=tuple(buffers)), memory, exact=True)

    def _keep(self, content: Content, made: dict[str, Array]) -> None:
        self.made[content] = made
        self.kept_bytes += sum(y.nbytes for y in made.values())
        while self.kept_bytes > KEPT_BYTES and len(self.made) > 1:
            _, old = self.made.popitem(last=False)
            self.kept_bytes -= sum(y.nbytes for y in old.values())


def seeded_inputs(program: LoopProgram, seed: int = 0) -> Mapping[str, Array]:
    """Values for every input buffer: standard normal floats, integers in 0..7, random bools."""
    rng = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for b in program.buffers:
        if b.role != "input":
            continue
        if is_float(b.dtype):
            values[b.name] = rng.standard_normal(b.shape).astype(numpy_type(b.dtype))
        elif b.dtype == "bool":
            values[b.name] = rng.random(b.shape) < 0.5
        else:
            values[b.name] = rng.integers(0, 8, b.shape).astype(numpy_type(b.dtype))
    return values


def _error(got: Array, right: Array) -> float:
    if right.size == 0:
        return 0.0
    if right.dtype.kind != "f":
        return 0.0 if np.array_equal(got, right) else math.inf
    finite = np.isfinite(right)
    if not np.array_equal(np.nan_to_num(got[~finite], nan=0.5), np.nan_to_num(right[~finite], nan=0.5)):
        return math.inf
    if not finite.any():
        return 0.0
    worst = float(np.abs(got[finite] - right[finite]).max())
    return worst / (float(np.abs(right[finite]).max()) or 1.0)
