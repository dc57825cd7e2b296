"""A program optimised for its inputs: a callable that looks like the program, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from eggtile.autocast import state, under
from eggtile.bound import Arguments, bound, placed, refuse_gradients
from eggtile.explore import report
from eggtile.held import Held, held
from eggtile.pipeline import (
    LISTED,
    Compiled,
    CompiledKernel,
    Options,
    RequestError,
    choose_forms,
    compile_program,
    restarted,
)
from eggtile.planning import plan_of
from eggtile.runtime import Execution, execution_for
from eggtile.saved import save
from eggtile.stores import opened
from eggtile.tuning import tune, tuner_of
from egraph.graph import EGraph
from ir.loop import Form

Signature = tuple[object, ...]


class Optimized:
    """A callable like the program, specialised to the shapes, strides, types and alignment of each call's inputs.

    Numbers among the inputs are constants, of which each makes a program of its own, as does each state of autocast. Where
    the program holds other tensors or modules than before (`held`), it is captured anew. Runs on the device of its
    inputs: on a GPU the compiled kernels, on the CPU the same text, emulated (slow).
    """

    def __init__(self, fn: Callable[..., Any], inputs: Arguments, name: str, options: Options) -> None:
        self.fn, self.name, self.options = fn, name, options
        self._inputs, self._state = inputs, state()
        self._executions: dict[Signature, tuple[Execution, Held]] = {}
        self._explored: tuple[Compiled, Compiled] | None = None
        self._compiled, self._held = self._specialised(inputs)

    def _specialised(self, inputs: Arguments) -> tuple[Compiled, Held]:
        program, tensors = bound(self.fn, inputs)
        compiled = compile_program(program, tensors, self.name, self.options)
        device = tensors[0].device if tensors else torch.device("cpu")
        found = held(self.fn)
        self._executions[signature(inputs)] = execution_for(plan_of(compiled), device), found
        return compiled, found

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        arguments = placed(self.fn, inputs, named)
        refuse_gradients(arguments)
        key = signature(arguments)
        known = self._executions.get(key)
        if known is None or not known[1].same(held(self.fn)):
            self._specialised(arguments)
        execution, _ = self._executions[key]
        return execution(*(t for t in arguments if isinstance(t, torch.Tensor)))

    @property
    def compiled(self) -> Compiled:
        """The program for the inputs that it is optimised for, with the tensors that it holds now."""
        if not self._held.same(held(self.fn)):
            with under(self._state):
                self._compiled, self._held = self._specialised(self._inputs)
        return self._compiled

    @property
    def explored(self) -> Compiled:
        """The program with all that `eggtile explore` finds of it, which is looked for when it is first asked for."""
        compiled = self.compiled
        if self._explored is None or self._explored[0] is not compiled:
            self._explored = compiled, choose_forms(restarted(compiled, k=LISTED, explain=True))
        return self._explored[1]

    @property
    def forms(self) -> list[Form]:
        """The forms that `eggtile explore` lists, of all regions in order, with the laws behind each."""
        return [f for r in self.explored.regions for f in r.listed]

    @property
    def egraph(self) -> EGraph:
        """The saturated e-graph of the first region."""
        if not self.explored.regions:
            raise RequestError(f"{self.name} has no kernel, so no e-graph")
        return self.explored.regions[0].graph

    @property
    def kernels(self) -> list[CompiledKernel]:
        """The kernels that a call launches, in order."""
        return self.compiled.kernels

    def report(self) -> dict[str, Any]:
        """What `eggtile explore --json` prints."""
        return report(self.explored)

    def save(self, path: str | Path) -> None:
        """Write what a run at these shapes needs, with cubins for the target; `eggtile.load` reads it."""
        save(plan_of(self.compiled), path)


def signature(inputs: Arguments) -> Signature:
    """What a specialisation depends on: type, shape, strides, device, and alignment of the data up to 16 bytes.

    Of a number its type and its bits, as -0.0 is not 0.0 and True is not 1. And the state of autocast.
    """
    return state(), *(
        (t.dtype, tuple(t.shape), t.stride(), t.device, t.data_ptr() % 16)
        if isinstance(t, torch.Tensor)
        else (type(t), repr(t))
        for t in inputs
    )


def optimize(
    fn: Callable[..., Any] | torch.nn.Module,
    inputs: Arguments,
    numerics: str = "default",
    target: str = "sm_90a",
    name: str = "program",
    evidence: str | Path | None = None,
    budget: float | None = None,
) -> Optimized:
    """Optimise a function or module for inputs like `inputs`; their values are used only where its course depends on data.
    Numbers among the inputs are constants of the program.

    Outputs are the tensors that PyTorch gives: an input or a written input is the caller's own tensor, a view of an
    input is a view of it, and a tensor that is returned twice is one object. Two exceptions: outputs that are views of
    one new tensor do not share memory with each other, and a view of an input under another type is a copy. A program
    whose control flow or extents depend on data runs in eager PyTorch as a whole; `report()["notes"]` says so.

    Forms and schedules are chosen by what was measured: `evidence` is a store, a .jsonl file, "none", or else what
    `eggtile.stores.opened` finds. With a `budget`, kernels are measured first, on the GPU, for about so many seconds.

    A module's tensors may change in place, and others may take their place: the next call sees it. So it is for the modules
    and tensors that a function names outside itself, also in lists, tuples and dicts of up to 256 values. All else that a
    program reads is fixed when it is captured: a closure's Python number, what another object or Python module has, and
    the value of a tensor that serves as a number (`x[s]`, `float(s)`).

    It is for inference: the weights of a module may require gradients, results never do, and an input that does is refused
    (`RequestError`) unless it is called under `torch.no_grad()`.

    Refused, with one sentence: an input whose shape or strides the program changes, and a written input that shares
    memory with another (`CaptureError` when captured, `RequestError` when called).
    """
    options = Options(numerics=numerics, target=target, evidence=opened(evidence, write=budget is not None))
    if budget is not None:
        with tuner_of(options) as tuner:
            tune(*bound(fn, inputs), name, tuner, budget)
    return Optimized(fn, inputs, name, options)
