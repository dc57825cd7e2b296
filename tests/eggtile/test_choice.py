"""The form that is chosen does not depend on how many are listed, whether laws are told, or what is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eggtile.pipeline import Options, Region, capture_and_lower, choose_forms, space_of
from extract.cost import Cost
from extract.evidence import Evidence
from extract.key import canonical, form_key
from extract.measurement import FORM, Measurement
from extract.prices import family_of, shapes_of, shapes_of_program
from ir.loop import Form, KernelForm
from ir.machine import H200
from tests.extract.test_evidence import OK, at

Program = tuple[Callable[..., object], Sequence[Tensor]]


def tensors(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.empty(s, dtype=dtype) for s in shapes]


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return (q @ k.transpose(-1, -2)).masked_fill(~keep, -torch.inf).softmax(-1) @ v


def normed(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w) @ y


def heads(x: Tensor, w: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = F.rms_norm(x, (x.shape[-1],), w)
    return n @ y, n @ z, x + 1


def two_results(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    p = x.softmax(-1)
    return p @ y, p.sum(0)


F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
QKV = ((1, 8, 512, 64),) * 3
PROGRAMS: dict[str, Program] = {
    "softmax by its own transpose": (lambda x: x.softmax(-1) @ x.t(), tensors(F16, (2048, 512))),
    "the same in bf16": (lambda x: x.softmax(-1) @ x.t(), tensors(BF16, (512, 2048))),
    "the same in f32": (lambda x: x.softmax(-1) @ x.t(), tensors(F32, (256, 128))),
    "softmax by another": (lambda x, y: x.softmax(-1) @ y, tensors(F16, (2048, 512), (512, 2048))),
    "few rows of it": (lambda x, y: x.softmax(-1) @ y, tensors(BF16, (16, 4096), (4096, 256))),
    "logsumexp of a product": (lambda x, y: torch.logsumexp(x @ y, -1), tensors(F16, (1024, 256), (256, 4096))),
    "logsumexp of f32": (lambda x: torch.logsumexp(x, -1), tensors(F32, (16, 128256))),
    "a norm before a product": (normed, tensors(BF16, (2048, 2048), (2048,), (2048, 2048))),
    "a norm before few rows": (normed, tensors(F16, (8, 4096), (4096,), (4096, 512))),
    "a layer norm before a product": (
        lambda x, y: F.layer_norm(x, (x.shape[-1],)) @ y,
        tensors(F32, (512, 1024), (1024, 512)),
    ),
    "a norm before two products": (heads, tensors(BF16, (512, 2048), (2048,), (2048, 256), (2048, 256))),
    "attention": (F.scaled_dot_product_attention, tensors(F16, *QKV)),
    "attention by hand": (by_hand, tensors(BF16, *QKV)),
    "masked attention": (masked, tensors(F32, *QKV)),
    "one query": (by_hand, tensors(F16, (8, 1, 64), (8, 2048, 64), (8, 2048, 64))),
    "two results": (two_results, tensors(F16, (1024, 1024), (1024, 64))),
    "a chain of products": (lambda a, b, c: a @ b @ c, tensors(F32, (64, 2048), (2048, 64), (64, 2048))),
}


def region(name: str, k: int, evidence: Evidence | None = None, explain: bool = False) -> Region:
    fn, inputs = PROGRAMS[name]
    options = Options(k=k, evidence=evidence, explain=explain)
    return choose_forms(capture_and_lower(fn, inputs, "p", options)).regions[0]


@cache
def listed(name: str) -> Region:
    return region(name, 12)


def the_choice(*found: Region) -> Form:
    """The form that is chosen in all of them."""
    first, *others = ((form_key(r.chosen), r.chosen.cost_us) for r in found)
    assert others == [first] * len(others)
    return found[0].chosen


def measured(form: Form, kernel: KernelForm, ratio: float) -> Measurement:
    cost, known = costs(form)[kernel.name], canonical(kernel, form)
    line = space_of(known, H200).lines[0]
    row = replace(
        OK,
        key=known.key,
        schedule=str(line),
        modelled_us=cost.us,
        family=family_of(kernel, cost, line),
        shapes=shapes_of(kernel, form),
    )
    return at(row, ratio * cost.us)


def costs(form: Form) -> dict[str, Cost]:
    return form.details["kernels"]  # type: ignore[return-value]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_chosen_form_is_one_for_every_count(name: str) -> None:
    f = the_choice(listed(name), *(region(name, k) for k in (1, 2, 5)), region(name, 2, explain=True))
    assert f.cost_us == min(g.cost_us for g in listed(name).listed)
    assert f.details["stop"] == ()


@pytest.mark.parametrize("name", list(PROGRAMS)[::2])
def test_so_it_is_where_kernels_are_measured(name: str) -> None:
    first, *_, last = listed(name).listed
    evidence = Evidence(None, code=OK.where.code)
    evidence.add(*(measured(first, k, 3.0) for k in first.kernels), *(measured(last, k, 0.9) for k in last.kernels))
    found = [region(name, k, evidence) for k in (1, 2, 12)]
    the_choice(*found)
    assert all(r.prices.known for r in found)


@pytest.mark.parametrize("name", ["softmax by its own transpose", "a norm before two products", "attention"])
def test_so_it_is_where_a_form_is_measured_whole(name: str) -> None:
    r = listed(name)
    form, evidence = r.forms[2], Evidence(None, code=OK.where.code)
    kernels = [measured(form, k, 1.0) for k in form.kernels]
    lines, shapes = " | ".join(m.schedule for m in kernels), shapes_of_program(r.program)
    whole = replace(OK, key=form_key(form), schedule=lines, family=FORM, shapes=shapes, error=None, bound=None)
    evidence.add(*kernels, at(replace(whole, modelled_us=sum(m.time_us or 0.0 for m in kernels)), 1.0))
    assert form_key(the_choice(*(region(name, k, evidence) for k in (1, 2, 15)))) == form_key(form)
