"""How a tensor node reads its operands: one index term per operand dimension, over the coordinates of the node's frame.

The frame of a node is its own dimensions, then those that it folds away; `o0, o1, ...` are its coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

from ir import tensor as X
from ir import term as T
from ir.tensor import extents


@dataclass(frozen=True)
class Access:
    """`operand` read at `index`; the terms may hold `Var`s, the sources of a gather."""

    operand: X.Tensor
    index: tuple[T.Term, ...]


def coordinate(k: int) -> T.Index:
    """The coordinate of frame dimension k."""
    return T.Index(f"o{k}")


def frame(t: X.Tensor) -> tuple[int, ...]:
    """The extents of the node's own dimensions, then of those that it folds away."""
    match t:
        case X.Reduce(_, dims, x):
            return extents((*t.shape, *(x.shape[d] for d in dims)))
        case X.Contract(x, y, x_labels, y_labels, _):
            of = dict(zip((*x_labels, *y_labels), (*x.shape, *y.shape), strict=True))
            return extents((*t.shape, *(of[label] for label in contracted(t))))
        case X.Scatter(_, base, updates):
            return extents((*base.shape, *(updates.shape[k] for k in folded_positions(t))))
    return extents(t.shape)


def contracted(t: X.Contract) -> tuple[str, ...]:
    """The labels summed over, in first-use order."""
    return tuple(dict.fromkeys(label for label in (*t.x_labels, *t.y_labels) if label not in t.out_labels))


def aligned(t: X.Scatter) -> dict[int, int]:
    """Dimensions of the updates that index one dimension of the base directly and wholly: position -> base."""
    out: dict[int, int] = {}
    for d, i in enumerate(t.index):
        if isinstance(i, T.Index) and (k := int(i.axis[1:])) not in out and t.updates.shape[k] == t.base.shape[d]:
            out[k] = d
    return out


def folded_positions(t: X.Scatter) -> tuple[int, ...]:
    """The dimensions of the updates that are not aligned with the base."""
    return tuple(k for k in range(len(t.updates.shape)) if k not in aligned(t))


def positions(t: X.Scatter) -> tuple[T.Term, ...]:
    """The coordinates of the updates' dimensions in the frame."""
    rank, along, folded = len(t.base.shape), aligned(t), folded_positions(t)
    return tuple(
        coordinate(along[k] if k in along else rank + folded.index(k)) for k in range(len(t.updates.shape))
    )


def accesses(t: X.Tensor) -> tuple[Access, ...]:
    """The operands in the order of `t.tensors`."""
    own = tuple(coordinate(k) for k in range(len(t.shape)))
    match t:
        case X.Reduce(_, dims, x):
            kept = [d for d in range(len(x.shape)) if d not in dims]
            place = {d: k for k, d in enumerate((*kept, *dims))}
            return (Access(x, tuple(coordinate(place[d]) for d in range(len(x.shape)))),)
        case X.Contract(x, y, x_labels, y_labels, out_labels):
            of = {label: coordinate(k) for k, label in enumerate((*out_labels, *contracted(t)))}
            return (Access(x, tuple(of[c] for c in x_labels)), Access(y, tuple(of[c] for c in y_labels)))
        case X.View(x, _, index, _, _, sources):
            return (Access(x, index), *(Access(s, own) for s in sources))
        case X.Scatter(_, base, updates, _, sources):
            at = positions(t)
            return (Access(base, own), Access(updates, at), *(Access(s, at) for s in sources))
    return tuple(Access(x, own) for x in t.tensors)
