"""One page that stands alone: the forms of a program, their kernels, the laws between them and the e-graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eggtile.abridged import depth_within
from eggtile.deadline import Deadline, left_out, said
from eggtile.explore import CLASSES, by_weight, report
from eggtile.pipeline import Compiled, CompiledKernel, Region, Written, compile_kernel
from eggtile.views import EARLY, show_level
from eggtile.why import Names, derived, reasons, step_row, written
from egraph.dump import describe
from egraph.graph import EGraph
from egraph.laws import LAWS
from egraph.picture import to_svg
from ir.loop import Form
from ir.loop_text import show_buffer, show_form
from ir.text import show_term
from ir.tile_text import show_tile

TEMPLATE = Path(__file__).with_suffix(".html")
LONGEST = 200  # characters of a written term beside its class


def page(compiled: Compiled, found: dict[str, Any] | None = None, deadline: Deadline | None = None) -> str:
    """The page, with the report of `explore --json` where it is made."""
    deadline = deadline or Deadline(compiled.options.report_s)
    found = found or report(compiled, deadline=deadline.share(1 / 3))
    with compiled.clock.span("page"):
        data = page_data(compiled, found, deadline)
    data["times"] = dict(compiled.clock.seconds)
    text = json.dumps(data, default=str).replace("</", "<\\/")
    return TEMPLATE.read_text().replace("__DATA__", text)


def page_data(compiled: Compiled, found: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
    """What the page shows: the report, and what stands behind it."""
    rows = found["regions"] if "regions" in found else [found] * bool(compiled.regions)
    kernels = kernels_of_chosen(compiled, deadline.share(1 / 2))
    return {
        **{name: found[name] for name in ("program", "numerics", "notes", "times")},
        "target": compiled.options.target,
        "classes": CLASSES,
        "levels": {level: show_level(compiled, level) for level in reversed(EARLY)},
        "laws": {x.name: {"family": x.family, "class": x.class_, "sentence": x.sentence} for x in LAWS.values()},
        "kernels": {
            key: {
                "schedule": str(k.schedule),
                "cuda": k.text,
                "tile": "\n".join(show_tile(x.tile) for x in k.launches),
            }
            for key, k in kernels.items()
        },
        "regions": [
            region_data(r, row, kernels, deadline.share(1 / (len(rows) - n)))
            for n, (r, row) in enumerate(zip(compiled.regions, rows, strict=True))
        ],
    }


def kernels_of_chosen(compiled: Compiled, deadline: Deadline) -> dict[str, CompiledKernel]:
    """The kernels of the chosen forms by their keys, written where they are not yet and the deadline has not come."""
    found: Written = {(k.canonical.key, None): k for k in compiled.kernels}
    for region in compiled.regions:
        for k in region.chosen.kernels:
            if not deadline.spent:
                compile_kernel(k, region.chosen, compiled.options, compiled.clock, found, None)
    return {key: k for (key, _), k in found.items()}


def region_data(
    region: Region, row: dict[str, Any], kernels: Mapping[str, CompiledKernel], deadline: Deadline
) -> dict[str, Any]:
    """One region: its forms with their texts, the steps to each, its classes and their picture."""
    order = by_weight(region)
    derivation, users, short = derived(region, [region.listed[n] for n in order], deadline)
    names = Names(written(region))
    steps = [
        step_row(s, names) | {"forms": sorted(order[n] for n in used)}
        for s, used in zip(derivation.steps, users, strict=True)
    ]
    forms = [
        shown | {"text": form_text(f), "picked": sorted(picked(f))}
        for shown, f in zip(row["forms"], region.listed, strict=True)
    ]
    lacks = [*row["left_out"]]
    if short and derivation.cut:
        lacks.append(left_out("steps", deadline.why(), sorted(order[n] for n in short)))
    if any(k["key"] not in kernels for f in row["forms"] if f["chosen"] for k in f["kernels"]):
        lacks.append(
            left_out("CUDA text of kernels", deadline.why(), [f["id"] for f in row["forms"] if f["chosen"]])
        )
    return {
        "egraph": row["egraph"],
        "forms": forms,
        "steps": steps,
        "where": names.lines,
        "classes": classes(region.graph),
        "svg": to_svg(region.graph),
        "left_out": list(map(said, lacks)),
    }


def form_text(form: Form) -> dict[str, Any]:
    """The parts of a form as text: its axes, buffers and kernels."""
    _, *kernels = show_form(form).split("\nkernel ")
    return {
        "axes": dict(form.axes),
        "buffers": [show_buffer(b).removeprefix("buffer ") for b in form.buffers],
        "kernels": [text.partition("\n")[2].rstrip() for text in kernels],
    }


def picked(form: Form) -> set[int]:
    """The classes that a form makes or reads."""
    stack = [pick for _, pick in reasons(form)]
    seen = {id(pick): pick for pick in stack}
    while stack:
        pick = stack.pop()
        new = {id(k): k for k in (*pick.kids, *(update for _, update in pick.updates)) if id(k) not in seen}
        seen |= new
        stack += new.values()
    return {pick.cls for pick in seen.values()}


def classes(graph: EGraph) -> dict[str, Any]:
    """Every class: what it was written as, the ways to make it with the laws that found them, and its facts."""
    texts: dict[int, list[str]] = {}
    for t, c in graph.class_of.items():
        text = show_term(t) if depth_within(t, LONGEST) is None else ""
        if 0 < len(text) <= LONGEST:
            texts.setdefault(c, []).append(text)
    streams = {c: [j for k, j in sorted(graph.streams) if k == c] for c, _ in graph.streams}
    return {
        str(c): {
            "dtype": graph.dtype[c],
            "free": sorted(graph.free[c]),
            "written": texts.get(c, []),
            "nodes": [
                {"text": describe(n), "kids": list(n.children), "origin": graph.origin.get((c, n), "")}
                for n in nodes
            ],
            "joins": list(graph.joins.get(c, ())),
            "facts": [
                *(["never positive, as an exponent"] if c in graph.safe else []),
                *(["never negative"] if c in graph.positive else []),
                *(f"streams over {j}" for j in streams.get(c, [])),
            ],
        }
        for c, nodes in graph.classes.items()
    }
