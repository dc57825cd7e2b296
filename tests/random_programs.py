"""Random tensor programs from a seed: a pool of small tensors grows by one random node at a time."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from ir import tensor as X
from ir import term as T
from ir.dtype import is_float
from tests.words import (
    Inputs,
    apply,
    cat,
    contract,
    expand,
    flip,
    full,
    given,
    o,
    pad,
    permute,
    plus,
    program,
    random_inputs,
    reduce,
    reshape,
    shape_of,
    shifted,
    softmax_of,
    source,
    to,
    view,
)

Case = tuple[X.TensorProgram, Inputs]
EXTENTS = (1, 2, 2, 3, 3, 4, 6)
LIMIT = 400
Rule = Callable[[random.Random, "Pool"], X.Tensor | None]


class Pool:
    """The tensors made so far, and inputs made on demand."""

    def __init__(self, rng: random.Random, floats: tuple[str, ...]) -> None:
        self.rng, self.floats = rng, floats
        self.tensors: list[X.Tensor] = []
        self.inputs = 0
        self.positions: dict[str, int] = {}

    def fresh(self, shape: tuple[int, ...], dtype: str | None = None, below: int = 5) -> X.Tensor:
        name = f"x{self.inputs}"
        self.inputs += 1
        self.positions[name] = below
        t = given(name, shape, dtype or self.rng.choice(self.floats))
        self.tensors.append(t)
        return t

    def any(self, kind: Callable[[X.Tensor], bool]) -> X.Tensor | None:
        found = [t for t in self.tensors if kind(t)]
        return self.rng.choice(found) if found else None

    def float(self, least_rank: int = 0) -> X.Tensor | None:
        return self.any(lambda t: is_float(t.dtype) and len(t.shape) >= least_rank)


def _rule_pointwise(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float()
    op = rng.choice(("neg", "abs", "tanh", "sigmoid", "sin", "exp"))
    return None if x is None else apply(op, apply("tanh", x) if op == "exp" else x)


def _rule_binary(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float()
    if x is None:
        return None
    y = pool.any(lambda t: is_float(t.dtype) and _broadcasts(t, x))
    op = rng.choice(("add", "mul", "sub", "max", "min", "div"))
    if op == "div":
        return apply("div", x, apply("add", apply("abs", y or x), 1.5))
    return apply(op, x, y if y is not None and rng.random() < 0.8 else 0.75)


def _broadcasts(t: X.Tensor, x: X.Tensor) -> bool:
    try:
        return np.broadcast_shapes(shape_of(t), shape_of(x)) == shape_of(x)
    except ValueError:
        return False


def _rule_select(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float(1)
    if x is None:
        return None
    d = rng.randrange(len(x.shape))
    ramp = view(X.Iota(shape_of(x)[d]), shape_of(x), [o(d)])
    return apply("select", apply("lt", ramp, rng.randrange(3)), x, apply("neg", x))


def _rule_reduce(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float(1)
    if x is None:
        return None
    dims = rng.sample(range(len(x.shape)), rng.randint(1, len(x.shape)))
    return reduce(rng.choice(("add", "max", "min", "add")), x, *dims, keep=rng.random() < 0.5)


def _rule_arg(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.any(lambda t: is_float(t.dtype) and len(t.shape) > 0 and 0 not in t.shape)
    return None if x is None else reduce(rng.choice(("argmax", "argmin")), x, rng.randrange(len(x.shape)))


def _rule_softmax(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float(1)
    return None if x is None else softmax_of(apply("tanh", x), rng.randrange(len(x.shape)))


def _rule_scan(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float(1)
    return None if x is None else X.Scan(rng.choice(("add", "max")), rng.randrange(len(x.shape)), x)


def _rule_contract(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float(2)
    if x is None or len(x.shape) > 3:
        return None
    a = "ijk"[: len(x.shape)]
    of = dict(zip(a, shape_of(x), strict=True))
    summed = rng.choice(a)
    kept = [c for c in a if c != summed and rng.random() < 0.3]
    b = [summed, "n", *kept]
    rng.shuffle(b)
    shape = tuple(of.get(c, 3) for c in b)
    same = pool.any(lambda t: is_float(t.dtype) and shape_of(t) == shape)
    y = same if same is not None else pool.fresh(shape)
    out = [c for c in (*a, "n") if c != summed]
    rng.shuffle(out)
    return contract(f"{a},{''.join(b)}->{''.join(out)}", x, y)


def _rule_self_product(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.any(lambda t: is_float(t.dtype) and len(t.shape) == 2)
    if x is None:
        return None
    spec = rng.choice(("ik,jk->ij", "ki,kj->ji"))
    return contract(spec, x, apply("tanh", x))


def _rule_chain(rng: random.Random, pool: Pool) -> X.Tensor | None:
    """Steps of a recurrence: products with one square weight on either side, each plus something of its shape."""
    x = pool.any(lambda t: is_float(t.dtype) and len(t.shape) == 2)
    if x is None:
        return None
    right = rng.random() < 0.5
    n = shape_of(x)[1 if right else 0]
    same = pool.any(lambda t: is_float(t.dtype) and shape_of(t) == (n, n))
    w = same if same is not None else pool.fresh((n, n))
    h = x
    for _ in range(rng.randint(2, 3)):
        beside = pool.any(lambda t: is_float(t.dtype) and shape_of(t) == shape_of(x)) or x
        h = apply("tanh", h) if rng.random() < 0.3 else h
        h = contract("ik,kj->ij", h, w) if right else contract("ik,kj->ij", w, h)
        h = apply("add", h, contract("ik,kj->ij", beside, w) if right and rng.random() < 0.5 else beside)
    return h


def _rule_reshape(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float(1)
    if x is None:
        return None
    size = int(np.prod(shape_of(x)))
    if not size:
        return None
    shape: list[int] = []
    left = size
    while left > 1 and len(shape) < 3:
        f = rng.choice([d for d in range(2, left + 1) if left % d == 0])
        shape.append(f)
        left //= f
    return reshape(x, *shape, *([left] if left > 1 else []))


def _rule_permute(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float(2)
    return None if x is None else permute(x, *rng.sample(range(len(x.shape)), len(x.shape)))


def _rule_move(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float(1)
    if x is None:
        return None
    d = rng.randrange(len(x.shape))
    e = shape_of(x)[d]
    start = rng.randrange(e) if e else 0
    match rng.choice(("slice", "step", "flip", "pad", "cat", "one")):
        case "slice":
            return shifted(x, d, start, e)
        case "step":
            return shifted(x, d, start, e, 2)
        case "flip":
            return flip(x, d)
        case "pad":
            return pad(x, d, rng.randrange(3), rng.randrange(3), 1.0)
        case "cat":
            return cat(x, apply("neg", x), d)
    if not e:
        return None
    kept = [k for k in range(len(x.shape)) if k != d]
    index = [T.number(start) if k == d else o(kept.index(k)) for k in range(len(x.shape))]
    return view(x, [shape_of(x)[k] for k in kept], index)


def _rule_expand(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float()
    return None if x is None or len(x.shape) > 2 else expand(x, rng.choice((2, 3)), *shape_of(x))


def _rule_gather(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.any(lambda t: is_float(t.dtype) and len(t.shape) > 0 and 0 not in t.shape)
    if x is None:
        return None
    d = rng.randrange(len(x.shape))
    n = rng.choice((2, 3))
    shape = (n, *(e for k, e in enumerate(shape_of(x)) if k != d))
    rows = pool.fresh((n,), "i64", shape_of(x)[d])
    at = view(rows, shape, [o(0)])
    rest = iter(range(1, len(shape)))
    index = [source(0, len(shape)) if k == d else o(next(rest)) for k in range(len(x.shape))]
    return view(x, shape, index, sources=(at,))


def _rule_scatter(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.any(lambda t: is_float(t.dtype) and 0 < len(t.shape) < 3 and 0 not in t.shape)
    if x is None:
        return None
    d = rng.randrange(len(x.shape))
    rank = len(x.shape)
    shape = tuple(3 if k == d else e for k, e in enumerate(shape_of(x)))
    same = pool.any(lambda t: t.dtype == x.dtype and shape_of(t) == shape)
    updates = same if same is not None else pool.fresh(shape, x.dtype)
    whole = rng.random() < 0.5
    rows = pool.fresh(shape if whole else (3,), "i64", shape_of(x)[d] + 1)
    at = rows if whole else view(rows, shape, [o(d)])
    index = tuple(plus(source(0, rank), 0) if k == d else o(k) for k in range(rank))
    return X.Scatter(rng.choice(("add", "max", None)), x, updates, index, (at,))


def _rule_convert(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float()
    return None if x is None else to(rng.choice(pool.floats), x, rng.choice(("op", "cast")))


def _rule_constant(rng: random.Random, pool: Pool) -> X.Tensor | None:
    x = pool.float()
    return None if x is None else apply("mul", x, full(rng.choice((0.5, -1.25)), x.dtype, shape_of(x)))


RULES: tuple[Rule, ...] = (
    _rule_pointwise, _rule_binary, _rule_binary, _rule_select, _rule_reduce, _rule_arg, _rule_softmax, _rule_scan,
    _rule_contract, _rule_contract, _rule_self_product, _rule_chain, _rule_reshape, _rule_reshape, _rule_permute,
    _rule_move, _rule_move, _rule_expand, _rule_gather, _rule_scatter, _rule_convert, _rule_constant,
)  # fmt: skip


def random_program(
    seed: int, size: int = 10, floats: tuple[str, ...] = ("f32", "bf16", "f16"), empty: bool = False
) -> Case:
    """A program of about `size` random nodes, and inputs for it; `empty` lets extents be 0."""
    rng = random.Random(seed)
    pool = Pool(rng, floats)
    extents = (*EXTENTS, 0) if empty else EXTENTS
    for _ in range(2):
        pool.fresh(tuple(rng.choice(extents) for _ in range(rng.randint(1, 3))))
    made: list[X.Tensor] = []
    for _ in range(size):
        t = rng.choice(RULES)(rng, pool)
        if t is not None and int(np.prod(shape_of(t))) <= LIMIT and len(t.shape) <= 4:
            pool.tensors.append(t)
            made.append(t)
    used = {x for t in made for x in t.tensors}
    ends = [t for t in made if t not in used][-3:] or pool.tensors[-1:]
    p = program(f"random_{seed}", *ends)
    return p, random_inputs(p, seed, pool.positions)


@st.composite
def programs(draw: st.DrawFn, size: int = 8) -> Case:
    """A hypothesis strategy of `random_program`s."""
    return random_program(draw(st.integers(0, 2**32)), size)
