"""Programs on disk: a plan with its cubins, as plain data that loading cannot turn into code of this process."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

import torch
from torch.utils import _pytree as pytree

from eggtile.bound import refuse_gradients, refuse_transforms
from eggtile.plan import Plan, PlannedLaunch, RequestError, Work
from eggtile.reference import TORCH_DTYPES
from eggtile.returns import Layout, Output, Returns
from eggtile.runtime import Execution, cubins, execution_for
from ir.dtype import DTYPES
from ir.kernel import KernelProgram, Shared
from ir.loop import Buffer
from ir.steps import CallStep

FORMAT = "eggtile plan 1"
FIELDS = {
    "name",
    "target",
    "inputs",
    "constants",
    "made",
    "works",
    "outputs",
    "tree",
    "fixed",
    "writes",
    "binaries",
}
ZIP_HEAD = b"PK\x03\x04"
_PLAIN = (type(None), bool, int, float, str, torch.dtype)
Row = tuple[Any, ...]


class Saved:
    """A saved program as a callable: the kernels on a GPU, or their text emulated on the CPU (slow)."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._executions: dict[torch.device, Execution] = {}

    def __call__(self, /, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        """What the program returns; inputs must be of the types and strides that it is compiled for."""
        inputs = self._placed(inputs, named)
        refuse_transforms(inputs)
        refuse_gradients(inputs)
        for b, t in zip(self.plan.inputs, inputs, strict=False):
            _check(b, t)
        device = inputs[0].device if self.plan.inputs and inputs else torch.device("cpu")
        if device not in self._executions:
            self._executions[device] = execution_for(self.plan, device)
        return self._executions[device](*inputs)

    def _placed(
        self, inputs: tuple[torch.Tensor, ...], named: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """The inputs in order, with those that are given by name."""
        names = [b.name for b in self.plan.inputs]
        rest = names[len(inputs) :]
        if odd := [name for name in named if name not in rest]:
            why = "is given twice" if odd[0] in names else f"is no input; inputs are {', '.join(names)}"
            raise RequestError(f"{odd[0]} {why}")
        if named and (missing := [name for name in rest if name not in named]):
            raise RequestError(f"{missing[0]} is not given")
        return (*inputs, *(named[name] for name in rest if named))


def _check(b: Buffer, t: torch.Tensor) -> None:
    if not isinstance(t, torch.Tensor):
        raise RequestError(f"{b.name} is a {type(t).__name__}; the program takes {b.dtype}{list(b.shape)}")
    wanted = (TORCH_DTYPES[b.dtype], b.shape, _steps(b.shape, b.strides))
    shape = tuple(t.shape)
    if wanted != (t.dtype, shape, _steps(shape, t.stride())):
        given = f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)} with strides {list(t.stride())}"
        raise RequestError(
            f"{b.name} is {given}; the program takes {b.dtype}{list(b.shape)} with strides {list(b.strides)}"
        )
    if t.data_ptr() % max(b.alignment, DTYPES[b.dtype].bytes):
        raise RequestError(f"{b.name} is not aligned to {b.alignment} bytes, as the program takes it")


