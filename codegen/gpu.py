"""Cubins on a GPU through cupy: launches that keep their buffers, CUDA graphs of them, and their times, hot and cold.

Arguments are device addresses, or objects that have one: PyTorch tensors, cupy arrays, anything with
`__cuda_array_interface__`. An address is that of a buffer's first element.
"""

from __future__ import annotations

import ctypes
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, runtime_checkable

try:
    import cupy
except ImportError:  # the extra that only a machine with a GPU installs
    cupy = None
from cuda.bindings import driver

from codegen.compile import Binary
from codegen.resources import STATIC_SHARED_BYTES, dynamic_shared_bytes
from ir.dtype import DTYPES, Array
from ir.kernel import KernelProgram
from ir.loop import Buffer
from ir.machine import TARGETS
from ir.node import IRError

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
LARGE_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
OVERLAPPING = (
    90  # the compute capability, times ten, from which on a kernel may begin before the one before it ends
)
PORTABLE_CLUSTER = 8  # blocks of a cluster that every GPU of sm_90 and later takes
L2_CACHE_SIZE = 38  # cudaDevAttrL2CacheSize
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # cudaMemcpyKind
CAPTURE_LAUNCHES = 2000  # at most this many kernel nodes in a graph that is timed
COPIES = 512  # at most this many copies of the inputs
REPLAY_US = 200.0  # that a replay lasts at least


class GpuError(IRError):
    """What a GPU refused, or was not there for."""


@runtime_checkable
class HasDataPtr(Protocol):
    """A tensor of PyTorch, seen from here."""

    def data_ptr(self) -> int:
        """The address of the first element."""


@runtime_checkable
class HasInterface(Protocol):
    """An array of the CUDA array interface."""

    __cuda_array_interface__: Mapping[str, tuple[int, bool]]


Argument = int | HasDataPtr | HasInterface


def available() -> tuple[bool, str]:
    """Whether kernels can run here, and if not, why."""
    if cupy is None:
        return False, "cupy is not installed (pip install cupy-cuda13x)"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as e:
        return False, f"the driver gives no device: {e}"
    return (True, "") if count else (False, "the driver lists no device")


def address(x: Argument) -> int:
    """The device address of an argument."""
    match x:
        case int():
            return x
        case HasDataPtr():
            return x.data_ptr()
        case HasInterface():
            return int(x.__cuda_array_interface__["data"][0])
    raise GpuError(f"a {type(x).__name__} has no device address")


class Kernel:
    """A kernel loaded on the current device, ready to launch."""

    def __init__(self, kernel: KernelProgram, binary: Binary) -> None:
        check_device(binary.target)
        self.kernel = kernel
        self.shared_bytes = dynamic_shared_bytes(kernel)
        self.function = _module(cupy.cuda.Device().id, binary.cubin).get_function(kernel.name)
        if self.shared_bytes > STATIC_SHARED_BYTES:
            cupy.cuda.driver.funcSetAttribute(self.function.ptr, MAX_DYNAMIC_SHARED, self.shared_bytes)
        if kernel.cluster > PORTABLE_CLUSTER:
            cupy.cuda.driver.funcSetAttribute(self.function.ptr, LARGE_CLUSTERS, 1)
        self.config = driver.CUlaunchConfig()
        self.config.gridDimX, self.config.blockDimX = kernel.grid, kernel.block_threads
        self.config.gridDimY = self.config.gridDimZ = self.config.blockDimY = self.config.blockDimZ = 1
        self.config.sharedMemBytes = self.shared_bytes
        if _capability(binary.target) >= OVERLAPPING:
            early = driver.CUlaunchAttribute()
            early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            early.value.programmaticStreamSerializationAllowed = 1
            self.config.attrs, self.config.numAttrs = [early], 1
        self.pointers = (ctypes.c_void_p,) * len(kernel.buffers)

    def bind(self, arguments: Sequence[Argument]) -> Launch:
        """A launch on these arguments, which stay alive as long as it does."""
        addresses = tuple(address(a) for a in arguments)
        if len(addresses) != len(self.kernel.buffers):
            raise GpuError(f"{self.kernel.name} takes {len(self.kernel.buffers)} arguments, not {len(addresses)}")
        for b, at in zip(self.kernel.buffers, addresses, strict=True):
            if at % b.alignment:
                raise GpuError(f"{self.kernel.name}: {b.name} at {at:#x} is not aligned to {b.alignment} bytes")
        return Launch(self, addresses, tuple(arguments))

    def launch(self, arguments: Sequence[Argument], stream: int | None = None) -> None:
        """Launch once on a stream (its raw handle; the current one of cupy if None) without waiting."""
        self.bind(arguments).run(stream)


@cache
def _module(device: int, cubin: bytes) -> Any:
    """The module of a cubin on the current device. It is never unloaded: launches and graphs outlive their makers."""
    module = cupy.cuda.function.Module()
    module.load(cubin)
    return module


