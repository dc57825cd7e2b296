"""How two dumps differ. Classes and nodes are told by their terms, since numbers change when a class is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from egraph.dump import node_term
from egraph.graph import ENode
from ir.term import Term
from ir.text import show_term

Data = Mapping[str, Any]
Sides = dict[str, list[str]]
LONGEST = 160  # characters of a term


def differences(a: Data, b: Data) -> dict[str, Sides]:
    """Classes, nodes, forms and laws that one dump holds and the other does not."""
    return {
        what: {"only_a": sorted(_less(x, y)), "only_b": sorted(_less(y, x))}
        for what, read in READ.items()
        for x, y in ((read(a), read(b)),)
    }


def _less(x: Mapping[str, str], y: Mapping[str, str]) -> list[str]:
    return [text for key, text in x.items() if key not in y]


def node_of(row: list[Any]) -> ENode:
    """A node of a dump."""
    op, payload, kids = row
    return ENode(op, tuple(payload), tuple(kids))


def terms(region: Data) -> dict[int, Term]:
    """The smallest term of each class of a dumped graph: a node over classes with smaller ones."""
    found: dict[int, Term] = {}
    for name, c in region["classes"].items():
        n = next(n for n in map(node_of, c["nodes"]) if all(k < int(name) for k in n.children))
        found[int(name)] = node_term(n, [found[k] for k in n.children])
    return found


def shown(t: Term) -> str:
    """A term in one line, cut where it is long."""
    text = "; ".join(show_term(t).splitlines())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _classes(data: Data) -> dict[str, str]:
    return {t.digest: shown(t) for region in data["regions"] for t in terms(region).values()}


def _nodes(data: Data) -> dict[str, str]:
    out: dict[str, str] = {}
    for region in data["regions"]:
        smallest = terms(region)
        for name, c in region["classes"].items():
            own = smallest[int(name)]
            for n, origin in zip(map(node_of, c["nodes"]), c["origins"], strict=True):
                t = node_term(n, [smallest[k] for k in n.children])
                equal = "" if t is own else f" for {shown(own)}"
                out[own.digest + t.digest] = f"{shown(t)}{equal} ({origin})"
    return out


def _forms(data: Data) -> dict[str, str]:
    rows = (f for region in data["regions"] for f in region["forms"])
    return {"; ".join(k["key"] for k in f["kernels"]): "; ".join(f["signature"]) for f in rows}


def _laws(data: Data) -> dict[str, str]:
    names = {law for region in data["regions"] for f in region["forms"] for law in f["laws"]}
    names |= {origin for region in data["regions"] for c in region["classes"].values() for origin in c["origins"]}
    return {name: name for name in names - {"written", "demand"}}


READ: dict[str, Callable[[Data], dict[str, str]]] = {
    "classes": _classes,
    "nodes": _nodes,
    "forms": _forms,
    "laws": _laws,
}
