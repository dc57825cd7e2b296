"""Capture of whole programs: names, structure, mutation, calls, symbolic extents, and the suite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench.cases import CASES, EXTRAS, Case
from eggtile.capture import CaptureError, bind, capture
from ir.node import IRError, postorder
from ir.tensor import Convert, Full, Tensor
from ir.tensor_interp import run_tensor
from tests.eggtile.capture_check import check, close, interpreted, values


def test_inputs_come_first_and_parameters_keep_their_names() -> None:
    captured = check(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), torch.randn(2, 4))
    assert [x.name for x in captured.program.inputs] == ["input", "_0_weight", "_0_bias", "_1_weight", "_1_bias"]
    captured = check(lambda q, int, y: q + int + y, *torch.randn(3, 2))
    assert [x.name for x in captured.program.inputs] == ["q", "int_", "y"]
    assert captured.program.results[0].name == "y_1"


def test_capture_does_not_run_the_program() -> None:
    seen: list[type] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        seen.append(type(x))
        return x + 1

    capture(program, [torch.zeros(2)])
    assert seen and torch.Tensor not in seen


def test_results_are_rebuilt_in_the_structure_of_the_program() -> None:
    captured = capture(lambda x: {"a": x + 1, "b": [x.t(), 3, None]}, [torch.randn(2, 3)])
    results = [torch.from_numpy(v) for v in interpreted(captured).values()]
    made = captured.returns.rebuild(results)
    assert made["b"][1:] == [3, None]
    assert made["b"][0].shape == (3, 2)


def test_results_have_the_strides_of_eager() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: (x * 2, x.permute(0, 2, 3, 1), x[:, 1:, ::2], x.sum(1)), x)


def shifted(x: torch.Tensor) -> torch.Tensor:
    x[1:] = x[:-1].clone()
    return x


def written_through_views(x: torch.Tensor) -> torch.Tensor:
    x.t()[0].add_(5)
    x.view(-1)[3] = 8
    x.diagonal().fill_(3)
    x[torch.tensor([0, 2])] = 1.0
    return x.sum()


def written_locally(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y.copy_(x.flip(1))
    y[:, ::2].zero_()
    y[1] += 1
    return y.relu_()


def swapped(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return ()


@pytest.mark.parametrize("program", [shifted, written_through_views, written_locally])
def test_mutation_gives_the_new_value_of_the_input(program: Any) -> None:
    captured = check(program, torch.randn(4, 5))
    writes = [r.writes for r in captured.program.results if r.writes is not None]
    assert writes == ([] if program is written_locally else ["x"])


def test_a_program_may_only_write_its_inputs() -> None:
    captured = check(swapped, torch.randn(3), torch.randn(3))
    assert [r.writes for r in captured.program.results] == ["x", "y"]


def test_buffers_that_the_program_writes_are_inputs_with_a_new_value() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> Any:
            self.count += 1
            return x * self.count

    captured = capture(Counter(), [torch.ones(2)])
    assert [r.writes for r in captured.program.results] == [None, "count"]
    got = interpreted(captured)
    np.testing.assert_array_equal(got["y"], [1.0, 1.0])


# ---- calls


def test_an_operator_without_a_rule_becomes_a_call_that_can_be_executed() -> None:
    captured = check(lambda x: x.cummax(1), torch.randn(3, 5), calls=True)
    assert captured.program.notes == ("aten.cummax.default becomes a call to eager PyTorch: no rule states it",)
    keys = {t.key for r in captured.program.results for t in postorder(r.value) if hasattr(t, "key")}
    assert keys == set(captured.calls)


def test_a_call_sees_its_operands_in_the_strides_of_eager() -> None:
    check(lambda x: (x.t() * 2).as_strided((2, 2), (1, 3)), torch.randn(4, 3), calls=True)


def test_a_long_sort_becomes_a_call() -> None:
    captured = check(lambda x: x.sort(dim=-1, stable=True), torch.randn(2, 100), calls=True)
    assert "it orders 100 values" in captured.program.notes[0]


def test_random_operators_are_calls_and_never_shared() -> None:
    captured = capture(lambda x: (x + torch.rand(3), x + torch.rand(3)), [torch.zeros(3)])
    assert len(captured.calls) == 2
    assert capture(lambda x: x + torch.rand(3), [torch.zeros(3)]).program.notes


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (lambda x: x if x.sum() > 0 else -x, "control flow"),
        (lambda x: x[x > 0], "depends on data"),
        (lambda x: torch.fft.fft(x).real, "complex64"),
    ],
)
def test_programs_that_cannot_be_split_become_one_call(program: Any, why: str) -> None:
    captured = check(program, torch.randn(9), calls=True)
    assert len(captured.calls) == 1
    assert why in captured.program.notes[0]


# ---- roundings


def conversions(x: Any) -> list[tuple[str, str]]:
    return [(t.type, t.origin) for t in postorder(x) if isinstance(t, Convert)]


def test_eager_operators_round_and_casts_are_the_programs_own() -> None:
    x = torch.randn(4, 8).bfloat16()
    captured = capture(lambda x: ((x + x) * x).float().half(), [x])
    got = conversions(captured.program.results[0].value)
    assert got == [("bf16", "op"), ("bf16", "op"), ("f32", "cast"), ("f16", "cast")]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: F.rms_norm(x, (8,)),
        lambda x: x.softmax(-1),
        lambda x: F.gelu(x),
        lambda x: F.silu(x),
        lambda x: x @ x.t(),
    ],
)
def test_a_composite_rounds_once(program: Any) -> None:
    captured = capture(program, [torch.randn(4, 8).bfloat16()])
    assert conversions(captured.program.results[0].value) == [("bf16", "op")]


def test_attention_rounds_its_weights_and_its_result() -> None:
    q = torch.randn(1, 2, 4, 8).half()
    captured = capture(F.scaled_dot_product_attention, [q, q.clone(), q.clone()])
    assert conversions(captured.program.results[0].value) == [("f16", "op"), ("f16", "op")]


def test_an_explicit_narrow_cast_overflows_and_a_sum_of_squares_does_not() -> None:
    check(lambda x: (x.half() * x.half()).float(), torch.tensor([5000.0]))
    check(lambda x: F.rms_norm(x, (64,)), torch.full((2, 64), 3000.0, dtype=torch.half))


# ---- symbolic extents

DYNAMIC: list[Any] = [
    lambda x: F.rms_norm(x, (8,)),
    lambda x: x.softmax(0) + x.mean(0) + x.var(0),
    lambda x: torch.cat([x, x[:2]])[1:],
    lambda x: torch.cat([x, x], 1).reshape(-1, 2, 8).transpose(0, 1),
    lambda x: x.flatten() * x.shape[0] + torch.arange(x.shape[0] * 8),
    lambda x: x.flip(0)[:, -1],
]


@pytest.mark.parametrize("number", range(len(DYNAMIC)))
def test_symbolic_extents_are_bound(number: int) -> None:
    captured = capture(DYNAMIC[number], [torch.randn(4, 8)], dynamic={"x": {0: "n"}})
    assert captured.program.inputs[0].extents == ("n", 8)
    for n in (1, 9) if number != 2 else (2, 9):
        x = torch.randn(n, 8)
        bound = bind(captured.program, {"n": n})
        assert not bound.symbols
        close(run_tensor(bound, {"x": values(x)})["y"], DYNAMIC[number](x))


def test_bind_refuses_what_is_out_of_range() -> None:
    program = capture(lambda x: x + 1, [torch.randn(4)], dynamic={"x": {0: "n"}}).program
    with pytest.raises(IRError, match="n = 0, but n is in"):
        bind(program, {"n": 0})
    with pytest.raises(IRError, match="m = 3, but the symbols are"):
        bind(program, {"m": 3})


# ---- errors


@pytest.mark.parametrize(
    ("program", "inputs", "sentence"),
    [
        (lambda x: x @ x, [torch.randn(3, 4)], "same reduction dim"),
        (lambda x: 3, [torch.randn(3)], "returns no tensor"),
        (lambda x: x + 1, [torch.randn(3, dtype=torch.complex64)], "complex64"),
        (lambda x, w: F.linear(x, w), [torch.randn(3, 4), torch.randn(3, 4).half()], "operands are f32 and f16"),
    ],
)
def test_errors_are_one_sentence(program: Any, inputs: list[torch.Tensor], sentence: str) -> None:
    with pytest.raises(CaptureError, match=sentence) as error:
        capture(program, inputs)
    assert "\n" not in str(error.value)


def test_constants_stay_small() -> None:
    captured = capture(lambda x: x + torch.zeros(1000, 1000) + 1, [torch.randn(1000, 1000)])
    fulls = [t for t in postorder(captured.program.results[0].value) if isinstance(t, Full)]
    assert all(isinstance(t, Tensor) for t in fulls)
    assert [x.name for x in captured.program.inputs] == ["x"]


# ---- the suite


@pytest.mark.parametrize("case", [*CASES, *EXTRAS], ids=lambda case: case.name)
def test_the_suite_is_captured_whole(case: Case) -> None:
    program, inputs = case.program(tiny=True)
    captured = check(program, *inputs, calls=not case.graphable)
    assert len(captured.program.notes) == int(not case.graphable)