@dataclass(frozen=True)
class Launch:
    """One launch with its addresses; `keep` holds what owns the memory."""

    kernel: Kernel
    addresses: tuple[int, ...]
    keep: tuple[object, ...]

    def run(self, stream: int | None = None) -> None:
        """Enqueue on a stream, without waiting: the kernel may begin, but not touch memory, before earlier ones end."""
        own = self.kernel
        if own.kernel.blocks:
            own.config.hStream = driver.CUstream(cupy.cuda.get_current_stream().ptr if stream is None else stream)
            function = driver.CUfunction(own.function.ptr)
            (status,) = driver.cuLaunchKernelEx(own.config, function, (self.addresses, own.pointers), 0)
            if status != driver.CUresult.CUDA_SUCCESS:
                raise GpuError(f"{own.kernel.name}: the launch was refused: {status.name}")


def device_target() -> str:
    """The target to compile for: the current device's, with its own instructions where a machine asks for them."""
    plain = f"sm_{cupy.cuda.Device().compute_capability}"
    return next((t for t in TARGETS if t.rstrip("a") == plain), plain)


def _capability(target: str) -> int:
    """The compute capability of a target, times ten."""
    return int(re.sub(r"\D", "", target))


def card() -> str:
    """What tells the current device from the others of this machine: its place on the bus."""
    return str(cupy.cuda.Device().pci_bus_id)


def check_device(target: str) -> None:
    """Refuse a cubin that the current device cannot run; those of sm_90a and the like run on one capability only."""
    usable, why = available()
    if not usable:
        raise GpuError(why)
    major, minor = divmod(int(cupy.cuda.Device().compute_capability), 10)
    made_major, made_minor = divmod(_capability(target), 10)
    fits = (major, minor) == (made_major, made_minor) or (
        target[-1].isdigit() and major == made_major and minor > made_minor
    )
    if not fits:
        raise GpuError(f"a cubin for {target} does not run on a device of compute capability {major}.{minor}")


# ---- memory


class Memory:
    """Bytes on the device, freed with the object; `fill` is what they hold at first, else it is unknown."""

    def __init__(self, size: int, fill: int | None = None) -> None:
        self.size = size
        self.memory = cupy.cuda.alloc(max(1, size))
        if fill is not None:
            cupy.cuda.runtime.memset(self.data_ptr(), fill, size)

    def data_ptr(self) -> int:
        """The address of the first byte."""
        return int(self.memory.ptr)


