"""Programs in the spirit of the reported ones: mixed types, strides, scans, duplicates, values that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import torch
import torch.nn.functional as F

from bench.cases.fixtures import Fixture

Tensors = list[torch.Tensor]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def bools(*shape: int, seed: int = 0) -> torch.Tensor:
    return randn(*shape, seed=seed) > 0


def among(values: list[float], *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.tensor(values)[integers(0, len(values), *shape, seed=seed)]


def written_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.mul_(2)
    y = x[:, ::2]
    y.add_(1)
    x[0] = x.sum(0)
    return x.sum(0), y


def swapped(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return x - y, old


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    q = torch.round(x / scale).clamp(-128, 127).to(torch.int8)
    return q, q * scale


def counted(i: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kinds = torch.arange(8, device=i.device)
    return F.one_hot(i, 8).sum(0), (i[:, None] == kinds).any(0), F.one_hot(i, 8).cumsum(0) - 1


def rows_with_keys(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(x.masked_fill(~m, -inf), -1)
    return torch.where(m.any(-1, keepdim=True), p, 0.0)


def chained(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    h = F.layer_norm(x, x.shape[-1:])
    return torch.softmax(h * w + b, -1) - torch.sigmoid(h.amax(-1, keepdim=True))


def prefix_shares(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x - x.cummax(-1).values).cumsum(-1)


ROWS: dict[str, tuple[Callable[..., object], Callable[[int], Tensors]]] = {
    "mixed_types": (
        lambda a, b, c, m: ((a + b) * c - m.to(a.dtype), a * c, c + m),
        lambda n: [randn(4, n).bfloat16(), randn(n, seed=1), integers(-9, 9, 4, 1, dtype=torch.int32), bools(4, n)],
    ),
    "integers_that_wrap": (
        lambda x, y: (x.prod(-1), x.sum(-1), x * y, (x - y).to(torch.uint8), -x.abs()),
        lambda n: [integers(-128, 128, 3, n, dtype=torch.int8), integers(-128, 128, n, dtype=torch.int8, seed=1)],
    ),
    "long_products": (lambda x: (x.prod(-1), x.cumsum(-1) * 2**40), lambda n: [integers(-9, 10, 2, n)]),
    "algebra_of_bools": (
        lambda a, b: ((a & b | ~a ^ b).sum(-1), a.any(-1), b.all(0), a.logical_xor(b).float().mean(), a.cumsum(-1)),
        lambda n: [bools(5, n), bools(5, n, seed=1)],
    ),
    "places_of_ties": (
        lambda x: (x.argmax(-1), x.argmin(0), x.max(-1), x.min(0)[1], (x * 0).argmax()),
        lambda n: [among([1.0, 2.0, 2.0, -1.0], 6, n)],
    ),
    "places_of_nans": (
        lambda x: (x.argmax(-1), x.argmin(-1), x.max(0), x.amin(-1), x.cummax(-1)),
        lambda n: [among([nan, 1.0, 2.0, -inf, inf], 6, n)],
    ),
    "sums_from_the_end": (
        lambda x: (x.flip(-1).cumsum(-1).flip(-1), x.flip(0, 1).cumprod(0)),
        lambda n: [randn(3, n) * 0.9],
    ),
    "products_with_zeros": (
        lambda x: (x.cumprod(-1), x.prod(-1), x.cumprod(-1).sum(-1)),
        lambda n: [among([0.5, -1.0, 0.0, 2.0, 1.0, 1.0, 1.0], 4, n)],
    ),
    "logarithms_of_prefix_sums": (
        lambda x: (torch.logcumsumexp(x, -1), torch.logaddexp(x, x.flip(-1))),
        lambda n: [among([-inf, 1.0, 80.0, -5.0], 3, n)],
    ),
    "running_maxima": (
        lambda x: (x.cummax(-1), x.cummin(0), x - x.cummax(-1).values),
        lambda n: [among([1.0, 2.0, 2.0, -1.0, 0.0], 4, n)],
    ),
    "prefix_shares": (prefix_shares, lambda n: [randn(3, n) * 9]),
    "sorted": (lambda x: (torch.topk(x, 1).values, x.sort(-1)[0], x.median() + 1), lambda n: [randn(3, n)]),
    "variances_of_several_axes": (
        lambda x: (x.var((0, 2), correction=0, keepdim=True), x.std((1, 2)), torch.var_mean(x, 1)),
        lambda n: [randn(3, 4, n) + 100],
    ),
    "duplicates_added": (
        lambda x, i, u: (x.index_add(0, i, u), x.scatter_add(0, i[:, None].expand(-1, 3), u), x.index_fill(0, i, 2)),
        lambda n: [randn(8, 3), integers(0, 8, n), randn(n, 3, seed=1)],
    ),
    "duplicates_reduced": (
        lambda x, i, u: (
            x.scatter_reduce(0, i, u, "amax", include_self=False),
            x.scatter_reduce(0, i, u, "prod"),
            x.index_put((i,), u, accumulate=True),
        ),
        lambda n: [randn(8), integers(0, 8, n), randn(n, seed=1)],
    ),
    "gathered": (
        lambda x, i: (x.gather(1, i), torch.take_along_dim(x, i, 1).sum(-1), x[i[0] % 3, i[1]]),
        lambda n: [randn(5, n), integers(0, n, 5, 7)],
    ),
    "halves_that_overflow": (
        lambda x: ((x.half() * 300).sum(-1), x.half().mean(-1), (x.half() * 300).float().sum(-1), x.half().square()),
        lambda n: [randn(3, n) * 200 + 100],
    ),
    "signs_of_zero": (
        lambda x: (x.sum(-1), x * -0.0, x.sign().reciprocal(), x.amax(-1)),
        lambda n: [among([-0.0, -0.0, 0.0], 3, n)],
    ),
    "written_views": (written_views, lambda n: [randn(3, n)]),
    "swapped": (swapped, lambda n: [randn(3, n), randn(3, n, seed=1)]),
    "returned_views": (
        lambda x: (x.T, (x + 1).T, (x * 2)[::2], x.sum(0).expand(3, -1), (x - 1).unflatten(0, (2, 2))),
        lambda n: [randn(4, n)],
    ),
    "numbers_as_tensors": (
        lambda x, s, c: (x.sum() * s, torch.where(c, x, s), x.mean() > s, s - x.amax(), torch.where(c, s, 2.0)),
        lambda n: [randn(n), torch.tensor(0.5), torch.tensor(False)],
    ),
    "nothing": (
        lambda x, w: (x[:, :0].sum(-1), x[:, :0].prod(-1), x[:0].mean(), x[:, :0] @ w[:0], torch.cat([x[:0], x])),
        lambda n: [randn(3, n), randn(n, 2)],
    ),
    "windows": (
        lambda x: (F.pad(x, (2, 2)).unfold(-1, 3, 1).mean(-1), F.pad(x, (1, 1), value=-inf).unfold(-1, 3, 2).amax(-1)),
        lambda n: [randn(3, n)],
    ),
    "distances": (
        lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1).sqrt().amin(-1),
        lambda n: [randn(6, n), randn(5, n, seed=1)],
    ),
    "quotients": (
        lambda x, y: (x // 3, x % -3, torch.fmod(x, 3), torch.div(y, x, rounding_mode="trunc"), torch.remainder(x, -2.5)),
        lambda n: [among([-7.0, 7.0, 2.5, -0.5, 3.0], n), among([5.0, -5.0, 1.5], n)],
    ),
    "quotients_of_integers": (
        lambda x, y: (x // y, x % y, torch.fmod(x, y), x / y, torch.div(x, y, rounding_mode="trunc"), x.float() ** 2),
        lambda n: [integers(-20, 20, n), integers(1, 9, n, seed=1) * (2 * integers(0, 2, n, seed=2) - 1)],
    ),
    "shifted_bits": (
        lambda x, y: ((x << 3) >> 1, (x ^ y) & 15, ~x | y, x >> y.clamp(0, 7)),
        lambda n: [integers(-200, 200, n, dtype=torch.int32), integers(0, 99, n, dtype=torch.int32, seed=1)],
    ),
    "clamped_between": (
        lambda x, a, b: (x.clamp(a, b), torch.lerp(a, b, x), torch.addcmul(x, a, b, value=-2), x.clamp(max=a).sum(-1)),
        lambda n: [among([nan, 1.0, -2.0, inf], 3, n), among([0.0, nan, -1.0], n), among([1.0, 2.0, -inf], 3, 1)],
    ),
    "masked_sum_of_logarithms": (
        lambda x: (torch.where(x > 0, x.log(), 0.0).sum(-1), (x.sqrt().nan_to_num(7.0) * (x > 0)).mean(-1)),
        lambda n: [among([-1.0, 0.0, 2.0, 5.0], 3, n)],
    ),
    "softmax_down_columns": (
        lambda x, m: torch.softmax((x + (~m).to(x.dtype) * torch.finfo(x.dtype).min).T, 0),
        lambda n: [randn(4, n), torch.arange(n) < (n + 1) // 2],
    ),
    "quantised": (quantised, lambda n: [randn(3, n)]),
    "counted": (
        counted,
        lambda n: [integers(0, 8, n)],
    ),
    "causal_products": (
        lambda q, k, v: (q @ k.mT).tril() @ v,
        lambda n: [randn(1, n, 4), randn(1, n, 4, seed=1), randn(1, n, 3, seed=2)],
    ),
    "places_in_a_mask": (
        lambda m: ((m.cumsum(-1) - 1).masked_fill(~m, -1), m.int().argmax(-1), (m.cumsum(-1) > 2).sum(-1)),
        lambda n: [bools(3, n)],
    ),
    "rolled": (lambda x: (x.roll(3, -1) + x.roll(-2, 0), x.diff(dim=-1), x.roll(1)), lambda n: [randn(4, n)]),
    "chains_of_products": (
        lambda a, b, c: torch.einsum("bij,bjk,bkl->bil", a, b, c),
        lambda n: [randn(2, 3, n) / n, randn(2, n, 4, seed=1), randn(2, 4, 3, seed=2)],
    ),
    "products_of_integers": (
        lambda a, b: (a @ b, (a * 2**40) @ b, torch.einsum("ij,jk->", a, b)),
        lambda n: [integers(-99, 99, 4, n), integers(-99, 99, n, 3, seed=1)],
    ),
    "norms": (
        lambda x: (x.norm(dim=-1), x.norm(inf, -1), x.norm(1, -1), x.norm(3, -1), F.normalize(x, dim=-1)),
        lambda n: [randn(3, n)],
    ),
    "sums_without_nans": (
        lambda x: (x.nansum(-1), x.nanmean(-1), x.isnan().any(-1), x.nan_to_num(1.0, 2.0, -2.0).sum(0)),
        lambda n: [among([nan, 1.0, inf, -3.0], 3, n)],
    ),
    "converted": (
        lambda x: (x.to(torch.int32), x.to(torch.int64).to(torch.uint8), x.bool(), x.to(torch.int8).float().sum(-1)),
        lambda n: [among([-1.7, 1.7, 0.3, 100.0, -0.2], 3, n)],
    ),
    "normalised_groups": (
        lambda x, w: (F.group_norm(x, 2, w, w), F.batch_norm(x, None, None, training=True), F.instance_norm(x)),
        lambda n: [randn(3, 4, n + 1) * 3 + 5, randn(4, seed=1)],
    ),
    "losses": (
        lambda x, t, w: (
            F.cross_entropy(x, t, w, ignore_index=0, label_smoothing=0.1),
            F.cross_entropy(x, t, reduction="none"),
            F.kl_div(F.log_softmax(x, -1), F.softmax(-x, -1), reduction="sum"),
        ),
        lambda n: [randn(6, n), integers(0, n, 6), randn(n, seed=1).abs()],
    ),
    "rows_with_keys": (rows_with_keys, lambda n: [randn(4, n), torch.tril(torch.ones(4, n, dtype=torch.bool), -1)]),
    "diagonals": (
        lambda x: (x.diagonal().sum(), x.trace(), torch.diag(x[0]), x.triu(1).sum(-1), x.tril().amax(0)),
        lambda n: [randn(min(n, 40), min(n, 40))],
    ),
    "repeated": (
        lambda x: (x.repeat_interleave(2, -1).cumsum(-1), x.tile(2, 3).sum(0), x.repeat(2, 1)[1::2]),
        lambda n: [randn(3, n)],
    ),
    "powers": (
        lambda x, y: (x**2, x**0, x.abs() ** y, 2**y, x.pow(-1), torch.float_power(x.abs(), 0.5)),
        lambda n: [among([0.0, -2.0, 3.0, inf], n), among([0.0, 0.5, -1.0], n)],
    ),
    "first_above": (
        lambda x: ((x.cumsum(-1) > 1).int().argmax(-1), torch.where(x.cumsum(-1) > 1, inf, x).amin(-1)),
        lambda n: [randn(4, n).abs()],
    ),
    "chained": (chained, lambda n: [randn(3, n), randn(n, seed=1), randn(n, seed=2)]),
    "scores_of_huge_rows": (
        lambda x, w: torch.softmax(x * w.exp() * 1e6, -1) @ x.mT,
        lambda n: [randn(3, n), randn(3, 1, seed=1)],
    ),
}  # fmt: skip

FURTHER = tuple(Fixture(name, "", fn, make, 32) for name, (fn, make) in ROWS.items())  # type: ignore[arg-type]
