"""Every rule against eager PyTorch, by numbers: values, dtypes, shapes and strides, without calls to eager."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.eggtile.capture_check import check

NAN, INF = math.nan, math.inf
FLOATS = [torch.float32, torch.bfloat16, torch.float64]
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.5, 3.0])


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def randint(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


UNARY = (
    "abs exp exp2 expm1 log log2 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh sigmoid erf neg "
    "isnan isinf isfinite isposinf floor ceil trunc round sign frac square nan_to_num logit deg2rad"
)
ACTIVATIONS = (
    "relu relu6 silu mish hardswish hardsigmoid hardtanh elu selu celu softplus logsigmoid leaky_relu softshrink "
    "tanhshrink softsign gelu"
)
BINARY = (
    "add sub mul div floor_divide remainder fmod atan2 maximum minimum fmax pow eq ne lt le gt ge logical_and "
    "logical_or logical_xor"
)


@pytest.mark.parametrize("dtype", FLOATS)
def test_unary_operators(dtype: torch.dtype) -> None:
    functions = [getattr(torch, name) for name in UNARY.split()]
    check(lambda x, y: [g(t) for g in functions for t in (x, y)], SPECIAL.to(dtype), randn(3, 5).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_activations(dtype: torch.dtype) -> None:
    functions = [getattr(F, name) for name in ACTIVATIONS.split()]
    check(lambda x: [g(x) for g in functions], (randn(4, 7) * 4).to(dtype))
    check(
        lambda x: [F.relu(x), F.hardtanh(x), F.gelu(x, approximate="tanh"), F.leaky_relu(x)], SPECIAL.to(dtype)[:1]
    )


OPERANDS = [
    randn(3, 5),
    randn(3, 1).bfloat16(),
    torch.tensor(2.5),
    randint(7, 3, 5) + 1,
    (randint(7, 5) + 1).int(),
    randint(2, 3, 5).bool(),
    (randint(7, 5) + 1).to(torch.uint8),
]


@pytest.mark.parametrize("x", OPERANDS, ids=lambda t: f"{t.dtype}")
def test_binary_operators_promote_their_operands(x: torch.Tensor) -> None:
    def defined(name: str, y: torch.Tensor) -> bool:
        try:
            out = getattr(torch, name)(x, y)
        except RuntimeError:
            return False
        whole = not out.dtype.is_floating_point
        return not (
            whole and (name == "pow" or (name in ("floor_divide", "remainder", "fmod") and bool((y == 0).any())))
        )

    pairs = [(name, k) for name in BINARY.split() for k, y in enumerate(OPERANDS) if defined(name, y)]
    check(lambda x, *ys: [getattr(torch, name)(x, ys[k]) for name, k in pairs], x, *OPERANDS)


WITH_NUMBER: list[Callable[[torch.Tensor, float], torch.Tensor]] = [
    lambda x, s: x + s,
    lambda x, s: s - x,
    lambda x, s: x * s,
    lambda x, s: x / s,
    lambda x, s: s / x,
    lambda x, s: x**s,
    lambda x, s: x % s,
    lambda x, s: x // s,
    lambda x, s: x == s,
    lambda x, s: x < s,
    lambda x, s: x.clamp(-s, s),
    lambda x, s: torch.add(x, x, alpha=s),
    lambda x, s: x.masked_fill(x > 0, s),
    lambda x, s: torch.where(x > 0, s, x),
    lambda x, s: torch.div(x, s, rounding_mode="trunc"),
]


@pytest.mark.parametrize("x", [*OPERANDS, torch.tensor(1.5, dtype=torch.bfloat16)], ids=lambda t: f"{t.dtype}")
def test_operators_with_numbers(x: torch.Tensor) -> None:
    def defined(g: Callable[[torch.Tensor, float], torch.Tensor], s: float) -> bool:
        try:
            g(x, s)
        except RuntimeError:
            return False
        return True

    chosen = [(g, s) for g in WITH_NUMBER for s in (2, 0.1, -3, 0.5, 3) if defined(g, s)]
    check(lambda x: [g(x, s) for g, s in chosen], x)


def test_integers_wrap_and_bits_combine() -> None:
    check(lambda x: (x & 3, x | 4, x ^ x, ~x, x << 2, x >> 1, x**5, -x), randint(9, 4, 3))
    check(lambda p, q: (p & q, p | ~q, p ^ q, p + q, p * q, p.sum(0)), randint(2, 5).bool(), randint(2, 5).bool())
    check(lambda x: ((x + x).to(torch.int16), torch.neg(x) < 4), torch.tensor([128, 6], dtype=torch.uint8))
    check(lambda x: (x + x).to(torch.int64), torch.tensor([2**31 - 1], dtype=torch.int32))
    check(lambda x: (x.half(), x.int(), x.bool(), x.to(torch.uint8), x.bfloat16().float()), randn(9).abs() * 9)


SHAPES: list[Callable[[torch.Tensor], object]] = [
    lambda x: (x.reshape(24, 5), x.reshape(2, 2, 6, 5), x.reshape(3, 8, 5), x.transpose(0, 2).reshape(10, 12)),
    lambda x: (x.permute(2, 0, 1), x.mT, x.unsqueeze(-1), x[:, :1].squeeze(1), x.flatten(1), x.T, x.movedim(0, 2)),
    lambda x: (x[:, None].expand(4, 3, 6, 5), x.expand(2, -1, -1, -1), x.repeat(2, 1, 3), x.tile(2, 1)),
    lambda x: (x[1:3, ::2, -2:], x[:, -1], x[2, 3], x[..., 0], x.narrow(1, 2, 3), x.diagonal(1, 0, 2), x[:0]),
    lambda x: (x.chunk(4, 1), x.split([1, 2, 3], 1), x.unbind(1), x.tensor_split(3, 2)),
    lambda x: (x.flip(0, 2), x.roll((1, -2), (0, 1)), x.roll(3), torch.rot90(x), x.repeat_interleave(3, 1)),
    lambda x: (x.unfold(1, 3, 2), torch.diag_embed(x, 1), x.tril(1), x.triu(-1), x.unflatten(1, (2, 3))),
    lambda x: (torch.cat([x, x[:, :2], x[:, 5:]], 1), torch.cat([x, x.half()], -1), torch.stack([x, x * 2], -1)),
    lambda x: (
        torch.hstack([x, x]),
        torch.vstack([x[0], x[1]]),
        torch.dstack([x[0], x[1]]),
        torch.kron(x[0], x[1]),
    ),
    lambda x: (F.pad(x, (1, 2, 0, 3), value=1.5), F.pad(x, (-1, 2, 1, -1)), F.pad(x, (1, -1))),
    lambda x: (F.pad(x, (1, 2), "reflect"), F.pad(x, (1, 4), "replicate"), F.pad(x, (3, 2), "circular")),
    lambda x: (x.slice_scatter(x[:, :2], 1, 1, 5, 2), x.select_scatter(x[:, 0], 1, -2), x.diff(dim=1)),
    lambda x: (x + torch.arange(5), x + torch.arange(1, 10, 2), x + torch.arange(0.0, 1.0, 0.2), torch.eye(5, 6)),
    lambda x: (
        torch.zeros_like(x),
        x.new_full((3,), 7.0),
        torch.full((5,), 2.5),
        torch.linspace(0, 1, 7),
        x.new_ones(2),
    ),
    lambda x: (
        F.one_hot(torch.arange(5), 7),
        torch.tril(torch.ones(5, 5)),
        torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
    ),
]


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_operators_that_move_elements(number: int) -> None:
    check(SHAPES[number], randn(4, 6, 5))
    check(SHAPES[number], randn(6, 5, 4).permute(2, 0, 1))


FOLDS: list[Callable[[torch.Tensor], object]] = [
    lambda x: (x.sum(), x.sum(1), x.sum((0, -1), keepdim=True), x.mean(), x.mean((0, 1)), x.mean(-1, True)),
    lambda x: (x.prod(1, True), x.amax(), x.amax((0, 2), True), x.amin(1), x.max(), x.max(1), x.min(-1, True)),
    lambda x: ((x > 0).any(), (x > -1).all(1), x.any(1), x.argmax(), x.argmax(1), x.argmin(-1, True), x.nansum(1)),
    lambda x: (x.var(), x.var(1), x.var(1, unbiased=False), x.var((0, 1), correction=2), x.std(-1, keepdim=True)),
    lambda x: (
        torch.var_mean(x, 1),
        torch.std_mean(x, (0, 2), keepdim=True),
        x.logsumexp(1),
        x.logsumexp((0, 1), True),
    ),
    lambda x: (
        x.cumsum(1),
        x.cumprod(-1),
        x.norm(),
        x.norm(1, 1),
        torch.linalg.vector_norm(x, 3, 1),
        F.normalize(x),
    ),
    lambda x: (
        torch.linalg.vector_norm(x, INF, 1),
        torch.linalg.vector_norm(x, 0, 1),
        F.cosine_similarity(x[0], x[1]),
    ),
    lambda x: (x.softmax(1), x.log_softmax(0), F.softmin(x, 1), x.float().softmax(0, dtype=torch.bfloat16)),
    lambda x: (F.layer_norm(x, (5,)), F.layer_norm(x, (6, 5), x[0], x[1]), F.rms_norm(x, (5,), x[0, 0], 1e-3)),
    lambda x: (
        F.group_norm(x, 3),
        F.group_norm(x, 2, x[0, :, 0], x[1, :, 0]),
        F.instance_norm(x),
        F.rms_norm(x, (5,)),
    ),
    lambda x: (F.batch_norm(x, x[0, :, 0], x[1, :, 0].abs(), x[0, :, 1], x[0, :, 2]), F.mse_loss(x, x * 2)),
    lambda x: (F.l1_loss(x, x * 2, reduction="sum"), F.smooth_l1_loss(x, x * 2, beta=0.5), F.huber_loss(x, x * 3)),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("number", range(len(FOLDS)))
def test_folds(number: int, dtype: torch.dtype) -> None:
    check(FOLDS[number], randn(4, 6, 5).to(dtype))


def test_folds_of_narrow_integers_and_with_a_dtype() -> None:
    for x in (randint(9, 5, 6), randint(9, 5, 6).int(), randint(9, 5, 6).to(torch.uint8), randint(2, 5, 6).bool()):
        check(lambda x: (x.sum(), x.sum(0), x.prod(), x.cumsum(0), x.any(0), x.float().mean(), x.amax(1)), x)
    x = randn(5, 6).bfloat16()
    check(
        lambda x: (x.sum(0, dtype=torch.float32), x.softmax(0, dtype=torch.float32), x.sum(0, dtype=torch.int64)), x
    )


def test_tensors_without_dimensions_and_without_elements() -> None:
    point = torch.tensor(2.5)
    check(
        lambda x: (x.sum(), x.sum(0), x.softmax(0), x.max(0), x.argmax(), x.cumsum(0), x.mean(), x.expand(3, 2)),
        point,
    )
    check(
        lambda x: (x.var(), x.logsumexp(0), x.view(1, 1), x[None] + 1, x.prod(0), x.gather(0, torch.tensor(0))),
        point,
    )
    for x in (torch.empty(0, 3), torch.empty(3, 0)):
        check(lambda x: (x + 1, x.sum(), x.sum(0), x.sum(1), x.mean(), torch.var_mean(x), x.softmax(1)), x)
        check(
            lambda x: (torch.cat([x, x]), x.t(), x.reshape(-1), x @ torch.ones(x.shape[1], 2), F.pad(x, (1, 1))), x
        )
    check(lambda x: (x.softmax(-1) + x.sum(0), x * 2), randn(1, 6).expand(4, 6))
    check(lambda x: (x.softmax(-1), x * 2), randn(6, 14)[1:, 1::2])


def test_equal_values_are_ordered_by_position_and_nan_is_greatest() -> None:
    captured = check(lambda x: torch.topk(x, 3), torch.tensor([1.0, NAN, 3.0, -INF]))
    assert captured.program.notes == ()
    check(
        lambda x: (x.topk(3, 1), x.topk(2, -1, largest=False), x.sort(1), x.sort(0, descending=True)),
        randn(4, 6, 5),
    )
    check(lambda x: x.sort(stable=True), torch.tensor([2, 1, 2, 1, 0]))


PRODUCTS: list[tuple[Callable[..., object], list[tuple[int, ...]]]] = [
    (torch.mm, [(3, 4), (4, 5)]),
    (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    (torch.mv, [(3, 4), (4,)]),
    (torch.dot, [(4,), (4,)]),
    (torch.outer, [(3,), (4,)]),
    (torch.matmul, [(4,), (2, 4, 5)]),
    (torch.matmul, [(2, 3, 4), (4,)]),
    (torch.matmul, [(2, 1, 3, 4), (5, 4, 6)]),
    (torch.matmul, [(3, 4), (2, 2, 4, 6)]),
    (torch.matmul, [(3, 1), (1, 5)]),
    (lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2), [(5,), (3, 4), (4, 5)]),
    (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    (torch.addmv, [(3,), (3, 4), (4,)]),
    (F.linear, [(2, 3, 4), (5, 4), (5,)]),
    (F.linear, [(3, 4), (4,)]),
    (lambda a, b: torch.tensordot(a, b, dims=2), [(2, 3, 4), (3, 4, 5)]),
]
EQUATIONS: dict[str, list[tuple[int, ...]]] = {
    "ij,jk": [(3, 4), (4, 5)],
    "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
    "ij->ji": [(3, 4)],
    "ii->i": [(3, 3)],
    "ii": [(3, 3)],
    "ij,ij->": [(3, 4), (3, 4)],
    "...ij,...jk->...ik": [(2, 3, 4), (4, 5)],
    "ij,jk,kl->il": [(3, 4), (4, 5), (5, 2)],
    "ab,cd->ac": [(3, 4), (5, 6)],
    "i,i,i->i": [(3,), (3,), (3,)],
    "...d->...": [(2, 3, 4)],
    "ti,taoi->tao": [(3, 4), (3, 2, 5, 4)],
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_products(dtype: torch.dtype) -> None:
    for function, shapes in PRODUCTS:
        check(lambda *a, f=function: f(*a), *[randn(*s, seed=k).to(dtype) for k, s in enumerate(shapes)])


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str) -> None:
    check(lambda *a: torch.einsum(equation, *a), *[randn(*s, seed=k) for k, s in enumerate(EQUATIONS[equation])])


def float_mask(q: torch.Tensor) -> torch.Tensor:
    return torch.zeros(5, 7, dtype=q.dtype).masked_fill(torch.ones(5, 7).tril(-1).bool(), -INF)


ATTENTION: dict[str, Callable[..., torch.Tensor]] = {
    "plain": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "scale": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
    "grouped": lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
    "bool_mask": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(5, 7).tril(-1).bool()),
    "float_mask": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, float_mask(q)),
    "three_dimensions": lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ATTENTION)
def test_attention(kind: str, dtype: torch.dtype) -> None:
    shapes = ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6))
    check(ATTENTION[kind], *[randn(*s, seed=k).to(dtype) for k, s in enumerate(shapes)])


def test_a_row_that_attends_to_nothing_is_zero() -> None:
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    q = randn(1, 1, 4, 16)
    check(lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), q, mask)
    check(lambda x: x.softmax(-1), torch.full((2, 3), -INF))


@pytest.mark.parametrize("dtype", FLOATS)
def test_class_losses(dtype: torch.dtype) -> None:
    x, t = randn(3, 6, 4).to(dtype), randint(6, 3, 4)
    weight = randn(6).abs().to(dtype)
    check(lambda x, t: (F.cross_entropy(x, t), F.cross_entropy(x, t, reduction="none", ignore_index=2)), x, t)
    check(
        lambda x, t, w: (F.cross_entropy(x, t, w, ignore_index=1), F.nll_loss(x.log_softmax(1), t, w)), x, t, weight
    )
    check(lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1, reduction="sum"), x, t, weight)
    check(lambda x, w: F.cross_entropy(x, x.softmax(1), w, label_smoothing=0.2), x, weight)
    check(lambda x, t: F.cross_entropy(x[0, :, 0], t[0, 0]), x, t)


ROWS = torch.tensor([0, -1, 2])
GATHERS: list[Callable[[torch.Tensor], object]] = [
    lambda x: (x[ROWS], x[torch.tensor([0, -1]), torch.tensor([1, -2])], x[:, torch.tensor([[0, -1], [1, 2]])]),
    lambda x: (x[torch.tensor([0, 1]), :, torch.tensor([1, 2])], x[torch.arange(5)[:, None], torch.arange(3)]),
    lambda x: (x[..., torch.tensor([0, -1], dtype=torch.int32)], x.index_select(1, torch.tensor([0, 3, 3]))),
    lambda x: (x.gather(1, torch.zeros(5, 3, 4, dtype=torch.long) + 2), torch.take_along_dim(x, x.argsort(1), 1)),
    lambda x: F.embedding(torch.tensor([[1, 2], [0, 4]]), x[:, :, 0]),
    lambda x: (torch.zeros(5, 6, 4).scatter(1, x.argsort(1), x), x.scatter(1, torch.zeros(5, 1, 4).long(), 7.0)),
    lambda x: (
        x.scatter_add(1, torch.ones(5, 6, 4).long(), x),
        x.scatter_reduce(1, torch.ones(5, 3, 4).long(), x, "amax"),
    ),
    lambda x: (x.index_add(1, torch.tensor([1, 1, 2]), x[:, :3]), x.index_copy(1, torch.tensor([1, 0]), x[:, :2])),
    lambda x: (x.index_fill(1, torch.tensor([1, 0]), 3.0), x.index_put((ROWS,), x[0])),
    lambda x: x.index_put((torch.tensor([1, 1]),), x[:2], accumulate=True),
]


@pytest.mark.parametrize("number", range(len(GATHERS)))
def test_gathers_and_scatters(number: int) -> None:
    check(GATHERS[number], randn(5, 6, 4))
