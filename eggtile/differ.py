"""How two dumps differ. Classes and nodes are told by their terms, since numbers change when a class is added."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

Data = Mapping[str, Any]
Sides = dict[str, list[str]]
DEEPEST = 5


def differences(a: Data, b: Data) -> dict[str, Sides]:
    """Classes, nodes, forms and laws that one dump holds and the other does not."""
    return {
        what: {"only_a": sorted(_less(x, y)), "only_b": sorted(_less(y, x))}
        for what, read in READ.items()
        for x, y in ((read(a), read(b)),)
    }


def _less(x: Mapping[str, str], y: Mapping[str, str]) -> list[str]:
    return [text for key, text in x.items() if key not in y]


class Terms:
    """The smallest term of each class of a dumped graph, as a key and as text for people."""

    def __init__(self, region: Data) -> None:
        self.classes: Mapping[str, Data] = region["classes"]
        self.keys: dict[int, str] = {}
        for name, c in self.classes.items():
            self.keys[int(name)] = self.node_key(self.smallest(int(name), c["nodes"]))

    @staticmethod
    def smallest(c: int, nodes: list[list[Any]]) -> list[Any]:
        """A node over classes with smaller terms only."""
        found: list[Any] = next(n for n in nodes if all(k < c for k in n[2]))
        return found

    def node_key(self, n: list[Any]) -> str:
        """A digest of a node over the terms of its operands."""
        text = repr((n[0], n[1], [self.keys[k] for k in n[2]]))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def node(self, n: list[Any], depth: int = DEEPEST) -> str:
        """A node as text; what lies deep is left out."""
        op, payload, kids = n
        names = " ".join(map(str, payload))
        if not kids:
            return f"{op}({names})"
        inner = [self.term(k, depth - 1) for k in kids] if depth else ["..."]
        return f"{op}[{names}]({', '.join(inner)})" if names else f"{op}({', '.join(inner)})"

    def term(self, c: int, depth: int = DEEPEST) -> str:
        """The smallest term of a class as text."""
        return self.node(self.smallest(c, self.classes[str(c)]["nodes"]), depth)


def _classes(data: Data) -> dict[str, str]:
    out: dict[str, str] = {}
    for region in data["regions"]:
        terms = Terms(region)
        out |= {key: terms.term(c) for c, key in terms.keys.items()}
    return out


def _nodes(data: Data) -> dict[str, str]:
    out: dict[str, str] = {}
    for region in data["regions"]:
        terms = Terms(region)
        for name, c in terms.classes.items():
            for n, origin in zip(c["nodes"], c["origins"], strict=True):
                key = f"{terms.keys[int(name)]} {terms.node_key(n)}"
                out[key] = f"{terms.node(n, 2)} in {terms.term(int(name), 2)}, {origin}"
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
