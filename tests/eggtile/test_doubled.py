"""The float64 run of a program decides by the program's own types and values, and computes nothing in fewer digits."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from eggtile.check import Longest, check_on_cpu, judge
from eggtile.conditioning import Sways
from eggtile.leaves import flat_tensors
from eggtile.pipeline import RequestError
from eggtile.reference import doubled, run_eager, run_in_float64

Program = Callable[[torch.Tensor], torch.Tensor]


def planted(fn: Program, x: torch.Tensor, wrong: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether the gate lets values pass that are made wrong."""
    eager, exact = run_eager(fn, [x]), run_in_float64(fn, [x])
    swayed = Sways(fn, [x], exact)
    assert judge("cpu", eager, eager, exact, swayed=swayed).ok
    return judge("cpu", [wrong(eager[0]), *eager[1:]], eager, exact, swayed=swayed).ok


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("fn", "scale"),
    [
        (lambda x: F.rms_norm(x, (64,)), 1e-4),
        (lambda x: x / (x.norm(dim=-1, keepdim=True) + torch.finfo(x.dtype).eps), 1e-9),
        (lambda x: x * 2 if x.dtype != torch.float64 else x * 3, 1.0),
        (lambda x: x.sum(-1) if x.element_size() < 8 else x.sum(-1) + 1, 1.0),
    ],
)
def test_a_program_that_asks_for_its_type_gets_its_own(fn: Program, scale: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(4, 64) * scale).to(dtype)
    assert check_on_cpu(fn, [x]).ok
    assert not planted(fn, x, torch.zeros_like) and not planted(fn, x, lambda y: y * 0.9)


@pytest.mark.parametrize(
    "fn", [torch.sqrt, torch.sin, torch.sigmoid, lambda x: x / 3, lambda x: torch.where(x > 50, 0.1, x)]
)
def test_functions_of_whole_numbers_are_computed_in_float64(fn: Program) -> None:
    whole = torch.arange(100)
    assert torch.equal(run_in_float64(fn, [whole])[0], fn(whole.double()))
    assert check_on_cpu(fn, [whole]).ok


def test_what_a_program_writes_and_views_is_written_in_float64_too() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        rows = x.view(-1, 2)
        rows[:, 0].mul_(0.1)
        x.add_(1 / 3)
        return rows.t()

    x = torch.randn(4, 6)
    y, after = run_in_float64(fn, [x])
    wanted = x.double().clone()
    assert torch.equal(y, fn(wanted)) and torch.equal(after, wanted)
    assert torch.equal(run_eager(fn, [x])[0], fn(x.clone()))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.fft.rfft(x).abs(),
        lambda x: torch.view_as_real(torch.polar(x, x) * torch.view_as_complex(x.view(-1, 3, 2)).sum()),
        torch.vmap(lambda x: x.softmax(-1) * x.sum()),
        lambda x: F.scaled_dot_product_attention(*[x.view(1, 2, 2, 6)] * 3, is_causal=True),
        torch.nn.LSTM(6, 5),
        torch.nn.BatchNorm1d(6).train(),
        torch.nn.MultiheadAttention(6, 2).eval(),
    ],
)
def test_float64_is_what_the_program_gives_in_float64(fn: Callable[..., object]) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(4, 6)] * (3 if isinstance(fn, torch.nn.MultiheadAttention) else 1)
    got = run_in_float64(fn, inputs)
    wide = copy.deepcopy(fn).double() if isinstance(fn, torch.nn.Module) else fn
    with torch.no_grad():
        wanted = flat_tensors(wide(*(x.double() for x in inputs)))
    for y, y64 in zip(got, wanted, strict=False):
        torch.testing.assert_close(y, y64, rtol=1e-13, atol=1e-13)


def test_a_place_between_two_right_places_is_wrong() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 300)
    x[:, 0], x[:, 299] = 9.0, 9.0 + 1e-6
    assert check_on_cpu(lambda x: (x * 1.1 + 100).argmax(-1), [x]).ok
    assert planted(lambda x: (x * 1.1 + 100).argmax(-1), x, lambda y: 299 - y)
    assert not planted(lambda x: (x * 1.1 + 100).argmax(-1), x, lambda y: torch.full_like(y, 150))


def test_a_number_between_two_right_counts_is_right() -> None:
    def counts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        near = x * 0.37
        return (near >= near.mean(0)).sum(0), near.argmax(0)

    same = torch.full((2000, 3), 0.3)
    eager, exact = run_eager(counts, [same]), doubled(counts, [same])
    assert exact.totals[:2] == [True, False]
    got = [torch.where(exact.values[0] > 1000, exact.values[0] - 300, exact.values[0] + 300), *eager[1:]]
    swayed = Sways(counts, [same], exact.values)
    assert judge("cpu", got, eager, exact.values, swayed=swayed).ok
    assert not judge("cpu", [exact.values[0] + 3000, *eager[1:]], eager, exact.values, swayed=swayed).ok


@pytest.mark.parametrize("mask", [torch.finfo(torch.float32).min, -torch.inf])
def test_large_numbers_in_a_mask_hide_no_lost_elements(mask: float) -> None:
    def attention(q: torch.Tensor) -> torch.Tensor:
        shown = torch.full((16, 16), mask).triu(1)
        return torch.softmax(q @ q.transpose(-2, -1) + shown, -1) @ q

    torch.manual_seed(0)
    q = torch.randn(2, 16, 8) * torch.tensor([1e8, 1.0])[:, None, None]
    assert not planted(attention, q, lambda y: y * torch.tensor([1.0, 0.0])[:, None, None])


@pytest.mark.parametrize("share", [1.1, 1.001])
def test_an_element_that_lost_half_of_its_digits_is_wrong(share: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    x[0] *= 1e7
    rows = torch.full((64, 1), share)
    rows[0] = 1
    assert not planted(lambda x: x * 3 + x.mean(-1, keepdim=True), x, lambda y: y * rows)


def test_no_element_is_lost_because_few_trials_leave_it_near() -> None:
    def prefixes(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(-1)

    torch.manual_seed(0)
    x = torch.randn(200, 4096)
    exact = run_in_float64(prefixes, [x])
    eager = [y.float() for y in exact]
    small = exact[0].abs() < 0.05
    small[:, :1000] = False
    swayed = Sways(prefixes, [x], exact)
    for error, ok in ((1.5e-5, True), (1e-3, False)):
        got = [torch.where(small, eager[0] + error, eager[0]), eager[1]]
        assert judge("cpu", got, eager, exact, longest=Longest(4096), swayed=swayed).ok == ok


@pytest.mark.parametrize("fn", [lambda x: x + torch.rand_like(x), lambda x: F.dropout(x, 0.5, True)])
def test_random_programs_are_not_compared(fn: Program) -> None:
    with pytest.raises(RequestError, match="draws random numbers"):
        check_on_cpu(fn, [torch.randn(4, 64)])
