"""How two dumps differ. Classes and nodes are told by their terms, since numbers change when a class is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from eggtile.abridged import line_of
from eggtile.dump_file import node_of, terms
from eggtile.echo import cut
from egraph.dump import node_term
from ir.term import Term

Data = Mapping[str, Any]
Sides = dict[str, list[str]]
Told = Mapping[str, Callable[[], str]]
"""What a dump holds by its identity, and what makes its text, which is made where it differs."""
LONGEST = 160  # characters of a term


def differences(a: Data, b: Data) -> dict[str, Sides]:
    """Classes, nodes, forms and laws that one dump holds and the other does not."""
    return {
        what: {"only_a": sorted(_less(x, y)), "only_b": sorted(_less(y, x))}
        for what, read in READ.items()
        for x, y in ((read(a), read(b)),)
    }


def _less(x: Told, y: Told) -> list[str]:
    return [text() for key, text in x.items() if key not in y]


def shown(t: Term) -> str:
    """A term in one line, cut where it is long."""
    return cut(line_of(t, LONGEST), LONGEST)


def _classes(data: Data) -> Told:
    return {t.digest: partial(shown, t) for region in data["regions"] for t in terms(region).values()}


def _nodes(data: Data) -> Told:
    out: dict[str, Callable[[], str]] = {}
    for region in data["regions"]:
        smallest = terms(region)
        for name, c in region["classes"].items():
            own = smallest[int(name)]
            for n, origin in zip(map(node_of, c["nodes"]), c["origins"], strict=True):
                t = node_term(n, [smallest[k] for k in n.children])
                out[own.digest + t.digest] = partial(_node, t, own, origin)
    return out


def _node(t: Term, own: Term, origin: str) -> str:
    equal = "" if t is own else f" for {shown(own)}"
    return f"{shown(t)}{equal} ({origin})"


def _forms(data: Data) -> Told:
    rows = (f for region in data["regions"] for f in region["forms"])
    return {"; ".join(k["key"] for k in f["kernels"]): partial("; ".join, f["signature"]) for f in rows}


def _laws(data: Data) -> Told:
    names = {law for region in data["regions"] for f in region["forms"] for law in f["laws"]}
    names |= {origin for region in data["regions"] for c in region["classes"].values() for origin in c["origins"]}
    return {name: partial(str, name) for name in names - {"written", "demand"}}


READ: dict[str, Callable[[Data], Told]] = {
    "classes": _classes,
    "nodes": _nodes,
    "forms": _forms,
    "laws": _laws,
}
