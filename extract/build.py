"""Terms of e-graph nodes over terms of their children, and sweeps from the updates of their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from egraph.graph import ENode
from extract.facts import open_states
from ir import term as T
from ir.ops import BINARY
from ir.term import Term


def node_term(n: ENode, kids: Sequence[Term]) -> Term:
    """The term of a node over terms of its children, through the normalising constructors."""
    names = [str(p) for p in n.payload]
    match n.op:
        case "Const":
            return T.Const(names[0], int(n.payload[1]))
        case "Index":
            return T.Index(names[0])
        case "Extent":
            return T.Extent(names[0])
        case "Identity":
            return T.Identity(names[0])
        case "Load":
            return T.Load(names[0], names[1], tuple(kids))
        case "Unary":
            return T.unary(names[0], kids[0])
        case "Binary":
            return T.binary(names[0], kids[0], kids[1])
        case "Select":
            return T.select(kids[0], kids[1], kids[2])
        case "Round":
            return T.round_to(names[0], names[1], kids[0])
        case "Fold":
            return T.fold(tuple(names[:-1]), names[-1], kids[0])
        case "Scan":
            return T.Scan(names[0], names[1], kids[0])
    raise AssertionError(f"{n.op} computes nothing")


def stream(axis: str, c: int, updates: Mapping[int, tuple[str, Term]]) -> Term:
    """A sweep that carries the given states; one whose only state just accumulates is a fold."""
    if len(updates) == 1:
        ((monoid, update),) = updates.values()
        if isinstance(update, T.Binary) and update.op == monoid and BINARY[update.op].commutes:
            for old, x in ((update.x, update.y), (update.y, update.x)):
                if isinstance(old, T.State) and not open_states(x):
                    return T.fold(axis, monoid, x)
    carries = tuple(T.Carry(f"s{x}", monoid, update) for x, (monoid, update) in updates.items())
    return T.Stream(axis, carries, f"s{c}")
