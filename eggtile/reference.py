"""Reference values: the program as PyTorch runs it, and in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from eggtile.doubled import FLOATS, Doubled, Rounding, Widen
from eggtile.leaves import flat_tensors
from ir.dtype import DTYPES, DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
}  # fmt: skip
DTYPE_NAMES: dict[torch.dtype, DType] = {value: name for name, value in TORCH_DTYPES.items()}


def widened(t: torch.Tensor) -> torch.Tensor:
    """A private copy in float64 with the same strides and overlaps (integers and bools are copied as they are)."""
    last = sum((e - 1) * s for e, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else -1
    memory = t.detach().as_strided((last + 1,), (1,))
    copied = memory.to(torch.float64 if t.dtype in FLOATS else t.dtype, copy=True)
    return copied.as_strided(t.shape, t.stride(), 0)


def with_parameters(fn: Callable[..., Any], change: Widen) -> Callable[..., Any]:
    """The program with `change` applied to the parameters and buffers of a module; the module stays as it is."""
    if not isinstance(fn, torch.nn.Module):
        return fn
    module = fn
    changed = {n: change(t) for n, t in (*module.named_parameters(), *module.named_buffers())}
    return lambda *args: torch.func.functional_call(module, changed, args)


def with_buffers(fn: Callable[..., Any]) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A module as a function of its inputs and its buffers, which it may write, and these; parameters stay as they are."""
    if not isinstance(fn, torch.nn.Module):
        return fn, []
    module, held = fn, dict(fn.named_buffers())

    def program(*given: torch.Tensor) -> Any:
        inputs, buffers = given[: len(given) - len(held)], given[len(given) - len(held) :]
        parameters = {n: t.detach().clone() for n, t in module.named_parameters()}
        return torch.func.functional_call(module, parameters | dict(zip(held, buffers, strict=True)), inputs)

    return program, [*held.values()]


@dataclass(frozen=True)
class Exact:
    """The outputs of a program in float64, then its inputs as it leaves them; integers and bools as they follow from these.

    `totals` says which results are sums of whole numbers, `sums_casts` which follow from sums of what the program casts to
    fewer digits, `random` whether it draws random numbers, and `types` which floating types its calls take and give.
    """

    values: list[torch.Tensor]
    totals: list[bool]
    sums_casts: list[bool]
    random: bool
    types: frozenset[torch.dtype]


def run_in_float64(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The program's outputs in float64, then its inputs as it leaves them."""
    return doubled(fn, inputs).values


def doubled(
    fn: Callable[..., Any], inputs: Sequence[torch.Tensor], rounding: Rounding | None = None, kept: bool = False
) -> Exact:
    """The program in float64, which decides by its own types and values as always.

    What a call computes goes on as `rounding` says, and casts to narrower types round where they are `kept`. Attention and
    recurrent cells are those of PyTorch that have every type.
    """
    private, mode = [private_copy(t) for t in inputs], Doubled(widened, rounding, kept)
    with torch.no_grad(), _every_type(), sdpa_kernel(SDPBackend.MATH), mode:
        out = with_parameters(fn, lambda t: t.detach().clone())(*private)
    found = [*flat_tensors(out), *private]
    values, totals, sums = zip(*((mode.wide(t), mode.total(t), mode.sums_casts(t)) for t in found), strict=True)
    return Exact([*values], [*totals], [*sums], mode.random, frozenset(mode.types))


@contextmanager
def _every_type() -> Iterator[None]:
    """Without the kernels of oneDNN, which lack float64; its other flags stay, as to set them warns."""
    before = torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before[0])  # type: ignore[no-untyped-call]


def run_eager(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The program's outputs as PyTorch computes them, then its inputs as it leaves them (on private copies)."""
    private = [private_copy(t) for t in inputs]
    with torch.no_grad():
        out = with_parameters(fn, lambda t: t.detach().clone())(*private)
    return [*flat_tensors(out), *private]


def run_traced(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The program's outputs, then its inputs, without values: in the strides that PyTorch traces them in.

    These are CUDA's where a CPU kernel lays its result out otherwise, as batch_norm's and group_norm's do.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    private = [mode.from_tensor(t) for t in inputs]
    with torch.no_grad(), mode:
        out = with_parameters(fn, mode.from_tensor)(*private)
    return [*flat_tensors(out), *private]


def private_copy(t: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A copy with the same strides, offset and overlaps, on storage of its own, on the device or where t is."""
    memory = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
    copied = memory.to(device or t.device, copy=True).untyped_storage()
    base = torch.empty(0, dtype=t.dtype, device=copied.device).set_(copied)
    return base.as_strided(t.shape, t.stride(), t.storage_offset())


def relative_error(y: torch.Tensor, y64: torch.Tensor) -> float:
    """max|y - y64| / max|y64| (absolute where that is 0); NaN and inf must stand in the same places, else inf."""
    if y.shape != y64.shape:
        return math.inf
    if y.numel() == 0:
        return 0.0
    if not y.dtype.is_floating_point:
        return 0.0 if torch.equal(y.to(y64.dtype), y64) else math.inf
    a, b = y.double(), y64.double()
    odd = ~torch.isfinite(b)
    limit = torch.finfo(y.dtype).max * (1 + torch.finfo(y.dtype).eps / 4)  # what rounds to the largest is below it
    b = torch.where(b.abs() > limit, torch.sign(b) * math.inf, b)
    overflow = odd | torch.isinf(b)  # beyond the range of the output's type, infinity is right
    if not torch.equal(torch.nan_to_num(a[overflow], nan=0.5), torch.nan_to_num(b[overflow], nan=0.5)):
        return math.inf
    a, b = a[~overflow], b[~overflow]
    if a.numel() == 0:
        return 0.0
    difference = float((a - b).abs().max())
    if math.isnan(difference):
        return math.inf
    return difference / (float(b.abs().max()) or 1.0)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next value of the type; 0 for integers."""
    return DTYPES[DTYPE_NAMES[dtype]].unit_roundoff
