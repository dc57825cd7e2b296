"""Pointwise programs, folds along rows and columns, and changes of layout."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bench.cases.spec import Built, Input, Output, Result


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """The normalisation of Llama as written by hand: in f32, rounded before the weight."""
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return weight * h.to(x.dtype)


def bias_gelu_residual(M: int, N: int) -> Built:
    def fn(x: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> Result:
        return F.gelu(x + b, approximate="tanh") + r

    return Built(fn, [Input((M, N)), Input((N,)), Input((M, N))], [Output((M, N))], 12 * M * N)


def gelu_by_hand(M: int, N: int) -> Built:
    def fn(x: torch.Tensor) -> Result:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))

    return Built(fn, [Input((M, N))], [Output((M, N))], 9 * M * N)


def swiglu(M: int, N: int) -> Built:
    def fn(g: torch.Tensor, u: torch.Tensor) -> Result:
        return F.silu(g) * u

    return Built(fn, [Input((M, N)), Input((M, N))], [Output((M, N))], 5 * M * N)


def swiglu_chunks(M: int, N: int) -> Built:
    def fn(x: torch.Tensor) -> Result:
        g, u = x.chunk(2, dim=-1)
        return F.silu(g) * u

    return Built(fn, [Input((M, 2 * N))], [Output((M, N))], 5 * M * N)


def rmsnorm_by_hand(M: int, N: int) -> Built:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Result:
        return rms(x, w)

    return Built(fn, [Input((M, N)), Input((N,), kind="near_one")], [Output((M, N))], 4 * M * N)


def rmsnorm(M: int, N: int) -> Built:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Result:
        return F.rms_norm(x, (x.shape[-1],), w, 1e-6)

    return Built(fn, [Input((M, N)), Input((N,), kind="near_one")], [Output((M, N))], 4 * M * N)


def rmsnorm_default(B: int, M: int, N: int) -> Built:
    """`nn.RMSNorm(N)`: the epsilon is the dtype's."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> Result:
        return F.rms_norm(x, (x.shape[-1],), w)

    return Built(fn, [Input((B, M, N)), Input((N,), kind="near_one")], [Output((B, M, N))], 4 * B * M * N)


def add_rmsnorm(M: int, N: int) -> Built:
    def fn(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> Result:
        h = x + residual
        return rms(h, w), h

    inputs = [Input((M, N)), Input((M, N)), Input((N,), kind="near_one")]
    return Built(fn, inputs, [Output((M, N)), Output((M, N))], 5 * M * N)


def _affine(M: int, N: int) -> list[Input]:
    return [Input((M, N)), Input((N,), kind="near_one"), Input((N,), scale=0.1)]


def layernorm_by_hand(M: int, N: int) -> Built:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Result:
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * w + b

    return Built(fn, _affine(M, N), [Output((M, N))], 8 * M * N)


def layernorm(M: int, N: int) -> Built:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Result:
        return F.layer_norm(x, (x.shape[-1],), w, b, 1e-5)

    return Built(fn, _affine(M, N), [Output((M, N))], 8 * M * N)


def softmax(B: int, M: int, N: int) -> Built:
    def fn(x: torch.Tensor) -> Result:
        return F.softmax(x, dim=-1)

    return Built(fn, [Input((B, M, N), scale=2.0)], [Output((B, M, N))], 5 * B * M * N)


def masked_softmax(B: int, M: int, N: int) -> Built:
    def fn(x: torch.Tensor, mask: torch.Tensor) -> Result:
        return F.softmax(x * 0.08838834764831845 + mask, dim=-1, dtype=torch.float32).to(x.dtype)

    inputs = [Input((B, M, N), scale=11.0), Input((1, M, N), kind="mask")]
    return Built(fn, inputs, [Output((B, M, N))], 7 * B * M * N)


def cross_entropy(M: int, V: int) -> Built:
    def fn(x: torch.Tensor, target: torch.Tensor) -> Result:
        return F.cross_entropy(x.float(), target)

    inputs = [Input((M, V), scale=2.0), Input((M,), "i64", kind="integers", hi=V)]
    return Built(fn, inputs, [Output((), "fp32")], 5 * M * V)


def logsumexp(M: int, V: int) -> Built:
    def fn(x: torch.Tensor) -> Result:
        return torch.logsumexp(x.float(), dim=-1)

    return Built(fn, [Input((M, V), scale=2.0)], [Output((M,), "fp32")], 4 * M * V)


def log_softmax(M: int, V: int) -> Built:
    def fn(x: torch.Tensor) -> Result:
        return F.log_softmax(x, dim=-1)

    return Built(fn, [Input((M, V), scale=2.0)], [Output((M, V))], 5 * M * V)


def unit_rows(M: int, N: int) -> Built:
    def fn(x: torch.Tensor) -> Result:
        return x / x.float().pow(2).sum(-1, keepdim=True).sqrt().clamp_min(1e-12).to(x.dtype)

    return Built(fn, [Input((M, N))], [Output((M, N))], 3 * M * N)


def standardise(M: int, N: int) -> Built:
    def fn(x: torch.Tensor) -> Result:
        return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)

    return Built(fn, [Input((M, N))], [Output((M, N))], 6 * M * N)


def var_mean(M: int, N: int) -> Built:
    def fn(x: torch.Tensor) -> Result:
        return x.var(dim=-1), x.mean(dim=-1)

    return Built(fn, [Input((M, N))], [Output((M,)), Output((M,))], 4 * M * N)


def column_sum(M: int, N: int) -> Built:
    def fn(x: torch.Tensor) -> Result:
        return x.float().sum(dim=0)

    return Built(fn, [Input((M, N))], [Output((N,), "fp32")], M * N)


def cumsum(M: int, N: int) -> Built:
    def fn(x: torch.Tensor) -> Result:
        return torch.cumsum(x, dim=-1)

    return Built(fn, [Input((M, N))], [Output((M, N))], M * N)


def split_heads(B: int, S: int, H: int, D: int) -> Built:
    scale: float = D**-0.5

    def fn(x: torch.Tensor, b: torch.Tensor) -> Result:
        heads = (x + b).view(x.shape[0], x.shape[1], H, D).permute(0, 2, 1, 3)
        return (heads * scale).contiguous()

    return Built(fn, [Input((B, S, H * D)), Input((H * D,))], [Output((B, H, S, D))], 2 * B * S * H * D)


def gelu_transpose_add(M: int, N: int) -> Built:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Result:
        return (F.gelu(x, approximate="tanh").t() + y).contiguous()

    return Built(fn, [Input((M, N)), Input((N, M))], [Output((N, M))], 10 * M * N)


def channels_last(B: int, C: int, H: int, W: int) -> Built:
    def fn(x: torch.Tensor, s: torch.Tensor, b: torch.Tensor) -> Result:
        return F.relu(x * s[:, None, None] + b[:, None, None]).permute(0, 2, 3, 1).contiguous()

    inputs = [Input((B, C, H, W)), Input((C,), kind="near_one"), Input((C,), scale=0.1)]
    return Built(fn, inputs, [Output((B, H, W, C))], 3 * B * C * H * W)
