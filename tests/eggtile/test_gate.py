"""The gate lets right kernels pass, whole or sampled, and stops those that are a little wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from codegen import cpu
from codegen.gate import GUARD_BYTES, Gate, Run
from codegen.trial import CASES, Expected, periods
from eggtile.pipeline import CompiledKernel, Options, compile_program
from eggtile.trials import WORK, only_written, trials
from extract.key import Canonical, canonical
from ir.dtype import Array, storage_type
from ir.node import postorder
from ir.term import Stream

F = torch.nn.functional
Launch = Callable[[Sequence[Array]], None]
HALF, BF16 = torch.float16, torch.bfloat16


def gated(k: CompiledKernel, launch: Launch, work: int = WORK) -> tuple[Gate, Run]:
    """The gate of a kernel, and a run on copies of its memory."""
    kernel, axes = k.canonical.kernel, k.canonical.axes
    made = trials(kernel, k.kernel.buffers, axes, True, work)
    gate = Gate(k.kernel.buffers, made, only_written(kernel), max(axes.values()))

    def run(trial: int, after: Sequence[Array]) -> None:
        memory = []
        for b, i, old, s in zip(k.kernel.buffers, after, gate.images[trial], gate.starts, strict=True):
            np.copyto(i, old)
            memory.append(i[s:-GUARD_BYTES].view(storage_type(b.dtype)))
        launch(memory)

    return gate, run


def emulated(k: CompiledKernel, text: str) -> Launch:
    program = cpu.Program([(k.kernel, text)])
    return lambda memory: program.run(0, memory, filled=[True] * len(memory))


PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "rows": (lambda x, w: F.rms_norm(x, (256,), w), (torch.randn(1, 8, 256), torch.randn(256))),
    "exponentials": (lambda x: F.softmax(x, -1), (torch.randn(8, 256).to(BF16),)),
    "product": (lambda x, w: x @ w, (torch.randn(32, 64).to(HALF), torch.randn(64, 16).to(HALF))),
    "gather": (lambda x, i: x[i], (torch.randn(32, 64), torch.zeros(7, dtype=torch.int64))),
    "scatter": (
        lambda x, i, u: x.index_add(0, i, u),
        (torch.randn(32, 8), torch.zeros(70, dtype=torch.int64), torch.randn(70, 8)),
    ),
    "prefixes": (lambda x: torch.cumsum(x, -1), (torch.randn(4, 64),)),
    "long prefixes": (lambda x: torch.cumsum(x, -1), (torch.randn(40, 400),)),
    "transposed": (lambda x: (x.T * 2).contiguous(), (torch.randn(17, 33),)),
    "masked": (lambda m, x: x.masked_fill(m, 0.5), (torch.rand(9, 40) < 0.5, torch.randn(9, 40))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_kernels_pass(name: str) -> None:
    fn, inputs = PROGRAMS[name]
    for k in compile_program(fn, inputs, name).kernels:
        for work in (WORK, 4000):
            gate, run = gated(k, emulated(k, k.text), work)
            verdict = gate.verdict(run)
            assert verdict.status == "ok", verdict.reason
            assert verdict.error <= verdict.bound
        if name in ("rows", "product"):
            assert not gate.trials[0].whole


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("rows", "1.1920929e-07f", "1.1920929e-05f"),
        ("rows", "256.0f", "256.1f"),
        ("masked", "0.5f", "0.501f"),
    ],
)
def test_a_small_change_of_the_text_is_found(name: str, old: str, new: str) -> None:
    fn, inputs = PROGRAMS[name]
    (k,) = compile_program(fn, inputs, name).kernels
    assert old in k.text
    gate, run = gated(k, emulated(k, k.text.replace(old, new, 1)))
    verdict = gate.verdict(run)
    assert verdict.status == "wrong"


@pytest.mark.parametrize(("mask", "status"), [(0xFFFFFFFF, "ok"), (0xFFFFE000, "wrong")])
def test_a_product_of_operands_that_lose_bits_is_outside_the_bound_of_a_full_one(mask: int, status: str) -> None:
    """19 bits of each operand, as on the tensor cores, do not make an f32 product."""
    (k,) = compile_program(lambda x, w: x @ w, (torch.randn(32, 512), torch.randn(512, 16)), "full").kernels
    shape = {b.shape: n for n, b in enumerate(k.kernel.buffers)}

    def launch(memory: Sequence[Array]) -> None:
        x, w = ((memory[shape[s]].view(np.uint32) & np.uint32(mask)).reshape(s) for s in ((32, 512), (512, 16)))
        with np.errstate(all="ignore"):
            memory[shape[32, 16]][:] = (x.view(np.float32) @ w.view(np.float32)).ravel()

    gate, run = gated(k, launch)
    verdict = gate.verdict(run)
    assert verdict.status == status, verdict.reason


def test_cases_differ_and_are_the_same_each_time() -> None:
    fn, inputs = PROGRAMS["rows"]
    (k,) = compile_program(fn, inputs, "rows").kernels
    fresh = only_written(k.canonical.kernel)
    drawn = {c: [periods(c, k.kernel.buffers, fresh, 256) for _ in range(2)] for c in CASES}
    for first, second in drawn.values():
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
    assert len({first[1].tobytes() for first, _ in drawn.values()}) == len(CASES)


def test_a_long_stream_is_held_to_float64_without_taking_its_steps_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pieces side by side, then their merge, give what the steps give, within the same bounds."""
    x = torch.randn(3, 700)
    region = compile_program(lambda x: x.logsumexp(-1), (x,), "p", Options(k=8)).regions[0]
    found = [canonical(f.kernels[0], f) for f in region.forms]
    known = next(k for k in found if any(isinstance(t, Stream) for t in postorder(k.kernel.stores[0].value)))
    pieces, steps = (evaluated(known, monkeypatch, n) for n in (512, 1024))
    for a, b in zip(pieces, steps, strict=True):
        assert np.array_equal(a.places, b.places)
        assert np.allclose(a.values, b.values, rtol=1e-12)
        assert b.bound / 8 < a.bound < 8 * b.bound


def evaluated(known: Canonical, monkeypatch: pytest.MonkeyPatch, most_steps: int) -> list[Expected]:
    monkeypatch.setattr("eggtile.trials.MOST_STEPS", most_steps)
    return [e for t in trials(known.kernel, known.buffers, known.axes, True) for e in t.expected]
