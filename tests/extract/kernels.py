"""Kernels of many shapes, built by hand from terms, as forms of one kernel with inputs for them."""

from dataclasses import dataclass

import numpy as np

from ir import term as T
from ir.dtype import is_float, rounded
from ir.loop import Buffer, Form, KernelForm, Part, Store, contiguous


@dataclass
class Case:
    form: Form
    inputs: dict[str, np.ndarray]

    @property
    def kernel(self):
        return self.form.kernels[0]


def buffer(name, dtype, *shape, role="input", strides=None):
    return Buffer(name, dtype, shape, strides or contiguous(shape), role=role)


def case(axes, buffers, *stores, parts=None, seed=3, **given):
    """A case whose inputs are random where `given` has none."""
    groups = parts or [stores]
    made = []
    for group in groups:
        free = frozenset().union(*(s.axes for s in group))
        made.append(Part(tuple(a for a in axes if a in free), tuple(group)))
    form = Form("form", axes, tuple(buffers), (KernelForm("kernel", tuple(made)),))
    rng = np.random.default_rng(seed)
    inputs = {}
    for b in buffers:
        if b.role == "input":
            if b.name in given:
                inputs[b.name] = given[b.name]
                continue
            raw = rng.standard_normal(b.shape) if is_float(b.dtype) else rng.integers(0, 5, b.shape)
            inputs[b.name] = rounded(np.asarray(raw), b.dtype)
    return Case(form, inputs)


def i(axis):
    return T.Index(axis)


def load(b, *index):
    return T.Load(b.name, b.dtype, tuple(T.number(t) if isinstance(t, int) else t for t in index))


def f32(value):
    return T.const(value, "f32")


def add(x, y):
    return T.binary("add", x, y)


def mul(x, y):
    return T.binary("mul", x, y)


def sub(x, y):
    return T.binary("sub", x, y)


def div(x, y):
    return T.binary("div", x, y)


def exp(x):
    return T.unary("exp", x)


def put(b, index, value, monoid=None):
    return Store(b.name, tuple(T.number(t) if isinstance(t, int) else t for t in index), value, monoid)


def pointwise():
    x, y, w = buffer("x", "bf16", 3, 37), buffer("y", "f32", 37, 3), buffer("w", "f32", 37)
    out = buffer("out", "bf16", 3, 37, role="output")
    a, b = i("a"), i("b")
    value = add(mul(load(x, a, b), load(w, b)), div(load(y, b, a), f32(3.0)))
    return case({"a": 3, "b": 37}, [x, y, w, out], put(out, (a, b), T.round_to("bf16", "op", value)))


def scaled_rows():
    x, w = buffer("x", "f32", 5, 100), buffer("w", "f32", 100)
    out = buffer("out", "f32", 5, 100, role="output")
    a, b = i("a"), i("b")
    v = load(x, a, b)
    mean = div(T.fold("b", "add", mul(v, v)), T.round_to("f32", "op", T.Extent("b")))
    scaled = mul(mul(v, T.unary("rsqrt", add(mean, f32(1e-6)))), load(w, b))
    return case({"a": 5, "b": 100}, [x, w, out], put(out, (a, b), scaled))


def normalised_rows():
    x, out = buffer("x", "bf16", 4, 70), buffer("out", "bf16", 4, 70, role="output")
    a, b = i("a"), i("b")
    p = exp(sub(load(x, a, b), T.fold("b", "max", load(x, a, b))))
    value = T.round_to("bf16", "op", div(p, T.fold("b", "add", p)))
    return case({"a": 4, "b": 70}, [x, out], put(out, (a, b), value))


def stream_states(x, axis, own):
    m, z = T.State("m", "f32", own), T.State("z", "f32", own)
    new = T.binary("max", m, x)
    carries = (
        T.Carry("m", "max", new),
        T.Carry(
            "z", "add", add(T.binary("mulz", z, exp(sub(m, new))), exp(T.binary("addz", x, T.unary("neg", new))))
        ),
    )
    return T.Stream(axis, carries, "m"), T.Stream(axis, carries, "z")


