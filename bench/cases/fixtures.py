"""Programs that other compilers got wrong, each with its inputs and, where it is short to say, the right value.

Without a right value, PyTorch run eagerly on the same device decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, nan

import torch
import torch.nn.functional as F

from bench.cases.spec import Function, Result


@dataclass(frozen=True)
class Fixture:
    """`make(n)` makes fresh inputs on the CPU, with n elements on the axis that the fault is about.

    `extent` is the reported n, and `right` every output there, in order. `large` ones take gigabytes.
    """

    name: str
    fault: str
    fn: Function
    make: Callable[[int], list[torch.Tensor]]
    extent: int
    right: tuple[torch.Tensor, ...] | None = None
    large: bool = False

    def inputs(self) -> list[torch.Tensor]:
        """Fresh inputs as reported."""
        return self.make(self.extent)


def _randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _repeated(values: list[float] | list[int], n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).repeat(n // len(values) + 1)[:n]


def _peak(n: int) -> list[torch.Tensor]:
    x = torch.full((1, n), -inf)
    x[0, n // 2] = 10
    return [x]


def _masked(n: int) -> list[torch.Tensor]:
    mask = torch.ones(4, n, dtype=torch.bool)
    mask[2] = False
    return [_randn(1, 1, 4, 16), *(_randn(1, 1, n, 16, seed=k) for k in (1, 2)), mask]


def _folds() -> Iterator[Fixture]:
    one_hot = torch.zeros(1, 100_000)
    one_hot[0, 50_000] = 1
    fault = "a running maximum over blocks that are wholly -inf gives NaN"
    ten = (torch.tensor([10.0]),)
    yield Fixture("logsumexp_one_peak", fault, lambda x: torch.logsumexp(x, -1), _peak, 100_000, ten)
    yield Fixture("softmax_one_peak", fault, lambda x: torch.softmax(x, -1), _peak, 100_000, (one_hot,))
    yield Fixture(
        "attention_row_without_keys",
        "a row whose keys are all masked is 0 and leaves the other rows alone",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        _masked,
        4,
    )
    yield Fixture(
        "softmax_of_nothing",
        "a row of -inf is NaN, not 0",
        lambda x: torch.softmax(x, -1),
        lambda n: [torch.full((2, n), -inf)],
        8,
        (torch.full((2, 8), nan),),
    )
    for name, s in (("negative", -1e14), ("positive", 1e14), ("overflowing", 1e39)):
        yield Fixture(
            f"softmax_scaled_{name}",
            "max(x * s) is max(x) * s only for s >= 0 and without overflow",
            lambda x, s=s: torch.softmax(x * s, -1),
            lambda n: [_randn(8, n)],
            64,
        )
    yield Fixture(
        "variance_of_nothing",
        "the identity of a fold shows on an empty input",
        lambda x: torch.var_mean(x),
        lambda n: [_randn(n)],
        0,
        (torch.tensor(nan), torch.tensor(nan)),
    )
    yield Fixture(
        "argmax_channels_last",
        "an index is logical, not the place in memory",
        lambda x: (torch.argmax(x * 2), x.sum(-1).argmax()),
        lambda n: [_randn(2, 3, 4, n).to(memory_format=torch.channels_last)],
        5,
    )
    yield Fixture(
        "rms_norm_of_large_halves",
        "a sum of squares in f16 overflows",
        lambda x: F.rms_norm(x, x.shape[-1:]),
        lambda n: [torch.full((2, n), 300.0, dtype=torch.half)],
        8192,
        (torch.ones(2, 8192, dtype=torch.half),),
    )
    yield Fixture(
        "cumsum_of_broadcast",
        "a scan of a broadcast sum over more than 128 rows",
        lambda x, b: torch.cumsum(x + b, 1),
        lambda n: [_randn(1, n, 64), _randn(64, seed=1)],
        129,
    )
    yield Fixture(
        "cumsum_down_columns",
        "a scan over the outer axis",
        lambda x: x.cumsum(0),
        lambda n: [_randn(n, 4000 if n == 100 else 40)],
        100,
    )
    yield Fixture(
        "softmax_of_expanded",
        "reading through stride 0",
        lambda x: torch.softmax(x[:1].expand(128, x.shape[1]) + 1, -1),
        lambda n: [_randn(3, n)],
        64,
    )


def _floats() -> Iterator[Fixture]:
    yield Fixture(
        "times_zero",
        "x * 0 is not 0",
        lambda x: x * 0,
        lambda n: [_repeated([nan, inf, -inf, 3.0], n)],
        4,
        (torch.tensor([nan, nan, nan, 0.0]),),
    )
    yield Fixture(
        "plus_zero",
        "x + 0 is not x where x is -0",
        lambda x: (torch.ceil(x) + torch.zeros_like(x)).reciprocal(),
        lambda n: [_repeated([-0.5, -0.1], n)],
        2,
        (torch.tensor([inf, inf]),),
    )
    yield Fixture(
        "negated_zero",
        "-x is not 0 - x where x is 0",
        lambda x: (torch.neg(x).reciprocal(), (0 - x).reciprocal()),
        lambda n: [_repeated([0.0, -0.0], n)],
        2,
        (torch.tensor([-inf, inf]), torch.tensor([inf, inf])),
    )
    yield Fixture(
        "nan_in_maximum",
        "NaN in either operand comes through",
        lambda a, b: (torch.maximum(a, b), a.clamp_min(0.5), a.relu(), a.amax()),
        lambda n: [_repeated([nan, 1.0, -1.0], n), _repeated([0.0, nan, 0.0], n)],
        3,
        (
            torch.tensor([nan, nan, 0.0]),
            torch.tensor([nan, 1.0, 0.5]),
            torch.tensor([nan, 1.0, 0.0]),
            torch.tensor(nan),
        ),
    )
    yield Fixture(
        "half_overflows",
        "a rounding that the program wrote stays",
        lambda x: ((x.half() * x.half()).float(), x.half().float()),
        lambda n: [_repeated([5000.3], n)],
        1,
        (torch.tensor([inf]), torch.tensor([5000.0])),
    )
    yield Fixture(
        "remainder_of_bf16",
        "the scalar operand rounds as eager's does",
        lambda x: torch.remainder(x, 1.7),
        lambda n: [_repeated([-1.703125], n, torch.bfloat16)],
        1,
    )
    yield Fixture(
        "cast_after_bias",
        "a cast does not move over the addition of a bf16 bias",
        lambda a, b, c: (a @ b + c).float(),
        lambda n: [_randn(*s, seed=k, dtype=torch.bfloat16) for k, s in enumerate(((64, n), (n, 64), (64, 64)))],
        64,
    )


def _long_ramp(m: torch.Tensor) -> Result:
    ramp = torch.arange(m.shape[0], device=m.device)
    return ramp * m, ramp * torch.tensor([10**9], device=m.device)


def _integers() -> Iterator[Fixture]:
    long = torch.arange(11) * 10**9
    yield Fixture(
        "arange_beyond_int32",
        "index arithmetic keeps 64 bits",
        _long_ramp,
        lambda n: [_repeated([10**9], n, torch.int64)],
        11,
        (long, long),
    )
    yield Fixture(
        "bytes_wrap",
        "u8 arithmetic wraps before a cast",
        lambda x, y: ((x + x).to(torch.int16), torch.neg(y) < 4),
        lambda n: [_repeated([128], n, torch.uint8), _repeated([6], n, torch.uint8)],
        1,
        (torch.tensor([0], dtype=torch.int16), torch.tensor([False])),
    )
    yield Fixture(
        "ints_wrap",
        "i32 addition wraps before a cast",
        lambda x: (x + x).to(torch.int64),
        lambda n: [_repeated([2**31 - 1], n, torch.int32)],
        1,
        (torch.tensor([-2]),),
    )
    yield Fixture(
        "more_than_two_billion",
        "an element index beyond 2**31",
        lambda x: x + 1,
        lambda n: [torch.zeros(n, dtype=torch.int8)],
        2**31 + 4096,
        large=True,
    )
    yield Fixture(
        "row_beyond_two_billion",
        "a gathered row that starts beyond 2**31",
        lambda x, i: x.view(-1, 4096)[i] + 1,
        lambda n: [torch.zeros(n, dtype=torch.int8), torch.tensor([n // 4096 - 1, 0, n // 4096 - 2])],
        2**31 + 4096,
        (torch.ones(3, 4096, dtype=torch.int8),),
        large=True,
    )


def _write_expanded(x: torch.Tensor) -> Result:
    a = x.clone().expand(-1, 6)
    a[0, 0] = 0
    return a


def _shift(x: torch.Tensor) -> Result:
    x[1:] = x[:-1].clone()
    return x


def _flip_into_self(x: torch.Tensor, y: torch.Tensor) -> Result:
    x.copy_(x.flip(1))
    z = y.sum(1) + y
    return x + z


def _memory() -> Iterator[Fixture]:
    yield Fixture("write_to_expanded", "a write through stride 0", _write_expanded, lambda n: [_randn(n, 1)], 3)
    yield Fixture(
        "shift_over_itself",
        "a copy between overlapping views",
        _shift,
        lambda n: [_randn(n, 2048 if n == 1024 else 16)],
        1024,
    )
    yield Fixture(
        "flip_into_self",
        "a mutation beside a fold, not fused into it",
        _flip_into_self,
        lambda n: [_randn(20, n), _randn(20 if n == 20 else 1, n, seed=1)],
        20,
    )
    yield Fixture(
        "update_once",
        "trying schedules must not repeat an update in place",
        lambda w, g: w.add_(g, alpha=-0.1),
        lambda n: [torch.ones(n), torch.ones(n)],
        64,
        (torch.full((64,), 0.9),),
    )
    yield Fixture(
        "load_under_a_flag",
        "a staged load under a condition known at run time",
        lambda x, i, flag: torch.where(flag, x[i] + 1, x[i]),
        lambda n: [_randn(n), torch.arange(n - 1, -1, -1), torch.tensor(True)],
        256,
    )


FIXTURES: tuple[Fixture, ...] = (*_folds(), *_floats(), *_integers(), *_memory())
