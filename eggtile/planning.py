"""The plan of a compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eggtile.pipeline import Compiled, CompiledKernel, Region
from eggtile.plan import Plan, PlannedLaunch, Work, head
from eggtile.returns import Layout, Output, Returns
from ir.loop import Form, LoopProgram


def plan_of(compiled: Compiled) -> Plan:
    """What a run needs of the program."""
    captured, buffers = compiled.captured, {b.name: b for b in compiled.lowered.buffers}
    names = [i.name for i in captured.program.inputs]
    values = dict(zip(names, captured.tensors, strict=True))
    return Plan(
        captured.program.name,
        compiled.options.target,
        tuple(buffers[n] for n in names[: compiled.arity]),
        {n: t.detach() for n in names[compiled.arity :] if (t := values[n]) is not None},
        tuple(b for b in buffers.values() if b.name not in values),
        tuple(work_of(s.program, s.chosen, s.kernels) if isinstance(s, Region) else s for s in compiled.steps),
        _returns(compiled),
        tuple(r.writes for r in captured.program.results if r.writes is not None),
        captured.calls,
        captured.eager,
    )


def work_of(program: LoopProgram, form: Form, kernels: Sequence[CompiledKernel]) -> Work:
    """The launches of a form of a region, given its kernels."""
    launches = tuple(
        PlannedLaunch(head(launch.kernel), launch.text, launch.arguments)
        for k in kernels
        for launch in k.launches
        if launch.kernel.blocks
    )
    outside = {b.name for b in program.buffers}
    needed = (*form.buffers, *(b for k in kernels for b in k.scratch))
    scratch = {b.name: b for b in needed if b.name not in outside}
    filled = tuple(b.name for b in program.buffers if b.role == "input")
    return Work(launches, tuple(scratch.values()), filled)


def _returns(compiled: Compiled) -> Returns:
    """What the caller gets; results whose elements share memory in eager PyTorch are laid out after they are computed."""
    returns, buffers = compiled.captured.returns, {b.name: b for b in compiled.lowered.buffers}
    results = {r.name: r for r in compiled.captured.program.results}
    outputs: dict[Output, Output] = {}
    for o in returns.outputs:
        outputs[o] = o
        if o.name in results and o.name in buffers:
            b, strides = buffers[o.name], tuple(int(s) for s in results[o.name].strides)
            if strides != b.strides:
                outputs[o] = Output(o.name, Layout(b.shape, strides))
    return replace(returns, outputs=tuple(outputs[o] for o in returns.outputs))
