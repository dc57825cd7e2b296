"""Machines as data: what the cost model and the verifier need to know of a target. Units stand in the names."""

from __future__ import annotations

from dataclasses import dataclass

PARTITIONS, LANES = 4, 32
"""Of the registers of a multiprocessor, and of a warp, which has its registers in one partition."""


def resident_warps(registers_per_sm: int, registers: int) -> int:
    """Warps that a multiprocessor has registers for, where each of their threads takes so many."""
    return PARTITIONS * (registers_per_sm // PARTITIONS // (registers * LANES))


@dataclass(frozen=True)
class Rates:
    """What the schedule model weighs by, as `python -m bench model` fits it to measured times.

    Times: a kernel's begin; a step of a stream from the issue of its loads to the use of the last; an instruction, to
    the thread that waits for it; an exchange between the threads of a fold, in a block, a warp or a cluster; from one
    block's begin to the next one's. Instructions: of an operator of the terms, and how many of those a special function
    counts for; of an access, of each line that its warp touches beyond those that the bytes would fill, and of each
    16-bit element that it moves; of a kernel whatever it does; of a fold among lanes for each doubling, and of the fold
    of each warp's result; of a result that goes to another block, and how many of those the meeting of a cluster's
    blocks counts for; scans do `scan` times more. Shares by which a kernel gets slower: for each doubling of threads
    beyond the elements, of the runs shorter than a line, of the bytes of a request below a line, of accesses narrower
    than the widest, of registers beyond what keeps memory busy, and of the blocks of a cluster where a multiprocessor
    takes one after another. `alone` is how many times its share of the bandwidth a multiprocessor may take. `overlap`
    is how well memory, arithmetic and latency hide behind one another: the order of their norm with one block on a
    multiprocessor, how it grows with the number of blocks, and its limit.
    """

    start_us: float = 0.378
    step_us: float = 0.162
    instruction_us: float = 0.00174
    exchange_block_us: float = 0.107
    exchange_lanes_us: float = 0.116
    exchange_cluster_us: float = 0.723
    work: float = 1.17
    special: float = 6.32
    access: float = 4.1
    line: float = 5.96
    widened: float = 1.23
    kept: float = 48.2
    shuffle: float = 1.27
    slot: float = 1.54
    remote: float = 663.0
    meeting: float = 35.3
    scan: float = 6.96
    idle: float = 0.195
    short_run: float = 0.0957
    small: float = 0.238
    narrow: float = 0.00725
    spare: float = 0.0671
    clustered: float = 0.04
    alone: float = 4.0
    block_us: float = 0.0012
    overlap: float = 2.66
    overlap_growth: float = 0.398
    most_overlap: float = 13.9


STREAMED_SHARE, STREAMED_FILLS = 0.2, 2.0
"""The part of the L2 cache that a streamed buffer exceeds, and how often all that its kernel touches fills the cache."""


@dataclass(frozen=True)
class Machine:
    """A GPU. Bandwidths and rates are measured on the card where `measured` is true, else from the data sheet."""

    name: str
    target: str
    sms: int
    copy_bytes_per_s: float
    l2_bytes_per_s: float
    l2_bytes: int
    tensor_flops_per_s: float
    f32_flops_per_s: float
    special_per_s: float
    launch_us: float
    sweep_us: float
    smem_bytes_per_block: int
    smem_bytes_per_sm: int
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_sm: int = 2048
    cluster_blocks: int = 1
    bulk_copies: bool = False
    measured: bool = False
    rates: Rates = Rates()

    def large(self, size: int) -> bool:
        """Whether a buffer of so many bytes, touched once, is worth a cache hint."""
        return size >= STREAMED_SHARE * self.l2_bytes

    def streams(self, total: int) -> bool:
        """Whether large buffers better pass by the L2 cache of a kernel that touches `total` bytes.

        Of several fills the cache keeps nothing anyway: there what is loaded better stays longer than what is stored, which
        then goes out in longer bursts.
        """
        return total <= STREAMED_FILLS * self.l2_bytes


H200 = Machine(
    "NVIDIA H200",
    "sm_90a",
    132,
    4.28e12,
    8e12,
    60_000_000,
    773e12,
    51e12,
    4.2e12,
    1.0,
    0.5,
    232_448,
    233_472,
    cluster_blocks=8,
    bulk_copies=True,
    measured=True,
)
A100 = Machine(
    "NVIDIA A100",
    "sm_80",
    108,
    1.6e12,
    4e12,
    40_000_000,
    312e12,
    19.5e12,
    2.4e12,
    1.5,
    0.7,
    166_912,
    167_936,
)
RTX4090 = Machine(
    "NVIDIA RTX 4090",
    "sm_89",
    128,
    0.95e12,
    4e12,
    72_000_000,
    165e12,
    82e12,
    5e12,
    1.5,
    0.7,
    101_376,
    102_400,
    threads_per_sm=1536,
)
B200 = Machine(
    "NVIDIA B200",
    "sm_100",
    148,
    7e12,
    12e12,
    126_000_000,
    2250e12,
    75e12,
    5e12,
    1.0,
    0.5,
    232_448,
    233_472,
    cluster_blocks=8,
    bulk_copies=True,
)
RTX5090 = Machine(
    "NVIDIA RTX 5090",
    "sm_120",
    170,
    1.7e12,
    6e12,
    96_000_000,
    210e12,
    105e12,
    6e12,
    1.5,
    0.7,
    101_376,
    102_400,
    threads_per_sm=1536,
    bulk_copies=True,
)
MACHINES: dict[str, Machine] = {m.target: m for m in (H200, A100, RTX4090, B200, RTX5090)}
TARGETS = tuple(MACHINES)
