"""Constructors of Tensor IR nodes from which the rules of the operators are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from eggtile.capture.symbols import dim_term
from eggtile.capture.types import Operand, Scalar, Unsupported
from ir.dtype import DType, bits_of, compute_type, is_float
from ir.tensor import Convert, Dim, Full, Iota, Map, Reduce, Tensor, View
from ir.term import Binary, Index, Term, Unary, Var, binary, number

Shape = tuple[Dim, ...]


def coordinate(k: int) -> Term:
    """The output coordinate of dimension k."""
    return Index(f"o{k}")


def coordinates(shape: Sequence[Dim]) -> tuple[Term, ...]:
    """All output coordinates of a shape."""
    return tuple(coordinate(k) for k in range(len(shape)))


def source(k: int, dtype: DType, rank: int) -> Var:
    """The element of source k of a gather or scatter at the coordinates of an output of `rank` dimensions."""
    return Var(f"g{k}", dtype, tuple(f"o{j}" for j in range(rank)))


def axis(d: int, rank: int) -> int:
    """The dimension d counted from the front; 0-d tensors have a dimension 0 for this purpose."""
    return d % max(rank, 1)


def axes(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted dimensions; None and no dimensions mean all."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted({axis(d, rank) for d in listed})) if rank else ()


# ---- values


def full(value: Scalar, dtype: DType, shape: Shape = ()) -> Full:
    """The constant `value` rounded to `dtype`."""
    return Full(dtype, bits_of(dtype, value), shape)


def op(dtype: DType, x: Tensor) -> Tensor:
    """x rounded to the result dtype of an eager operator."""
    return x if x.dtype == dtype else Convert(dtype, "op", x)


def cast(dtype: DType, x: Tensor) -> Tensor:
    """x converted to a dtype that the program asks for."""
    return x if x.dtype == dtype else Convert(dtype, "cast", x)


def lifted(x: Operand, dtype: DType, shape: Shape, wide: bool = True) -> Tensor:
    """An operand of an operator whose common dtype is `dtype`, in the shape of the result.

    `wide` keeps Python numbers in the type in which the operator computes; otherwise they are rounded to `dtype`.
    """
    if isinstance(x, Tensor):
        return broadcast(op(dtype, x), shape)
    return full(x, compute_type(dtype) if wide else dtype, shape)


def mapped(name: str, *xs: Tensor | Scalar) -> Tensor:
    """Elementwise operator; tensors broadcast, numbers take the compute type of the tensors; also sub, div, gt and ge."""
    tensors = [x for x in xs if isinstance(x, Tensor)]
    shape = broadcast_shape(*(t.shape for t in tensors))
    dtype = compute_type(next((t.dtype for t in tensors if t.dtype != "bool"), "bool"))
    args = [broadcast(x, shape) if isinstance(x, Tensor) else full(x, dtype, shape) for x in xs]
    match name:
        case "sub":
            return Map("add", (args[0], Map("neg", (args[1],))))
        case "div":
            return Map("mul", (args[0], Map("recip", (args[1],))))
        case "gt" | "ge":
            return Map("lt" if name == "gt" else "le", (args[1], args[0]))
    return Map(name, tuple(args))


def select(p: Tensor, x: Operand, y: Operand, dtype: DType) -> Tensor:
    """x where p, else y, in `dtype`."""
    shape = broadcast_shape(*(t.shape for t in (p, x, y) if isinstance(t, Tensor)))
    return Map("select", (broadcast(p, shape), *(lifted(t, dtype, shape, wide=False) for t in (x, y))))


def iota(shape: Shape, d: int) -> Tensor:
    """The coordinate of dimension d at every position of `shape` (i64)."""
    return view(Iota(shape[d]), shape, (coordinate(d),))


def extent_value(dims: Iterable[Dim], dtype: DType) -> Tensor:
    """The product of extents as a number of `dtype` (0-d)."""
    extents = tuple(dims)
    if all(isinstance(e, int) for e in extents):
        return full(math.prod(int(e) for e in extents), dtype)
    return Reduce("add", tuple(range(len(extents))), full(1, dtype, extents))


def reciprocal_extent(dims: Iterable[Dim], dtype: DType, less: float = 0.0) -> Tensor:
    """1 / max(product of extents - less, 0) (0-d): the factor by which PyTorch's kernels turn sums into means."""
    n = extent_value(dims, dtype)
    if isinstance(n, Full):
        count = max(math.prod(int(e) for e in dims) - less, 0)
        return full(1 / count if count else math.inf, dtype)
    return Map("recip", (mapped("max", mapped("sub", n, less), 0) if less else n,))


