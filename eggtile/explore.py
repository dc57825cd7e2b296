"""The equivalent forms of a program, as data: costs, kernels, sweeps, laws and errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from eggtile.pipeline import Compiled, Region, at_pointer, choose_forms, restarted
from eggtile.reduced import reduced
from egraph.graph import EGraph
from egraph.laws import LAWS, laws
from egraph.trace import Explained
from extract.cost import kernel_cost, sweeps
from extract.facts import levels, open_states, swept
from extract.key import Canonical, canonical
from extract.memory import peak_bytes
from extract.prices import Prices
from extract.signature import form_signature
from extract.spaces import default_schedule
from extract.splits import split_axis
from extract.stages import stages
from ir.dtype import Array, is_float, numpy_type
from ir.loop import Form, KernelForm, LoopProgram
from ir.loop_interp import run_form, run_loop
from ir.machine import Machine
from ir.schedule import parse_schedule
from ir.term import Load, Term

CLASSES = ("exact", "finite", "reassociating", "rounding", "approximate")
NOTES = ("gap", "stop", "traced", "dropped_rounds")
Loops = tuple[tuple[str, int], ...]
CHECK_POINTS = 1 << 18
"""Elements of the largest value and buffer where forms are checked."""


def report(compiled: Compiled, with_errors: bool = True) -> dict[str, Any]:
    """The object that `explore --json` prints (one region), or a list of such objects under `regions`."""
    with compiled.clock.span("report"):
        parts = [region_report(r, compiled.options.machine(), with_errors) for r in compiled.regions]
        for part, found in zip(parts, withheld(compiled), strict=True):
            part.update(found)
    head: dict[str, Any] = {"program": compiled.captured.program.name, "numerics": compiled.options.numerics}
    head |= parts[0] if len(parts) == 1 else {"regions": parts}
    return head | {"notes": list(compiled.captured.program.notes), "times": dict(compiled.clock.seconds)}


def region_report(region: Region, machine: Machine, with_errors: bool) -> dict[str, Any]:
    """E-graph figures and forms of one region, whose graph has a history, since forms name their laws."""
    assert isinstance(region.graph, Explained), "a report is asked of what was saturated with explain"
    listed = region.listed
    errors = form_errors(region.program, listed) if with_errors else [None] * len(listed)
    known: dict[str, int] = {}
    rows = [form_row(i, f, region, machine, e, known) for i, (f, e) in enumerate(zip(listed, errors, strict=True))]
    return {"egraph": egraph_row(region.graph), "forms": rows}


def withheld(compiled: Compiled) -> list[dict[str, Any]]:
    """Under strict numerics, for each region that has a cheaper form under default: that form, and the laws it lacks."""
    if compiled.options.numerics != "strict":
        return [{} for _ in compiled.regions]
    own = {law.name for law in laws("strict")}
    wider = choose_forms(restarted(compiled, numerics="default", k=1, form=None, explain=True))
    found: list[dict[str, Any]] = []
    for region, other in zip(compiled.regions, wider.regions, strict=True):
        best = other.chosen
        missing = [{"law": name, "class": LAWS[name].class_} for name in best.laws if name not in own]
        row = {"cost_us": best.cost_us, "signature": form_signature(best), "missing": missing}
        found.append({"default": row} if missing and best.cost_us < region.chosen.cost_us else {})
    return found


def egraph_row(graph: EGraph) -> dict[str, Any]:
    """Size of the saturated e-graph and what every phase did."""
    return {
        "classes": len(graph.classes),
        "nodes": sum(len(nodes) for nodes in graph.classes.values()),
        "stop": graph.report.stop,
        "phases": [vars(p) for p in graph.report.phases],
        "laws": [vars(law) for law in graph.report.laws if law.matches],
        "analyses": [vars(a) for a in graph.report.analyses],
    }


def form_row(
    number: int, form: Form, region: Region, machine: Machine, error: float | None, launched: dict[str, int]
) -> dict[str, Any]:
    """One form; `class` is the weakest class among the laws on its chain. `launched` remembers launches by key."""
    kernels = [kernel_row(k, form, region.prices, machine, launched) for k in form.kernels]
    used = [LAWS[name].class_ for name in form.laws if name in LAWS]
    return {
        "id": number,
        "cost_us": form.cost_us,
        "measured_us": region.prices.form_us(form),
        "default": form is region.default,
        "chosen": form is region.chosen,
        "signature": form_signature(form),
        "kernels": kernels,
        "flops": sum(k["flops"] for k in kernels),
        "bytes": sum(k["bytes"] for k in kernels),
        "peak_bytes": peak_bytes(form),
        "laws": list(form.laws),
        "class": max(used, key=CLASSES.index, default="exact"),
        **{name: form.details[name] for name in NOTES if name in form.details},
        "max_rel_err": error,
    }


def launches(known: Canonical, line: str, machine: Machine) -> int:
    """Launches of a kernel under a line, or under its default schedule."""
    subject = known.kernel, tuple(map(at_pointer, known.buffers)), known.axes
    if not line and split_axis(*subject) is None:
        return 1
    return len(stages(*subject, parse_schedule(line) if line else default_schedule(*subject, machine), machine))


def kernel_row(
    kernel: KernelForm, form: Form, prices: Prices, machine: Machine, launched: dict[str, int]
) -> dict[str, Any]:
    """One kernel: its key, axes, sweeps, states and work, and its launches under the best line that is known."""
    cost = kernel_cost(kernel, form, machine)
    known = canonical(kernel, form, prices.quotients)
    best = prices.known.get(known.key)
    if known.key not in launched:
        launched[known.key] = launches(known, best.schedule if best and best.status == "ok" else "", machine)
    used = sorted(frozenset[str]().union(*(p.axes for p in kernel.parts)) | set(cost.sweeps))
    return {
        "name": kernel.name,
        "key": known.key,
        "axes": {a: form.axes[a] for a in used},
        "free": sorted({a for p in kernel.parts for a in p.axes}),
        "sweeps": dict(sweeps(kernel)),
        "reads": reads(kernel),
        "writes": list(dict.fromkeys(s.buffer for s in kernel.stores)),
        "states": cost.states,
        "flops": cost.flops,
        "bytes": cost.bytes,
        "launches": launched[known.key],
        "cost_us": cost.us,
        "measured_us": best.time_us if best else None,
    }


def reads(kernel: KernelForm) -> dict[str, int]:
    """Per buffer the number of loops of the kernel that read it, what stands outside of all loops being one.

    A loop inside another that it takes nothing from is one loop wherever its result is used.
    """
    found: dict[str, set[Loops]] = {}
    seen: set[tuple[Term, Loops]] = set()
    stack: list[tuple[Term, Loops]] = [(t, ()) for s in kernel.stores for t in (*s.index, s.value)]
    while stack:
        t, loops = stack.pop()
        if (t, loops) in seen:
            continue
        seen.add((t, loops))
        if isinstance(t, Load):
            found.setdefault(t.buffer, set()).add(loops)
        own = tuple((a, levels(t)[a]) for a in swept(t))
        around = loops if not own or open_states(t) else tuple(x for x in loops if x[0] in t.free)
        inside = around + own
        stack += [(k, inside) for k in t.terms]
    return {buffer: len(places) for buffer, places in sorted(found.items())}


def form_errors(program: LoopProgram, forms: list[Form]) -> list[float | None]:
    """Every form's error in float64 against the program as written, on seeded inputs, at extents of moderate size.

    None where the extents are part of what is computed and too large.
    """
    small = reduced(program, forms, CHECK_POINTS)
    if small is None:
        return [None] * len(forms)
    program, forms = small
    inputs = seeded_inputs(program)
    right = run_loop(program, inputs, exact=True)
    return [
        max((_error(run_form(f, inputs, exact=True)[n], y) for n, y in right.items()), default=0.0) for f in forms
    ]


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
