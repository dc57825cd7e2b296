"""Registers, spills and shared memory of a kernel, and how many of its blocks fit on one multiprocessor."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ir.kernel import MBARRIER_BYTES, KernelProgram, Ring, Shared, shared_bytes, walk
from ir.machine import Machine

REGISTER_UNIT = 256  # registers are given to a warp in units of this many
SHARED_UNIT_BYTES = 128
RESERVED_SHARED_BYTES = 1024  # a block's share that the system keeps for itself, sm_80 and later
WARP = 32
STATIC_SHARED_BYTES = 48 * 1024  # what a kernel may declare; more must be asked for at launch
SHARED_ALIGNMENT_BYTES = 16
# ptxas gives up the overlap of tensor-core products with other work, and says so.
SERIALISED = re.compile(r"\bC75(?:08|10|12|19)\b.*")


@dataclass(frozen=True)
class Resources:
    """Of one kernel: registers a thread, bytes spilled a thread, bytes of shared memory a block."""

    registers: int
    spill_bytes: int
    shared_bytes: int


def read_log(log: str) -> Resources:
    """The resources that `ptxas -v` reports; the maximum where the log speaks of several kernels."""
    spills = zip(_numbers(r"(\d+) bytes spill stores", log), _numbers(r"(\d+) bytes spill loads", log), strict=True)
    return Resources(
        max(_numbers(r"Used (\d+) registers", log), default=0),
        max((stored + loaded for stored, loaded in spills), default=0),
        max(_numbers(r"(\d+) bytes smem", log), default=0),
    )


def complaints(log: str) -> list[str]:
    """Reasons to discard a candidate: registers spilled, or tensor-core products serialised."""
    spilled = read_log(log).spill_bytes
    found = [f"{spilled} bytes of registers are spilled"] if spilled else []
    return found + [m[0] for m in SERIALISED.finditer(log)]


def blocks_per_sm(used: Resources, threads: int, dynamic_shared_bytes: int, machine: Machine) -> int:
    """Blocks that are resident on one multiprocessor at a time; 0 where not even one fits."""
    shared = used.shared_bytes + dynamic_shared_bytes
    warps = -(-threads // WARP)
    per_warp = -(-used.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    if shared > machine.smem_bytes_per_block or used.registers > machine.registers_per_thread:
        return 0
    per_block = -(-(shared + RESERVED_SHARED_BYTES) // SHARED_UNIT_BYTES) * SHARED_UNIT_BYTES
    limits = (
        machine.registers_per_sm // max(1, per_warp * warps),
        machine.smem_bytes_per_sm // per_block,
        machine.threads_per_sm // (warps * WARP),
        machine.threads_per_sm // (2 * WARP),
    )
    return min(limits)


def shared_offsets(kernel: KernelProgram) -> dict[str, int]:
    """Byte offset of each shared array where they exceed what a kernel may declare statically, else nothing."""
    offsets, end = _shared_layout(kernel)
    return offsets if end > STATIC_SHARED_BYTES else {}


def dynamic_shared_bytes(kernel: KernelProgram) -> int:
    """Bytes of shared memory that the launch must ask for."""
    declared = declared_shared_bytes(kernel)
    return declared if declared > STATIC_SHARED_BYTES else 0


def declared_shared_bytes(kernel: KernelProgram) -> int:
    """Bytes of all shared arrays and rings of a block."""
    return _shared_layout(kernel)[1]


def barrier_offset(ring: Ring) -> int:
    """Bytes from the begin of a bulk ring to its mbarriers, which stand behind its slots."""
    return shared_bytes(ring) - 2 * MBARRIER_BYTES * ring.slots


def _shared_layout(kernel: KernelProgram) -> tuple[dict[str, int], int]:
    offsets, end = {}, 0
    for s in walk(kernel.body):
        if isinstance(s, Shared | Ring):
            end += -end % SHARED_ALIGNMENT_BYTES
            offsets[s.name] = end
            end += shared_bytes(s)
    return offsets, end


def _numbers(pattern: str, log: str) -> list[int]:
    return [int(n) for n in re.findall(pattern, log)]
