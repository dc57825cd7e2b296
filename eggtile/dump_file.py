"""Dumps read back: a file that `dump --format json` wrote, or a refusal that names what it lacks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import error
from typing import Any, cast

from eggtile.abridged import line_of
from eggtile.pipeline import RequestError
from egraph.dump import describe, node_term
from egraph.graph import ENode
from egraph.replay import MAKERS
from ir.node import IRError
from ir.term import Term


@dataclass(frozen=True)
class Each:
    """A mapping from any name to values of one shape."""

    shape: object


COUNTS = Each(int)
KERNEL = {"key": str, "axes": COUNTS, "sweeps": COUNTS, "reads": COUNTS, "states": int}
FORM = {
    "id": int, "cost_us": float, "flops": float, "bytes": float, "default": bool, "chosen": bool, "laws": [str],
    "class": str, "signature": [str], "kernels": [KERNEL],
}  # fmt: skip
CLASS = {
    "nodes": [(str, [object], [int])], "dtype": str, "free": [str], "folded": [str], "safe": bool, "positive": bool,
    "origins": [str], "joins": [str],
}  # fmt: skip
DUMP = {"regions": [{"forms": [FORM], "classes": Each(CLASS)}]}
"""What is read of a dump: a type, a list of one shape, a row of shapes, or fields by name."""


NUMBER = re.compile(r"[0-9]{1,9}")
"""The name of a class."""
SHOWN = 16
"""Characters of a node's text that are tried."""
OPERATORS = {c.op for c in MAKERS.values()}


def loaded(path: Path) -> dict[str, Any]:
    """A dump from a file."""
    try:
        data = json.loads(path.read_text())
    except OSError as e:
        raise RequestError(f"cannot read {path}: {e.strerror}") from None
    except json.JSONDecodeError as e:
        raise RequestError(f"{path} is not JSON: {e.msg} in line {e.lineno}") from None
    except (ValueError, RecursionError):  # other bytes than UTF-8, integers of thousands of digits, deep nests
        raise RequestError(f"{path} is not JSON that can be read") from None
    if why := lack(data, DUMP) or next(filter(None, map(broken, data["regions"])), None):
        raise RequestError(f"{path} is not a dump, as {why}; eggtile dump --format json makes one")
    return cast(dict[str, Any], data)


def lack(value: object, shape: object, place: str = "") -> str | None:
    """Why a value has not a shape, or None."""
    match shape:
        case Each(inner) if isinstance(value, dict):
            return next(filter(None, (lack(v, inner, f"{place}.{k}".lstrip(".")) for k, v in value.items())), None)
        case dict() if isinstance(value, dict):
            if missing := shape.keys() - value.keys():
                return f"{place or 'it'} has no {min(missing)}"
            return next(
                filter(None, (lack(value[k], s, f"{place}.{k}".lstrip(".")) for k, s in shape.items())), None
            )
        case [inner] if isinstance(shape, list) and isinstance(value, list):
            return next(filter(None, (lack(v, inner, f"{place}[{n}]") for n, v in enumerate(value))), None)
        case tuple() if isinstance(value, list) and len(value) == len(shape):
            pairs = enumerate(zip(value, shape, strict=True))
            return next(filter(None, (lack(v, s, f"{place}[{n}]") for n, (v, s) in pairs)), None)
        case type() if isinstance(value, (int, float) if shape is float else shape) and _is_plain(value, shape):
            return None
    return f"{place or 'it'} is {json.dumps(value)[:40]}"


def _is_plain(value: object, shape: type) -> bool:
    """Whether a number is no truth value, and finite."""
    return not (isinstance(value, bool) and shape is not bool) and not (
        isinstance(value, float) and not math.isfinite(value)
    )


def broken(region: Mapping[str, Any]) -> str | None:
    """Why the classes of a region are no graph: each has a node over classes with smaller numbers, and all are there."""
    for name, c in region["classes"].items():
        if odd := [node[0] for node in c["nodes"] if node[0] not in OPERATORS]:
            return f"class {name} has a node {odd[0]!r}"
        kids = [[str(k) for k in node[2]] for node in c["nodes"]]
        if not NUMBER.fullmatch(name) or any(k not in region["classes"] for own in kids for k in own):
            return f"class {name} has a node over a class that is not there"
        if not any(all(int(k) < int(name) for k in own) for own in kids) or len(c["origins"]) != len(kids):
            return f"class {name} has no node over smaller classes"
    try:
        smallest = terms(region)
        for c in region["classes"].values():
            for n in map(node_of, c["nodes"]):
                t = node_term(n, [smallest[k] for k in n.children])
                hash((n, describe(n), t.digest, line_of(t, SHOWN)))
    except (ArithmeticError, AttributeError, IRError, LookupError, RecursionError, TypeError, ValueError, error):
        return "a node of its classes is no term"
    return None


def node_of(row: list[Any]) -> ENode:
    """A node of a dump."""
    op, payload, kids = row
    return ENode(op, tuple(payload), tuple(kids))


def terms(region: Mapping[str, Any]) -> dict[int, Term]:
    """The smallest term of each class of a dumped graph: a node over classes with smaller ones."""
    found: dict[int, Term] = {}
    for name, c in region["classes"].items():
        n = next(n for n in map(node_of, c["nodes"]) if all(k < int(name) for k in n.children))
        found[int(name)] = node_term(n, [found[k] for k in n.children])
    return found
