"""One page that stands alone: the forms of a program, their kernels, the laws between them and the e-graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eggtile.explore import CLASSES, report
from eggtile.pipeline import Compiled, Region, compile_kernels
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


def page(compiled: Compiled, found: dict[str, Any] | None = None) -> str:
    """The page, with the report of `explore --json` where it is made; writes the chosen forms' kernels."""
    if compiled.regions and not compiled.kernels:
        compile_kernels(compiled)
    text = json.dumps(page_data(compiled, found or report(compiled)), default=str).replace("</", "<\\/")
    return TEMPLATE.read_text().replace("__DATA__", text)


def page_data(compiled: Compiled, found: dict[str, Any]) -> dict[str, Any]:
    """What the page shows: the report, and what stands behind it."""
    rows = found["regions"] if "regions" in found else [found] * bool(compiled.regions)
    return {
        **{name: found[name] for name in ("program", "numerics", "notes", "times")},
        "target": compiled.options.target,
        "classes": CLASSES,
        "levels": {level: show_level(compiled, level) for level in reversed(EARLY)},
        "laws": {x.name: {"family": x.family, "class": x.class_, "sentence": x.sentence} for x in LAWS.values()},
        "kernels": {
            k.canonical.key: {
                "schedule": str(k.schedule),
                "cuda": k.text,
                "tile": "\n".join(show_tile(x.tile) for x in k.launches),
            }
            for k in compiled.kernels
        },
        "regions": [region_data(r, row) for r, row in zip(compiled.regions, rows, strict=True)],
    }


def region_data(region: Region, row: dict[str, Any]) -> dict[str, Any]:
    """One region: its forms with their texts, the steps to each, its classes and their picture."""
    derivation, users = derived(region, region.listed)
    names = Names(written(region))
    steps = [step_row(s, names) | {"forms": sorted(used)} for s, used in zip(derivation.steps, users, strict=True)]
    forms = [
        shown | {"text": form_text(f), "picked": sorted(picked(f))}
        for shown, f in zip(row["forms"], region.listed, strict=True)
    ]
    return {
        "egraph": row["egraph"],
        "forms": forms,
        "steps": steps,
        "where": names.lines,
        "classes": classes(region.graph),
        "svg": to_svg(region.graph),
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
    found: set[int] = set()
    stack = [pick for _, pick in reasons(form)]
    while stack:
        pick = stack.pop()
        found.add(pick.cls)
        stack += [*pick.kids, *(update for _, update in pick.updates)]
    return found


def classes(graph: EGraph) -> dict[str, Any]:
    """Every class: what it was written as, the ways to make it with the laws that found them, and its facts."""
    texts: dict[int, list[str]] = {}
    for t, c in graph.class_of.items():
        text = show_term(t)
        if len(text) <= LONGEST:
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
