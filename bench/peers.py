"""Who is timed against whom: eager, torch.compile, max-autotune, the library's one-call kernels, and eggtile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.cases import Case, attention, rows
from bench.cases.spec import Function, Result
from bench.ratios import OURS
from eggtile.api import optimize

PEERS = ("eager", "compile", "max-autotune")


def eager(fn: Function, inputs: Sequence[torch.Tensor]) -> Function:
    """The program as written."""
    return fn


def compiled(fn: Function, inputs: Sequence[torch.Tensor]) -> Function:
    """torch.compile of the whole graph for these shapes alone."""
    return torch.compile(fn, fullgraph=True, dynamic=False)


def autotuned(fn: Function, inputs: Sequence[torch.Tensor]) -> Function:
    """torch.compile with its search over kernels; the protocol captures graphs itself."""
    return torch.compile(fn, fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")


def optimized(fn: Function, inputs: Sequence[torch.Tensor]) -> Function:
    """This project, in a running process, with the evidence it has."""
    return optimize(fn, inputs)


def _one_backend(backend: SDPBackend) -> Callable[[Function, Sequence[torch.Tensor]], Function]:
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


@dataclass(frozen=True)
class Contender:
    """`build` turns a program and example inputs into what is timed; `takes` says for which cases it stands."""

    build: Callable[[Function, Sequence[torch.Tensor]], Function]
    takes: Callable[[Case], bool] = lambda case: True


CONTENDERS: Mapping[str, Contender] = {
    OURS: Contender(optimized),
    "eager": Contender(eager),
    "compile": Contender(compiled),
    "max-autotune": Contender(autotuned, lambda case: case.max_autotune),
    "flash": Contender(_one_backend(SDPBackend.FLASH_ATTENTION), lambda case: case.build is attention.library),
    "cudnn": Contender(_one_backend(SDPBackend.CUDNN_ATTENTION), lambda case: case.build is attention.library),
}


def contenders(case: Case, names: Sequence[str]) -> dict[str, Contender]:
    """The asked-for contenders that take the case; `plain` is the library's one-call kernel where there is one."""
    known = dict(CONTENDERS)
    if case.build in PLAIN:
        known["plain"] = Contender(lambda fn, inputs: PLAIN[case.build])
    unknown = set(names) - {*CONTENDERS, "plain"}
    if unknown:
        raise ValueError(f"no contender is named {', '.join(sorted(unknown))}; there are {', '.join(known)}, plain")
    return {name: known[name] for name in names if name in known and known[name].takes(case)}
