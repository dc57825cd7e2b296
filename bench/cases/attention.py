"""Attention as people write it by hand, and through the library's call."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from bench.cases.spec import Built, Input, Output, Result


def pairs(S: int, L: int, causal: bool = False, window: int = 0) -> int:
    """How many (query, key) pairs the mask leaves."""
    if not causal:
        return S * L
    lengths = (i + 1 + L - S for i in range(S))
    return sum(min(n, window) if window else n for n in lengths)


def flops(B: int, H: int, D: int, kept: int) -> float:
    """Two products of depth D a kept pair."""
    return 4.0 * B * H * D * kept


def repeat_heads(x: torch.Tensor, n: int) -> torch.Tensor:
    """Each key or value head `n` times in a row, as transformers writes it."""
    if n == 1:
        return x
    b, h, s, d = x.shape
    return x[:, :, None, :, :].expand(b, h, n, s, d).reshape(b, h * n, s, d)


def _qkv(B: int, H: int, HK: int, S: int, L: int, D: int) -> list[Input]:
    return [Input((B, H, S, D)), Input((B, HK, L, D)), Input((B, HK, L, D))]


def by_hand(B: int, H: int, HK: int, S: int, L: int, D: int, causal: bool = True) -> Built:
    repeat = H // HK

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> Result:
        k, v = repeat_heads(k, repeat), repeat_heads(v, repeat)
        scores = torch.matmul(q, k.transpose(-2, -1)) * D**-0.5
        if mask is not None:
            scores = scores + mask
        return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)

    inputs = _qkv(B, H, HK, S, L, D) + [Input((1, 1, S, L), kind="mask")] * causal
    return Built(fn, inputs, [Output((B, H, S, D))], flops(B, H, D, pairs(S, L, causal)))


def textbook(B: int, H: int, HK: int, S: int, L: int, D: int) -> Built:
    """No mask, weights in the working dtype."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Result:
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v

    return Built(fn, _qkv(B, H, HK, S, L, D), [Output((B, H, S, D))], flops(B, H, D, S * L))


def library(B: int, H: int, HK: int, S: int, L: int, D: int, causal: bool = True) -> Built:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Result:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=H != HK)

    return Built(fn, _qkv(B, H, HK, S, L, D), [Output((B, H, S, D))], flops(B, H, D, pairs(S, L, causal)))


def windowed(B: int, H: int, HK: int, S: int, L: int, D: int, W: int) -> Built:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Result:
        scores = torch.matmul(q, k.transpose(-2, -1)) * D**-0.5 + mask
        return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)

    inputs = [*_qkv(B, H, HK, S, L, D), Input((1, 1, S, L), kind="mask", hi=W)]
    return Built(fn, inputs, [Output((B, H, S, D))], flops(B, H, D, pairs(S, L, True, W)))


def softcapped(B: int, H: int, HK: int, S: int, L: int, D: int, cap: float = 50.0) -> Built:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Result:
        scores = torch.tanh(torch.matmul(q, k.transpose(-2, -1)) * D**-0.5 / cap) * cap
        return torch.matmul(F.softmax(scores + mask, dim=-1, dtype=torch.float32).to(q.dtype), v)

    inputs = [*_qkv(B, H, HK, S, L, D), Input((1, 1, S, L), kind="mask")]
    return Built(fn, inputs, [Output((B, H, S, D))], flops(B, H, D, pairs(S, L, True)))


def sloped(B: int, H: int, HK: int, S: int, L: int, D: int) -> Built:
    """Causal, with a bias linear in the distance (ALiBi)."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> Result:
        i = torch.arange(q.shape[-2], device=q.device)[:, None]
        j = torch.arange(k.shape[-2], device=q.device)[None, :]
        bias = (slopes.float()[:, None, None] * (j - i).float()).masked_fill(j > i, float("-inf"))
        scores = torch.matmul(q, k.transpose(-2, -1)).float() * D**-0.5 + bias
        return torch.matmul(F.softmax(scores, dim=-1).to(q.dtype), v)

    inputs = [*_qkv(B, H, HK, S, L, D), Input((H,), kind="slopes")]
    return Built(fn, inputs, [Output((B, H, S, D))], flops(B, H, D, pairs(S, L, True)))


def softmax_product(B: int, M: int, L: int, D: int) -> Built:
    def fn(x: torch.Tensor, v: torch.Tensor) -> Result:
        return F.softmax(x, dim=-1) @ v

    inputs = [Input((B, M, L), scale=2.0), Input((B, L, D))]
    return Built(fn, inputs, [Output((B, M, D))], 2.0 * B * M * L * D)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """(-second half, first half)."""
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-b, a), dim=-1)


def rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary positions on queries and keys."""
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def _tables(S: int, D: int) -> list[Input]:
    return [Input((1, 1, S, D), kind="cos"), Input((1, 1, S, D), kind="sin")]


def rotary(B: int, H: int, HK: int, S: int, D: int) -> Built:
    shapes = ((B, H, S, D), (B, HK, S, D))
    return Built(rope, [*map(Input, shapes), *_tables(S, D)], [*map(Output, shapes)], 4 * B * (H + HK) * S * D)


def rotary_attention(B: int, H: int, HK: int, S: int, D: int) -> Built:
    """[B, S, H*D] projections, heads, rotary positions, causal attention, [B, S, H*D]."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Result:
        b, s, _ = q.shape
        q = q.view(b, s, H, D).transpose(1, 2)
        k = k.view(b, s, HK, D).transpose(1, 2)
        v = v.view(b, s, HK, D).transpose(1, 2)
        q, k = rope(q, k, cos, sin)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=H != HK)
        return o.transpose(1, 2).reshape(b, s, H * D)

    inputs = [Input((B, S, h * D)) for h in (H, HK, HK)] + _tables(S, D)
    return Built(fn, inputs, [Output((B, S, H * D))], flops(B, H, D, pairs(S, S, True)))
