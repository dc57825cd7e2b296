"""Canonical kernels and their keys."""

import random
from dataclasses import replace

import pytest

from extract.key import canonical, form_key
from extract.rewrite import Names
from ir import term as T
from ir.loop import Buffer, Form, KernelForm, Part, Store, contiguous
from ir.node import postorder
from ir.ops import BINARY
from ir.text import Scope, parse_term


def form_of(text: str, axes: dict[str, int], shapes: dict[str, tuple[int, ...]], out: tuple[str, ...]) -> Form:
    dtypes = dict.fromkeys(shapes, "f32")
    value = parse_term(text, Scope(dtypes, axes))
    shape = tuple(axes[a] for a in out)
    buffers = [Buffer(n, "f32", s, contiguous(s)) for n, s in shapes.items()]
    buffers.append(Buffer("out", value.dtype, shape, contiguous(shape), role="output"))
    kernel = KernelForm("k", (Part(out, (Store("out", tuple(T.Index(a) for a in out), value),)),))
    return Form("f", axes, tuple(buffers), (kernel,))


def key(form: Form) -> str:
    return canonical(form.kernels[0], form).key


AXES = {"i": 8, "j": 16, "c": 16}
XY = {"x": (8, 16), "y": (8, 16), "w": (16,)}


def shuffled(form: Form, seed: int) -> Form:
    """The form with every name exchanged and every commutative pair swapped at random."""
    rng = random.Random(seed)
    names = [f"n{k}" for k in range(40)]
    rng.shuffle(names)
    take = iter(names)
    axes = {a: next(take) for a in form.axes}
    buffers = {b.name: next(take) for b in form.buffers}
    (part,) = form.kernels[0].parts
    (store,) = part.stores
    states = {t.name: next(take) for t in postorder(store.value) if isinstance(t, T.Carry)}
    memo: dict[T.Term, T.Term] = {}
    naming = Names(axes, buffers, states)
    for t in postorder(store.value):
        kids = [memo[k] for k in t.terms]
        if isinstance(t, T.Binary) and BINARY[t.op].commutes and rng.random() < 0.5:
            memo[t] = T.Binary(t.op, kids[1], kids[0])
        elif isinstance(t, T.Stream):
            carries = [k for k in kids if isinstance(k, T.Carry)]
            rng.shuffle(carries)
            memo[t] = T.Stream(axes[t.axis], tuple(carries), states[t.result])
        else:
            memo[t] = naming.node(t, kids)
    new = Store(buffers[store.buffer], tuple(naming.terms(store.index)), memo[store.value])
    order = list(form.buffers)
    rng.shuffle(order)
    return Form(
        "g",
        {axes[a]: n for a, n in form.axes.items()},
        tuple(replace(b, name=buffers[b.name]) for b in order),
        (KernelForm("other", (Part(tuple(axes[a] for a in part.axes), (new,)),)),),
    )


KERNELS = [
    ("x[i, c] + x[i, c] + y[i, c]", ("i", "c")),
    ("(x[i, c] + y[i, c]) * exp(x[i, c])", ("i", "c")),
    ("x[i, c] * rsqrt(add[c](x[i, c] * x[i, c]) + f32(1e-5)) * w[c]", ("i", "c")),
    ("add[c](x[i, c] * y[i, c] * (w[c] + y[i, c]))", ("i",)),
    (
        "stream[j](d=carry(add, f32, [i], mulz(old.d, exp(old.m - max(old.m, x[i, j]))) + exp(x[i, j] - "
        "max(old.m, x[i, j]))), m=carry(max, f32, [i], max(old.m, x[i, j]))).d",
        ("i",),
    ),
]


@pytest.mark.parametrize(("text", "out"), KERNELS)
def test_names_and_operand_order_do_not_change_the_canonical_kernel(text: str, out: tuple[str, ...]) -> None:
    form = form_of(text, AXES, XY, out)
    first = canonical(form.kernels[0], form)
    for seed in range(6):
        other = shuffled(form, seed)
        again = canonical(other.kernels[0], other)
        assert again.key == first.key
        assert again.kernel == first.kernel
        assert again.buffers == first.buffers
        assert again.axes == first.axes