class Guarded:
    """Bytes between unmapped pages, freed with the object: they end at the one behind them, or start at the one before.

    An access beyond that side faults. The end is rounded up to `alignment`, so that the address is aligned.
    """

    def __init__(self, size: int, alignment: int, at_end: bool) -> None:
        where = driver.CUmemAllocationProp()
        where.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        where.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        where.location.id = cupy.cuda.Device().id
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.page = int(_driver(driver.cuMemGetAllocationGranularity(where, least)))
        self.mapped = -(-max(1, size) // self.page) * self.page
        self.reserved = int(_driver(driver.cuMemAddressReserve(self.mapped + 2 * self.page, 0, 0, 0)))
        self.first = self.reserved + self.page
        held = _driver(driver.cuMemCreate(self.mapped, where, 0))
        _driver(driver.cuMemMap(self.first, self.mapped, 0, held, 0))
        _driver(driver.cuMemRelease(held))
        access = driver.CUmemAccessDesc()
        access.location = where.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _driver(driver.cuMemSetAccess(self.first, self.mapped, [access], 1))
        self.size = size
        self.at = self.first + (self.mapped - -(-size // alignment) * alignment if at_end else 0)

    def data_ptr(self) -> int:
        """The address of the first byte."""
        return self.at

    def __del__(self) -> None:
        cupy.cuda.runtime.deviceSynchronize()
        driver.cuMemUnmap(self.first, self.mapped)
        driver.cuMemAddressFree(self.reserved, self.mapped + 2 * self.page)


def _driver(answer: tuple[Any, ...]) -> Any:
    """The value of a call of the driver; raises where it failed."""
    status, *value = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise GpuError(f"the driver refuses memory: {status.name}")
    return value[0] if value else None


def poison(at: int, size: int, byte: int) -> None:
    """Fill device memory with a byte."""
    cupy.cuda.runtime.memset(at, byte, size)


def upload(array: Array) -> Memory:
    """A copy of a contiguous host array on the device."""
    made = Memory(array.nbytes)
    store(array, made.data_ptr())
    return made


def download(memory: Argument, array: Array) -> None:
    """Wait for the device, then copy back into a contiguous host array."""
    cupy.cuda.runtime.deviceSynchronize()
    cupy.cuda.runtime.memcpy(array.ctypes.data, address(memory), array.nbytes, TO_HOST)


def store(array: Array, at: int) -> None:
    """Copy a contiguous host array to a device address."""
    cupy.cuda.runtime.memcpy(at, array.ctypes.data, array.nbytes, TO_DEVICE)


def empty_cache() -> None:
    """Give back to the driver what the allocator keeps of freed memory."""
    cupy.get_default_memory_pool().free_all_blocks()


def plain_allocations() -> None:
    """Let every allocation be the driver's own from now on, so that tools see where each one ends."""
    cupy.cuda.set_allocator(None)


def copy(source: Memory, to: Memory) -> None:
    """Copy all bytes from one memory to another of the same size, and wait."""
    cupy.cuda.runtime.memcpy(to.data_ptr(), source.data_ptr(), source.size, ON_DEVICE)
    cupy.cuda.runtime.deviceSynchronize()


def clone(at: int, size: int) -> Memory:
    """A copy of `size` bytes of device memory."""
    made = Memory(size)
    cupy.cuda.runtime.memcpy(made.data_ptr(), at, size, ON_DEVICE)
    return made


def run(kernel: Kernel, arrays: Sequence[Array]) -> None:
    """Launch once on host storage arrays, changed in place as `cpu.Program.run` does."""
    held = [upload(a) for a in arrays]
    offsets = [b.offset * DTYPES[b.dtype].bytes for b in kernel.kernel.buffers]
    launch = kernel.bind([m.data_ptr() + o for m, o in zip(held, offsets, strict=True)])
    launch.run()
    for memory, array in zip(held, arrays, strict=True):
        download(memory, array)


# ---- graphs and times


class Graph:
    """Launches captured once and replayed together; keeps them, and so their memory, alive."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = tuple(launches)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream.begin_capture()
        for launch in self.launches:
            launch.run(self.stream.ptr)
        self.graph = self.stream.end_capture()

    def replay(self) -> None:
        """Enqueue all launches on the graph's own stream, without waiting."""
        self.graph.launch(self.stream)

    def elapsed_us(self) -> float:
        """Replay once between two events and wait: microseconds for all launches."""
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(self.stream)
        self.replay()
        stop.record(self.stream)
        stop.synchronize()
        return 1e3 * float(cupy.cuda.get_elapsed_time(start, stop))


@dataclass(frozen=True)
class Time:
    """Microseconds of one pass over a list of launches: median and quartiles over rounds."""

    median_us: float
    low_us: float
    high_us: float
    rounds: int

    @property
    def spread(self) -> float:
        """Distance of the quartiles relative to the median."""
        return (self.high_us - self.low_us) / self.median_us


def span_bytes(b: Buffer) -> int:
    """Bytes from the first to the last element of a strided buffer."""
    if not b.size:
        return 0
    last = sum((n - 1) * stride for n, stride in zip(b.shape, b.strides, strict=True))
    return (last + 1) * DTYPES[b.dtype].bytes


def rotated(launches: Sequence[Launch], inputs: Mapping[int, int]) -> list[list[Launch]]:
    """The launches on as many copies of the inputs (address: bytes) as exceed the L2 cache twice over.

    Successive passes over the lists find their inputs in DRAM; intermediates stay where the pass left them.
    """
    device = cupy.cuda.Device().id
    l2_bytes = cupy.cuda.runtime.deviceGetAttribute(L2_CACHE_SIZE, device)
    total = sum(inputs.values())
    count = min(COPIES, max(2, math.ceil(2 * l2_bytes / max(1, total)) + 1))
    passes = [list(launches)]
    for _ in range(count - 1):
        copies = {at: clone(at, size) for at, size in inputs.items()}
        passes.append([_moved(launch, copies) for launch in launches])
    cupy.cuda.runtime.deviceSynchronize()
    return passes


def _moved(launch: Launch, copies: Mapping[int, Memory]) -> Launch:
    addresses = tuple(copies[a].data_ptr() if a in copies else a for a in launch.addresses)
    return replace(launch, addresses=addresses, keep=(*launch.keep, *copies.values()))


def times(
    contenders: Sequence[Sequence[Sequence[Launch]]], rounds: int = 21, least_us: float = REPLAY_US
) -> list[Time]:
    """Time contenders side by side, round by round in turn; each is a list of passes (`rotated`, or one pass: hot).

    A graph holds the passes in order, repeated until it lasts `least_us`, so that a replay's own cost vanishes.
    """
    timed = [_lasting(passes, least_us) for passes in contenders]
    samples: list[list[float]] = [[] for _ in timed]
    for _ in range(rounds):
        for (graph, count), taken in zip(timed, samples, strict=True):
            taken.append(graph.elapsed_us() / count)
    return [_summary(taken) for taken in samples]


def _lasting(passes: Sequence[Sequence[Launch]], least_us: float) -> tuple[Graph, int]:
    """A warm graph that lasts long enough, and how many passes it holds.

    A short one seems longer than it is, by the cost of its replay; so the one that is made of it is timed too.
    """
    once = [launch for p in passes for launch in p]
    most = max(1, CAPTURE_LAUNCHES // max(1, len(once)))
    repeats = 1
    while True:
        graph = Graph(once * repeats)
        graph.elapsed_us()
        needed = min(most, math.ceil(least_us * repeats / max(0.1, graph.elapsed_us())))
        if needed <= 1.25 * repeats:
            return graph, repeats * len(passes)
        repeats = needed


def _summary(samples: list[float]) -> Time:
    low, middle, high = statistics.quantiles(samples, n=4)
    return Time(middle, low, high, len(samples))
