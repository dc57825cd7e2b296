"""Running a plan: buffers, launches and eager calls in order, on a GPU or on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.autograd.graph import increment_version

from codegen import cpu, gpu
from codegen.compile import Binary, compile_all
from eggtile.autocast import DEVICES, under, written_out
from eggtile.leaves import flat_tensors
from eggtile.plan import Plan, PlannedLaunch, RequestError, Work
from eggtile.reference import TORCH_DTYPES
from eggtile.returns import Layout, Output
from eggtile.sharing import shared
from ir.dtype import Array
from ir.lifetimes import lifetimes
from ir.loop import Buffer

Tensors = dict[str, torch.Tensor]
Make = Callable[[Buffer], torch.Tensor]


class Launcher(Protocol):
    """A machine that launches kernels on tensors by buffer name."""

    def launch(self, work: Work, tensors: Mapping[str, torch.Tensor], make: Make) -> None:
        """Launch the kernels in order; `make` makes the scratch buffers."""


_captured: set[Execution] = set()
"""Programs with constants that a CUDA graph may replay after their makers dropped them."""


class Execution:
    """A plan bound to a machine; a call takes the program's inputs and gives what the program returns.

    Results and scratch buffers are new tensors at every call; inputs that the program writes change in place. The
    constants of a program that is captured in a CUDA graph are kept for good; inputs stay the caller's to keep.
    """

    def __init__(self, plan: Plan, launcher: Launcher, device: torch.device, poison: bool = False) -> None:
        self.plan, self.launcher, self.device, self.poison = plan, launcher, device, poison
        self.constants = {n: t.to(device) for n, t in plan.constants.items()}

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """What the program returns."""
        plan = self.plan
        if len(inputs) != len(plan.inputs):
            raise RequestError(f"the program takes {len(plan.inputs)} inputs, not {len(inputs)}")
        if plan.eager is None:
            self._check_devices(inputs)
        if any(t.is_neg() for t in inputs):
            raise RequestError("an input is a view that PyTorch negates when it is read; give its resolve_neg()")
        given = {b.name: t for b, t in zip(plan.inputs, inputs, strict=True)} | self.constants
        if self.constants and self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            _captured.add(self)
        if plan.eager is not None:
            return plan.eager(list(given.values()))
        if plan.writes and (why := shared(given, plan.writes)):
            raise RequestError(why)
        tensors = {n: t.detach() for n, t in given.items()} | {b.name: self._made(b) for b in plan.made}
        for step in plan.steps:
            if isinstance(step, Work):
                self.launcher.launch(step, tensors, self._made)
            else:
                with under(written_out()):
                    values = plan.calls[step.key](*(tensors[n] for n in step.operands))
                for index, name in step.results:
                    tensors[name].copy_(values[index])
        increment_version([given[n] for n in plan.writes if not given[n].is_inference()])
        outputs = {o: _given(o, given, tensors) for o in plan.returns.outputs}
        return plan.returns.rebuild([outputs[o] for o in plan.returns.outputs])

    def _check_devices(self, inputs: Sequence[torch.Tensor]) -> None:
        for b, t in zip(self.plan.inputs, inputs, strict=True):
            if t.device.type not in DEVICES:
                raise RequestError(f"{b.name} is on the device {t.device}; programs run on {' or '.join(DEVICES)}")
            if t.device.type != self.device.type:
                raise RequestError(f"{b.name} is on {t.device}, other inputs are on {self.device}; move it there")

    def outputs_and_inputs(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors returned, then the inputs as the program leaves them."""
        return [*flat_tensors(self(*inputs)), *inputs]

    def _made(self, b: Buffer) -> torch.Tensor:
        t = torch.empty_strided(b.shape, b.strides, dtype=TORCH_DTYPES[b.dtype], device=self.device)
        return poisoned(t) if self.poison else t


