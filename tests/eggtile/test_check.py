"""The gate on values lets pass what another order of sums may cost, and no more."""

import itertools
import math

import pytest
import torch

from eggtile.check import Longest, check_compiled, check_on_cpu, judge, longest_folds
from eggtile.conditioning import Sways
from eggtile.pipeline import Options, compile_program
from eggtile.reference import run_eager, run_in_float64

ROUNDOFF = 2.0**-24


@pytest.mark.parametrize(
    ("dtype", "roundoffs", "terms", "ok"),
    [
        (torch.float32, 1, 1, True),
        (torch.float32, 2, 1, False),
        (torch.float32, 4, 1024, True),
        (torch.float32, 6, 1024, False),
        (torch.float64, 1, 1024, False),
    ],
)
def test_an_error_is_held_to_the_roundoffs_of_a_sum(
    dtype: torch.dtype, roundoffs: int, terms: int, ok: bool
) -> None:
    exact = torch.ones(3, dtype=torch.float64)
    got = (exact * (1 + 0.99 * roundoffs * ROUNDOFF)).to(torch.float64)
    verdict = judge("cpu", [got.to(dtype)], [exact.to(dtype)], [exact], longest=Longest(terms))
    assert verdict.ok == ok, verdict


def test_integers_have_no_roundoff() -> None:
    exact = torch.tensor([math.prod(range(1, 8))])
    assert not judge("cpu", [exact + 1], [exact], [exact], longest=Longest(1 << 20)).ok


def test_products_and_what_float64_is_held_to_may_err_by_more() -> None:
    exact = torch.ones(3, dtype=torch.float64)
    off = exact * (1 + 20 * ROUNDOFF)
    assert judge("cpu", [off.float()], [exact.float()], [exact], longest=Longest(1, 1000)).ok
    assert not judge("cpu", [off.float()], [exact.float()], [exact], longest=Longest(1000)).ok
    near = exact * (1 + 20 * 2.0**-53)
    assert judge("cpu", [near], [exact], [exact], longest=Longest(1000)).ok
    assert not judge("cpu", [near], [exact], [exact], longest=Longest(100)).ok


@pytest.mark.parametrize("name", ["var", "cumprod"])
def test_a_right_program_in_float64_is_right(name: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(64, 1000, dtype=torch.float64) + 0.5
    verdict = check_on_cpu(lambda x: getattr(x, name)(-1), [x])
    assert verdict.ok, verdict


def test_an_error_is_right_where_roundings_of_the_inputs_move_the_output_as_far() -> None:
    def variance(x: torch.Tensor) -> torch.Tensor:
        return x.var(-1)

    torch.manual_seed(0)
    far, near = torch.randn(4, 65) + 1e6, torch.randn(4, 65)
    verdict = check_on_cpu(variance, [far])
    assert verdict.ok and any("roundings of the program" in note for note in verdict.notes), verdict
    mixed = torch.cat([far[:1], near])
    exact = mixed.double().var(-1)
    swayed = Sways(variance, [mixed], [exact, mixed.double()])
    right, eager = exact.float(), exact.float()
    right[0] *= 1.001
    assert judge("cpu", [right], [eager], [exact], swayed=swayed).ok
    for row, factor in ((0, 1.2), (1, 1.0002), (4, 1.2)):
        off = exact.float()
        off[row] *= factor
        assert not judge("cpu", [off], [eager], [exact], swayed=swayed).ok
    (most, _) = Sways(variance, [near], [near.double().var(-1), near.double()]).room(0, torch.float32)
    assert most.max() < 1e-5


def test_either_is_right_where_eager_overflows_and_float64_does_not() -> None:
    exact = torch.tensor([1.0, 0.5, 0.25, 1.0, torch.nan], dtype=torch.float64)
    eager = torch.tensor([torch.nan, 0.5, 0.25 * (1 + 2.0**-21), torch.inf, 0.5])
    for first, last, given in itertools.product((1.0, torch.nan), (1.0, torch.inf), (0.5, torch.nan)):
        got = torch.tensor([first, 0.5, 0.25 * (1 - 2.0**-21), last, given])
        assert judge("cpu", [got], [eager], [exact]).ok
    for place, odd in (
        (1, 0.6),
        (0, torch.inf),
        (1, torch.nan),
        (0, 1.1),
        (3, -torch.inf),
        (4, 0.6),
        (4, torch.inf),
    ):
        got = torch.tensor([1.0, 0.5, 0.25, 1.0, 0.5])
        got[place] = odd
        assert not judge("cpu", [got], [eager], [exact]).ok
    best, other = torch.tensor([3, 1]), torch.tensor([2, 1])
    for got in (best, other):
        assert judge("cpu", [got], [other], [best]).ok
    assert not judge("cpu", [torch.tensor([1, 1])], [other], [best]).ok


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_element_lost_beside_larger_ones_is_wrong(dtype: torch.dtype) -> None:
    def normal(x: torch.Tensor) -> torch.Tensor:
        return x / (1 + x.norm(dim=-1, keepdim=True))

    torch.manual_seed(0)
    x = (torch.randn(4, 65) * torch.tensor([1e4, 1e-3, 1e-6, 1.0])[:, None]).to(dtype)
    eager, exact = run_eager(normal, [x]), run_in_float64(normal, [x])
    swayed = Sways(normal, [x], exact)
    assert check_on_cpu(normal, [x]).ok
    for row, factor, ok in ((2, 0.0, False), (2, 1.3, False), (1, -1.0, False), (2, 1.0, True)):
        got = [y.clone() for y in eager]
        got[0][row] *= factor
        assert judge("cpu", got, eager, exact, swayed=swayed).ok == ok


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_the_roundings_of_the_program_lose_is_not_held_against_its_elements(dtype: torch.dtype) -> None:
    def cancelled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x - torch.tanh(x), torch.logit(torch.sigmoid(x)), (x * x).mean(-1) - x.mean(-1) ** 2

    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(6, 65) * 10.0 ** torch.linspace(-6, 0, 6)[:, None] + 10.0 * seed
        verdict = check_on_cpu(cancelled, [x.to(dtype)])
        assert verdict.ok, verdict


@pytest.mark.parametrize("scale", [1e-4, 1.0, 8.0])
def test_the_few_roundings_that_are_tried_need_not_be_the_worst(scale: float) -> None:
    def cancelled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x - torch.tanh(x), torch.logit(torch.sigmoid(x))

    for seed in range(4):
        torch.manual_seed(seed)
        verdict = check_on_cpu(cancelled, [torch.randn(64, 65) * scale])
        assert verdict.ok, verdict


@pytest.mark.parametrize("line", [None, "WORK=points128"])
def test_a_sum_is_held_to_the_order_in_which_its_kernel_takes_it(line: str | None) -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 6001)
    compiled = compile_program(lambda x: x.cumsum(-1), [x], options=Options(schedule=line))
    assert (longest_folds(compiled).steps == 6001) == (line is not None)
    assert check_compiled(compiled, lambda x: x.cumsum(-1), [x]).ok
    exact = x.double().cumsum(-1)
    off = [(exact * (1 + 20 * ROUNDOFF)).float()]
    verdict = judge("cpu", off, [exact.float()], [exact], longest=longest_folds(compiled))
    assert verdict.ok == (line is not None), verdict


