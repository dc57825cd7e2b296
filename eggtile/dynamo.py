"""Graphs as dynamo traces them from programs, as callables; and the backend of `torch.compile`."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from math import copysign
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch._dynamo import config
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.trace_rules import is_callable_allowed
from torch._guards import Guard

from eggtile.autocast import state
from eggtile.bound import Arguments, bound, refuse_gradients
from eggtile.capture import in_one_call
from eggtile.capture.export import CAPTURING, identifiers, parameter_names
from eggtile.clock import Clock
from eggtile.inlined import inline_bodies
from eggtile.pipeline import Compiled, Options, choose_forms, compile_program
from eggtile.plan import RequestError
from eggtile.planning import plan_of
from eggtile.runtime import Execution, execution_for
from eggtile.stores import opened
from eggtile.tuning import check_budget, tune, tuner_of
from ir.lower import one_call

PLAIN = (torch.Tensor, torch.nn.Parameter)
TOLD = (torch.fx.Node, str, bool, int, float, complex, type(None), type(...), torch.dtype, torch.device)
"""Types of what stands in a graph that its text tells apart."""
_GIVEN = re.compile(r"l_given_(\d+)_(.*)|l_named_(.+?)_")
_INNER = re.compile(r"_(modules|parameters|buffers|dict|closure|cell_contents)(?=_)")
_replayed: set[torch.Tensor] = set()
"""Tensors held by programs that a CUDA graph may replay after their makers dropped them."""


class Made(NamedTuple):
    """A graph compiled for some tensors, of which those at `moved` are numbers that lie on another device."""

    compiled: Compiled
    execution: Execution
    moved: tuple[int, ...]


class Graph:
    """A graph as a callable, compiled for each layout of its arguments.

    `given` tells for each argument whether the caller of the program gives it; the program holds the others itself.
    Where dynamo sees to it that arguments keep their types, shapes and strides, the graph is `static`. With a `budget`
    the kernels for the first arguments are measured before, for about so many seconds. Graphs that say the same of
    the same functions and share what is `known` are compiled once.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        name: str,
        options: Options,
        budget: float | None,
        fn: Any = None,
        known: dict[Hashable, Made] | None = None,
    ) -> None:
        self.graph, self.name, self.options, self.budget = graph, name, options, budget
        inline_bodies(graph)
        self.transform = next(filter(_transforms, graph.graph.nodes), None)
        if self.transform is None:  # a capture records no gradients, whatever the program switches
            for node in graph.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled):
                graph.graph.erase_node(node)
            graph.recompile()
        nodes = graph.graph.find_nodes(op="placeholder")
        self.given = tuple(fn is None or _GIVEN.fullmatch(n.name.lower()) is not None for n in nodes)
        self.names = identifiers(_named(n.name, fn) for n in nodes)
        self.static = fn is not None
        self.computes = any(map(_computes, graph.graph.nodes))
        self.said = _said(graph.graph)
        self.known = {} if known is None else known
        self._made: dict[Hashable, Made] = {}

    def __call__(self, *args: Any) -> Any:
        """What the graph returns."""
        refuse_gradients(a for a, given in zip(args, self.given, strict=True) if given)
        if not self.computes or self.transform is not None:
            return self.graph(*args)
        made = self._made.get(self._key(args)) or self.made(args)
        tensors = [t for t in args if isinstance(t, torch.Tensor)]
        device = made.execution.device
        for k in made.moved:
            tensors[k] = tensors[k].to(device)
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            _replayed.update(t for t, given in zip(args, self.given, strict=True) if not given)
        return made.execution(*tensors)

    def made(self, args: Arguments) -> Made:
        """The graph compiled for arguments like these."""
        key = self._key(args)
        with CAPTURING:
            if key not in self._made:
                alike = self.said, state(), *map(_layout, args)
                if alike not in self.known:
                    self.known[alike] = self._compiled(args)
                self._made[key] = self.known[alike]
        return self._made[key]

    def _compiled(self, args: Arguments) -> Made:
        program, tensors = bound(self.graph, args)
        names = [n for n, a in zip(self.names, args, strict=True) if isinstance(a, torch.Tensor)]
        program.__signature__ = Signature([Parameter(n, Parameter.POSITIONAL_ONLY) for n in names])  # type: ignore[attr-defined]
        device = next((t.device for t in tensors if t.dim()), tensors[0].device if tensors else torch.device("cpu"))
        moved = tuple(k for k, t in enumerate(tensors) if t.device.type == "cpu" != device.type and not t.dim())
        tensors = [t.detach().to(device) if k in moved else t.detach() for k, t in enumerate(tensors)]
        if self.budget is not None:
            with tuner_of(self.options) as tuner:
                tune(program, tensors, self.name, tuner, self.budget)
            self.budget = None
        if self.transform is None:
            compiled = compile_program(program, tensors, self.name, self.options)
        else:
            compiled = as_one_call(
                program,
                tensors,
                self.name,
                self.options,
                f"{self.transform.name} belongs to a transform of torch.func",
            )
        plan = plan_of(compiled)
        if odd := [b.name for k, b in enumerate(plan.inputs) if k in moved and b.name in plan.writes]:
            raise RequestError(f"the program writes {odd[0]}, which is on the cpu; others are on {device}")
        return Made(compiled, execution_for(plan, device), moved)

    def _key(self, args: Arguments) -> Hashable:
        for name, a in zip(self.names, args, strict=True):
            if isinstance(a, torch.Tensor) and type(a) not in PLAIN:
                raise RequestError(f"{name} is a {type(a).__name__}; eggtile runs on plain tensors alone")
        return tuple(map(_alignment if self.static else _layout, args))