def _given(output: Output, given: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A tensor for the caller: a result, an input as the caller passed it, or a view of it."""
    name, layout = output.name, output.layout
    if layout is None:
        return given.get(name, tensors[name])
    if name in given:
        t = given[name]
        return t.as_strided(layout.shape, layout.strides, t.storage_offset() + layout.offset)
    return spread(tensors[name], layout)


def spread(t: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The elements of t in a layout in which elements that share memory are equal."""
    distinct = tuple(slice(1) if s == 0 else slice(None) for s in layout.strides)
    places = torch.zeros((), dtype=torch.int64, device=t.device)
    for extent, stride in zip(t.shape, layout.strides, strict=True):
        places = places[..., None] + torch.arange(extent if stride else 1, device=t.device) * stride
    memory = t.new_empty(int(places.max()) + 1 if t.numel() else 0)
    memory[places.flatten()] = t[distinct].flatten()
    return memory.as_strided(layout.shape, layout.strides)


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

    def __init__(self, plan: Plan, order: str = "forward", seed: int = 0) -> None:
        self.order, self.seed = order, seed
        self.numbers = {text: n for n, text in enumerate(plan.kernels)}
        self.program = cpu.Program([(kernel, text) for text, kernel in plan.kernels.items()])

    def launch(self, work: Work, tensors: Mapping[str, torch.Tensor], make: Make) -> None:
        """Run the launches in one worker process; a fault raises `codegen.cpu.CpuRunError`."""
        tensors = {**tensors, **{b.name: make(b) for b in work.scratch}}
        names = sorted({n for k in work.launches for n in k.arguments})
        arrays = [storage_array(tensors[n]) for n in names]
        launches = [
            cpu.Launch(self.numbers[k.text], tuple(names.index(n) for n in k.arguments)) for k in work.launches
        ]
        if launches:
            self.program.run_all(launches, arrays, self.order, self.seed, [n in work.filled for n in names])


def storage_array(t: torch.Tensor) -> Array:
    """A numpy view of the tensor's memory from its first element on, in the storage type (bf16 as uint16)."""
    flat = flat_memory(t)
    return np.asarray((flat.view(torch.uint16) if t.dtype == torch.bfloat16 else flat).numpy())


class GpuLauncher:
    """Launches cubins on the current stream of PyTorch."""

    def __init__(self, plan: Plan) -> None:
        found = plan.binaries or cubins(plan)
        self.functions = {
            text: gpu.Kernel(kernel, Binary(kernel.name, plan.target, found[text], "", "", 0, 0, 0, 0.0))
            for text, kernel in plan.kernels.items()
        }

    def launch(self, work: Work, tensors: Mapping[str, torch.Tensor], make: Make) -> None:
        """Launch every kernel; PyTorch's allocator gives memory that is let go to later tensors in stream order."""
        stream = torch.cuda.current_stream().cuda_stream
        for k, arguments in in_turn(work, tensors, make):
            self.functions[k.text].launch([t.data_ptr() for t in arguments], stream)


def in_turn(
    work: Work, tensors: Mapping[str, torch.Tensor], make: Make
) -> Iterator[tuple[PlannedLaunch, list[torch.Tensor]]]:
    """Each launch with its arguments; a scratch buffer is made for its first launch and let go after its last."""
    scratch = {b.name: b for b in work.scratch}
    last = {n: end for n, (_, end) in lifetimes([frozenset(k.arguments) for k in work.launches]).items()}
    alive: Tensors = {}
    for step, k in enumerate(work.launches):
        alive |= {n: make(scratch[n]) for n in k.arguments if n in scratch and n not in alive}
        yield k, [alive[n] if n in alive else tensors[n] for n in k.arguments]
        alive = {n: t for n, t in alive.items() if last[n] > step}


def cubins(plan: Plan) -> dict[str, bytes]:
    """The cubin of every text, for the plan's target."""
    made = compile_all([(text, kernel.name) for text, kernel in plan.kernels.items()], plan.target)
    return {text: binary.cubin for text, binary in zip(plan.kernels, made, strict=True)}


def execution_for(plan: Plan, device: torch.device, poison: bool = False, order: str = "forward") -> Execution:
    """The plan on a device: kernels on a GPU; on the CPU the same text, emulated in a thread order."""
    launcher: Launcher = GpuLauncher(plan) if device.type == "cuda" else CpuLauncher(plan, order)
    return Execution(plan, launcher, device, poison)
