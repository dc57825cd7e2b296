"""Programs on disk: a plan with its cubins, as plain data that loading cannot turn into code of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

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

FAMILY = b"eggtile plan "
HEAD = FAMILY + b"3\n"
"""What a file begins with; a SHA-256 digest of it and of the rest follows, then the rest, as `torch.save` writes it."""
DIGEST_BYTES = sha256().digest_size
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
        if odd := [v for v in held.values() if not is_plain(v)]:
            raise RequestError(f"{plan.name} {what} a {type(odd[0]).__name__}, so it cannot be saved")
    works = [s for s in plan.steps if isinstance(s, Work)]
    row = {
        "name": plan.name,
        "target": plan.target,
        "inputs": [_row(b) for b in plan.inputs],
        "constants": dict(plan.constants),
        "made": [_row(b) for b in plan.made],
        "works": [_work_row(w) for w in works],
        "outputs": [(o.name, _row(o.layout) if o.layout else None) for o in plan.returns.outputs],
        "takes": (
            takes.parameters,
            _tree_text(takes.tree, f"{plan.name} takes"),
            dict(takes.fixed),
            takes.positional,
            dict(takes.defaults),
        ),
        "tree": _tree_text(plan.returns.tree, f"{plan.name} returns") if plan.returns.tree else "",
        "fixed": dict(plan.returns.fixed or {}),
        "writes": plan.writes,
        "binaries": {t: torch.frombuffer(bytearray(b), dtype=torch.uint8) for t, b in cubins(plan).items()},
    }
    written = BytesIO()
    torch.save(row, written)
    contents = written.getbuffer()
    try:
        with Path(path).open("wb") as file:
            file.writelines((HEAD, _digest(contents), contents))
    except OSError as e:
        raise RequestError(f"{path} cannot be written: {e.strerror}") from None


def load(path: str | Path) -> Saved:
    """The program that `save` wrote to `path`; a file that is none, or not all of one, is refused."""
    row = torch.load(BytesIO(_contents(Path(path))), weights_only=True, map_location="cpu")
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
    parameters, shape, *rest = row["takes"]
    return Saved(plan, Takes(parameters, pytree.treespec_loads(shape), *rest))


def is_plain(value: Any) -> bool:
    """Whether loading gives the value back as it is; one of a class derived from a plain one is another."""
    return type(value) in _PLAIN or (type(value) in (tuple, list) and all(map(is_plain, value)))


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


def _contents(path: Path) -> bytes:
    """What follows the head of a file, of which every byte is as it was written."""
    try:
        with path.open("rb") as file:
            head, digest, contents = file.read(len(HEAD)), file.read(DIGEST_BYTES), file.read()
    except FileNotFoundError:
        raise RequestError(f"there is no file {path}") from None
    except OSError as e:
        raise RequestError(f"{path} cannot be read: {e.strerror}") from None
    if not head.startswith(FAMILY):
        raise RequestError(f"{path} is no saved program, or one of a version before {_shown(HEAD)}")
    if not HEAD.startswith(head):
        raise RequestError(
            f"{path} was saved by another version ({_shown(head)}, this one reads {_shown(HEAD)}); save it again"
        )
    if digest != _digest(contents):
        raise RequestError(f"{path} is damaged: what it holds is not what was written")
    return contents


def _digest(contents: bytes | memoryview) -> bytes:
    """What tells the version and the contents of a file from all others."""
    found = sha256(HEAD)
    found.update(contents)
    return found.digest()


def _shown(head: bytes) -> str:
    return ascii(head.decode("latin-1").split("\n")[0])[1:-1]


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
