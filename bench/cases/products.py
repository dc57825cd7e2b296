"""Matrix products, alone and with what stands before and after them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bench.cases.rows import rms
from bench.cases.spec import Built, Input, Output, Result


def _weight(*shape: int) -> Input:
    """A matrix of linear layout [out, in]."""
    return Input(shape, scale=shape[-1] ** -0.5)


def _matrix(*shape: int) -> Input:
    """A right operand [..., in, out]."""
    return Input(shape, scale=shape[-2] ** -0.5)


def _bias(n: int) -> Input:
    return Input((n,), scale=0.1)


def matmul(M: int, N: int, K: int) -> Built:
    def fn(a: torch.Tensor, b: torch.Tensor) -> Result:
        return torch.matmul(a, b)

    return Built(fn, [Input((M, K)), _matrix(K, N)], [Output((M, N))], 2.0 * M * N * K)


def linear(M: int, N: int, K: int) -> Built:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Result:
        return F.linear(x, w)

    return Built(fn, [Input((M, K)), _weight(N, K)], [Output((M, N))], 2.0 * M * N * K)


def bmm(B: int, M: int, N: int, K: int) -> Built:
    def fn(a: torch.Tensor, b: torch.Tensor) -> Result:
        return torch.bmm(a, b)

    return Built(fn, [Input((B, M, K)), _matrix(B, K, N)], [Output((B, M, N))], 2.0 * B * M * N * K)


def bias_gelu(M: int, N: int, K: int) -> Built:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Result:
        return F.gelu(F.linear(x, w, b), approximate="tanh")

    return Built(fn, [Input((M, K)), _weight(N, K), _bias(N)], [Output((M, N))], 2.0 * M * N * K)


def residual(M: int, N: int, K: int) -> Built:
    def fn(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Result:
        return F.linear(x, w) + r

    return Built(fn, [Input((M, K)), _weight(N, K), Input((M, N))], [Output((M, N))], 2.0 * M * N * K)


def relu_of_biased_rows(M: int, N: int, K: int) -> Built:
    def fn(x: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Result:
        return F.relu(torch.matmul(x + b, w))

    inputs = [Input((M, K)), Input((K,), scale=0.5), _matrix(K, N)]
    return Built(fn, inputs, [Output((M, N))], 2.0 * M * N * K)


def gated_up(M: int, N: int, K: int) -> Built:
    def fn(x: torch.Tensor, w1: torch.Tensor, w3: torch.Tensor) -> Result:
        return F.silu(x @ w1) * (x @ w3)

    return Built(fn, [Input((M, K)), _matrix(K, N), _matrix(K, N)], [Output((M, N))], 4.0 * M * N * K)


def gated_mlp(M: int, N: int, K: int) -> Built:
    def fn(x: torch.Tensor, w1: torch.Tensor, w3: torch.Tensor, w2: torch.Tensor) -> Result:
        return F.linear(F.silu(F.linear(x, w1)) * F.linear(x, w3), w2)

    inputs = [Input((M, K)), _weight(N, K), _weight(N, K), _weight(K, N)]
    return Built(fn, inputs, [Output((M, K))], 6.0 * M * N * K)


def norm_linear(M: int, N: int, K: int) -> Built:
    def fn(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> Result:
        return F.linear(rms(x, g), w)

    inputs = [Input((M, K)), Input((K,), kind="near_one"), _weight(N, K)]
    return Built(fn, inputs, [Output((M, N))], 2.0 * M * N * K)


def qkv(M: int, K: int, NQ: int, NKV: int) -> Built:
    def fn(x: torch.Tensor, *w: torch.Tensor) -> Result:
        return F.linear(x, w[0], w[3]), F.linear(x, w[1], w[4]), F.linear(x, w[2], w[5])

    widths = (NQ, NKV, NKV)
    inputs = [Input((M, K)), *(_weight(n, K) for n in widths), *(_bias(n) for n in widths)]
    return Built(fn, inputs, [Output((M, n)) for n in widths], 2.0 * M * K * (NQ + 2 * NKV))


def lora(M: int, N: int, K: int, R: int) -> Built:
    def fn(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Result:
        return x @ w + (x @ a) @ b

    inputs = [Input((M, K)), _matrix(K, N), _matrix(K, R), _matrix(R, N)]
    return Built(fn, inputs, [Output((M, N))], 2.0 * M * (N * K + K * R + R * N))


def linear_cross_entropy(M: int, K: int, V: int) -> Built:
    def fn(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> Result:
        return F.cross_entropy(F.linear(x, w).float(), target)

    inputs = [Input((M, K)), _weight(V, K), Input((M,), "i64", kind="integers", hi=V)]
    return Built(fn, inputs, [Output((), "fp32")], 2.0 * M * K * V)


def linear_logsumexp(M: int, K: int, V: int) -> Built:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Result:
        return torch.logsumexp(F.linear(x, w).float(), dim=-1)

    return Built(fn, [Input((M, K)), _weight(V, K)], [Output((M,), "fp32")], 2.0 * M * K * V)