def lowest(dtype: DType) -> Scalar:
    """The identity of max."""
    return -math.inf if is_float(dtype) else _integer_limit(dtype, lowest_=True)


def highest(dtype: DType) -> Scalar:
    """The identity of min."""
    return math.inf if is_float(dtype) else _integer_limit(dtype, lowest_=False)


def _integer_limit(dtype: DType, lowest_: bool) -> int:
    if dtype == "bool":
        return int(not lowest_)
    bits, signed = int(dtype[1:]), dtype[0] == "i"
    if lowest_:
        return -(1 << (bits - 1)) if signed else 0
    return (1 << (bits - signed)) - 1


# ---- shapes


def view(
    x: Tensor,
    shape: Shape,
    index: tuple[Term, ...],
    valid: Term | None = None,
    fill: int = 0,
    sources: tuple[Tensor, ...] = (),
) -> Tensor:
    """A View, or x itself where it changes nothing."""
    if valid is None and not sources:
        if shape == x.shape and index == coordinates(shape):
            return x
        if isinstance(x, Full):
            return Full(x.type, x.bits, shape)
    return View(x, shape, index, valid, fill, sources)


def broadcast_shape(*shapes: Shape) -> Shape:
    """The shape to which all shapes broadcast."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = [1] * rank
    for s in shapes:
        for k, e in enumerate(s, rank - len(s)):
            if out[k] == 1:
                out[k] = e
            elif e not in (1, out[k]):
                raise Unsupported(f"shapes {', '.join(map(str, shapes))} do not broadcast")
    return tuple(out)


def broadcast(x: Tensor, shape: Shape) -> Tensor:
    """x repeated along new leading dimensions and along its dimensions of extent 1."""
    lead = len(shape) - len(x.shape)
    index = tuple(
        number(0) if e == 1 and shape[lead + k] != 1 else coordinate(lead + k) for k, e in enumerate(x.shape)
    )
    return view(x, shape, index)


def permute(x: Tensor, order: Sequence[int]) -> Tensor:
    """Dimension k of the result is dimension order[k] of x."""
    position = {d: k for k, d in enumerate(order)}
    return view(x, tuple(x.shape[d] for d in order), tuple(coordinate(position[d]) for d in range(len(order))))


def swap(x: Tensor, a: int = -1, b: int = -2) -> Tensor:
    """x with two dimensions exchanged."""
    order = list(range(len(x.shape)))
    if order:
        order[a], order[b] = order[b], order[a]
    return permute(x, order)


def insert(x: Tensor, d: int, extent: Dim = 1) -> Tensor:
    """x with a new dimension d, along which it repeats."""
    shape = (*x.shape[:d], extent, *x.shape[d:])
    return view(x, shape, tuple(coordinate(k + (k >= d)) for k in range(len(x.shape))))


def restored(x: Tensor, dims: Sequence[int], extent: Shape | None = None) -> Tensor:
    """x with the reduced dimensions `dims` back, of extent 1 or (with a shape) repeated to that shape."""
    for d in dims:
        x = insert(x, d, extent[d] if extent else 1)
    return x


def pick(x: Tensor, d: int, at: Term) -> Tensor:
    """x at position `at` of dimension d, which goes."""
    shape = (*x.shape[:d], *x.shape[d + 1 :])
    index = tuple(at if k == d else coordinate(k - (k > d)) for k in range(len(x.shape)))
    return view(x, shape, index)


def window(x: Tensor, d: int, extent: Dim, start: Dim, step: int = 1) -> Tensor:
    """Positions start, start + step, ... of dimension d, `extent` of them."""
    shape = (*x.shape[:d], extent, *x.shape[d + 1 :])
    at = binary("add", binary("mul", coordinate(d), number(step)), dim_term(start))
    return view(x, shape, tuple(at if k == d else coordinate(k) for k in range(len(x.shape))))


def reshape(x: Tensor, shape: Shape) -> Tensor:
    """x with its elements in row-major order under another shape; groups of dimensions map on their own."""
    if shape == x.shape:
        return x
    index: list[Term] = []
    for inside, outside in _groups(x.shape, shape):
        index += _unravelled(_linear([(coordinate(k), shape[k]) for k in outside]), [x.shape[k] for k in inside])
    return view(x, shape, tuple(index))


def _groups(a: Shape, b: Shape) -> list[tuple[list[int], list[int]]]:
    """Consecutive dimensions of both shapes that hold the same elements, as short as they can be."""
    out: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        left: list[int] = []
        right: list[int] = []
        while _extents(a, left) != _extents(b, right) or not (left or right):
            behind = _is_behind(_extents(a, left), _extents(b, right))
            if i < len(a) and (behind or j >= len(b)):
                left.append(i)
                i += 1
            elif j < len(b):
                right.append(j)
                j += 1
            else:
                break
        out.append((left, right))
    return out


def _extents(shape: Shape, dims: list[int]) -> tuple[int, tuple[str, ...]]:
    """The product of the numbers, and the sorted symbols."""
    chosen = [shape[k] for k in dims]
    return math.prod(e for e in chosen if isinstance(e, int)), tuple(
        sorted(e for e in chosen if isinstance(e, str))
    )


def _is_behind(a: tuple[int, tuple[str, ...]], b: tuple[int, tuple[str, ...]]) -> bool:
    return (len(a[1]), a[0]) <= (len(b[1]), b[0])


def _linear(parts: list[tuple[Term, Dim]]) -> Term:
    at: Term = number(0)
    for position, extent in parts:
        at = binary("add", binary("mul", at, dim_term(extent)), position)
    return at


def _unravelled(at: Term, extents: list[Dim]) -> list[Term]:
    out: list[Term] = []
    real = [k for k, e in enumerate(extents) if e != 1]
    inner: Term = number(1)
    for k in range(len(extents) - 1, -1, -1):
        if k not in real:
            out.append(number(0))
            continue
        part = divided(at, inner)
        out.append(part if k == real[0] else Binary("mod", part, dim_term(extents[k])))
        inner = binary("mul", inner, dim_term(extents[k]))
    return out[::-1]


def divided(at: Term, by: Term) -> Term:
    """at // by."""
    return binary("floordiv", at, by)


def minus(a: Term, b: Term) -> Term:
    """a - b."""
    return binary("add", a, Unary("neg", b))


# ---- folds


def reduce(monoid: str, dims: Sequence[int], x: Tensor) -> Tensor:
    """Fold over `dims`; none gives x."""
    return Reduce(monoid, tuple(sorted(dims)), x) if dims else x


def over(monoid: str, dims: Sequence[int], x: Tensor) -> Tensor:
    """Fold over `dims`, with the result repeated along them to the shape of x."""
    return restored(reduce(monoid, dims, x), sorted(dims), x.shape)


def mean(dims: Sequence[int], x: Tensor) -> Tensor:
    """Mean over `dims` in the compute type of x."""
    factor = reciprocal_extent([x.shape[d] for d in dims], compute_type(x.dtype))
    return mapped("mul", reduce("add", dims, x), factor)