def streamed_rows():
    x, out = buffer("x", "f32", 4, 70), buffer("out", "f32", 4, 70, role="output")
    v = load(x, i("a"), i("b"))
    m, z = stream_states(v, "b", ("a",))
    return case({"a": 4, "b": 70}, [x, out], put(out, (i("a"), i("b")), div(exp(sub(v, m)), z)))


def masked_rows():
    rows = np.random.default_rng(5).standard_normal((4, 70)).astype(np.float32)
    rows[0, :40], rows[1, 33:], rows[2] = -np.inf, -np.inf, -np.inf
    c = streamed_rows()
    return Case(c.form, {"x": rows})


def decayed_sum():
    x, out = buffer("x", "f32", 4, 21), buffer("out", "f32", 4, role="output")
    s = T.State("s", "f32", ("a",))
    carry = T.Carry("s", "add", add(mul(s, f32(0.75)), load(x, i("a"), i("b"))))
    return case({"a": 4, "b": 21}, [x, out], put(out, (i("a"),), T.Stream("b", (carry,), "s")))


def contraction():
    x, w, out = buffer("x", "bf16", 9, 20), buffer("w", "bf16", 20, 6), buffer("out", "f32", 9, 6, role="output")
    total = T.fold("k", "add", mul(load(x, i("m"), i("k")), load(w, i("k"), i("n"))))
    value = add(total, T.unary("tanh", total))
    return case({"m": 9, "n": 6, "k": 20}, [x, w, out], put(out, (i("m"), i("n")), value))


def chain_parts():
    q, k, v = buffer("q", "f32", 2, 7, 4), buffer("k", "f32", 1, 7, 4), buffer("v", "f32", 1, 7, 4)
    out = buffer("out", "f32", 2, 7, 4, role="output")
    axes = {"h": 2, "i": 7, "j": 7, "d": 4, "e": 4}
    group = T.binary("floordiv", i("h"), T.number(2))
    s = T.fold("d", "add", mul(load(q, i("h"), i("i"), i("d")), load(k, group, i("j"), i("d"))))
    s = T.select(T.binary("le", i("j"), i("i")), mul(s, f32(0.5)), T.const(-np.inf, "f32"))
    return q, k, v, out, axes, s, load(v, group, i("j"), i("e"))


def chain():
    q, k, v, out, axes, s, value = chain_parts()
    p = exp(sub(s, T.fold("j", "max", s)))
    weights = div(p, T.fold("j", "add", p))
    total = T.fold("j", "add", mul(weights, value))
    return case(axes, [q, k, v, out], put(out, (i("h"), i("i"), i("e")), total))


def streamed_chain():
    q, k, v, out, axes, s, value = chain_parts()
    m, z = T.State("m", "f32", ("h", "i")), T.State("z", "f32", ("h", "i"))
    o = T.State("o", "f32", ("e", "h", "i"))
    new = T.binary("max", m, s)
    ratio, p = exp(sub(m, new)), exp(T.binary("addz", s, T.unary("neg", new)))
    carries = (
        T.Carry("m", "max", new),
        T.Carry("o", "add", add(T.binary("mulz", o, ratio), mul(p, value))),
        T.Carry("z", "add", add(T.binary("mulz", z, ratio), p)),
    )
    total = div(T.Stream("j", carries, "o"), T.Stream("j", carries, "z"))
    return case(axes, [q, k, v, out], put(out, (i("h"), i("i"), i("e")), total))


def column_sums():
    x, out = buffer("x", "f16", 50, 33), buffer("out", "f32", 33, role="output")
    low = buffer("low", "f16", 33, role="output")
    v = load(x, i("r"), i("c"))
    stores = put(out, (i("c"),), T.fold("r", "add", v)), put(low, (i("c"),), T.fold("r", "min", v))
    return case({"r": 50, "c": 33}, [x, out, low], *stores)


def best_positions(monoid="argmax", seed=3):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-3, 3, (6, 45)).astype(np.float32)
    rows[1], rows[2, 40], rows[3, [7, 20]], rows[4] = -np.inf, np.nan, np.nan, np.inf
    x, out = buffer("x", "f32", 6, 45), buffer("out", "i64", 6, role="output")
    value = T.fold("b", monoid, load(x, i("a"), i("b")))
    return case({"a": 6, "b": 45}, [x, out], put(out, (i("a"),), value), x=rows)


