"""Decoder layers and mixtures of experts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from bench.cases.attention import flops, pairs, rope
from bench.cases.rows import rms
from bench.cases.spec import Built, Input, Output, Result


class RMSNorm(nn.Module):
    """`rows.rms` with a weight."""

    def __init__(self, n: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms(x, self.weight, self.eps)


class DecoderLayer(nn.Module):
    """A Llama or Qwen layer; with past keys and values, one decoding step."""

    def __init__(self, hidden: int, inter: int, heads: int, kv_heads: int, head_dim: int, qkv_bias: bool) -> None:
        super().__init__()
        self.h, self.hk, self.d = heads, kv_heads, head_dim
        self.input_layernorm = RMSNorm(hidden)
        self.q_proj = nn.Linear(hidden, heads * head_dim, bias=qkv_bias)
        self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=qkv_bias)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)
        self.post_attention_layernorm = RMSNorm(hidden)
        self.gate_proj = nn.Linear(hidden, inter, bias=False)
        self.up_proj = nn.Linear(hidden, inter, bias=False)
        self.down_proj = nn.Linear(inter, hidden, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        past_k: torch.Tensor | None = None,
        past_v: torch.Tensor | None = None,
    ) -> torch.Tensor:
        b, s, _ = x.shape
        r = x
        x = self.input_layernorm(x)
        q = self.q_proj(x).view(b, s, self.h, self.d).transpose(1, 2)
        k = self.k_proj(x).view(b, s, self.hk, self.d).transpose(1, 2)
        v = self.v_proj(x).view(b, s, self.hk, self.d).transpose(1, 2)
        q, k = rope(q, k, cos, sin)
        if past_k is not None and past_v is not None:
            k = torch.cat([past_k, k], dim=2)
            v = torch.cat([past_v, v], dim=2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=past_k is None, enable_gqa=self.h != self.hk)
        x = r + self.o_proj(o.transpose(1, 2).reshape(b, s, self.h * self.d))
        r = x
        x = self.post_attention_layernorm(x)
        y: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return r + y


def decoder(B: int, S: int, L: int, hidden: int, inter: int, H: int, HK: int, D: int, bias: bool) -> Built:
    """A layer over S tokens with L past ones."""
    with torch.device("meta"):
        module = DecoderLayer(hidden, inter, H, HK, D, bias)
    inputs = [Input((B, S, hidden)), *(Input((1, 1, S, D), kind=kind, hi=L) for kind in ("cos", "sin"))]
    inputs += [Input((B, HK, L, D))] * (2 if L else 0)
    matrices = hidden * (H + 2 * HK) * D + H * D * hidden + 3 * hidden * inter
    elements = (
        sum(p.numel() for p in module.parameters()) + sum(math.prod(t.shape) for t in inputs) + B * S * hidden
    )
    work = 2.0 * B * S * matrices + flops(B, H, D, pairs(S, S + L, True))
    return Built(module, inputs, [Output((B, S, hidden))], work, 2.0 * elements)


class ExpertLoop(nn.Module):
    """The sparse block of Mixtral with the data-dependent loop of transformers."""

    def __init__(self, hidden: int, inter: int, experts: int, topk: int) -> None:
        super().__init__()
        self.experts, self.topk = experts, topk
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.w1 = nn.ModuleList([nn.Linear(hidden, inter, bias=False) for _ in range(experts)])
        self.w3 = nn.ModuleList([nn.Linear(hidden, inter, bias=False) for _ in range(experts)])
        self.w2 = nn.ModuleList([nn.Linear(inter, hidden, bias=False) for _ in range(experts)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = F.softmax(self.gate(x), dim=1, dtype=torch.float32)
        w, chosen = torch.topk(w, self.topk, dim=-1)
        w = (w / w.sum(dim=-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, num_classes=self.experts).permute(2, 1, 0)
        for e in range(self.experts):
            index, token = torch.where(mask[e])
            h = x[token]
            h = self.w2[e](F.silu(self.w1[e](h)) * self.w3[e](h)) * w[token, index, None]
            out.index_add_(0, token, h.to(x.dtype))
        return out


def _work(Tk: int, hidden: int, inter: int, E: int, topk: int) -> tuple[float, float]:
    """Flops of the chosen experts alone, and bytes if min(E, Tk * topk) distinct experts are touched."""
    touched = min(E, Tk * topk)
    bytes_moved = 2.0 * (touched * 3 * hidden * inter + E * hidden + 2 * Tk * hidden)
    return 2.0 * Tk * (topk * 3 * hidden * inter + hidden * E), bytes_moved


def expert_loop(Tk: int, hidden: int, inter: int, E: int, topk: int) -> Built:
    with torch.device("meta"):
        module = ExpertLoop(hidden, inter, E, topk)
    return Built(module, [Input((Tk, hidden))], [Output((Tk, hidden))], *_work(Tk, hidden, inter, E, topk))


def gathered_experts(Tk: int, hidden: int, inter: int, E: int, topk: int) -> Built:
    """Gathers the chosen experts' weights, one einsum each, as gpt-fast does."""

    def fn(x: torch.Tensor, gate: torch.Tensor, w1: torch.Tensor, w3: torch.Tensor, w2: torch.Tensor) -> Result:
        w = F.softmax(F.linear(x, gate).float(), dim=-1)
        w, chosen = torch.topk(w, topk, dim=-1)
        w = (w / w.sum(dim=-1, keepdim=True)).to(x.dtype)
        a = F.silu(torch.einsum("ti,taoi->tao", x, w1[chosen]))
        b = torch.einsum("ti,taoi->tao", x, w3[chosen])
        y = torch.einsum("tao,taio->tai", a * b, w2[chosen])
        return torch.einsum("tai,ta->ti", y, w)

    s, t = hidden**-0.5, inter**-0.5
    inputs = [
        Input((Tk, hidden)),
        Input((E, hidden), scale=s),
        Input((E, inter, hidden), scale=s),
        Input((E, inter, hidden), scale=s),
        Input((E, hidden, inter), scale=t),
    ]
    return Built(fn, inputs, [Output((Tk, hidden))], *_work(Tk, hidden, inter, E, topk))


def dense_experts(Tk: int, hidden: int, inter: int, E: int, topk: int) -> Built:
    """Every expert on every token, combined with the chosen weights scattered into [Tk, E]."""

    def fn(x: torch.Tensor, gate: torch.Tensor, w1: torch.Tensor, w3: torch.Tensor, w2: torch.Tensor) -> Result:
        p = F.softmax(F.linear(x, gate).float(), dim=-1)
        w, chosen = torch.topk(p, topk, dim=-1)
        w = w / w.sum(dim=-1, keepdim=True)
        full = torch.zeros_like(p).scatter(1, chosen, w).to(x.dtype)
        each = x.unsqueeze(0).expand(w1.shape[0], -1, -1)
        y = torch.bmm(F.silu(torch.bmm(each, w1)) * torch.bmm(each, w3), w2)
        return (y * full.t().unsqueeze(-1)).sum(0)

    s, t = hidden**-0.5, inter**-0.5
    inputs = [
        Input((Tk, hidden)),
        Input((E, hidden), scale=s),
        Input((E, hidden, inter), scale=s),
        Input((E, hidden, inter), scale=s),
        Input((E, inter, hidden), scale=t),
    ]
    return Built(fn, inputs, [Output((Tk, hidden))], *_work(Tk, hidden, inter, E, topk))