def as_one_call(
    fn: Callable[..., Any], tensors: Sequence[torch.Tensor], name: str, options: Options, why: str
) -> Compiled:
    """The program as one call to eager PyTorch."""
    captured = in_one_call(fn, tensors, name, why)
    return choose_forms(Compiled(captured, len(tensors), one_call(captured.program), options, Clock()))


def _transforms(node: torch.fx.Node) -> bool:
    """Whether a node belongs to a transform of torch.func, whose tensors are no plain ones."""
    return "_functorch" in (getattr(node.target, "__module__", None) or "")


class _Itself:
    """An object that is equal to itself alone, and held."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _said(graph: torch.fx.Graph) -> Hashable:
    """What tells graphs apart: their text, and the functions and objects that it names, as others may bear a name."""
    if any(n.op in ("get_attr", "call_module") for n in graph.nodes):
        return object()
    named: list[object] = []
    for node in graph.nodes:
        named.append(node.target)
        torch.fx.node.map_aggregate((node.args, node.kwargs), named.append)
    return str(graph), *(_Itself(x) for x in named if not isinstance(x, TOLD))


def _computes(node: torch.fx.Node) -> bool:
    is_idle = node.op in ("placeholder", "get_attr", "output") or (node.target is getattr and not node.users)
    return not is_idle


def _alignment(t: Any) -> Hashable:
    return int(t.data_ptr() % 16)


def _layout(a: Any) -> Hashable:
    if isinstance(a, torch.Tensor):
        return a.dtype, tuple(a.shape), a.stride(), a.device, a.data_ptr() % 16
    return type(a), repr(a)


def _named(node: str, fn: Any) -> str:
    """The name of an argument as the program has it: of a parameter, or of the attributes that lead to a tensor."""
    node = node.lower()
    if fn is not None and (found := _GIVEN.fullmatch(node)):
        place, rest, name = found.groups()
        if place is None:
            return name
        return parameter_names(fn, int(place) + 1)[int(place)] + (f"_{rest}" if rest else "").rstrip("_")
    return _INNER.sub("", re.sub(r"^l_(fn_)?", "_", node)).strip("_")


# ---- the programs that dynamo follows


_matched_code = GuardBuilder.CLOSURE_MATCH


@wraps(_matched_code)
def _matched(builder: GuardBuilder, guard: Guard) -> None:
    """A guard on a function: on its code, as it is traced through, or on itself, where a graph calls it as a whole."""
    if is_callable_allowed(builder.get(guard)):
        builder.ID_MATCH(guard)
    else:
        _matched_code(builder, guard)


class _Unlimited:
    """Dynamo's tracer, however often a program is traced, and with its guards on hooks and on functions in graphs."""

    def __init__(self, traced: Any, after: Callable[[], None]) -> None:
        self.traced = self._torchdynamo_orig_backend = traced
        self.after = after

    def __call__(self, *args: Any) -> Any:
        with (
            patch.object(GuardBuilder, "CLOSURE_MATCH", _matched),
            config.patch(
                recompile_limit=2**30,
                accumulated_recompile_limit=2**30,
                allow_empty_graphs=True,
                allow_rnn=True,
                skip_nnmodule_hook_guards=False,
                skip_tensor_guards_with_matching_dict_tags=False,
            ),
        ):
            made = self.traced(*args)
        self.after()
        return made


def followed(fn: Callable[..., Any], backend: Callable[..., Any], after: Callable[[], None]) -> Callable[..., Any]:
    """The program with its one graph as `backend` makes it, traced anew where anything that it depends on has changed.

    `after` is called between a trace and the run of what it made.
    """

    def program(signs: str, /, *given: Any, **named: Any) -> Any:
        assert signs != " "  # what is read is guarded; 0.0 == -0.0, so the number itself does not tell
        return fn(*given, **named)

    program.__code__ = program.__code__.replace()  # dynamo keeps its traces with the code object
    context = torch._dynamo.optimize(backend, nopython=True, dynamic=False)
    if not hasattr(context, "callback"):
        raise RequestError("dynamo is switched off, and eggtile traces programs with it; unset TORCHDYNAMO_DISABLE")
    context.callback = _Unlimited(context.callback, after)
    traced: Callable[..., Any] = context(program)

    def run(*given: Any, **named: Any) -> Any:
        numbers = [a for a in (*given, *named.values()) if isinstance(a, float)]
        return traced("".join("-" if copysign(1, a) < 0 else "+" for a in numbers), *given, **named)

    return run


# ---- the backend of torch.compile


def options_of(
    numerics: str = "default",
    target: str = "sm_90a",
    evidence: str | Path | None = None,
    budget: float | None = None,
) -> tuple[Options, float | None]:
    """The options that `optimize` and the backend take, and the seconds to measure."""
    if budget is not None:
        check_budget(budget)
    return Options(numerics=numerics, target=target, evidence=opened(evidence, write=budget is not None)), budget


OPTIONS = tuple(signature(options_of).parameters)


def backend(
    graph: torch.fx.GraphModule, inputs: Sequence[object], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """`torch.compile(m, backend="eggtile")`; options are those of `optimize`."""
    for name in options or ():
        if name not in OPTIONS:
            near = "".join(f"did you mean {x}? " for x in get_close_matches(name, OPTIONS, 1))
            raise RequestError(f"no option is named {name}; {near}options are {', '.join(OPTIONS)}")
    return Graph(graph, "graph", *options_of(**(options or {})))
