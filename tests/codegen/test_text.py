"""Lowered tile programs as text: their CPU runs give what the tile interpreter gives, and NVRTC takes them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from codegen.compile import Binary, compile_all
from codegen.cpu import CpuRunError, Program
from codegen.disassemble import to_sass
from codegen.emit import emit
from codegen.lower import lower_tile
from codegen.resources import complaints
from ir.dtype import DTYPES, from_storage, storage_type, to_storage
from ir.kernel import KernelProgram
from ir.kernel_interp import from_flat, reach, to_flat
from ir.machine import H200
from ir.tile_interp import run_tile
from ir.tile_text import parse_tile
from tests.codegen.tile_cases import CASES, inputs, program


@pytest.fixture(scope="module")
def kernels() -> dict[str, KernelProgram]:
    return {name: lower_tile(program(name), H200) for name in CASES}


@pytest.fixture(scope="module")
def compiled(kernels: dict[str, KernelProgram], tmp_path_factory: pytest.TempPathFactory) -> Program:
    cache: Path = tmp_path_factory.mktemp("cpu")
    return Program([(k, emit(k)) for k in kernels.values()], cache)


@pytest.mark.parametrize("order", ["forward", "random"])
@pytest.mark.parametrize("name", CASES)
def test_text_means_what_its_tile_program_means(
    name: str, order: str, kernels: dict[str, KernelProgram], compiled: Program
) -> None:
    p, k = program(name), kernels[name]
    given = inputs(p, 0)
    arrays = [
        to_storage(to_flat(b, given[b.name]), b.dtype)
        if b.name in given
        else np.zeros(b.offset + reach(b), storage_type(b.dtype))
        for b in k.buffers
    ]
    compiled.run(list(kernels).index(name), arrays, order, seed=1)
    for out, values in run_tile(p, given).items():
        at = next(n for n, b in enumerate(k.buffers) if b.name == out)
        b = k.buffers[at]
        got = from_flat(b, from_storage(arrays[at], b.dtype)).astype(np.float64)
        room = 2e-5 if b.dtype == "f32" else 4 * DTYPES[b.dtype].unit_roundoff
        np.testing.assert_allclose(got, values.astype(np.float64), rtol=room, atol=room, err_msg=out)


@pytest.fixture(scope="module")
def binaries(kernels: dict[str, KernelProgram]) -> dict[str, Binary]:
    return {b.name: b for b in compile_all([(emit(k), name) for name, k in kernels.items()], "sm_90a")}


def test_no_lowered_kernel_spills(binaries: dict[str, Binary]) -> None:
    assert {b.name: complaints(b.log) for b in binaries.values() if complaints(b.log)} == {}


def test_nothing_touches_memory_before_the_wait_for_earlier_kernels(binaries: dict[str, Binary]) -> None:
    for b in binaries.values():
        early = b.ptx[: b.ptx.index("griddepcontrol.wait")]
        assert not re.search(r"\b(ld|st|atom|red)\.(?!param)", early), b.name
    for name in ("row in vectors", "a long row of 16-bit values stays packed", "row over blocks"):
        early = to_sass(binaries[name].cubin).split("ACQBULK")[0]
        assert not re.search(r"\b(LDG?|STG?|ATOMG?|REDG?)\b", early), name


def test_a_packed_row_is_packed_again_behind_each_barrier_and_its_differences_are_computed_again():
    text = emit(lower_tile(program("a long row of 16-bit values stays packed"), H200))
    assert text.count("repack<64>(v0);") == text.count("__syncthreads();") == 2
    second = text.split("__syncthreads();")[2].split("repack<64>(v0);")[1]
    assert second.count("from_bf16(v0[") == 64


def test_what_is_touched_once_is_streamed_where_the_cache_would_hold_it_in_vain():
    long = (
        "tile c\nschedule WORK=t128 TILE=i:1,j:1024/v8\n"
        "buffer x: bf16[{0}, 1024] input\nbuffer y: bf16[{0}, 1024] output\n"
        "part i: grid {0}/1, j: {1} 1024/1024\n  a = load x[i, j]\n{2}  store y[i, j] = b\n"
    )
    copy, share = ("grid", "  b = map a\n"), ("whole", "  s = fold add over j of a\n  b = map bf16.op(a / s)\n")
    texts = {
        (rows, does): emit(lower_tile(parse_tile(long.format(rows, *does)), H200))
        for rows in (64, 16384)
        for does in (copy, share)
    }
    assert not any("stream" in texts[64, does] for does in (copy, share))
    assert all("store8_stream(" in texts[16384, does] for does in (copy, share))
    assert "load8_stream(" not in texts[16384, copy] and "load8_stream(" in texts[16384, share]


SOWN = {
    "a barrier of one block": ("cluster_barrier();", "__syncthreads();", "race|nothing has written"),
    "a result in one block's copy": (
        "store_all<4>(slots_1 + t_5, m1_out_1);",
        "slots_1[t_5] = m1_out_1;",
        "which only block . of the cluster has",
    ),
    "a barrier that one block misses": (
        "cluster_barrier();",
        "if (thread >= 64) cluster_barrier();",
        "race|nothing has written|deadlock",
    ),
    "a gathering of one block": ("cluster_gather();", "__syncthreads();", "race|nothing has written"),
    "a result in its own block's copy": (
        "store_first(slots + p_t, s0_out);",
        "slots[p_t] = s0_out;",
        "which only block . of the cluster has",
    ),
    "a block that stays behind the gathering": (
        "if (thread < 32) {",
        "if (thread >= 32) {",
        "race|block . of the cluster",
    ),
    "a block that does not come to the gathering": (
        "cluster_gather();",
        "if (thread < 32) cluster_gather();",
        "race|nothing has written|deadlock",
    ),
}


@pytest.mark.parametrize("order", ["forward", "random"])
@pytest.mark.parametrize("bug", SOWN)
def test_a_bug_between_blocks_of_a_cluster_is_reported(bug: str, order: str, tmp_path: Path) -> None:
    right, wrong, message = SOWN[bug]
    kernels = (lower_tile(program(name), H200) for name in ("row over blocks", "shared over blocks"))
    k, text = next((k, text) for k in kernels if right in (text := emit(k)))
    arrays = [np.zeros(reach(b), storage_type(b.dtype)) for b in k.buffers]
    with pytest.raises(CpuRunError, match=message):
        Program([(k, text.replace(right, wrong))], tmp_path).run(0, arrays, order)
