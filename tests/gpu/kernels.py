"""Every distinct kernel of the suite's memory-bound cases at reduced sizes, compiled; this needs no GPU.

Run as `python -m tests.gpu.kernels FILE`: writes the subjects of `tests.gpu.sanitize` and `tests.gpu.guards`. Each case is
taken at its tiny size, and with few rows under the schedule lines of its full size, where they are legal for that. With
`reported` after FILE the programs are those that other compilers got wrong.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from bench.cases import CASES, Case, case
from bench.cases.fixtures import FIXTURES
from bench.cases.spec import DTYPES, Built, Function
from codegen.compile import compile_text
from codegen.emit import emit
from eggtile.pipeline import (
    Compiled,
    Options,
    RequestError,
    capture_and_lower,
    choose_forms,
    compile_kernel,
    compile_kernels,
    compile_program,
)
from eggtile.plan import Work, head
from eggtile.planning import plan_of
from eggtile.runtime import storage_array
from ir.dtype import Array, is_float
from ir.schedule import Schedule
from tests.gpu.launches import Step, Subject, save

FAMILIES = r"(pw|rr|tr|rope)\."
FEW = tuple({"B": 2, "M": n, "S": n, "H": 8} for n in (24, 96, 1056))
"""Reduced dimensions, fewest first; the first under which the lines of the full size are legal are taken."""


def _centred(x: torch.Tensor) -> torch.Tensor:
    """The matrix less the means of its rows and columns."""
    return x - x.mean(0, keepdim=True) - x.mean(1, keepdim=True) + x.mean()


STAGES = ("async/d3", "bulk/d3", "shared", "shared+async/d3", "shared+bulk")
PINNED: Mapping[str, tuple[Function, tuple[int, int], str]] = {
    **{
        f"{stage} of {dtype}, {n}": (
            partial(torch.softmax, dim=-1), (6, n), f"{dtype} WORK=t256 TILE=x1:{tile} STAGE={stage}"
        )
        for stage in STAGES
        for dtype, n, tile in (("fp32", 16384, "2048/v4"), ("fp32", 4100, "1024/v4"), ("bf16", 16392, "4096/v8"))
        if n % 1024 == 0 or stage != "bulk/d3"
    },
    "warps with pieces": (
        partial(torch.logsumexp, dim=-1), (3, 8024), "bf16 WORK=t128+c8 TILE=x1:256/v8,x1p:32 REDUCE=lanes+split32"
    ),
    "blocks that meet behind loops": (_centred, (500, 600), "fp32 WORK=t512+c8 TILE=x0:256,x1:600/v4"),
}  # fmt: skip
"""Programs, sizes, dtypes and lines that the cases do not take, by name."""


def compiled_at(fn: Function, inputs: Sequence[torch.Tensor]) -> Compiled:
    """The program up to its forms."""
    return choose_forms(capture_and_lower(fn, inputs, "program", Options()))


def without_values(item: Case, built: Built) -> list[torch.Tensor]:
    """Inputs of the right shapes."""
    return [torch.empty(t.shape, dtype=DTYPES[t.dtype or item.dtype], device="meta") for t in built.inputs]


def lines_of(item: Case) -> list[Schedule]:
    """The schedule lines of the case at full size."""
    built = item.built()
    return [k.schedule for k in compile_kernels(compiled_at(built.fn, without_values(item, built))).kernels]


def under(compiled: Compiled, lines: Sequence[Schedule]) -> Compiled | None:
    """The program with these lines for its kernels, in order; None where one is not legal."""
    rest = list(lines)
    for region in compiled.regions:
        region.kernels = []
        for kernel in region.chosen.kernels:
            if not rest:
                return None
            options = replace(compiled.options, schedule=str(rest.pop(0)))
            try:
                region.kernels.append(compile_kernel(kernel, region.chosen, options, compiled.clock, {}, None))
            except RequestError:
                return None
    return None if rest else compiled


def subjects_of(name: str) -> list[Subject]:
    """The case at tiny size, and with few rows."""
    item = case(name)
    fn, inputs = item.program(tiny=True)
    found = [subject(f"{name} tiny", compile_kernels(compiled_at(fn, inputs)), inputs)]
    lines = lines_of(item)
    for dims in FEW:
        size = {k: min(n, dims.get(k, n)) for k, n in item.full.items()}
        few = replace(item, full=size)
        fn, inputs = few.program()
        scheduled = under(compiled_at(fn, inputs), lines)
        if scheduled is not None:
            return [*found, subject(f"{name} {'x'.join(map(str, size.values()))}", scheduled, inputs)]
    return [*found, subject(f"{name} own line", compile_kernels(compiled_at(fn, inputs)), inputs)]


def pinned(name: str) -> list[Subject]:
    """A program under a line of its own."""
    fn, size, wanted = PINNED[name]
    dtype, line = wanted.split(" ", 1)
    inputs = [torch.randn(size, generator=torch.Generator().manual_seed(0)).to(DTYPES[dtype])]
    return [subject(f"pinned {name}", compile_program(fn, inputs, "program", Options(schedule=line)), inputs)]


def made_of(name: str) -> list[Subject]:
    """The subjects of a case, or of a program under a line of its own."""
    return pinned(name) if name in PINNED else subjects_of(name)


def reported(name: str) -> list[Subject]:
    """A reported program with 129 elements on the axis of its fault; none where it calls PyTorch or writes an input."""
    fixture = next(f for f in FIXTURES if f.name == name)
    inputs = fixture.make(129)
    compiled = compile_kernels(compiled_at(fixture.fn, inputs))
    plan = plan_of(compiled)
    if plan.eager is not None or plan.writes or not all(isinstance(s, Work) for s in plan.steps):
        return []
    made = subject(f"reported {name}", compiled, inputs)
    given = {b.name: storage_array(t) for b, t in zip(plan.inputs, inputs, strict=True)}
    return [replace(made, values={**made.values, **given})]


def subject(name: str, compiled: Compiled, inputs: Sequence[torch.Tensor]) -> Subject:
    """The program with its cubins; every entry has a name of its own, so that a tool's report says which it is."""
    plan = plan_of(compiled)
    constants = dict(plan.constants)
    tensors = {b.name: t for b, t in zip(plan.inputs, inputs, strict=True)} | constants
    buffers = {b.name: b for b in (*plan.inputs, *plan.made)}
    for region in compiled.regions:
        buffers |= {b.name: b for b in region.program.buffers if b.name not in buffers}
    for work in plan.steps:
        assert isinstance(work, Work), f"{name} calls PyTorch"
        buffers |= {b.name: b for b in work.scratch}
    steps = []
    for n, launch in enumerate(k for k in compiled.launches if k.kernel.blocks):
        entry = re.sub(r"\W+", "_", f"{name}_{n}")
        program = replace(launch.kernel, name=entry)
        binary = compile_text(emit(program), plan.target, entry)
        steps.append(Step(head(program), replace(binary, ptx="", log=""), launch.arguments))
    values: dict[str, Array] = {
        n: storage_array(t) for n, t in tensors.items() if n in constants or not is_float(buffers[n].dtype)
    }
    used = {a for s in steps for a in s.arguments}
    results = tuple(b.name for b in plan.made if b.name in used)
    given = tuple(n for n in tensors if n in used)
    return Subject(name, tuple(steps), {n: buffers[n] for n in used}, given, values, results)


def distinct(found: Sequence[Subject]) -> Iterator[Subject]:
    """Subjects without those whose kernels are all in earlier ones, apart from the names of their entries."""
    seen: set[bytes] = set()
    for s in found:
        texts = {k.binary.cubin.replace(k.program.name.encode(), b"") for k in s.steps}
        if not texts <= seen:
            seen |= texts
            yield s


def main(path: Path, kind: str, jobs: int) -> None:
    """Compile all subjects side by side and write them."""
    suite = [*(c.name for c in CASES if re.match(FAMILIES, c.name)), *PINNED]
    names = [f.name for f in FIXTURES if not f.large] if kind == "reported" else suite
    made = reported if kind == "reported" else made_of
    spawned = get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(jobs, spawned, torch.set_num_threads, (1,)) as pool:
        found = [s for group in pool.map(made, names) for s in group]
    kept = list(distinct(found))
    save(kept, path)
    print(f"{len(kept)} programs with {sum(len(s.steps) for s in kept)} kernels in {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), " ".join(sys.argv[2:]), os.cpu_count() or 2)