def test_an_overflow_that_rounds_to_the_largest_number_excuses_nothing() -> None:
    exact = torch.tensor([65510.0, 65530.0, 1.0], dtype=torch.float64)
    eager = exact.half()
    assert eager.tolist() == [65504.0, math.inf, 1.0]
    assert judge("cpu", [eager], [eager], [exact]).ok
    for place, value in ((2, 100.0), (2, torch.nan), (0, torch.nan), (1, 65504.0)):
        got = eager.clone()
        got[place] = value
        assert not judge("cpu", [got], [eager], [exact]).ok, (place, value)


def test_inputs_of_few_digits_excuse_no_arithmetic_in_their_type() -> None:
    def squares(x: torch.Tensor) -> torch.Tensor:
        return (x.float() * x.float()).sum(-1)

    torch.manual_seed(0)
    for x, fn in ((torch.rand(4, 65).bfloat16(), squares), (torch.rand(4, 65), lambda x: x.double().sum(-1))):
        eager, exact = run_eager(fn, [x]), run_in_float64(fn, [x])
        unit = torch.finfo(x.dtype).eps
        for places, ok in ((0.0, True), (0.3, False)):
            got = [eager[0] * (1 + places * unit), eager[1]]
            assert judge("cpu", got, eager, exact, swayed=Sways(fn, [x], exact)).ok == ok


def test_what_eager_loses_in_one_row_is_lost_in_no_other() -> None:
    def shifted(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + bias, -1)

    torch.manual_seed(0)
    x, bias = torch.randn(4, 65), torch.zeros(4, 1)
    bias[2] = -1e9
    eager, exact = run_eager(shifted, [x, bias]), run_in_float64(shifted, [x, bias])
    swayed = Sways(shifted, [x, bias], exact)
    assert check_on_cpu(shifted, [x, bias]).ok
    for row, ok in ((2, True), (1, False)):
        got = [y.clone() for y in eager]
        got[0][row] *= 1.1
        assert judge("cpu", got, eager, exact, swayed=swayed).ok == ok


def test_what_is_equal_but_for_roundings_may_be_told_apart() -> None:
    def few(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x - x.mean(0), (x >= x.mean(0)).sum(0), x >= x.mean(0)

    same = torch.full((2000, 3), 0.3)
    assert check_on_cpu(few, [same]).ok
    x = torch.arange(12.0).reshape(4, 3)
    eager, exact = run_eager(few, [x]), run_in_float64(few, [x])
    for output in (1, 2):
        got = [y.clone() for y in eager]
        got[output][0] = ~got[output][0] if output == 2 else got[output][0] + 1
        assert not judge("cpu", got, eager, exact, swayed=Sways(few, [x], exact)).ok


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_digits_that_float64_lacks_too_are_no_error(dtype: torch.dtype) -> None:
    for least, most in ((-20, -9), (-9, -5)):
        x = torch.linspace(least, most, 64).to(dtype)
        verdict = check_on_cpu(lambda x: torch.nn.functional.gelu(x, approximate="tanh"), [x])
        assert verdict.ok, verdict
