"""Running a compiled program: buffers, launches and eager calls in order, on a GPU or on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from codegen import cpu, gpu
from codegen.compile import compile_all
from eggtile.capture.types import TORCH_DTYPES
from eggtile.pipeline import Compiled, Region, RequestError
from ir.dtype import Array
from ir.loop import Buffer

Tensors = dict[str, torch.Tensor]


class Launcher(Protocol):
    """A machine that launches the kernels of a region on tensors by buffer name."""

    def launch(self, region: Region, tensors: Mapping[str, torch.Tensor]) -> None:
        """Launch the kernels of the region's chosen form in order."""


class Execution:
    """A compiled program bound to a machine; a call takes the program's inputs and gives its outputs.

    Outputs and scratch buffers are new tensors at every call; inputs that the program writes change in place.
    """

    def __init__(self, compiled: Compiled, launcher: Launcher, device: torch.device, poison: bool = False) -> None:
        self.compiled, self.launcher, self.device, self.poison = compiled, launcher, device, poison
        self.buffers = {b.name: b for b in compiled.lowered.buffers}
        program = compiled.captured.program
        self.results = [r.name for r in program.results if r.writes is None]
        named = list(zip(program.inputs, compiled.captured.tensors, strict=True))
        self.users = [i.name for i, _ in named[: compiled.arity]]
        self.constants = {i.name: t.detach().to(device) for i, t in named[compiled.arity :] if t is not None}

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The program's result tensors, in order."""
        if len(inputs) != len(self.users):
            raise RequestError(f"the program takes {len(self.users)} inputs, not {len(inputs)}")
        tensors: Tensors = {**self.constants}
        tensors.update((n, t.detach()) for n, t in zip(self.users, inputs, strict=True))
        for b in self.buffers.values():
            if b.name not in tensors:
                tensors[b.name] = self._made(b)
        for step in self.compiled.steps:
            if isinstance(step, Region):
                self.launcher.launch(step, self._with_scratch(step, tensors))
            else:
                values = self.compiled.captured.calls[step.key](*(tensors[n] for n in step.operands))
                for index, name in step.results:
                    tensors[name].copy_(values[index])
        return [tensors[name] for name in self.results]

    def outputs_and_inputs(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results, then the inputs as the program leaves them."""
        return [*self(inputs), *inputs]

    def _with_scratch(self, region: Region, tensors: Tensors) -> Tensors:
        needed = (*region.chosen.buffers, *(b for k in region.kernels for b in k.scratch))
        own = {b.name: self._made(b) for b in needed if b.name not in tensors}
        return {**tensors, **own}

    def _made(self, b: Buffer) -> torch.Tensor:
        t = torch.empty_strided(b.shape, b.strides, dtype=TORCH_DTYPES[b.dtype], device=self.device)
        return poisoned(t) if self.poison else t


def poisoned(t: torch.Tensor) -> torch.Tensor:
    """The tensor filled with values that a right program never keeps: NaN, or an odd bit pattern."""
    if t.numel():
        flat_memory(t).view(torch.uint8).fill_(0xFF if t.dtype.is_floating_point else 0x5A)
    return t


def flat_memory(t: torch.Tensor) -> torch.Tensor:
    """The memory from the tensor's first element to the end of its storage, as one dimension."""
    count = t.untyped_storage().nbytes() // t.element_size() - t.storage_offset()
    return t.as_strided((count,), (1,))


class CpuLauncher:
    """Runs the emitted text on the CPU, every kernel of the program compiled together."""

    def __init__(self, compiled: Compiled, order: str = "forward", seed: int = 0) -> None:
        self.order, self.seed = order, seed
        distinct = {k.text: k for k in compiled.launches}
        self.numbers = {text: n for n, text in enumerate(distinct)}
        self.program = cpu.Program([(k.kernel, text) for text, k in distinct.items()])

    def launch(self, region: Region, tensors: Mapping[str, torch.Tensor]) -> None:
        """Run the launches of one region in one worker process; a fault raises `codegen.cpu.CpuRunError`."""
        kernels = [k for k in region.launches if k.kernel.blocks]
        names = sorted({n for k in kernels for n in k.arguments})
        arrays = [storage_array(tensors[n]) for n in names]
        launches = [cpu.Launch(self.numbers[k.text], tuple(names.index(n) for n in k.arguments)) for k in kernels]
        filled = {b.name for b in region.program.buffers if b.role == "input"}
        if launches:
            self.program.run_all(launches, arrays, self.order, self.seed, [n in filled for n in names])


def storage_array(t: torch.Tensor) -> Array:
    """A numpy view of the tensor's memory from its first element on, in the storage type (bf16 as uint16)."""
    flat = flat_memory(t)
    return np.asarray((flat.view(torch.uint16) if t.dtype == torch.bfloat16 else flat).numpy())


class GpuLauncher:
    """Launches cubins on the current stream of PyTorch."""

    def __init__(self, compiled: Compiled) -> None:
        distinct = {k.text: k for k in compiled.launches if k.kernel.blocks}
        binaries = compile_all([(text, k.kernel.name) for text, k in distinct.items()], compiled.options.target)
        self.functions = {k.text: gpu.Kernel(k.kernel, b) for k, b in zip(distinct.values(), binaries, strict=True)}

    def launch(self, region: Region, tensors: Mapping[str, torch.Tensor]) -> None:
        """Launch every kernel; PyTorch's allocator keeps the tensors alive in stream order."""
        stream = torch.cuda.current_stream().cuda_stream
        for k in region.launches:
            if k.kernel.blocks:
                self.functions[k.text].launch([tensors[n].data_ptr() for n in k.arguments], stream)


def execution_for(
    compiled: Compiled, device: torch.device, poison: bool = False, order: str = "forward"
) -> Execution:
    """The program on a device: kernels on a GPU; on the CPU the same text, emulated in a thread order."""
    launcher: Launcher = GpuLauncher(compiled) if device.type == "cuda" else CpuLauncher(compiled, order)
    return Execution(compiled, launcher, device, poison)
