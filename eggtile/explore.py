"""The equivalent forms of a program, as data: costs, kernels, sweeps, laws and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eggtile.accuracy import form_errors
from eggtile.deadline import Deadline, left_out
from eggtile.measured_lines import is_legal
from eggtile.pipeline import Compiled, Region, at_pointer, choose_forms, restarted, space_of
from egraph.graph import Budget, EGraph
from egraph.laws import LAWS, laws
from egraph.trace import Explained
from extract.cost import Cost, sweeps
from extract.facts import levels, open_states, swept
from extract.key import Canonical, canonical
from extract.memory import peak_bytes
from extract.prices import Prices
from extract.signature import form_signature
from extract.splits import split_axis
from extract.stages import stages
from ir.loop import Form, KernelForm
from ir.machine import Machine
from ir.schedule import parse_schedule
from ir.term import Load, Term

CLASSES = ("exact", "finite", "reassociating", "rounding", "approximate")
NOTES = ("gap", "stop", "traced", "dropped_rounds")
Loops = tuple[tuple[str, int], ...]


def report(compiled: Compiled, launches: bool = True, deadline: Deadline | None = None) -> dict[str, Any]:
    """The object that `explore --json` prints (one region), or a list of such objects under `regions`.

    The chosen form and the one as written come first; what the others lack as the deadline has come is under
    `left_out`, as are `launches` where they are not asked for, silently.
    """
    deadline = deadline or Deadline(compiled.options.report_s)
    with compiled.clock.span("report"):
        counts = Launches(compiled.options.machine()) if launches else None
        parts = [
            region_report(r, counts, deadline.share(1 / (len(compiled.regions) - n)))
            for n, r in enumerate(compiled.regions)
        ]
        for part, found in zip(parts, withheld(compiled, deadline), strict=True):
            lacks = part["left_out"] + found.pop("left_out", [])
            part.update(found, left_out=lacks)
    head: dict[str, Any] = {"program": compiled.captured.program.name, "numerics": compiled.options.numerics}
    head |= parts[0] if len(parts) == 1 else {"regions": parts}
    return head | {"notes": list(compiled.captured.program.notes), "times": dict(compiled.clock.seconds)}


def region_report(region: Region, counts: Launches | None, deadline: Deadline) -> dict[str, Any]:
    """E-graph figures and forms of one region, whose graph has a history, since forms name their laws."""
    assert isinstance(region.graph, Explained), "a report is asked of what was saturated with explain"
    rows = [form_row(n, f, region) for n, f in enumerate(region.listed)]
    lacks = filled_errors(rows, region, deadline if counts is None else deadline.share(1 / 2))
    lacks += filled_launches(rows, region, counts, deadline) if counts is not None else []
    return {"egraph": egraph_row(region.graph), "forms": rows, "left_out": lacks}


def by_weight(region: Region) -> list[int]:
    """The numbers of the forms, the chosen one first, then the one as written."""
    listed = region.listed
    return sorted(
        range(len(listed)), key=lambda n: (listed[n] is not region.chosen, listed[n] is not region.default)
    )


def filled_errors(rows: Sequence[dict[str, Any]], region: Region, deadline: Deadline) -> list[dict[str, Any]]:
    """Fill in the errors of all forms, and say what is lacking."""
    errors = form_errors(region.program, region.listed, deadline, by_weight(region))
    for row, error in zip(rows, errors or (), strict=False):
        row["max_rel_err"] = error
    lacking = [row["id"] for row in rows if row["max_rel_err"] is None]
    why = deadline.why() if errors else "it computes with its extents, at which forms are too large to be checked"
    return [left_out("max rel err", why, lacking)] if lacking else []


def filled_launches(
    rows: Sequence[dict[str, Any]], region: Region, counts: Launches, deadline: Deadline
) -> list[dict[str, Any]]:
    """Fill in the launches of all kernels, and say what is lacking."""
    for n in by_weight(region):
        for row, kernel in zip(rows[n]["kernels"], region.listed[n].kernels, strict=True):
            row["launches"] = counts.of(kernel, region.listed[n], region.prices, deadline)
    lacking = [row["id"] for row in rows if any(k["launches"] is None for k in row["kernels"])]
    return [left_out("launches", deadline.why(), lacking)] if lacking else []


def withheld(compiled: Compiled, deadline: Deadline) -> list[dict[str, Any]]:
    """Under strict numerics, for each region that has a cheaper form under default: that form, and the laws it lacks."""
    if compiled.options.numerics != "strict":
        return [{} for _ in compiled.regions]
    if deadline.spent:
        lacks = [left_out("the best form under default numerics", deadline.why())]
        return [{"left_out": lacks} for _ in compiled.regions]
    options, own = compiled.options, {law.name for law in laws("strict")}
    given = options.budget or Budget()
    bounds = {
        "budget": replace(given, seconds=min(given.seconds, deadline.left_s)),
        "extract_s": min(options.extract_s, deadline.left_s),
    }
    wider = choose_forms(restarted(compiled, numerics="default", k=1, form=None, explain=True, **bounds))
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


def form_row(number: int, form: Form, region: Region) -> dict[str, Any]:
    """One form, less its error and its launches; `class` is the weakest class among the laws on its chain."""
    costs: Mapping[str, Cost] = form.details["kernels"]  # type: ignore[assignment]
    kernels = [kernel_row(k, form, costs[k.name], region.prices) for k in form.kernels]
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
        "max_rel_err": None,
    }


class Launches:
    """The launches of kernels under the best line that is known of each, or under its default schedule; once a key."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.known: dict[str, int] = {}

    def of(self, kernel: KernelForm, form: Form, prices: Prices, deadline: Deadline) -> int | None:
        """The launches of a kernel of a form; None where they are not known and the deadline has come."""
        own = canonical(kernel, form, prices.quotients)
        if own.key not in self.known:
            if deadline.spent:
                return None
            best = prices.measured(kernel, form)
            self.known[own.key] = self._counted(own, best.schedule if best and best.status == "ok" else "")
        return self.known[own.key]

    def _counted(self, known: Canonical, line: str) -> int:
        subject = known.kernel, tuple(map(at_pointer, known.buffers)), known.axes
        line = line if line and is_legal(line, known, subject[1], self.machine) else ""
        if not line and split_axis(*subject) is None:
            return 1
        schedule = parse_schedule(line) if line else space_of(known, self.machine).lines[0]
        return len(stages(*subject, schedule, self.machine))


def kernel_row(kernel: KernelForm, form: Form, cost: Cost, prices: Prices) -> dict[str, Any]:
    """One kernel, less its launches: its key, axes, sweeps, states and work."""
    known = canonical(kernel, form, prices.quotients)
    best = prices.measured(kernel, form)
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
        "launches": None,
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
