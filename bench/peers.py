"""Who is timed against whom in a case: the contenders of any program, and the library's one-call kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.cases import Case, attention, rows
from bench.cases.spec import Function, Result
from eggtile.measure import Build, builders
from eggtile.pipeline import Options
from eggtile.stores import opened


def _one_backend(backend: SDPBackend) -> Build:
    def build(fn: Function, inputs: Sequence[torch.Tensor]) -> Function:
        def call(*tensors: torch.Tensor) -> Result:
            with sdpa_kernel(backend):
                return fn(*tensors)

        return call

    return build


def _normalised(x: torch.Tensor, w: torch.Tensor) -> Result:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


def _standardised(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Result:
    return F.layer_norm(x, (x.shape[-1],), w, b, 1e-5)


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> Result:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


PLAIN: Mapping[object, Function] = {
    rows.rmsnorm_by_hand: _normalised,
    rows.layernorm_by_hand: _standardised,
    attention.by_hand: _attended,
    attention.windowed: _attended,
    attention.textbook: _attended,
}
"""The library's one-call kernel for the same work as a hand-written program, by the case's builder."""


TAKES: Mapping[str, Callable[[Case], bool]] = {
    "max-autotune": lambda case: case.max_autotune,
    "plain": lambda case: case.build in PLAIN,
    "flash": lambda case: case.build is attention.library,
    "cudnn": lambda case: case.build is attention.library,
}
"""For which cases a contender stands; the others stand for all."""


def contenders(case: Case, names: Sequence[str]) -> dict[str, Build]:
    """The asked-for contenders that take the case; `plain` is the library's one-call kernel where there is one.

    Ours chooses by what was measured (`eggtile.stores.opened`); the form as written has its default schedule.
    """
    known: dict[str, Build] = {
        **builders(Options(evidence=opened())),
        "plain": lambda fn, inputs: PLAIN[case.build],
        "flash": _one_backend(SDPBackend.FLASH_ATTENTION),
        "cudnn": _one_backend(SDPBackend.CUDNN_ATTENTION),
    }
    unknown = set(names) - known.keys()
    if unknown:
        raise ValueError(f"no contender is named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return {name: known[name] for name in names if name not in TAKES or TAKES[name](case)}
