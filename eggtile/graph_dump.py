"""The saturated e-graph of a program as a file: JSON with its forms, one of the texts of `egraph.dump`, or a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from eggtile.explore import form_row
from eggtile.explorer import page
from eggtile.pipeline import Compiled, Region, RequestError
from eggtile.views import idle
from egraph import dump
from egraph.graph import EGraph
from egraph.picture import to_svg


def to_object(compiled: Compiled) -> dict[str, Any]:
    """One object for the program: per region its graph and its forms, what became calls, and the times apart at the end."""
    return {
        "program": compiled.captured.program.name,
        "numerics": compiled.options.numerics,
        "regions": list(map(region_object, compiled.regions)),
        "notes": list(compiled.captured.program.notes),
        "times": [dump.times(r.graph) for r in compiled.regions],
    }


def region_object(region: Region) -> dict[str, Any]:
    """The graph of a region, who made each of its nodes, and its forms, whose errors and launches `explore` tells."""
    graph = region.graph
    data: dict[str, Any] = dump.to_data(graph)
    for c, nodes in graph.classes.items():
        data["classes"][str(c)]["origins"] = [graph.origin[c, n] for n in nodes]
        data["classes"][str(c)]["joins"] = list(graph.joins.get(c, ()))
    return data | {"forms": [form_row(n, f, region) for n, f in enumerate(region.listed)]}


WHOLE: dict[str, Callable[[Compiled], str]] = {
    "json": lambda compiled: json.dumps(to_object(compiled), indent=1, default=str),
    "text": lambda compiled: "\n\n".join(dump.to_text(r.graph) for r in compiled.regions),
    "html": page,
}
ONE_GRAPH: dict[str, Callable[[EGraph], str]] = {"egg": dump.to_egg, "dot": dump.to_dot, "svg": to_svg}
FORMATS = (*WHOLE, *ONE_GRAPH)


def written(compiled: Compiled, form: str, region: int | None) -> str:
    """The dump in a format; one that holds one graph alone needs the number of a region where there are several."""
    if form in WHOLE:
        if region is not None:
            raise RequestError(f"{form} holds every region; --region is for {', '.join(ONE_GRAPH)}")
        return WHOLE[form](compiled)
    count = len(compiled.regions)
    if region is None and count == 1:
        region = 0
    if region is None or region >= count:
        raise RequestError(
            f"the program's {count} regions are numbered from 0, and {form} holds one graph; say --region N"
            if count > 1
            else f"the program has one region, numbered 0, and no {region}"
            if count
            else idle(compiled)
        )
    return ONE_GRAPH[form](compiled.regions[region].graph)
