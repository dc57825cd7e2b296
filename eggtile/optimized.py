"""A program optimised for its inputs: a callable that looks like the program, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import torch
from torch._dynamo.exc import TorchDynamoException, TorchRuntimeError
from torch.nn.modules.module import _has_any_global_hook
from torch.utils import _pytree as pytree

from eggtile.autocast import state, under
from eggtile.bound import Arguments, Takes, bound, refuse_transforms
from eggtile.capture.export import CAPTURING, parameter_names, parameters_of
from eggtile.capture.types import first_sentence
from eggtile.dynamo import Graph, Made, as_one_call, followed, options_of
from eggtile.explore import report
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
from eggtile.saved import is_plain, save
from egraph.graph import EGraph
from ir.loop import Form


class _Found(Exception):
    """A graph at its call, with the arguments of the call."""

    def __init__(self, graph: Graph, arguments: Arguments) -> None:
        super().__init__()
        self.graph, self.arguments = graph, arguments


class _NoGraph(Exception):
    """A program that was traced and has no graph."""


class Optimized:
    """A callable like the program, of which each trace is compiled as one graph.

    Dynamo traces the program at the first call, and anew where what it depends on has changed: types, shapes and strides
    of tensors, other arguments, what the program holds or names, and PyTorch's own state. What dynamo cannot trace as one
    graph runs in eager PyTorch. Runs on the device of its inputs: on a GPU the compiled kernels, on the CPU the same
    text, emulated (slow).
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        inputs: Arguments,
        name: str,
        options: Options,
        budget: float | None = None,
    ) -> None:
        self.fn, self.name, self.options = fn, name, options
        self._inputs, self._state, self._budget = inputs, state(), budget
        self._explored: tuple[Compiled, Compiled] | None = None
        self._whole: Compiled | None = None
        self._eager: dict[Hashable, str] = {}
        self._asked: list[bool] = []
        self._known: dict[Hashable, Made] = {}
        backend = WeakMethod(self._backend)  # dynamo keeps every backend for good
        self._run = followed(fn, lambda *graph: backend()(*graph), partial(_check_found, self._asked))  # type: ignore[misc]
        self._made()

    def __reduce__(self) -> tuple[Any, ...]:
        return Optimized, (self.fn, self._inputs, self.name, self.options)

    def _backend(self, graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        made = Graph(graph, self.name, self.options, self._budget, self.fn, self._known)
        self._budget = None
        self._asked[:] = [True] * len(self._asked)
        asked = self._asked  # dynamo keeps what is returned as long as the trace, which has to go with `self`

        def call(*args: Any) -> Any:
            if asked:
                raise _Found(made, args)
            return made(*args)

        return call

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self.fn(*inputs, **named)
        with CAPTURING:
            if not torch.compiler.is_compiling() and not _has_any_global_hook():  # type: ignore[no-untyped-call]
                refuse_transforms((*inputs, *named.values()))
                if not (self._eager and _facts(inputs, named) in self._eager):
                    try:
                        return self._run(*inputs, **named)
                    except TorchDynamoException as e:
                        self._eager[_facts(inputs, named)] = _reason(e)
        return self.fn(*inputs, **named)

    def _made(self) -> Compiled | None:
        """The graph for the inputs that the program is optimised for; None where it runs in eager PyTorch."""
        key = _facts(self._inputs, {})
        with CAPTURING, under(self._state):
            refuse_transforms(self._inputs)
            self._asked.append(False)
            try:
                if key not in self._eager:
                    self._run(*self._inputs)
                    raise _NoGraph
            except _Found as found:
                if found.graph.computes:
                    return found.graph.made(found.arguments).compiled
                return compile_program(*bound(self.fn, self._inputs), self.name, self.options)
            except _NoGraph:
                self._eager[key] = "it computes no tensor"
            except TorchDynamoException as e:
                self._eager[key] = _reason(e)
                if isinstance(
                    e, TorchRuntimeError
                ):  # an operator refuses its operands, so most likely in eager too
                    fn, tensors = bound(self.fn, self._inputs)
                    self._whole = as_one_call(fn, tensors, self.name, self.options, self._eager[key])
            finally:
                self._asked.clear()
        return None

    @property
    def compiled(self) -> Compiled:
        """The program for the inputs that it is optimised for, as it is now."""
        if made := self._made():
            return made
        if self._whole is None:
            fn, tensors = bound(self.fn, self._inputs)
            why = self._eager[_facts(self._inputs, {})]
            self._whole = as_one_call(fn, tensors, self.name, self.options, why)
        return self._whole

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
        """Write what a run at these shapes needs, with cubins for the target; `eggtile.load` gives it as a callable.

        That is called like the program, with tensors where the inputs have some and else with what the inputs have;
        what has a default there may be left out, or given as what it is saved for.
        """
        compiled = self.compiled
        if compiled is not self._whole:
            with under(self._state):
                compiled = compile_program(*bound(self.fn, self._inputs), self.name, self.options)
        save(plan_of(compiled), _takes(self.fn, self._inputs), path)


def _takes(fn: Callable[..., Any], inputs: Arguments) -> Takes:
    """How a program is called that is saved for inputs: its other parameters stay at their defaults."""
    names = parameter_names(fn, len(inputs))
    own = {name: a for name, a in zip(names, inputs, strict=True) if is_plain(a)}
    defaults = {p.name: p.default for p in parameters_of(fn) if p.default is not p.empty and is_plain(p.default)}
    others = [p for p in parameters_of(fn) if p.name not in names and p.kind is not p.VAR_POSITIONAL]
    by_place = takewhile(lambda p: p.name in defaults and p.kind is not p.KEYWORD_ONLY, others)
    held = {p.name: defaults[p.name] for p in others if p.name in defaults}
    leaves, tree = pytree.tree_flatten((*inputs, *held.values()))
    fixed = {n: leaf for n, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
    free = {name: value for name, value in defaults.items() if name in own or name in held}
    return Takes((*names, *held), tree, fixed, len(names) + len(list(by_place)), free)


def _check_found(asked: list[bool]) -> None:
    """Stop a program that is asked for its graph, and has none, before it runs."""
    if asked and not asked[-1]:
        raise _NoGraph


def _facts(inputs: Arguments, named: Mapping[str, object]) -> Hashable:
    """What of arguments may decide whether dynamo can trace a program."""
    leaves, tree = pytree.tree_flatten((tuple(inputs), dict(named)))
    facts = (
        (x.dtype, tuple(x.shape), x.device) if isinstance(x, torch.Tensor) else (type(x), repr(x)) for x in leaves
    )
    return str(tree), *facts


def _reason(error: Exception) -> str:
    return f"dynamo cannot trace it as one graph: {first_sentence(str(error))}"


def optimize(
    fn: Callable[..., Any] | torch.nn.Module,
    inputs: Arguments,
    numerics: str = "default",
    target: str = "sm_90a",
    name: str = "program",
    evidence: str | Path | None = None,
    budget: float | None = None,
) -> Optimized:
    """Optimise a function or module for inputs like `inputs`; all among them that is no tensor is constant.

    Dynamo, the tracer of `torch.compile`, decides what a program is. A call has the effects of the program (what it writes
    to tensors, attributes, lists and caches), and the program is traced anew once something that it read has changed.
    What dynamo cannot trace as one graph, as where data decides the course or something is printed, runs in eager
    PyTorch as a whole; `report()["notes"]` says so. So does all while hooks on every module are registered. Dynamo does
    not see a method that another takes the place of in a class, nor an object that is given another class. It traces
    through functions with an `lru_cache`, and follows the sign of zero in arguments that are numbers, but not in numbers
    inside of others; `_base` of an input is not followed.

    Outputs are the tensors that PyTorch gives: an input or a written input is the caller's own tensor, a view of an
    input is a view of it, and a tensor that is returned twice is one object. Two exceptions: outputs that are views of
    one new tensor do not share memory with each other, and a view of an input under another type is a copy.

    Forms and schedules are chosen by what was measured: `evidence` is a store, a .jsonl file, "none", or else what
    `eggtile.stores.opened` finds. With a `budget`, kernels are measured first, on the GPU, for about so many seconds.

    It is for inference. The weights of a module may require gradients, but results never do: what is computed from them
    passes no gradient back to those weights. An input that requires gradients is refused (`RequestError`) unless the
    program is called under `torch.no_grad()`.

    Values in tensors are the caller's to keep in range, as for CUDA kernels: where eager PyTorch raises for an index, a
    class or an integer divisor of zero, results have no meaning there.

    What `save` writes is traced by `torch.export` instead: it holds tensors as they are then, its effects are writes to
    inputs and its own tensors alone, and a cache outside of the module that the program fills may keep tensors of the
    trace. Among threads one call runs at a time.

    Refused, with one sentence (`RequestError`, or `CaptureError` where a trace shows it): what is called within a
    transform of `torch.func`, a tracer, a dispatch mode or forward derivatives; tensors of other classes, and nested ones;
    a written tensor that shares memory with another; and an input whose shape or strides a graph changes.
    """
    if not callable(fn):
        raise RequestError(f"the program is a {type(fn).__name__}; eggtile takes a function or a module")
    if not isinstance(inputs, list | tuple):
        raise RequestError(
            f"the inputs are a {type(inputs).__name__}; eggtile takes a list of the program's arguments"
        )
    return Optimized(fn, inputs, name, *options_of(numerics, target, evidence, budget))
