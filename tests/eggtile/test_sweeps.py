"""Sweeps over the streamed axis of programs as people write them: what is written, what the laws find, and its values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from eggtile.pipeline import Options, capture_and_lower, choose_forms
from egraph.saturate import saturate
from ir.dtype import is_float, numpy_type
from ir.loop import LoopProgram
from tests.egraph.picking import Pick
from tests.egraph.test_streams import agrees

KEYS = 13
X, Y = torch.randn(5, KEYS), torch.randn(5, KEYS)
W = torch.randn(KEYS, 3)
TARGETS = torch.zeros(5, dtype=torch.long)
Q, K, V = torch.randn(2, 5, 4), torch.randn(2, KEYS, 4), torch.randn(2, KEYS, 3)
AHEAD = torch.arange(5)[:, None] - torch.arange(KEYS)
Scores = Callable[[torch.Tensor], torch.Tensor]


def attention(scores: Scores) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: torch.softmax(scores(q @ k.mT), -1) @ v


def masked(kept: torch.Tensor) -> Scores:
    return lambda s: s.masked_fill(~kept, -math.inf)


def with_sink(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    s = q @ k.mT
    m = torch.maximum(s.amax(-1, keepdim=True), sink)
    p = torch.exp(s - m)
    return p / (p.sum(-1, keepdim=True) + torch.exp(sink - m)) @ v


def two_passes(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)).square().mean(-1)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    p = torch.exp(x - x.amax(-1, keepdim=True))
    return p / p.sum(-1, keepdim=True)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], int, int]] = {
    "softmax": (lambda x: torch.softmax(x, -1), (X,), 2, 1),
    "softmax by hand": (by_hand, (X,), 2, 1),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), (X,), 2, 1),
    "attention": (attention(lambda s: s), (Q, K, V), 3, 1),
    "with a temperature and a mask": (
        lambda q, k, v, m: torch.softmax((q @ k.mT) / 0.7 + m, -1) @ v, (Q, K, V, torch.randn(5, KEYS)), 3, 1,
    ),
    "softcapped": (attention(lambda s: 5 * torch.tanh(s / 5)), (Q, K, V), 3, 1),
    "with linear biases": (attention(lambda s: s - 0.5 * AHEAD.abs()), (Q, K, V), 3, 1),
    "with a sink": (with_sink, (Q, K, V, torch.randn(1)), 3, 1),
    "in a sliding window": (attention(masked((AHEAD >= 0) & (AHEAD < 3))), (Q, K, V), 3, 1),
    "as the library's call": (F.scaled_dot_product_attention, (Q, K, V), 2, 1),
    "cross-entropy": (lambda x, t: F.cross_entropy(x, t, reduction="none"), (X, TARGETS), 2, 1),
    "variance": (two_passes, (X,), 2, 1),
    "variance by the library": (lambda x: torch.var(x, -1), (X,), 2, 1),
    "LayerNorm": (lambda x: F.layer_norm(x, (KEYS,)), (X,), 2, 1),
    "LayerNorm and a product": (lambda x, w: F.layer_norm(x, (KEYS,)) @ w, (X, W), 3, 1),
    "RMSNorm and a product": (lambda x, w: F.rms_norm(x, (KEYS,)) @ w, (X, W), 2, 1),
    "logsumexp of a product": (lambda x, w: torch.logsumexp(x @ w.T, -1), (torch.randn(5, 4), torch.randn(KEYS, 4)), 2, 1),
    "tanh of a shift": (lambda x: torch.tanh(x - x.amax(-1, keepdim=True)).sum(-1), (X,), 2, 2),
    "exp of a square": (lambda x: torch.exp(-(x - x.amax(-1, keepdim=True)).square()).sum(-1), (X,), 2, 2),
}  # fmt: skip


def captured(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> LoopProgram:
    (region,) = choose_forms(capture_and_lower(fn, list(inputs), "p", Options(k=1))).regions
    return region.program


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_sweep_as_little_as_their_folds_allow(name: str) -> None:
    fn, inputs, written, least = PROGRAMS[name]
    p = captured(fn, inputs)
    (axis,) = (a for a, n in p.axes.items() if n == KEYS)
    assert Pick(saturate(p, phases=()), axis).sweeps == written
    pick = Pick(saturate(p), axis)
    assert pick.sweeps == least
    assert not pick.unsafe or written == least
    rng = np.random.default_rng(0)
    values = {
        b.name: rng.standard_normal(b.shape)
        if is_float(b.dtype)
        else rng.integers(0, 2, b.shape).astype(numpy_type(b.dtype))
        for b in p.buffers
    }
    agrees(p, pick, values)


def test_the_logits_of_a_logsumexp_stay_out_of_memory() -> None:
    x, w = torch.empty(512, 256), torch.empty(8192, 256)
    compiled = choose_forms(capture_and_lower(lambda x, w: torch.logsumexp(x @ w.T, -1), [x, w], "p", Options(k=1)))
    (region,) = compiled.regions
    assert all(b.size < 512 * 8192 for b in region.chosen.buffers if b.role == "scratch")
