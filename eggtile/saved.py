"""Programs on disk: a plan with its cubins, as plain data that loading cannot turn into code of this process."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

import torch
from torch.utils import _pytree as pytree

from eggtile.bound import Takes, refuse_gradients, refuse_transforms
from eggtile.plan import Plan, PlannedLaunch, RequestError, Work
from eggtile.reference import TORCH_DTYPES
from eggtile.returns import Layout, Output, Returns
from eggtile.runtime import Execution, cubins, execution_for
from ir.dtype import DTYPES
from ir.kernel import KernelProgram, Shared
from ir.loop import Buffer
from ir.steps import CallStep

FAMILY = "eggtile plan "
FORMAT = FAMILY + "2"
FIELDS = {
    "name",
    "target",
    "inputs",
    "takes",
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

    def __init__(self, plan: Plan, takes: Takes) -> None:
        self.plan, self.takes = plan, takes
        self._executions: dict[torch.device, Execution] = {}

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        """What the program returns, called like it; tensors must be of the types and strides that it is compiled for.

        What is no tensor among the arguments must be what it was when the program was saved.
        """
        tensors = self.takes.tensors(inputs, named)
        for b, name, t in zip(self.plan.inputs, self.takes.places, tensors, strict=True):
            _check(b, name, t)
        refuse_transforms(tensors)
        refuse_gradients(tensors)
        device = tensors[0].device if tensors else torch.device("cpu")
        if device not in self._executions:
            self._executions[device] = execution_for(self.plan, device)
        return self._executions[device](*tensors)


def _check(b: Buffer, name: str, t: torch.Tensor) -> None:
    if not isinstance(t, torch.Tensor):
        raise RequestError(f"{name} is a {type(t).__name__}; the program takes {b.dtype}{list(b.shape)}")
    wanted = (TORCH_DTYPES[b.dtype], b.shape, _steps(b.shape, b.strides))
    shape = tuple(t.shape)
    if wanted != (t.dtype, shape, _steps(shape, t.stride())):
        given = f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)} with strides {list(t.stride())}"
        raise RequestError(
            f"{name} is {given}; the program takes {b.dtype}{list(b.shape)} with strides {list(b.strides)}"
        )
    if t.data_ptr() % max(b.alignment, DTYPES[b.dtype].bytes):
        raise RequestError(f"{name} is not aligned to {b.alignment} bytes, as the program takes it")


def _steps(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The strides that lead from one element to another."""
    return tuple(s for e, s in zip(shape, strides, strict=True) if e > 1)


def save(plan: Plan, takes: Takes, path: str | Path) -> None:
    """Write the plan with the cubins for its target, and how it is called; one that calls eager PyTorch is refused."""
    calls = [s.target for s in plan.steps if isinstance(s, CallStep)]
    if calls:
        raise RequestError(f"{plan.name} calls {calls[0]} of eager PyTorch, so it cannot be saved")
    for what, held in (("returns", plan.returns.fixed or {}), ("takes", takes.fixed)):
        if odd := [v for v in held.values() if not isinstance(v, _PLAIN)]:
            raise RequestError(f"{plan.name} {what} a {type(odd[0]).__name__}, so it cannot be saved")
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
        "takes": (takes.parameters, _tree_text(takes.tree, f"{plan.name} takes"), dict(takes.fixed)),
        "tree": _tree_text(plan.returns.tree, f"{plan.name} returns") if plan.returns.tree else "",
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
    written = row.get("format") if isinstance(row, dict) else None
    if not isinstance(written, str) or not written.startswith(FAMILY):
        raise RequestError(f"{path} is no saved program")
    if written != FORMAT:
        raise RequestError(
            f"{path} was saved by another version ({written}, this one reads {FORMAT}); save it again"
        )
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
    parameters, shape, fixed = row["takes"]
    return Saved(plan, Takes(tuple(parameters), pytree.treespec_loads(shape), fixed))


def _tree_text(tree: pytree.TreeSpec, what: str) -> str:
    """A structure as text that gives it back; one that has none is refused."""
    try:
        text = pytree.treespec_dumps(tree)
        if pytree.treespec_loads(text) == tree:
            return text
    except (
        NotImplementedError,
        TypeError,
    ):  # a class that PyTorch has no name for, or a key that is no plain value
        pass
    raise RequestError(f"{what} a structure that PyTorch writes no text of, so it cannot be saved")


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
