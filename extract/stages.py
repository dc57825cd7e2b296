"""The launches of a scheduled kernel: itself, or where its line splits sweeps, the pieces and then what merges them.

A launch of its own merges, not the last block of the first: that block would be known by a counter that outlives
launches, and a kernel that writes along the split axis needs every block to wait for the merge, not one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from extract.points import point
from extract.roles import cluster, is_fallback, pieces
from extract.spaces import whole_schedule
from extract.subject import Subject
from ir.loop import Buffer, KernelForm
from ir.machine import Machine
from ir.schedule import Schedule


@dataclass(frozen=True)
class Stage:
    """One launch: a kernel over buffers and axes of its own, and its schedule, which splits nothing."""

    kernel: KernelForm
    buffers: tuple[Buffer, ...]
    axes: Mapping[str, int]
    schedule: Schedule


def stages(
    kernel: KernelForm, buffers: Sequence[Buffer], axes: Mapping[str, int], line: Schedule, machine: Machine
) -> tuple[Stage, ...]:
    """The launches of `kernel` under a line of its space; later ones take the model's first choice.

    The buffers of a stage that `buffers` lacks are made for this kernel and used by it alone.
    """
    subject = Subject(kernel, tuple(buffers), axes, machine)
    if is_fallback(line):
        return (Stage(kernel, subject.buffers, axes, line),)
    first, *later = subject.pieces(pieces(line), cluster(line))
    own = line if cluster(line) > 1 else replace(point(line), pieces=1).line()
    out = [Stage(first.kernel, first.buffers, first.axes, own)]
    for p in later:
        line = whole_schedule(Subject(p.kernel, p.buffers, p.axes, machine))
        out.append(Stage(p.kernel, p.buffers, p.axes, line))
    return tuple(out)
