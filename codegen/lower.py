"""Tile IR to Kernel IR: a list of small named passes, and which schedule key each of them reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from codegen.passes.barriers import place_barriers
from codegen.passes.clusters import share_early
from codegen.passes.gather import gather_last
from codegen.passes.hints import choose_hints
from codegen.passes.layouts import choose_layouts, work
from codegen.passes.masks import drop_masks
from codegen.passes.narrow import narrow_integers
from codegen.passes.order import expand_contractions, hoist_loads, merge_equal
from codegen.passes.overlay import overlay
from codegen.passes.predicates import choose_widths, decide_predicates
from codegen.passes.scalars import promote_scalars
from codegen.passes.share import share_terms
from codegen.passes.simplify import simplify
from codegen.passes.stages import choose_stages
from codegen.passes.state import PartPlan, Pass, State
from codegen.passes.statements import lower_statements
from codegen.passes.unroll import unroll
from ir.dtype import DTYPES
from ir.kernel import KernelProgram
from ir.kernel_verify import verify_kernel
from ir.loop import Buffer
from ir.machine import Machine
from ir.tile import TileLoad, TilePart, TileProgram, TileStore, infer, walk

Observer = Callable[[str, str, str], None]
"""Called with the name of a pass, the text before it and the text after it."""

PASSES: tuple[Pass, ...] = (
    Pass("expand-contractions", expand_contractions),
    Pass("merge-equal", merge_equal),
    Pass("hoist-loads", hoist_loads),
    Pass("layouts", choose_layouts),
    Pass("share-early", share_early),
    Pass("predicates", decide_predicates),
    Pass("masks", drop_masks),
    Pass("widths", choose_widths),
    Pass("hints", choose_hints),
    Pass("stages", choose_stages),
    Pass("statements", lower_statements),
    Pass("barriers", place_barriers),
    Pass("overlay", overlay),
    Pass("gather", gather_last),
    Pass("unroll", unroll),
    Pass("simplify", simplify),
    Pass("narrow", narrow_integers),
    Pass("scalars", promote_scalars),
    Pass("share", share_terms),
)

CONSUMES: dict[str, tuple[str, ...]] = {
    "layouts": ("WORK", "TILE", "REDUCE"),
    "hints": ("STORE",),
    "stages": ("STAGE",),
}
"""Schedule keys that each pass reads; the tile of every axis is already in the tile program."""


def lower_tile(program: TileProgram, machine: Machine, observe: Observer | None = None) -> KernelProgram:
    """The kernel program of a scheduled tile program, verified for the machine; `observe` sees every pass as text.

    Raises `IRError` where the schedule asks for what a block does not have.
    """
    state = _begun(program, machine)
    for step in PASSES:
        new = step.run(state)
        if observe is not None:
            observe(step.name, str(state), str(new))
        state = new
    assert state.kernel is not None
    verify_kernel(state.kernel, machine)
    return state.kernel


def _begun(program: TileProgram, machine: Machine) -> State:
    threads, cluster = work(program.schedule)
    return State(program, machine, threads * cluster, cluster)


def widest_value(program: TileProgram, machine: Machine) -> int:
    """The most elements of one value that a thread holds, known once layouts are chosen: cheap beside lowering.

    Two elements of a 16-bit load count as one where nothing as long is loaded or stored otherwise: they stay packed.
    """
    state = _begun(program, machine)
    for step in PASSES[: 1 + [p.name for p in PASSES].index("layouts")]:
        state = step.run(state)
    buffers = {b.name: b for b in program.buffers}
    return max((_widest(p, plan, buffers) for p, plan in zip(program.parts, state.plans, strict=True)), default=0)


def _widest(part: TilePart, plan: PartPlan, buffers: Mapping[str, Buffer]) -> int:
    values = infer(part, buffers)
    held = {name: plan.layouts.over(v.axes).registers for name, v in values.items()}
    most = max(held.values(), default=0)
    moved = {
        s.out if isinstance(s, TileLoad) else s.value: s
        for s in walk(part.body)
        if isinstance(s, TileLoad | TileStore)
    }
    longest = [s for name, s in moved.items() if held[name] == most]
    packed = longest and all(
        isinstance(s, TileLoad) and DTYPES[buffers[s.buffer].dtype].bytes == 2 for s in longest
    )
    return most // 2 if packed else most
