"""The e-graph as text: JSON that is complete and sorted, a listing for people, a graph for dot, egglog source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from egraph.analysis import prelude
from egraph.encode import DTYPE_CODE, PREFIXES, load_constructor, signed, tensor_constructor
from egraph.graph import EGraph, ENode
from ir import term as T
from ir.text import show_term

Json = dict[str, object]


def describe(n: ENode) -> str:
    """A node as text: its operator with the numbers of its children."""
    kids = ", ".join(f"#{k}" for k in n.children)
    match n.op, n.payload:
        case "Unary" | "Binary", (op,):
            return f"{op}({kids})"
        case "Fold", (*axes, monoid):
            return f"{monoid}[{', '.join(map(str, axes))}]({kids})"
        case "Load", (buffer, _):
            return f"{buffer}[{kids}]"
        case "Round", (dtype, origin):
            return f"{dtype}.{origin}({kids})"
        case "Prefix", (which, axis):
            return f"{which}[{axis}]({kids})"
        case "Scan", (axis, monoid):
            return f"scan.{monoid}[{axis}]({kids})"
        case "Const", (str(dtype), int(bits)):
            return show_term(T.Const(dtype, bits))
        case "Index" | "Extent" | "Identity", (name,):
            return {"Index": "{}", "Extent": "extent({})", "Identity": "identity.{}"}[n.op].format(name)
        case "Select", _:
            p, x, y = n.children
            return f"#{x} if #{p} else #{y}"
        case "At", (axis,):
            return f"at(#{n.children[1]}, {axis}=#{n.children[0]})"
    return f"{n.op.lower()} {' '.join(map(str, n.payload))}({kids})"


def node_term(n: ENode, kids: Sequence[T.Term]) -> T.Term:
    """The term of a node over terms of its children, as it stands."""
    match n.op, n.payload:
        case "Fold", (*axes, monoid):
            return T.Fold(tuple(map(str, axes)), str(monoid), kids[0])
        case "Load", (buffer, dtype):
            return T.Load(str(buffer), str(dtype), tuple(kids))
    made: T.Term = getattr(T, n.op)(*n.payload, *kids)
    return made


def _told(graph: EGraph) -> tuple[tuple[str, frozenset[int]], ...]:
    """Facts of classes by name."""
    return ("safe", graph.safe), ("positive", graph.positive), ("carried", graph.carried)


def to_text(graph: EGraph) -> str:
    """One line a class: number, dtype, axes, facts, and every way to make it."""
    out = [f"{len(graph.classes)} classes, {graph.nodes} nodes, roots {' '.join(f'#{r}' for r in graph.roots)}"]
    streams: dict[int, list[str]] = {}
    for c, j in sorted(graph.streams):
        streams.setdefault(c, []).append(j)
    for c, nodes in graph.classes.items():
        notes = [name for name, members in _told(graph) if c in members]
        notes += [f"streams {j}" for j in streams.get(c, ())]
        ways = " | ".join([*map(describe, nodes), *map(describe, graph.tensors.get(c, ()))])
        axes = ", ".join(sorted(graph.free[c]))
        out.append(f"#{c}: {graph.dtype[c]}[{axes}] = {ways}" + (f"    ({', '.join(notes)})" if notes else ""))
    return "\n".join(out)


def to_data(graph: EGraph) -> Json:
    """The graph as plain data, equal for equal graphs; times stand apart under `times`."""
    classes = {
        str(c): {
            "nodes": [[n.op, list(n.payload), list(n.children)] for n in nodes],
            "tensors": [[n.payload[0], list(n.children)] for n in graph.tensors.get(c, ())],
            "dtype": graph.dtype[c],
            "free": sorted(graph.free[c]),
            "folded": sorted(graph.folded[c]),
            **{name: c in members for name, members in _told(graph)},
        }
        for c, nodes in graph.classes.items()
    }
    report = graph.report
    return {
        "program": graph.program.name,
        "roots": list(graph.roots),
        "classes": classes,
        "streams": [[c, j] for c, j in sorted(graph.streams)],
        "new": [[j, c, n] for (j, c), n in sorted(graph.new.items())],
        "phases": [
            {"name": p.name, "nodes": p.nodes, "iterations": p.iterations, "stop": p.stop} for p in report.phases
        ],
    }


def times(graph: EGraph) -> Json:
    """Where the time of saturation went, in seconds, and the matches of laws, which depend on egglog's version."""
    report = asdict(graph.report)
    return {
        **{name: report[name] for name in ("build_seconds", "insert_seconds", "read_seconds", "seconds")},
        "phases": {p.name: p.seconds for p in graph.report.phases},
        "laws": [
            {"name": x.name, "family": x.family, "class": x.class_, "matches": x.matches, "seconds": x.seconds}
            for x in graph.report.laws
            if x.matches
        ],
        "analyses": report["analyses"],
    }


