"""The e-graph drawn: a box for each class with its nodes, in layers by the height of the smallest term."""

from __future__ import annotations

from collections import defaultdict
from html import escape

from egraph.dump import describe
from egraph.graph import EGraph

MOST_CLASSES = 400
CHARACTER, LINE, GAP = 7, 16, 24  # pixels
STYLE = "text{font:11px monospace}rect{fill:#fff;stroke:#555}.root rect{stroke-width:3}path{fill:none;stroke:#aab}"


def to_svg(graph: EGraph) -> str:
    """The graph as SVG; of a graph with more classes than are drawn, the smallest terms, and how many are left out."""
    drawn = dict(list(graph.classes.items())[:MOST_CLASSES])
    height: dict[int, int] = {}
    layers: dict[int, list[int]] = defaultdict(list)
    for c, nodes in drawn.items():
        height[c] = min(
            1 + max((height[k] for k in n.children), default=-1) for n in nodes if all(k < c for k in n.children)
        )
        layers[height[c]].append(c)
    lines = {
        c: [f"#{c} {graph.dtype[c]}[{', '.join(sorted(graph.free[c]))}]", *map(describe, drawn[c])] for c in drawn
    }
    box: dict[int, tuple[int, int, int, int]] = {}
    top = 2 * GAP
    for layer in sorted(layers):
        centre = {c: _centre(graph, c, box) for c in layers[layer]}
        left = GAP
        for c in sorted(layers[layer], key=lambda c: (centre[c], c)):
            width = CHARACTER * max(map(len, lines[c])) + 12
            left = max(left, int(centre[c] - width / 2))
            box[c] = left, top, width, LINE * len(lines[c]) + 8
            left += width + GAP
        top += max(box[c][3] for c in layers[layer]) + 2 * GAP
    edges = {(k, c) for c, nodes in drawn.items() for n in nodes for k in n.children if k in box and k != c}
    wide = max(x + w for x, _, w, _ in box.values()) + GAP
    left_out = len(graph.classes) - len(drawn)
    note = f"{len(graph.classes)} classes, {graph.nodes} nodes" + (
        f"; {left_out} classes are not drawn" * (left_out > 0)
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(wide, 400)}" height="{top}"><style>{STYLE}</style>'
    ]
    out += [f'<text x="{GAP}" y="{GAP}">{note}</text>', *(_edge(k, c, box) for k, c in sorted(edges))]
    for c, (x, y, w, h) in box.items():
        root = " root" * (c in graph.roots)
        out.append(
            f'<g class="class{root}" id="c{c}" data-class="{c}"><rect x="{x}" y="{y}" width="{w}" height="{h}"/>'
        )
        rows = enumerate(lines[c], 1)
        out += [f'<text x="{x + 6}" y="{y + LINE * n}">{escape(line)}</text>' for n, line in rows] + ["</g>"]
    return "\n".join([*out, "</svg>"])


def _centre(graph: EGraph, c: int, box: dict[int, tuple[int, int, int, int]]) -> float:
    """Where the operands of a class stand on average."""
    below = [box[k] for n in graph.classes[c] for k in n.children if k in box]
    return sum(x + w / 2 for x, _, w, _ in below) / len(below) if below else 0.0


def _edge(low: int, high: int, box: dict[int, tuple[int, int, int, int]]) -> str:
    x, y, w, h = box[low]
    u, v, z, _ = box[high]
    a, b = x + w // 2, u + z // 2
    return f'<path data-from="{low}" data-to="{high}" d="M{a} {y + h}C{a} {y + h + GAP} {b} {v - GAP} {b} {v}"/>'