def running(monoid="add"):
    dtype = "i64" if monoid.startswith("arg") else "f32"
    x, out = buffer("x", "f32", 4, 41), buffer("out", dtype, 4, 41, role="output")
    value = T.Scan("b", monoid, load(x, i("a"), i("b")))
    return case({"a": 4, "b": 41}, [x, out], put(out, (i("a"), i("b")), value))


def running_both_ways():
    x, out = buffer("x", "f32", 5, 7), buffer("out", "f32", 5, 7, role="output")
    value = T.Scan("a", "add", T.Scan("b", "max", load(x, i("a"), i("b"))))
    return case({"a": 5, "b": 7}, [x, out], put(out, (i("a"), i("b")), value))


def gathered():
    x, rows, out = buffer("x", "f32", 9, 12), buffer("rows", "i64", 21), buffer("out", "f32", 21, 12, role="output")
    raw = load(rows, i("a"))
    row = T.select(T.binary("lt", raw, T.number(0)), add(raw, T.number(9)), raw)
    index = np.random.default_rng(0).integers(-9, 9, 21)
    value = add(load(x, row, i("b")), f32(1.0))
    return case({"a": 21, "b": 12}, [x, rows, out], put(out, (i("a"), i("b")), value), rows=index)


def scattered():
    x, rows, out = buffer("x", "f32", 20, 6), buffer("rows", "i64", 20), buffer("out", "f32", 5, 6)
    value = load(x, i("a"), i("b"))
    total = buffer("total", "f32", role="input")
    stores = put(out, (load(rows, i("a")), i("b")), value, "add"), put(total, (), load(x, 0, 0), "add")
    return case({"a": 20, "b": 6}, [x, rows, out, total], *stores)


def several_results():
    x = buffer("x", "f32", 6, 30)
    y, z = buffer("y", "f32", 6, 30, role="output"), buffer("z", "f32", 6, role="output")
    v = load(x, i("a"), i("b"))
    mean = div(T.fold("b", "add", v), f32(30.0))
    d = sub(v, mean)
    square = T.fold("b", "add", mul(d, d))
    stores = put(y, (i("a"), i("b")), mul(d, T.unary("rsqrt", square))), put(z, (i("a"),), square)
    return case({"a": 6, "b": 30}, [x, y, z], *stores)


def side_by_side():
    x, w = buffer("x", "f32", 6, 30), buffer("w", "f32", 17)
    y, z = buffer("y", "f32", 6, role="output"), buffer("z", "f32", 17, role="output")
    rows = put(y, (i("a"),), T.fold("b", "max", load(x, i("a"), i("b"))))
    doubled = put(z, (i("c"),), mul(load(w, i("c")), f32(2.0)))
    return case({"a": 6, "b": 30, "c": 17}, [x, w, y, z], parts=[[rows], [doubled]])


def beside_a_larger_one():
    """Three parts: two small ones that run along the same axes, which the largest lacks."""
    x, w = buffer("x", "f32", 12, 40), buffer("w", "f32", 5, 8)
    outs = [buffer(n, "f32", *s, role="output") for n, s in (("y", (12,)), ("u", (5,)), ("v", (8,)))]
    y = put(outs[0], (i("a"),), T.fold("b", "max", load(x, i("a"), i("b"))))
    element = load(w, i("c"), i("d"))
    u = put(outs[1], (i("c"),), T.fold("d", "add", element))
    v = put(outs[2], (i("d"),), T.fold("c", "add", mul(element, element)))
    return case({"a": 12, "b": 40, "c": 5, "d": 8}, [x, w, *outs], parts=[[y], [u], [v]])


def picked_at_the_best_position():
    x, out = buffer("x", "f32", 3, 600), buffer("out", "f32", 3, role="output")
    best = T.fold("b", "argmax", load(x, i("a"), i("b")))
    return case({"a": 3, "b": 600}, [x, out], put(out, (i("a"),), load(x, i("a"), best)))


