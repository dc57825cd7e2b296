"""The saturated e-graph of a program as a file: JSON with its forms, or one of the texts of `egraph.dump`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eggtile.explore import form_row
from eggtile.pipeline import Compiled, Region
from egraph.dump import FORMATS, times, to_data
from egraph.graph import EGraph
from egraph.picture import to_html, to_svg
from ir.machine import Machine

TEXTS: dict[str, Callable[[EGraph], str]] = {
    **{name: write for name, write in FORMATS.items() if name != "json"},
    "svg": to_svg,
    "html": to_html,
}


def to_object(compiled: Compiled) -> dict[str, Any]:
    """One object for the program: per region its graph and its forms, and the times apart at the end."""
    machine = compiled.options.machine()
    return {
        "program": compiled.captured.program.name,
        "numerics": compiled.options.numerics,
        "regions": [region_object(r, machine) for r in compiled.regions],
        "times": [times(r.graph) for r in compiled.regions],
    }


def region_object(region: Region, machine: Machine) -> dict[str, Any]:
    """The graph of a region, who made each of its nodes, and its forms."""
    graph = region.graph
    data: dict[str, Any] = to_data(graph)
    for c, nodes in graph.classes.items():
        data["classes"][str(c)]["origins"] = [graph.origin[c, n] for n in nodes]
        data["classes"][str(c)]["joins"] = list(graph.joins.get(c, ()))
    known: dict[str, int] = {}
    forms = [form_row(n, f, region, machine, None, known) for n, f in enumerate([*region.forms, region.default])]
    return data | {"forms": forms}