def test_operands_in_another_order_share_a_kernel() -> None:
    a = form_of("x[i, c] + x[i, c] + y[i, c]", AXES, XY, ("i", "c"))
    b = form_of("y[i, c] + (x[i, c] + x[i, c])", AXES, XY, ("i", "c"))
    swapped = form_of("x[i, c] + (y[i, c] + y[i, c])", AXES, XY, ("i", "c"))
    assert canonical(a.kernels[0], a).kernel == canonical(b.kernels[0], b).kernel
    assert key(a) == key(swapped)


def test_what_differs_has_another_key() -> None:
    base = form_of("x[i, c] * y[i, c]", AXES, XY, ("i", "c"))
    others = [
        form_of("x[i, c] * x[i, c]", AXES, XY, ("i", "c")),
        form_of("x[i, c] + y[i, c]", AXES, XY, ("i", "c")),
        form_of("x[i, c] * w[c]", AXES, XY, ("i", "c")),
        form_of("x[i, c] * y[i, c]", AXES, XY, ("c", "i")),
        form_of("x[i, c] * y[i, c]", {**AXES, "i": 4}, {**XY, "x": (4, 16), "y": (4, 16)}, ("i", "c")),
    ]
    warm = replace(base, buffers=tuple(replace(b, role="scratch") if b.name == "x" else b for b in base.buffers))
    strided = replace(
        base, buffers=tuple(replace(b, strides=(32, 1)) if b.name == "y" else b for b in base.buffers)
    )
    loose = replace(base, buffers=tuple(replace(b, alignment=4) if b.name == "y" else b for b in base.buffers))
    keys = [key(f) for f in (base, *others, warm, strided, loose)]
    assert len(set(keys)) == len(keys)


def test_axes_of_equal_extent_are_not_confused() -> None:
    square = {"i": 8, "c": 8}
    shapes = {"x": (8, 8), "w": (8,)}
    assert key(form_of("x[i, c] + w[c]", square, shapes, ("i", "c"))) != key(
        form_of("x[i, c] + w[i]", square, shapes, ("i", "c"))
    )


def test_the_names_lead_back_to_the_form() -> None:
    form = form_of("x[i, c] * w[c]", AXES, XY, ("i", "c"))
    c = canonical(form.kernels[0], form)
    for b in c.buffers:
        assert form.buffer(c.names[b.name]).shape == b.shape
    assert {b.role for b in c.buffers} == {"input", "output"}
    assert all(s.buffer in c.names for s in c.kernel.stores)


def test_what_an_earlier_kernel_makes_is_warm_be_it_a_result_or_not() -> None:
    f = form_of("sin(x[i, j])", AXES, XY, ("i", "j"))
    known = {
        role: canonical(f.kernels[0], replace(f, buffers=(replace(f.buffer("x"), role=role), *f.buffers[1:])))
        for role in ("input", "scratch", "output")
    }
    assert known["output"].key == known["scratch"].key != known["input"].key
    assert [b.role for b in known["output"].buffers] == ["output", "scratch"]


def test_a_kernel_whose_divisions_must_round_once_is_another_where_it_divides() -> None:
    for text, same in (("x[i, j] / w[j]", False), ("x[i, j] * w[j]", True)):
        f = form_of(text, AXES, XY, ("i", "j"))
        plain, strict = (canonical(f.kernels[0], f, quotients) for quotients in (False, True))
        assert (plain.key == strict.key, strict.quotients) == (same, not same)


def test_a_form_is_known_by_its_kernels_and_what_joins_them() -> None:
    """Two kernels sin make m of x and n of y; the third reads one of them."""
    one, index = form_of("sin(x[i, j])", AXES, XY, ("i", "j")), tuple(map(T.Index, "ij"))
    scratch = [Buffer(n, "f32", (8, 16), contiguous((8, 16)), role="scratch") for n in "mn"]

    def three(reads: str, prefix: str = "") -> Form:
        ops = (("sin", "x", "m"), ("sin", "y", "n"), ("cos", reads, "out"))
        kernels = [
            KernelForm(prefix + to, (Part(("i", "j"), (Store(to, index, T.unary(op, T.Load(of, "f32", index))),)),))
            for op, of, to in ops
        ]
        return replace(one, buffers=(*one.buffers, *scratch), kernels=tuple(kernels))

    keys = [[canonical(k, f).key for k in f.kernels] for f in map(three, "mn")]
    assert keys[0] == keys[1]
    assert form_key(three("m")) != form_key(three("n"))
    assert form_key(three("m")) == form_key(three("m", "other"))