def less_rows_and_columns():
    x, out = buffer("x", "f32", 5, 9), buffer("out", "f32", 5, 9, role="output")
    v = load(x, i("a"), i("b"))
    rows = T.fold("b", "add", v)
    columns = T.fold("a", "max", mul(v, rows))
    return case({"a": 5, "b": 9}, [x, out], put(out, (i("a"), i("b")), sub(sub(v, rows), columns)))


def folds_of_bound_axes():
    x, w = buffer("x", "f32", 2, 3, 3), buffer("w", "f32", 3)
    out = buffer("out", "f32", 3, 2, 3, role="output")
    v = mul(load(x, i("b"), i("c"), i("a")), load(w, i("a")))
    value = T.fold(("a", "b"), "min", T.binary("max", v, T.fold(("a", "c"), "add", v)))
    return case({"a": 3, "b": 2, "c": 3}, [x, w, out], put(out, (i("a"), i("b"), i("c")), sub(v, value)))


def scalar():
    x, out = buffer("x", "f32"), buffer("out", "f32", role="output")
    return case({}, [x, out], put(out, (), exp(load(x))))


def whole_sum():
    x, out = buffer("x", "f32", 7, 11), buffer("out", "f32", role="output")
    total = T.fold(("a", "b"), "add", load(x, i("a"), i("b")))
    return case({"a": 7, "b": 11}, [x, out], put(out, (), total))


def empty_sum():
    x, y, out = (
        buffer("x", "f32", 4, 0),
        buffer("y", "f32", 4, 0, role="output"),
        buffer("out", "f32", 4, role="output"),
    )
    v = load(x, i("a"), i("b"))
    stores = put(out, (i("a"),), T.fold("b", "add", v)), put(y, (i("a"), i("b")), mul(v, v))
    return case({"a": 4, "b": 0}, [x, y, out], *stores)


def single():
    x, out = buffer("x", "f32", 1, 1), buffer("out", "f32", 1, 1, role="output")
    v = load(x, i("a"), i("b"))
    return case({"a": 1, "b": 1}, [x, out], put(out, (i("a"), i("b")), sub(v, T.fold("b", "max", v))))


def counted():
    out, flags = buffer("out", "i64", 6, role="output"), buffer("flags", "bool", 6, 13)
    seen = T.fold("b", "or", load(flags, i("a"), i("b")))
    ones = T.fold("b", "add", T.number(1))
    later = T.fold("b", "add", T.select(load(flags, i("a"), i("b")), i("b"), T.Identity("add")))
    value = add(add(ones, later), T.select(seen, T.number(100), T.number(0)))
    return case({"a": 6, "b": 13}, [flags, out], put(out, (i("a"),), value))


def in_place():
    x, total = buffer("x", "f32", 6, 30), buffer("total", "f32", 6, role="output")
    v = load(x, i("a"), i("b"))
    mean = div(T.fold("b", "add", v), f32(30.0))
    spread = T.fold("b", "add", mul(sub(v, mean), sub(v, mean)))
    return case(
        {"a": 6, "b": 30}, [x, total], put(x, (i("a"), i("b")), mul(v, f32(2.0))), put(total, (i("a"),), spread)
    )


CASES = {
    "pointwise": pointwise,
    "scaled rows": scaled_rows,
    "normalised rows": normalised_rows,
    "streamed rows": streamed_rows,
    "decayed sum": decayed_sum,
    "contraction": contraction,
    "chain": chain,
    "streamed chain": streamed_chain,
    "column sums": column_sums,
    "best positions": best_positions,
    "worst positions": lambda: best_positions("argmin"),
    "running sums": running,
    "running best positions": lambda: running("argmax"),
    "running both ways": running_both_ways,
    "gathered": gathered,
    "scattered": scattered,
    "several results": several_results,
    "side by side": side_by_side,
    "beside a larger one": beside_a_larger_one,
    "picked at the best position": picked_at_the_best_position,
    "less rows and columns": less_rows_and_columns,
    "folds of bound axes": folds_of_bound_axes,
    "scalar": scalar,
    "whole sum": whole_sum,
    "empty sum": empty_sum,
    "single": single,
    "counted": counted,
    "in place": in_place,
}