def to_json(graph: EGraph) -> str:
    """`to_data` as JSON, with the times apart at its end."""
    return json.dumps({**to_data(graph), "times": times(graph)}, indent=1)


def to_dot(graph: EGraph) -> str:
    """Classes as clusters of nodes; an edge goes from a node to the class of an operand."""
    out = ["digraph egraph {", "compound=true; rankdir=BT; node [shape=box, fontname=monospace, fontsize=10];"]
    for c, nodes in graph.classes.items():
        peripheries = 2 if c in graph.roots else 1
        out.append(f'subgraph cluster_{c} {{ label="#{c} {graph.dtype[c]}"; peripheries={peripheries};')
        out += [f"n{c}_{k} [label={json.dumps(describe(n))}];" for k, n in enumerate(nodes)]
        out.append("}")
    for c, nodes in graph.classes.items():
        for k, n in enumerate(nodes):
            out += [f"n{x}_0 -> n{c}_{k} [ltail=cluster_{x}];" for x in sorted(set(n.children)) if graph.classes[x]]
    return "\n".join([*out, "}"])


def to_egg(graph: EGraph) -> str:
    """The graph as an egglog program that stands alone: what `to_data` holds, but for the phases.

    A class is a `let` of its number, a `union` for each further way to make it, and its facts; `(root K CLASS)` are
    the results in order. The rules of the analyses are declared, so that `(run facts)` goes on where the graph ends;
    laws are not.
    """
    nodes = [n for ns in graph.classes.values() for n in ns]
    loads = sorted({len(n.children) for n in nodes if n.op == "Load"})
    tensors = sorted({len(n.children) for ns in graph.tensors.values() for n in ns})
    out = [prelude([load_constructor(k) for k in loads]), "(relation root (i64 E))"]
    out += [tensor_constructor(k).signature for k in tensors]
    written: dict[int, ENode] = {}
    for c, ways in graph.classes.items():
        written[c] = next(n for n in ways if all(k < c for k in n.children))
        out.append(f"(let $c{c} {_egg(written[c])})")
    for c, ways in graph.classes.items():
        out += [f"(union $c{c} {_egg(n)})" for n in (*ways, *graph.tensors.get(c, ())) if n != written[c]]
    for c in graph.classes:
        out.append(f"(set (dtype $c{c}) {DTYPE_CODE[graph.dtype[c]]})")
        out += [
            f"(set ({name} $c{c}) {_axes(of[c])})" for name, of in (("free", graph.free), ("folded", graph.folded))
        ]
        out += [f"({name} $c{c})" for name, members in _told(graph) if c in members]
    out += [f'(streams $c{c} "{j}")' for c, j in sorted(graph.streams)]
    out += [f"(root {k} $c{c})" for k, c in enumerate(graph.roots)]
    return "\n".join(out)


def _axes(axes: Iterable[object]) -> str:
    names = [f'"{a}"' for a in sorted(map(str, axes))]
    return f"({' '.join(['set-of', *names])})" if names else "(set-empty)"


def _egg(n: ENode) -> str:
    kids = [f"$c{k}" for k in n.children]
    match n.op, n.payload:
        case "Prefix", (which, axis):
            return f'({PREFIXES[str(which)]} "{axis}" {kids[0]})'
        case "Fold", (*axes, monoid):
            return f'(Fold {_axes(axes)} "{monoid}" {kids[0]})'
        case "Tensor", (name,):
            return f'(Tensor{len(kids)} "{name}" {" ".join(kids)})'
        case "Load", (buffer, dtype):
            return f'(Load{len(kids)} "{buffer}" {DTYPE_CODE[str(dtype)]} {" ".join(kids)})'
        case "Const", (dtype, int(bits)):
            return f"(Const {DTYPE_CODE[str(dtype)]} {signed(bits)})"
        case "Round", (dtype, origin):
            return f'(Round {DTYPE_CODE[str(dtype)]} "{origin}" {kids[0]})'
    texts = [f'"{p}"' for p in n.payload]
    return f"({' '.join([n.op, *texts, *kids])})"


FORMATS: dict[str, Callable[[EGraph], str]] = {"json": to_json, "text": to_text, "dot": to_dot, "egg": to_egg}
