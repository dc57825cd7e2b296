"""Products of matrices, at every rank: f32 accumulation of narrow floats, the addend inside it, one rounding."""

from __future__ import annotations

from collections.abc import Sequence

from eggtile.capture.build import (
    broadcast,
    coordinate,
    insert,
    mapped,
    op,
    permute,
    pick,
    reduce,
    view,
)
from eggtile.capture.table import Site, lowers
from eggtile.capture.types import Scalar
from ir.node import IRError
from ir.tensor import Contract, Tensor
from ir.term import number

Labels = tuple[str, ...]


def contract(x: Tensor, x_labels: Sequence[str], y: Tensor, y_labels: Sequence[str], out: Sequence[str]) -> Tensor:
    """Contract; a dimension of extent 1 that meets a longer one of the same label broadcasts."""
    if x.dtype != y.dtype:
        raise IRError(f"operands are {x.dtype} and {y.dtype}")
    extents: dict[str, int | str] = {}
    for label, e in (*zip(x_labels, x.shape, strict=True), *zip(y_labels, y.shape, strict=True)):
        if extents.get(label, 1) == 1:
            extents[label] = e
    x, x_labels = _trimmed(x, tuple(x_labels), extents)
    y, y_labels = _trimmed(y, tuple(y_labels), extents)
    return Contract(x, y, tuple(x_labels), tuple(y_labels), tuple(out))


def _trimmed(x: Tensor, labels: Labels, extents: dict[str, int | str]) -> tuple[Tensor, Labels]:
    kept: list[str] = []
    for label in labels:
        if x.shape[len(kept)] == 1 and extents[label] != 1:
            x = pick(x, len(kept), number(0))
        else:
            kept.append(label)
    return x, tuple(kept)


def product(x: Tensor, y: Tensor) -> Tensor:
    """Matrix product of x [..., M, K] and y [..., K, N] over broadcast leading dimensions, unrounded."""
    rank = max(len(x.shape), len(y.shape)) - 2
    batch = tuple(f"b{k}" for k in range(rank))
    left, right = batch[rank - (len(x.shape) - 2) :], batch[rank - (len(y.shape) - 2) :]
    return contract(x, (*left, "m", "k"), y, (*right, "k", "n"), (*batch, "m", "n"))


@lowers("mm", "bmm")
def mm(site: Site, x: Tensor, y: Tensor) -> Tensor:
    return op(site.dtype, product(x, y))


@lowers("matmul", "linalg_matmul")
def matmul(site: Site, x: Tensor, y: Tensor) -> Tensor:
    left = insert(x, 0) if len(x.shape) == 1 else x
    right = insert(y, 1) if len(y.shape) == 1 else y
    out = product(left, right)
    if len(y.shape) == 1:
        out = pick(out, len(out.shape) - 1, number(0))
    if len(x.shape) == 1:
        out = pick(out, len(out.shape) - (1 if len(y.shape) == 1 else 2), number(0))
    return op(site.dtype, out)


@lowers("dot", "vdot", "mv", "linalg_vecdot")
def dot(site: Site, x: Tensor, y: Tensor) -> Tensor:
    return matmul(site, x, y)


@lowers("linear")
def linear(site: Site, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    batch = tuple(f"b{k}" for k in range(len(x.shape) - 1))
    columns = ("n",) if len(weight.shape) == 2 else ()
    out = contract(x, (*batch, "k"), weight, (*columns, "k"), (*batch, *columns))
    return op(site.dtype, out if bias is None else mapped("add", out, bias))


def _added(site: Site, base: Tensor, out: Tensor, beta: Scalar, alpha: Scalar) -> Tensor:
    if alpha != 1:
        out = mapped("mul", out, alpha)
    if beta == 0:
        return op(site.dtype, broadcast(out, site.shape))
    return op(site.dtype, mapped("add", out, base if beta == 1 else mapped("mul", base, beta)))


@lowers("addmm", "baddbmm", "addmv")
def addmm(site: Site, base: Tensor, x: Tensor, y: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    out = product(x, insert(y, 1)) if len(y.shape) == 1 else product(x, y)
    return _added(site, base, pick(out, 1, number(0)) if len(y.shape) == 1 else out, beta, alpha)


# ---- einsum


@lowers("einsum")
def einsum(site: Site, equation: str, xs: Sequence[Tensor], path: Sequence[int] | None = None) -> Tensor:
    inputs, out = _parsed(equation, xs)
    operands = [_undiagonal(x, labels) for x, labels in zip(xs, inputs, strict=True)]
    value, labels = operands[0]
    for k, (y, y_labels) in enumerate(operands[1:], 1):
        later = {label for _, rest in operands[k + 1 :] for label in rest} | set(out)
        kept = tuple(dict.fromkeys(label for label in (*labels, *y_labels) if label in later))
        last = k == len(operands) - 1
        value = op(site.dtype, contract(value, labels, y, y_labels, out if last else kept))
        labels = out if last else kept
    if len(operands) == 1:
        summed = [k for k, label in enumerate(labels) if label not in out]
        kept = tuple(label for label in labels if label in out)
        value = permute(op(site.dtype, reduce("add", summed, value)), [kept.index(label) for label in out])
    return broadcast(value, site.shape)


def _parsed(equation: str, xs: Sequence[Tensor]) -> tuple[list[Labels], Labels]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    hidden = [len(x.shape) - len(t.replace("...", "")) for t, x in zip(texts, xs, strict=True)]
    most = max((h for t, h in zip(texts, hidden, strict=True) if "..." in t), default=0)
    dots = tuple(f"dot{k}" for k in range(most))

    def labels(text: str, count: int) -> Labels:
        head, ellipsis_, tail = text.partition("...")
        return (*head, *(dots[most - count :] if ellipsis_ else ()), *tail)

    inputs = [labels(t, h) for t, h in zip(texts, hidden, strict=True)]
    if arrow:
        return inputs, labels(right, most)
    letters = [c for t in texts for c in t if c != "."]
    return inputs, (*dots, *sorted(c for c in set(letters) if letters.count(c) == 1))


def _undiagonal(x: Tensor, labels: Labels) -> tuple[Tensor, Labels]:
    """x with dimensions of equal label read along their diagonal."""
    distinct = tuple(dict.fromkeys(labels))
    if distinct == labels:
        return x, labels
    shape = tuple(x.shape[labels.index(label)] for label in distinct)
    return view(x, shape, tuple(coordinate(distinct.index(label)) for label in labels)), distinct
