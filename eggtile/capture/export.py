"""The torch side of capture: a program as an exported graph whose composites are whole and whose values are pure."""

from __future__ import annotations

import inspect
import keyword
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from threading import RLock
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from eggtile.autocast import under, written_out
from eggtile.capture.attributes import put_back
from eggtile.capture.casts import cast_explicitly
from eggtile.capture.location import innermost
from eggtile.capture.metadata import Watched, check_inputs_keep_theirs, refusal
from eggtile.capture.origins import Origin, origins
from eggtile.capture.overlaps import overlapping_write
from eggtile.capture.table import TABLE
from eggtile.capture.types import CaptureError, OneCall, first_sentence
from eggtile.sharing import apart, shared

CAPTURING = RLock()
"""Held while a program is traced, which changes state of the process, and while an optimised one is called."""
Function = Callable[..., Any]
Dynamic = Mapping[str, Mapping[int, str]]
"""Symbolic extents: input name to {dimension: name of the symbol}."""

DECOMPOSITIONS = 4
"""How often the operators that have no rule are replaced by their parts."""
HARMLESS_WRITES = ("aten.detach_.default",)
_DATA_DEPENDENT = ("data-dependent", "data dependent", "DataDependent", "Unbacked", "unbacked", ".item()", "tolist")
_CPP_WORDS = (
    "alignas auto block bool case catch char const default delete do double enum extern float friend goto inline "
    "int long namespace new operator private public register short signed sizeof static struct switch template "
    "this thread throw typedef union unsigned using virtual void volatile"
)


@dataclass(frozen=True)
class Leaf:
    """A placeholder of the graph as an input of the program; `tensor` is its value."""

    node: str
    name: str
    tensor: torch.Tensor
    user: bool
    target: str | None = None


@dataclass(frozen=True)
class Exported:
    """An exported program: its graph, its inputs in our order, its outputs, what it mutates, its symbols.

    `origins` says of every output that is a tensor where it comes from; `attributes` are written besides, in vain.
    """

    graph: torch.fx.Graph
    leaves: tuple[Leaf, ...]
    outputs: tuple[Any, ...]
    spec: Any
    writes: tuple[tuple[str, str], ...]
    symbols: Mapping[str, tuple[int, int]]
    rename: Mapping[str, str]
    origins: tuple[Origin, ...]
    attributes: tuple[str, ...] = ()


class Wrapped(torch.nn.Module):
    """A plain function as a module."""

    def __init__(self, fn: Function) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: torch.Tensor) -> Any:
        return self.fn(*args)


def parameter_names(fn: Function, count: int) -> list[str]:
    """The names of the first `count` parameters, numbered where the function takes any number."""
    names: list[str] = []
    for p in parameters_of(fn):
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}{k}" for k in range(count - len(names))]
        elif p.kind is not p.VAR_KEYWORD:
            names.append(p.name)
    return [*names, *(f"x{k}" for k in range(len(names), count))][:count]


def parameters_of(fn: Function) -> list[inspect.Parameter]:
    """The parameters of a function or of a module's forward; none where Python knows none."""
    own = getattr(fn, "__signature__", None)
    call = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        return list((own or inspect.signature(call)).parameters.values())
    except (TypeError, ValueError):
        return []


def identifiers(wanted: Iterable[str]) -> list[str]:
    """Distinct identifiers near the wanted names; reserved words get a trailing underscore."""
    out: list[str] = []
    for text in wanted:
        name = re.sub(r"\W", "_", text) or "x"
        if name[0].isdigit() or keyword.iskeyword(name) or name in _CPP_WORDS.split():
            name = f"_{name}" if name[0].isdigit() else f"{name}_"
        unique, k = name, 1
        while unique in out:
            unique, k = f"{name}_{k}", k + 1
        out.append(unique)
    return out


def export(fn: Function, inputs: Sequence[torch.Tensor], dynamic: Dynamic | None) -> Exported:
    """The exported graph of fn on inputs; raises `OneCall` or `CaptureError`."""
    with CAPTURING:
        return _exported(fn, inputs, dynamic)


def _exported(fn: Function, inputs: Sequence[torch.Tensor], dynamic: Dynamic | None) -> Exported:
    module = fn if isinstance(fn, torch.nn.Module) else Wrapped(fn)
    names = parameter_names(fn, len(inputs))
    shapes = _dynamic_shapes(dynamic, names, module) if dynamic else None
    watched = Watched()
    logging.disable(logging.CRITICAL)  # export logs and prints at length what it then raises
    try:
        with torch.no_grad(), redirect_stderr(StringIO()):
            with watched, put_back(fn) as written:
                program = torch.export.export(module, tuple(apart(inputs)), dynamic_shapes=shapes, strict=False)
            check_inputs_keep_theirs(program.graph)
            if name := overlapping_write(program.graph):
                raise OneCall(f"{name} writes through a view whose elements share memory")
            sources = origins(program.graph, program.graph_signature)
            program = cast_explicitly(program)
            with under(written_out()):
                program = _pure(program)
    except (CaptureError, OneCall):
        raise
    except Exception as error:  # export raises many classes; the sentence tells them apart
        raise _refusal(error, watched) from error
    finally:
        logging.disable(logging.NOTSET)
    if _has_effects(program):
        raise CaptureError("the program has effects besides its results and the inputs it writes")
    exported = _described(program, names, inputs, dynamic or {}, sources)
    exported = replace(exported, attributes=tuple(written))
    if why := shared({leaf.name: leaf.tensor for leaf in exported.leaves}, {name for name, _ in exported.writes}):
        raise CaptureError(why)
    return exported


