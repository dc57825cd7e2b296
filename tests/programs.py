"""Written tensor programs that tests share, by name, and one with eager calls."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ir import tensor as X
from ir import term as T
from ir.dtype import Array
from tests.words import (
    apply,
    cat,
    contract,
    expand,
    flip,
    given,
    number,
    o,
    pad,
    permute,
    plus,
    program,
    reduce,
    reshape,
    shape_of,
    shifted,
    softmax_of,
    source,
    to,
    view,
)


def root_mean_square(dtype: str = "bf16", rows: int = 6, columns: int = 16) -> X.TensorProgram:
    x, w = given("x", (1, rows, columns), dtype), given("w", (columns,), dtype)
    wide = to("f32", x)
    mean = apply("div", reduce("add", apply("mul", wide, wide), 2, keep=True), float(columns))
    scaled = to(dtype, apply("mul", wide, apply("rsqrt", apply("add", mean, 1e-6))))
    return program("root_mean_square", to(dtype, apply("mul", scaled, w)))


def layer_norm(dtype: str = "f32") -> X.TensorProgram:
    x, w, b = given("x", (5, 12), dtype), given("w", (12,), dtype), given("b", (12,), dtype)
    mean = apply("div", reduce("add", x, 1, keep=True), 12.0)
    centred = apply("sub", x, mean)
    variance = apply("div", reduce("add", apply("mul", centred, centred), 1, keep=True), 12.0)
    normed = apply("mul", centred, apply("rsqrt", apply("add", variance, 1e-5)))
    return program("layer_norm", to(dtype, apply("add", apply("mul", normed, w), b)))


def softmax() -> X.TensorProgram:
    return program("softmax", softmax_of(given("x", (4, 9)), 1))


def rotated(x: X.Tensor, cos: X.Tensor, sin: X.Tensor) -> X.Tensor:
    """Rotary embedding by halves of the last dimension."""
    d = len(x.shape) - 1
    half = shape_of(x)[d] // 2
    turned = cat(apply("neg", shifted(x, d, half, 2 * half)), shifted(x, d, 0, half), d)
    return apply("add", apply("mul", x, cos), apply("mul", turned, sin))


def grouped_attention(
    dtype: str = "f32", rows: int = 6, heads: int = 4, groups: int = 2, width: int = 8
) -> X.TensorProgram:
    """A whole attention block: projections, rotary embedding, causal mask, grouped heads, output projection, residual."""
    hidden = heads * width
    x = given("x", (1, rows, hidden), dtype)
    wq, wk = given("wq", (hidden, hidden), dtype), given("wk", (groups * width, hidden), dtype)
    wv, wo = given("wv", (groups * width, hidden), dtype), given("wo", (hidden, hidden), dtype)
    cos, sin = given("cos", (1, 1, rows, width)), given("sin", (1, 1, rows, width))

    def projected(w: X.Tensor, n: int) -> X.Tensor:
        flat = to(dtype, contract("bsk,nk->bsn", x, w))
        return permute(reshape(flat, 1, rows, n, width), 0, 2, 1, 3)

    q = to(dtype, rotated(projected(wq, heads), cos, sin))
    k = to(dtype, rotated(projected(wk, groups), cos, sin))
    v = projected(wv, groups)
    k, v = (
        reshape(
            expand(reshape(t, 1, groups, 1, rows, width), 1, groups, heads // groups, rows, width),
            1, heads, rows, width,
        )
        for t in (k, v)
    )  # fmt: skip
    scores = apply("mul", contract("bhid,bhjd->bhij", q, k), 1 / math.sqrt(width))
    ramp = X.Iota(rows)
    seen = apply("le", view(ramp, (rows, rows), [o(1)]), view(ramp, (rows, rows), [o(0)]))
    masked = apply("select", seen, scores, -math.inf)
    mixed = to(dtype, contract("bhij,bhjd->bhid", to(dtype, softmax_of(masked, 3)), v))
    merged = reshape(permute(mixed, 0, 2, 1, 3), 1, rows, hidden)
    out = to(dtype, contract("bsk,nk->bsn", merged, wo))
    return program("grouped_attention", to(dtype, apply("add", x, out)))


def decoder_layers(
    count: int, dtype: str = "bf16", rows: int = 6, heads: int = 4, groups: int = 2, width: int = 8, inner: int = 48
) -> X.TensorProgram:
    """Norm, grouped attention with rotary embedding, norm and gated product, each with its residual, `count` times."""
    hidden = heads * width
    cos, sin = given("cos", (1, 1, rows, width)), given("sin", (1, 1, rows, width))
    ramp = X.Iota(rows)
    seen = apply("le", view(ramp, (rows, rows), [o(1)]), view(ramp, (rows, rows), [o(0)]))
    x: X.Tensor = given("x", (1, rows, hidden), dtype)
    made: list[str] = []

    def weight(name: str, *shape: int) -> X.Tensor:
        made.append(name)
        return given(f"{name}_{made.count(name)}", shape, dtype)

    def normed(t: X.Tensor, w: X.Tensor) -> X.Tensor:
        wide = to("f32", t)
        mean = apply("div", reduce("add", apply("mul", wide, wide), 2, keep=True), float(hidden))
        scaled = apply("mul", wide, apply("rsqrt", apply("add", mean, 1e-6)))
        return to(dtype, apply("mul", to(dtype, scaled), w))

    def linear(t: X.Tensor, w: X.Tensor) -> X.Tensor:
        return to(dtype, contract("bsk,nk->bsn", t, w))

    def split(t: X.Tensor, n: int) -> X.Tensor:
        return permute(reshape(t, 1, rows, n, width), 0, 2, 1, 3)

    def shared(t: X.Tensor) -> X.Tensor:
        index = [o(0), T.binary("floordiv", o(1), number(heads // groups)), o(2), o(3)]
        return view(t, (1, heads, rows, width), index)

    for _ in range(count):
        h = normed(x, weight("norm1", hidden))
        q = to(dtype, rotated(split(linear(h, weight("wq", hidden, hidden)), heads), cos, sin))
        k = to(dtype, rotated(split(linear(h, weight("wk", groups * width, hidden)), groups), cos, sin))
        v = split(linear(h, weight("wv", groups * width, hidden)), groups)
        scores = apply("mul", contract("bhid,bhjd->bhij", q, shared(k)), 1 / math.sqrt(width))
        weights = to(dtype, softmax_of(apply("select", seen, scores, -math.inf), 3))
        mixed = to(dtype, contract("bhij,bhjd->bhid", weights, shared(v)))
        merged = reshape(permute(mixed, 0, 2, 1, 3), 1, rows, hidden)
        x = to(dtype, apply("add", x, linear(merged, weight("wo", hidden, hidden))))
        h = normed(x, weight("norm2", hidden))
        gate = linear(h, weight("gate", inner, hidden))
        gated = to(dtype, apply("mul", gate, apply("sigmoid", gate)))
        both = to(dtype, apply("mul", gated, linear(h, weight("up", inner, hidden))))
        x = to(dtype, apply("add", x, linear(both, weight("down", hidden, inner))))
    return program("decoder_layers", x)


def self_product() -> X.TensorProgram:
    x = given("x", (5, 7))
    return program(
        "self_product",
        contract("ik,kj->ij", x, permute(x, 1, 0)),
        apply("add", permute(given("z", (3, 3)), 1, 0), given("z", (3, 3))),
    )


def conflicting_reshapes() -> X.TensorProgram:
    """[4, 6] as [6, 4] beside [4, 6], and [24] both ways: no one splitting serves them."""
    x, y = given("x", (4, 6)), given("y", (6, 4))
    other = reshape(x, 6, 4)
    flat = apply("add", reshape(x, 24), reshape(apply("mul", other, y), 24))
    work = reshape(reshape(contract("ik,kj->ij", x, y), 2, 8), 16)
    return program("conflicting_reshapes", apply("add", other, y), flat, reduce("add", reshape(work, 8, 2), 0))


def merged_and_split() -> X.TensorProgram:
    """A dimension split in one place is split wherever it is used; a product over it folds both factors."""
    x, w = given("x", (5, 24)), given("w", (7, 24))
    split = reshape(x, 5, 4, 6)
    scaled = apply("mul", split, reduce("max", split, 1, keep=True))
    return program("merged_and_split", contract("ik,nk->in", reshape(scaled, 5, 24), w), apply("add", x, 1.0))


def moved() -> X.TensorProgram:
    """Slices, steps, flips, pads, joins and transposes, of inputs and of work."""
    x, w = given("x", (5, 6)), given("w", (6, 6))
    work = contract("ik,kj->ij", x, w)
    joined = cat(flip(work, 1), shifted(x, 0, 1, 5), 0)
    return program(
        "moved", joined, pad(shifted(work, 1, 1, 6, 2), 1, 1, 2, 9.0), permute(pad(x, 0, 0, 3), 1, 0),
        apply("add", work, flip(flip(work, 0), 1)), apply("mul", w, permute(apply("exp", w), 1, 0)),
    )  # fmt: skip


def gathered() -> X.TensorProgram:
    """Rows of an input and of work at positions that are values; the last program axis is gathered too."""
    table, rows = given("table", (7, 4)), given("rows", (5,), "i64")
    work = contract("ik,kj->ij", table, given("w", (4, 4)))
    at = view(rows, (5, 4), [o(0)])
    picked = view(table, (5, 4), [source(0, 2), o(1)], sources=(at,))
    best = reduce("argmax", work, 1)
    chosen = view(work, (7,), [o(0), source(0, 1)], sources=(best,))
    return program("gathered", picked, view(work, (5, 4), [source(0, 2), o(1)], sources=(at,)), chosen)


def scattered() -> X.TensorProgram:
    """Sums, maxima and the last of updates at positions that repeat and leave the range."""
    base, updates = given("base", (4, 3)), given("updates", (6, 3))
    rows, whole = given("rows", (6,), "i64"), given("whole", (6, 3), "i64")
    at = view(rows, (6, 3), [o(0)])
    element = (source(0, 2), o(1))
    work = apply("mul", updates, reduce("add", updates, 1, keep=True))
    both = X.Scatter("add", base, updates, (plus(source(0, 2), -1), source(1, 2)), (whole, at))
    return program(
        "scattered",
        X.Scatter("add", base, updates, element, (at,)),
        X.Scatter("max", base, updates, element, (whole,)),
        X.Scatter(None, base, work, element, (at,)),
        X.Scatter(None, base, updates, (plus(source(0, 2), 1), source(1, 2)), (whole, at)),
        both,
        X.Scatter("add", base, given("narrow", (6, 2)), element, (view(rows, (6, 2), [o(0)]),)),
        to("bf16", X.Scatter("add", to("bf16", base), to("bf16", updates), element, (at,))),
    )


def swapped() -> X.TensorProgram:
    """Work beside its own transpose, and turned about both dimensions at once."""
    work = contract("ik,kj->ij", given("x", (4, 5)), given("w", (5, 4)))
    turned = view(work, (4, 4), [plus(T.unary("neg", o(1)), 3), o(0)])
    return program("swapped", apply("add", work, permute(work, 1, 0)), apply("mul", work, turned))


def scanned() -> X.TensorProgram:
    x = given("x", (4, 6))
    work = apply("mul", x, reduce("add", x, 0, keep=True))
    return program(
        "scanned",
        X.Scan("add", 1, x),
        X.Scan("max", 0, work),
        X.Scan("argmax", 1, x),
        reshape(X.Scan("add", 0, reshape(x, 24)), 4, 6),
    )


def positions_of_extremes() -> X.TensorProgram:
    x = given("x", (5, 6))
    ties = apply("max", x, 0.0)
    return program(
        "positions_of_extremes",
        reduce("argmax", ties, 1),
        reduce("argmin", ties, 0),
        reduce("argmax", reshape(x, 30), 0),
    )


def empty() -> X.TensorProgram:
    x, y = given("x", (0, 4)), given("y", (3, 0))
    return program(
        "empty",
        reduce("add", x, 0),
        reduce("max", x, 0),
        contract("ik,kj->ij", y, x),
        apply("exp", x),
        pad(x, 0, 1, 1, 2.0),
        reduce("add", x, 1),
    )


def without_dimensions() -> X.TensorProgram:
    x, y = given("x", ()), given("y", (1, 1))
    return program(
        "without_dimensions",
        apply("exp", x),
        apply("add", x, y),
        reduce("add", y, 0, 1),
        reduce("argmax", y, 1),
        X.Scan("add", 0, y),
        expand(x, 3),
    )


def replaced() -> X.TensorProgram:
    """An input's content is replaced; the other result sees it as it was."""
    cache, row = given("cache", (4, 3)), given("row", (1, 3))
    ramp = view(X.Iota(4), (4, 3), [o(0)])
    new = apply("select", apply("eq", ramp, 2), expand(row, 4, 3), cache)
    return program("replaced", (new, "cache"), reduce("add", cache, 0))


