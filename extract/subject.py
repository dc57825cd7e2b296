"""What a schedule is for: a kernel, what it reads and writes, and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from extract.parts import counted
from extract.splits import Piece, made_pieces, shared, split, split_axis
from ir.loop import Buffer, KernelForm
from ir.machine import Machine
from ir.node import IRError


@dataclass(frozen=True)
class Subject:
    """A kernel with what its schedules depend on."""

    kernel: KernelForm
    buffers: tuple[Buffer, ...]
    axes: Mapping[str, int]
    machine: Machine

    @cached_property
    def split_axis(self) -> str | None:
        """The axis whose sweeps are split, if any can be."""
        return split_axis(self.kernel, self.buffers, self.axes)

    @cached_property
    def counted(self) -> KernelForm:
        """The kernel with numbers in place of extents."""
        return counted(self.kernel, self.axes)

    def pieces(self, count: int, cluster: int = 1) -> tuple[Piece, ...]:
        """The kernels that a line with so many pieces launches; raises where nothing can be split.

        Where blocks work in clusters, they or their warps take the pieces of one kernel.
        """
        if count == 1:
            return (Piece(self.counted, self.buffers, self.axes),)
        axis = self.split_axis
        if axis is None:
            raise IRError(f"REDUCE=split{count}: the kernel sweeps over no axis that can be split")
        if cluster == 1:
            return split(self.kernel, self.buffers, self.axes, axis, count)
        if count % cluster:
            raise IRError(f"REDUCE=split{count}: {cluster} blocks of a cluster take no equal number of pieces")
        return (shared(self.kernel, self.buffers, self.axes, axis, count, count > cluster)[0],)

    def made_pieces(self, count: int, cluster: int = 1) -> int:
        """The pieces that a line with so many makes: launches make fewer where some would be empty."""
        axis = self.split_axis if count > 1 and cluster == 1 else None
        return count if axis is None else made_pieces(self.axes[axis], count)
