"""What a case is: a plain PyTorch program, its seeded inputs, and the work it must do."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "i64": torch.int64,
    "bool": torch.bool,
}
Result = torch.Tensor | tuple[torch.Tensor, ...]
Function = Callable[..., Result]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Output:
    """Shape and dtype of a value; dtype None is the case's."""

    shape: Shape
    dtype: str | None = None


@dataclass(frozen=True)
class Input(Output):
    """One input. `kind` is a row of KINDS, `hi` its bound, width or first position."""

    scale: float = 1.0
    kind: str = "randn"
    hi: int = 0


@dataclass(frozen=True)
class Built:
    """A case at given dims. A Module in `fn` lies on the meta device until `Case.program` gives it parameters.

    `flops` counts 2*M*N*K a product and no masked-out entry; where there is no product, a nominal count.
    `bytes_moved` replaces the sum of inputs and outputs, each once, where that is not the least traffic.
    """

    fn: Function
    inputs: list[Input]
    outputs: list[Output]
    flops: float
    bytes_moved: float | None = None


@dataclass(frozen=True)
class Case:
    """A named program at its full and at its tiny dims; `prio` 1 is the core."""

    name: str
    prio: int
    build: Callable[..., Built]
    full: Mapping[str, int]
    tiny: Mapping[str, int]
    dtype: str = "bf16"
    max_autotune: bool = False
    tf32: bool = False
    graphable: bool = True

    @property
    def family(self) -> str:
        """The part of the name before the dot."""
        return self.name.split(".")[0]

    def built(self, tiny: bool = False) -> Built:
        """The case at full or tiny dims."""
        return self.build(**{**self.full, **(self.tiny if tiny else {})})

    def seed(self, copy: int = 0) -> int:
        """The seed of the inputs' `copy`-th set; a Module's parameters always take set 0."""
        return (zlib.crc32(self.name.encode()) + 7919 * copy) & 0x7FFFFFFF

    def inputs(self, built: Built, device: str, copy: int = 0) -> list[torch.Tensor]:
        """Fresh inputs; equal arguments give equal values."""
        generator = torch.Generator(device=device).manual_seed(self.seed(copy))
        return [make(spec, self.dtype, device, generator) for spec in built.inputs]

    def program(
        self, tiny: bool = False, device: str = "cpu", copy: int = 0
    ) -> tuple[Function, list[torch.Tensor]]:
        """The function and one set of inputs on `device`."""
        built = self.built(tiny)
        fn = built.fn
        if isinstance(fn, nn.Module):
            fn = with_parameters(fn, device, DTYPES[self.dtype], self.seed())
        return fn, self.inputs(built, device, copy)

    def bytes_moved(self, built: Built) -> float:
        """The least traffic: every distinct input and parameter read once, every output written once."""
        if built.bytes_moved is not None:
            return built.bytes_moved
        return sum(
            math.prod(t.shape) * DTYPES[t.dtype or self.dtype].itemsize for t in (*built.inputs, *built.outputs)
        )


def make(spec: Input, dtype: str, device: str, generator: torch.Generator) -> torch.Tensor:
    """The values of one input."""
    return KINDS[spec.kind](spec, DTYPES[spec.dtype or dtype], device, generator)


def with_parameters(module: nn.Module, device: str, dtype: torch.dtype, seed: int) -> nn.Module:
    """A meta-built module on `device`: matrices randn / sqrt(fan_in), norms 1 + 0.1 randn, other vectors 0.1 randn."""
    module = module.to_empty(device=device).to(dtype)
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            mean, deviation = (0.0, p.shape[-1] ** -0.5) if p.dim() >= 2 else (float("norm" in name), 0.1)
            p.normal_(mean, deviation, generator=generator)
            p.requires_grad_(False)
    return module.eval()


def _randn(t: Input, dtype: torch.dtype, device: str, g: torch.Generator) -> torch.Tensor:
    x = torch.randn(t.shape, generator=g, device=device, dtype=dtype)
    return x.mul_(t.scale) if t.scale != 1.0 else x


def _near_one(t: Input, dtype: torch.dtype, device: str, g: torch.Generator) -> torch.Tensor:
    return (1.0 + 0.1 * torch.randn(t.shape, generator=g, device=device)).to(dtype)


def _integers(t: Input, dtype: torch.dtype, device: str, g: torch.Generator) -> torch.Tensor:
    return torch.randint(0, t.hi, t.shape, generator=g, device=device, dtype=dtype)


def _slopes(t: Input, dtype: torch.dtype, device: str, g: torch.Generator) -> torch.Tensor:
    heads = t.shape[0]
    return torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)], device=device).to(dtype)


def _mask(t: Input, dtype: torch.dtype, device: str, g: torch.Generator) -> torch.Tensor:
    rows, columns = t.shape[-2:]
    i = torch.arange(rows, device=device)[:, None] + (columns - rows)
    j = torch.arange(columns, device=device)[None, :]
    keep = (j <= i) & (j > i - t.hi) if t.hi else j <= i
    if dtype == torch.bool:
        return keep.expand(t.shape).contiguous()
    added = torch.zeros((rows, columns), device=device, dtype=dtype).masked_fill_(~keep, torch.finfo(dtype).min)
    return added.expand(t.shape).contiguous()


def _angles(t: Input, dtype: torch.dtype, device: str, g: torch.Generator) -> torch.Tensor:
    positions, width = t.shape[-2:]
    inverse = 1.0 / (10000.0 ** (torch.arange(0, width, 2, device=device, dtype=torch.float32) / width))
    half = torch.outer(torch.arange(t.hi, t.hi + positions, device=device, dtype=torch.float32), inverse)
    angles = torch.cat((half, half), dim=-1)
    return (angles.cos() if t.kind == "cos" else angles.sin()).to(dtype).expand(t.shape).contiguous()


KINDS: Mapping[str, Callable[[Input, torch.dtype, str, torch.Generator], torch.Tensor]] = {
    "randn": _randn,
    "near_one": _near_one,
    "integers": _integers,
    "slopes": _slopes,  # one negative slope a head, for a bias linear in the distance
    "mask": _mask,  # causal; with `hi`, a causal window of that width; added unless the dtype is bool
    "cos": _angles,  # rotary tables from position `hi`
    "sin": _angles,
}
