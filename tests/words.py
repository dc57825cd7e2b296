"""A few words to build tensor programs in tests: moves, elementwise operators with broadcasting, folds, inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir import tensor as X
from ir import term as T
from ir.dtype import Array, bits_of, is_float, rounded
from ir.loop import contiguous

Inputs = dict[str, Array]


def given(name: str, shape: Sequence[int], dtype: str = "f32") -> X.Input:
    return X.Input(name, dtype, tuple(shape), contiguous(tuple(shape)), 0)


def o(k: int) -> T.Term:
    return T.Index(f"o{k}")


def source(k: int, rank: int, dtype: str = "i64") -> T.Term:
    return T.Var(f"g{k}", dtype, tuple(f"o{j}" for j in range(rank)))


def number(value: int) -> T.Term:
    return T.number(value)


def plus(x: T.Term, y: T.Term | int) -> T.Term:
    return T.binary("add", x, number(y) if isinstance(y, int) else y)


def times(x: T.Term, y: int) -> T.Term:
    return T.binary("mul", x, number(y))


def view(
    x: X.Tensor,
    shape: Sequence[int],
    index: Sequence[T.Term],
    valid: T.Term | None = None,
    fill: float = 0,
    sources: Sequence[X.Tensor] = (),
) -> X.Tensor:
    return X.View(x, tuple(shape), tuple(index), valid, bits_of(x.dtype, fill), tuple(sources))


def shape_of(x: X.Tensor) -> tuple[int, ...]:
    return tuple(int(e) for e in x.shape)


def permute(x: X.Tensor, *order: int) -> X.Tensor:
    return view(x, [shape_of(x)[d] for d in order], [o(order.index(d)) for d in range(len(order))])


def reshape(x: X.Tensor, *shape: int) -> X.Tensor:
    """As the address in row-major order of the new shape, taken apart by the old one."""
    flat: T.Term = number(0)
    for k, s in enumerate(contiguous(shape)):
        flat = plus(flat, times(o(k), s))
    index = []
    for e, s in zip(shape_of(x), contiguous(shape_of(x)), strict=True):
        part = T.binary("floordiv", flat, number(max(s, 1)))
        index.append(T.binary("mod", part, number(max(e, 1))))
    return view(x, shape, index)


def expand(x: X.Tensor, *shape: int) -> X.Tensor:
    """Broadcast as numpy does."""
    extra = len(shape) - len(x.shape)
    return view(x, shape, [number(0) if e == 1 else o(k + extra) for k, e in enumerate(shape_of(x))])


def shifted(x: X.Tensor, dim: int, start: int, stop: int, step: int = 1) -> X.Tensor:
    shape = list(shape_of(x))
    shape[dim] = len(range(start, stop, step))
    index = [o(k) if k != dim else plus(times(o(k), step), start) for k in range(len(shape))]
    return view(x, shape, index)


def flip(x: X.Tensor, dim: int) -> X.Tensor:
    e = shape_of(x)[dim]
    index = [o(k) if k != dim else plus(T.unary("neg", o(k)), e - 1) for k in range(len(x.shape))]
    return view(x, shape_of(x), index)


def pad(x: X.Tensor, dim: int, low: int, high: int, fill: float = 0) -> X.Tensor:
    shape = list(shape_of(x))
    inner = plus(o(dim), -low)
    inside = T.binary("and", T.binary("le", number(0), inner), T.binary("lt", inner, number(shape[dim])))
    shape[dim] += low + high
    return view(x, shape, [o(k) if k != dim else inner for k in range(len(shape))], inside, fill)


def cat(x: X.Tensor, y: X.Tensor, dim: int) -> X.Tensor:
    nx, ny = shape_of(x)[dim], shape_of(y)[dim]
    ramp = X.Iota(nx + ny)
    shape = [*shape_of(x)]
    shape[dim] = nx + ny
    first = apply("lt", view(ramp, shape, [o(dim)]), full(nx, "i64", shape))
    return apply("select", first, pad(x, dim, 0, ny), pad(y, dim, nx, 0))


def full(value: float, dtype: str, shape: Sequence[int]) -> X.Tensor:
    return X.Full(dtype, bits_of(dtype, value), tuple(shape))


def apply(op: str, *operands: X.Tensor | float) -> X.Tensor:
    """An elementwise operator with broadcasting; gt, ge, sub and div too."""
    first = next(x for x in operands if isinstance(x, X.Tensor) and (op != "select" or x.dtype != "bool"))
    tensors = [x if isinstance(x, X.Tensor) else full(x, first.dtype, ()) for x in operands]
    shape = np.broadcast_shapes(*(shape_of(x) for x in tensors))
    wide = [x if x.shape == shape else expand(x, *shape) for x in tensors]
    if op in ("gt", "ge"):
        return X.Map("lt" if op == "gt" else "le", (wide[1], wide[0]))
    if op in ("sub", "div"):
        inverse = X.Map("neg" if op == "sub" else "recip", (wide[1],))
        return X.Map("add" if op == "sub" else "mul", (wide[0], inverse))
    return X.Map(op, tuple(wide))


def reduce(monoid: str, x: X.Tensor, *dims: int, keep: bool = False) -> X.Tensor:
    out = X.Reduce(monoid, tuple(sorted(dims)), x)
    if not keep:
        return out
    kept = [k for k in range(len(x.shape)) if k not in dims]
    shape = [1 if k in dims else e for k, e in enumerate(shape_of(x))]
    return view(out, shape, [o(k) for k in kept])


def contract(spec: str, x: X.Tensor, y: X.Tensor) -> X.Tensor:
    """As einsum, in the compute type."""
    operands, out = spec.split("->")
    a, b = operands.split(",")
    return X.Contract(x, y, tuple(a), tuple(b), tuple(out))


def to(dtype: str, x: X.Tensor, origin: str = "op") -> X.Tensor:
    return x if x.dtype == dtype else X.Convert(dtype, origin, x)


def softmax_of(x: X.Tensor, dim: int) -> X.Tensor:
    e = apply("exp", apply("sub", x, reduce("max", x, dim, keep=True)))
    return apply("div", e, reduce("add", e, dim, keep=True))


def program(name: str, *results: X.Tensor | tuple[X.Tensor, str]) -> X.TensorProgram:
    """Results y0, y1, ...; a pair names the input that the result replaces."""
    out = []
    for k, r in enumerate(results):
        value, writes = r if isinstance(r, tuple) else (r, None)
        out.append(X.Result(f"y{k}", value, contiguous(shape_of(value)), writes))
    found: dict[X.Input, None] = {}
    stack: list[X.Tensor] = [r.value for r in reversed(out)]
    seen: set[X.Tensor] = set()
    while stack:
        t = stack.pop()
        if t not in seen:
            seen.add(t)
            stack.extend(reversed(t.tensors))
            if isinstance(t, X.Input):
                found[t] = None
    return X.TensorProgram(name, tuple(sorted(found, key=lambda t: t.name)), tuple(out))


def random_inputs(p: X.TensorProgram, seed: int, positions: dict[str, int] | None = None) -> Inputs:
    """Normal floats rounded to the input's type; integers below the extent named in `positions`, else small."""
    rng = np.random.default_rng(seed)
    out: Inputs = {}
    for t in p.inputs:
        shape = shape_of(t)
        if is_float(t.dtype):
            out[t.name] = rounded(rng.standard_normal(shape), t.dtype)
        elif t.dtype == "bool":
            out[t.name] = rng.random(shape) < 0.5
        else:
            out[t.name] = rounded(rng.integers(0, (positions or {}).get(t.name, 5), shape), t.dtype)
    return out