def _steps(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The strides that lead from one element to another."""
    return tuple(s for e, s in zip(shape, strides, strict=True) if e > 1)


def save(plan: Plan, path: str | Path) -> None:
    """Write the plan with the cubins for its target; one that calls eager PyTorch is refused."""
    calls = [s.target for s in plan.steps if isinstance(s, CallStep)]
    if calls:
        raise RequestError(f"{plan.name} calls {calls[0]} of eager PyTorch, so it cannot be saved")
    odd = [v for v in (plan.returns.fixed or {}).values() if not isinstance(v, _PLAIN)]
    if odd:
        raise RequestError(f"{plan.name} returns a {type(odd[0]).__name__}, so it cannot be saved")
    works = [s for s in plan.steps if isinstance(s, Work)]
    row = {
        "format": FORMAT,
        "name": plan.name,
        "target": plan.target,
        "inputs": [_row(b) for b in plan.inputs],
        "constants": dict(plan.constants),
        "made": [_row(b) for b in plan.made],
        "works": [_work_row(w) for w in works],
        "outputs": [(o.name, _row(o.layout) if o.layout else None) for o in plan.returns.outputs],
        "tree": pytree.treespec_dumps(plan.returns.tree) if plan.returns.tree else "",
        "fixed": dict(plan.returns.fixed or {}),
        "writes": plan.writes,
        "binaries": {t: torch.frombuffer(bytearray(b), dtype=torch.uint8) for t, b in cubins(plan).items()},
    }
    try:
        torch.save(row, path)
    except (OSError, RuntimeError) as e:
        raise RequestError(f"{path} cannot be written: {str(e).splitlines()[0]}") from e


def load(path: str | Path) -> Saved:
    """The program that `save` wrote to `path`; a file that is none, or not all of one, is refused."""
    _check_file(Path(path))
    try:
        row = torch.load(path, weights_only=True, map_location="cpu")
    except (RuntimeError, UnpicklingError) as e:
        raise RequestError(f"{path} is damaged, or no saved program: {type(e).__name__}") from e
    if not isinstance(row, dict) or row.get("format") != FORMAT:
        raise RequestError(f"{path} is no saved program of this version ({FORMAT})")
    if missing := FIELDS - row.keys():
        raise RequestError(f"{path} is damaged: it has no {min(missing)}")
    outputs = tuple(Output(name, Layout(*layout) if layout else None) for name, layout in row["outputs"])
    tree = pytree.treespec_loads(row["tree"]) if row["tree"] else None
    plan = Plan(
        row["name"],
        row["target"],
        tuple(Buffer(*b) for b in row["inputs"]),
        row["constants"],
        tuple(Buffer(*b) for b in row["made"]),
        tuple(map(_work, row["works"])),
        Returns(outputs, tree, row["fixed"]),
        row["writes"],
        binaries={text: bytes(code.numpy()) for text, code in row["binaries"].items()},
    )
    return Saved(plan)


def _check_file(path: Path) -> None:
    """Refuse what cannot be a saved program, which is a zip file with its table of contents at the end."""
    try:
        with path.open("rb") as file:
            head = file.read(len(ZIP_HEAD))
        if is_zipfile(path):
            with ZipFile(path) as file:
                odd = file.testzip()
            if odd is None:
                return
            raise RequestError(f"{path} is damaged: {odd} in it is not what was written")
    except FileNotFoundError:
        raise RequestError(f"there is no file {path}") from None
    except OSError as e:
        raise RequestError(f"{path} cannot be read: {e.strerror}") from None
    except (BadZipFile, UnicodeDecodeError, EOFError, NotImplementedError, zlib.error) as e:
        raise RequestError(f"{path} is damaged: {e}") from None
    if head == ZIP_HEAD:
        raise RequestError(f"{path} is damaged: its end is missing, {path.stat().st_size} bytes are there")
    raise RequestError(f"{path} is no saved program")


# ---- rows


def _row(value: Buffer | Shared | Layout) -> Row:
    return tuple(getattr(value, f.name) for f in fields(value))


def _work_row(w: Work) -> Row:
    return [_launch_row(k) for k in w.launches], [_row(b) for b in w.scratch], w.filled


def _launch_row(k: PlannedLaunch) -> Row:
    kernel = k.kernel
    shared = [_row(s) for s in kernel.body if isinstance(s, Shared)]
    return (
        kernel.name,
        [_row(b) for b in kernel.buffers],
        kernel.threads,
        kernel.blocks,
        kernel.cluster,
        shared,
        k.text,
        k.arguments,
    )


def _work(row: Row) -> Work:
    launches, scratch, filled = row
    return Work(tuple(map(_launch, launches)), tuple(Buffer(*b) for b in scratch), filled)


def _launch(row: Row) -> PlannedLaunch:
    name, buffers, threads, blocks, cluster, shared, text, arguments = row
    body = tuple(Shared(*s) for s in shared)
    return PlannedLaunch(
        KernelProgram(name, tuple(Buffer(*b) for b in buffers), threads, blocks, body, cluster), text, arguments
    )