WRITTEN: dict[str, Callable[[], X.TensorProgram]] = {
    f.__name__: f
    for f in (
        root_mean_square, layer_norm, softmax, grouped_attention, self_product, conflicting_reshapes, merged_and_split,
        moved, swapped, gathered, scattered, scanned, positions_of_extremes, empty, without_dimensions, replaced,
    )
}  # fmt: skip
POSITIONS = {"rows": 4, "whole": 5}
"""The least integers that the integer inputs of written programs stay below."""


def with_call() -> X.TensorProgram:
    """Work before and after eager calls; one value crosses, views and maps of inputs are made again."""
    x, w = given("x", (5, 4)), given("w", (4, 6))
    hidden = apply("tanh", contract("ik,kj->ij", x, w))
    top = [
        X.Call("aten.sort.default", (hidden,), "{0}, dim=1", k, d, (5, 6), (6, 1), 0)
        for k, d in enumerate(("f32", "i64"))
    ]
    back = view(hidden, (5, 6), [o(0), source(0, 2)], sources=(top[1],))
    again = X.Call("aten.cos.default", (apply("sub", top[0], back),), "{0}", 0, "f32", (5, 6), (6, 1), 1)
    return program(
        "with_call", apply("add", again, hidden), reduce("add", top[0], 0), (apply("neg", w), "w"), top[1]
    )


def _sort(values: Array) -> list[Array]:
    order = np.argsort(values, axis=1, kind="stable")
    return [np.take_along_axis(values, order, axis=1), order]


CALLS: dict[int, Callable[..., list[Array]]] = {0: _sort, 1: lambda values: [np.cos(values)]}
"""What the calls of `with_call` do."""
