"""The gate on values where programs jump, cast or leave a domain: what is wrong is refused, and what is right is not."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from eggtile.check import check_compiled, check_on_cpu, judge
from eggtile.conditioning import Sways
from eggtile.pipeline import Options, compile_program
from eggtile.reference import run_eager, run_in_float64

Program = Callable[..., torch.Tensor]
UP = torch.arange(1.0, 9.0)


def held_to(right: Program, wrong: Program, *inputs: torch.Tensor, numerics: str = "default") -> bool:
    """Whether the kernels of one program pass as those of another."""
    compiled = compile_program(wrong, inputs, options=Options(numerics=numerics))
    return check_compiled(compiled, right, inputs).ok


@pytest.mark.parametrize(
    ("right", "wrong", "inputs"),
    [
        (lambda x: x.floor(), lambda x: x.floor() + 9, [UP]),
        (lambda x: x.round(), lambda x: (x + 0.5).floor(), [torch.tensor([0.5, 2.5, 1.2])]),
        (lambda x, y: (x == y).float().mean(), lambda x, y: (x != y).float().mean(), [UP, UP.clone()]),
        (
            lambda q, k, x: torch.where(q[:, None] >= k, x, 0.0).sum(-1),
            lambda q, k, x: torch.where(q[:, None] > k, x, 0.0).sum(-1),
            [UP, UP.clone(), torch.ones(8, 8)],
        ),
        (lambda x: (x >= 3).float(), lambda x: (x > 3).float(), [UP]),
        (lambda x: (x == x.amax()).sum(), lambda x: (x == x.amax()).sum() - 1, [UP * 1.1]),
        (torch.sin, lambda x: -torch.sin(x), [UP * 1e7]),
        (torch.logit, lambda x: torch.log(x) * 0.5, [torch.tensor([1e-10, 1e-12])]),
    ],
)
def test_what_is_exact_excuses_no_jump(right: Program, wrong: Program, inputs: list[torch.Tensor]) -> None:
    assert held_to(right, right, *inputs) and not held_to(right, wrong, *inputs)


@pytest.mark.parametrize(
    ("fn", "x", "got", "ok"),
    [
        (lambda x: (x * 10).floor(), 0.3, 2.0, True),
        (lambda x: (x * 10).floor(), 0.3, 15.0, False),
        (lambda x: (x * 10) % 1, 0.3, 0.9999997, True),
        (lambda x: (x * 10) % 1, 0.3, -12.0, False),
        (lambda x: torch.where(x * 10 >= 3, x, -1e9), 0.3, -1e9, True),
        (lambda x: torch.where(x * 10 >= 3, x, -1e9), 0.3, -5e9, False),
    ],
)
def test_what_is_near_a_jump_may_take_it_and_goes_no_further(fn: Program, x: float, got: float, ok: bool) -> None:
    given = [torch.tensor([x, 0.55])]
    eager, exact = run_eager(fn, given), run_in_float64(fn, given)
    outputs = [torch.tensor([got, float(eager[0][1])]), eager[1]]
    assert judge("cpu", outputs, eager, exact, swayed=Sways(fn, given, exact)).ok == ok


@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (lambda x: x - x.bfloat16().float(), lambda x: x.bfloat16().float() - x),
        (lambda x: x - x.bfloat16().float(), lambda x: x * 0),
        (lambda x: (x * 1e5).half().isinf(), lambda x: (x * 1e5).isinf()),
        (lambda x: x.half().float() == x, lambda x: x == x),
    ],
)
def test_casts_that_no_law_moves_are_held_to(right: Program, wrong: Program, numerics: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 65)
    assert held_to(right, right, x, numerics=numerics) and not held_to(right, wrong, x, numerics=numerics)


def test_a_sum_over_a_cast_frees_no_other_cast() -> None:
    def residual(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.bfloat16().float().sum(-1), y - y.bfloat16().float()

    x, y = torch.randn(8, 65), torch.randn(8, 65)
    assert held_to(residual, residual, x, y)
    assert not held_to(residual, lambda x, y: (residual(x, y)[0], y * 0), x, y)


class Counting(torch.nn.Module):
    """Adds what it is given to what it holds."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.keeps = keeps
        self.register_buffer("held", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.keeps:
            return self.held.add_(x) * 2
        return (self.held + x) * 2


def test_what_a_module_holds_is_compared_and_left_as_it_was() -> None:
    keeps, loses, norm = Counting(True), Counting(False), torch.nn.BatchNorm1d(65).train()
    assert held_to(keeps, keeps, UP) and not held_to(keeps, loses, UP)
    assert held_to(norm, norm, torch.randn(4, 65))
    assert not keeps.held.any() and not norm.running_mean.any() and norm.num_batches_tracked == 0


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 3.3).exp().bfloat16().float(),
        lambda x: torch.round(torch.exp(x) * 7.7),
        lambda x: (x.softmax(-1) * 255).to(torch.uint8),
        lambda x: torch.sort(x * 1.1, -1)[0].cumsum(-1).floor(),
        lambda x: ((x * 1.1) == (x * 1.1).amax(-1, keepdim=True)).float().sum(-1),
        lambda x: (x.bfloat16() @ x.bfloat16().mT).mul(1.1).add(0.3).float(),
        lambda x: (F.silu(x.half() @ x.half().mT) @ x.half()).float(),
        lambda x: (x + 1e4 - (x + 1e4).mean(-1, keepdim=True)) * (x > 0).float(),
        lambda x: (x * 3).exp().mean(-1).double(),
        lambda x: (x * 3).half().softmax(-1).float().sum(-1).double(),
    ],
)
def test_a_right_program_that_rounds_or_jumps_is_right(fn: Program) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        verdict = check_on_cpu(fn, [torch.randn(300, 99)])
        assert verdict.ok, verdict


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda x: torch.log(1 - x.softmax(-1).sum(-1)), torch.randn(40, 64)),
        (lambda x: torch.acos((x / x.norm(dim=-1, keepdim=True)).pow(2).sum(-1)), torch.randn(40, 64)),
        (lambda x: x / (x.sum(-1, keepdim=True) - 3), torch.full((4, 10), 0.3)),
        (lambda x: F.layer_norm(x, (7,), eps=0.0), torch.full((3, 7), 0.1)),
    ],
)
def test_at_the_edge_of_a_domain_there_may_be_a_number_or_none(fn: Program, x: torch.Tensor) -> None:
    verdict = check_on_cpu(fn, [x])
    assert verdict.ok, verdict
    assert not held_to(lambda x: x.softmax(-1), lambda x: torch.log(x.softmax(-1) * 0 - 1), x)
    eager, exact = run_eager(fn, [x]), run_in_float64(fn, [x])
    far = [torch.full_like(eager[0], 1e30), x]
    assert not judge("cpu", far, eager, exact, swayed=Sways(fn, [x], exact)).ok


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float64, torch.int32, torch.float16])
def test_another_type_is_another_result(dtype: torch.dtype) -> None:
    eager, exact = run_eager(torch.exp, [UP]), run_in_float64(torch.exp, [UP])
    assert not judge("cpu", [eager[0].to(dtype), UP], eager, exact, swayed=Sways(torch.exp, [UP], exact)).ok