def _refusal(error: Exception, watched: Watched) -> Exception:
    text = f"{type(error).__name__}: {error}"
    if any(mark in text for mark in _DATA_DEPENDENT):
        return OneCall("its control flow or an extent of it depends on data")
    if watched.called:
        return refusal(watched.called)
    if found := re.search(r"Found <class '(?:\w+\.)*(\w+)'> in output, which is not a known type", text):
        return CaptureError(
            f"the program returns a {found[1]}; what is captured returns tensors, numbers and text alone"
        )
    kind = type(error).__name__
    return CaptureError(f"the program cannot be traced: {kind}: {first_sentence(str(error))}{innermost(error)}")


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable) and str(node.target) not in HARMLESS_WRITES


def _pure(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without writes, operators that have no rule replaced by what PyTorch says they consist of."""
    for _ in range(DECOMPOSITIONS):
        table = _decompositions(program.graph)
        if not table and not any(map(_writes, program.graph.nodes)):
            break
        made: torch.export.ExportedProgram = program.run_decompositions(table)
        if _has_effects(made):
            table, made = {}, program.run_decompositions({})
        program = made
        if not table:
            break
    return program


def _has_effects(program: torch.export.ExportedProgram) -> bool:
    return any(s.kind is InputKind.TOKEN for s in program.graph_signature.input_specs)


def _decompositions(graph: torch.fx.Graph) -> dict[Any, Function]:
    targets = {n.target for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload)}
    unknown = [t for t in targets if str(t).removeprefix("aten.") not in TABLE]
    out: dict[Any, Function] = {}
    for t in unknown:
        if torch._C._dispatch_has_kernel_for_dispatch_key(t._name, "CompositeImplicitAutograd"):
            out[t] = partial(t._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)
    if len(out) < len(unknown):
        known = torch._decomp._core_aten_decompositions_post_autograd()
        out |= {t: known[t] for t in unknown if t in known and t not in out}
    return out


def _dynamic_shapes(dynamic: Dynamic, names: list[str], module: torch.nn.Module) -> Any:
    unknown = set(dynamic) - set(names)
    if unknown:
        raise CaptureError(f"{', '.join(sorted(unknown))} is not an input; the inputs are {', '.join(names)}")
    made: dict[str, Any] = {}
    rows = tuple(
        {d: made.setdefault(s, torch.export.Dim(s, min=1)) for d, s in dynamic.get(n, {}).items()} for n in names
    )
    return (rows,) if isinstance(module, Wrapped) else rows


def _described(
    program: torch.export.ExportedProgram,
    names: list[str],
    inputs: Sequence[torch.Tensor],
    dynamic: Dynamic,
    sources: tuple[Origin, ...],
) -> Exported:
    signature = program.graph_signature
    user: list[tuple[str, str | None, str, torch.Tensor]] = []
    other: list[tuple[str, str | None, str, torch.Tensor]] = []
    for spec in signature.input_specs:
        node = spec.arg.name
        if spec.kind is InputKind.USER_INPUT:
            user.append((node, None, names[len(user)], inputs[len(user)]))
        else:
            target = str(spec.target)
            store = program.state_dict if target in program.state_dict else program.constants
            other.append((node, target, target, store[target]))
    rows = [*user, *other]
    unique = identifiers(row[2] for row in rows)
    leaves = tuple(
        Leaf(node, name, tensor, target is None, target)
        for (node, target, _, tensor), name in zip(rows, unique, strict=True)
    )
    by_node = {leaf.node: leaf.name for leaf in leaves}
    by_target = {leaf.target: leaf.name for leaf in leaves}
    returned = list(next(n for n in program.graph.nodes if n.op == "output").args[0])
    outputs, writes = [], []
    for spec, value in zip(signature.output_specs, returned, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(value)
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            writes.append((by_node[str(spec.target)], value.name))
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            writes.append((by_target[str(spec.target)], value.name))
        else:
            raise CaptureError(f"the program has an effect that eggtile does not follow: {spec.kind.name}")
    rename = _symbol_names(program, leaves, dynamic)
    symbols = {
        rename.get(str(s), str(s)): (int(r.lower), int(min(r.upper, 2**62)))
        for s, r in program.range_constraints.items()
        if not is_unbacked(s)
    }
    tree = program.call_spec.out_spec
    return Exported(program.graph, leaves, tuple(outputs), tree, tuple(writes), symbols, rename, sources)


def is_unbacked(symbol: object) -> bool:
    """Whether a symbol of a traced extent or number is known only when the program runs."""
    return str(symbol).startswith(("u", "zu"))


def _symbol_names(
    program: torch.export.ExportedProgram, leaves: tuple[Leaf, ...], dynamic: Dynamic
) -> dict[str, str]:
    """Export's symbols under the names that the caller gave."""
    values = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"}
    out: dict[str, str] = {}
    for leaf in leaves:
        for d, name in dynamic.get(leaf.name, {}).items():
            extent = values[leaf.node].shape[d]
            if not isinstance(extent, int):
                out[str(extent.node.expr)] = name
    return out
