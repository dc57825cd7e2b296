"""Loads that go through shared memory: every way of it means the same, and a step left out of its protocol is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codegen.compile import compile_text
from codegen.cpu import CpuRunError, Program
from codegen.emit import emit
from codegen.lower import lower_tile
from codegen.resources import dynamic_shared_bytes
from ir import kernel as K
from ir import term as T
from ir.dtype import to_storage
from ir.kernel_interp import run_kernel, to_flat
from ir.kernel_text import parse_kernel, show_kernel
from ir.kernel_verify import footprint, verify_kernel
from ir.machine import A100, H200
from ir.node import IRError
from ir.tile_interp import run_tile
from ir.tile_text import parse_tile
from tests.codegen.staged_rows import STAGES, random_rows, three_sweeps
from tests.codegen.test_passes import check
from tests.codegen.tile_cases import inputs

LOWERED = ("shared", "async/d3", "bulk/d3", "shared+async/d3", "shared+bulk")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cpu")


def lowered(stage: str, **more: object) -> K.KernelProgram:
    return lower_tile(parse_tile(three_sweeps(stage, **more)), H200)  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n": 1024, "vector": "/v8", "tile": 256, "dtype": "bf16"},
        {"n": 200, "tile": 64, "rows": 4, "many": 6},
        {"n": 520, "tile": 512, "threads": 96, "reduce": " REDUCE=lanes"},
        {"n": 136, "tile": 128},
    ],
)
def test_every_way_through_shared_memory_means_the_same(stage: str, more: dict[str, object]) -> None:
    p = parse_tile(three_sweeps(stage, **more))  # type: ignore[arg-type]
    try:
        k = lower_tile(p, H200)
    except IRError as e:  # a layout with places beyond the tile, or elements that several threads hold
        assert "can be staged" in str(e) and more.get("threads") == 96
        return
    check(p, k)
    assert parse_kernel(show_kernel(k)) == k


@pytest.mark.parametrize("seed", range(24))
def test_random_sweeps_mean_the_same_under_every_stage(seed: int) -> None:
    staged = 0
    for stage in STAGES:
        p = parse_tile(random_rows(seed).format(stage=stage))
        try:
            k = lower_tile(p, H200)
        except IRError as e:
            assert "no load of a swept axis" in str(e)
            continue
        staged += 1
        check(p, k, {name: np.round(4 * v) / 4 for name, v in inputs(p).items()})  # sums of these are exact
        assert parse_kernel(show_kernel(k)) == k
    assert staged


@pytest.mark.parametrize("stage", LOWERED)
def test_emitted_text_gives_the_same_when_copies_come_early_and_late(stage: str, cache: Path) -> None:
    for more in (
        {"n": 1000, "tile": 256, "threads": 64},
        {"n": 1024, "tile": 128, "vector": "/v8", "dtype": "bf16", "rows": 2},
    ):
        p = parse_tile(three_sweeps(stage, **more))  # type: ignore[arg-type]
        run_on_cpu(lower_tile(p, H200), p, cache)


@pytest.mark.parametrize("n", [4095, 4097])
@pytest.mark.parametrize("stage", ["shared", "async/d3", "shared+async/d3"])
def test_rows_of_odd_length_go_element_by_element(n: int, stage: str, cache: Path) -> None:
    p = parse_tile(three_sweeps(stage, n=n, tile=512, threads=256, vector="", many=2))
    run_on_cpu(lower_tile(p, H200), p, cache)


def run_on_cpu(k: K.KernelProgram, p: object, cache: Path) -> None:
    """The text of a kernel gives what its tile program gives, in three orders of threads."""
    program = Program([(k, emit(k))], cache)
    given = inputs(p)  # type: ignore[arg-type]
    want = run_tile(p, given)  # type: ignore[arg-type]
    for order in ("forward", "reverse", "random"):
        arrays = [
            to_storage(given[b.name], b.dtype) if b.role == "input" else np.full(b.shape, np.nan, np.float32)
            for b in k.buffers
        ]
        program.run(0, arrays, order)
        for b, got in zip(k.buffers, arrays, strict=True):
            if b.role == "output":
                np.testing.assert_allclose(got, want[b.name], rtol=2e-5, atol=1e-6, err_msg=order)


@pytest.mark.parametrize("stage", LOWERED)
def test_sweeps_of_one_row_see_identities_of_their_own_behind_its_end(stage: str, cache: Path) -> None:
    text = f"""tile both
schedule WORK=t32 TILE=i:1,j:128/v4 STAGE={stage}
buffer x: f32[3, 200] input
buffer y: f32[3] output
part i: grid 3/1, j: stream 200/128
  stream j carrying r0: max f32[i, j]
    v0 = load x[i, j]
    v1 = where j < 200 of v0 else identity.max
    v2 = combine max r0, v1
    yield v2
  v3 = fold max over j of r0
  stream j carrying r1: add f32[i, j]
    v4 = load x[i, j]
    v5 = where j < 200 of v4 else identity.add
    v6 = combine add r1, v5
    yield v6
  v7 = fold add over j of r1
  stream j carrying r2: min f32[i, j]
    v8 = load x[i, j]
    v9 = where j < 200 of v8 else identity.min
    v10 = combine min r2, v9
    yield v10
  v11 = fold min over j of r2
  v12 = map v3 * v7 + v11
  store y[i] = v12
"""
    p = parse_tile(text)
    k = lower_tile(p, H200)
    check(p, k)
    run_on_cpu(k, p, cache)


@pytest.mark.parametrize("stage", ["async/d2", "bulk/d2"])
def test_a_stream_within_a_step_leaves_the_slot_of_the_step(stage: str) -> None:
    text = f"""tile inner
schedule WORK=t32 TILE=j:32 STAGE={stage}
buffer x: f32[128] input
buffer u: f32[6] input
buffer y: f32[128] output
part k: stream 6/1, j: stream 128/32
  stream j
    stream k carrying r0: add f32[k]
      v0 = load u[k]
      v1 = combine add r0, v0
      yield v1
    v2 = fold add over k of r0
    v3 = load x[j]
    v4 = map v3 * v2
    store y[j] = v4
"""
    p = parse_tile(text)
    check(p, lower_tile(p, H200))


# ---- where nothing can be staged


@pytest.mark.parametrize(
    ("stage", "more", "why"),
    [
        ("async/d3", {"n": 128, "tile": 128}, "no load of a swept axis can be staged"),
        ("bulk/d3", {"n": 1001, "vector": ""}, "no load of a swept axis can be staged"),
        ("async/d3", {"n": 1001, "vector": "", "dtype": "bf16"}, "no load of a swept axis can be staged"),
        ("async/d1", {}, "STAGE=async/d1 is none of shared, async/dN"),
        ("async/d03", {}, "is none of"),
        ("tma", {}, "STAGE=tma is none of"),
        ("shared+bulk/d3", {}, "is none of"),
        ("shared", {"n": 60000, "tile": 1024, "threads": 256}, "bytes of shared memory, the machine has 232448"),
    ],
)
def test_what_cannot_be_staged_is_refused(stage: str, more: dict[str, object], why: str) -> None:
    with pytest.raises(IRError, match=why):
        lowered(stage, **more)


def test_one_sweep_keeps_nothing() -> None:
    text = three_sweeps("shared").split("  v4 =")[0].replace("buffer z: f32[3, 1000]", "buffer z: f32[3]")
    text += "  v4 = fold max over j of r0\n  store z[i] = v4\n"
    with pytest.raises(IRError, match="no load of a swept axis that two sweeps make can be staged"):
        lower_tile(parse_tile(text), H200)
    assert lower_tile(parse_tile(text.replace("STAGE=shared", "STAGE=async/d3")), H200)


def test_a_machine_without_bulk_copies_refuses_them() -> None:
    with pytest.raises(IRError, match="STAGE=bulk/d3: the NVIDIA A100 has no bulk copies"):
        lower_tile(parse_tile(three_sweeps("bulk/d3")), A100)
    with pytest.raises(IRError, match="the NVIDIA A100 has no bulk copies"):
        verify_kernel(lowered("bulk/d3"), A100)
    lower_tile(parse_tile(three_sweeps("async/d3")), A100)


# ---- what is written


@pytest.mark.parametrize("stage", LOWERED)
def test_the_text_compiles_for_its_machines(stage: str) -> None:
    k = lowered(stage, n=32768, tile=4096, threads=256)
    compiled = compile_text(emit(k), "sm_90a")
    assert not compiled.spill_bytes and ("cp.async.bulk" in compiled.ptx) == ("bulk" in stage)
    if "bulk" not in stage:
        compile_text(emit(k), "sm_80")


def test_a_ring_takes_its_slots_and_more_than_48_kib_is_asked_for_at_launch() -> None:
    k = lowered("bulk/d4", n=32768, tile=4096, threads=256)
    ring = next(s for s in K.walk(k.body) if isinstance(s, K.Ring))
    assert (ring.slots, ring.size) == (4, 4096) and K.shared_bytes(ring) == 4 * (4 * 4096 + 16)
    assert dynamic_shared_bytes(k) >= footprint(k).shared_bytes > 48 * 1024


def test_a_row_that_is_kept_is_loaded_once() -> None:
    for stage in ("shared", "shared+async/d3"):
        k = lowered(stage, n=1024, tile=128, threads=32)
        loads = [s for s in K.walk(k.body) if isinstance(s, K.LoadGlobal)]
        copies = [s for s in K.walk(k.body) if isinstance(s, K.Copy)]
        assert len(loads) == (stage == "shared") and len(copies) == 2 * (stage != "shared")


def test_a_thread_waits_for_no_other_in_a_ring_of_its_own_copies() -> None:
    plain, ring = (
        lowered_of(t) for t in (three_sweeps("async/d3").replace(" STAGE=async/d3", ""), three_sweeps("async/d3"))
    )
    barriers = [sum(isinstance(s, K.Barrier) for s in K.walk(k.body)) for k in (plain, ring)]
    assert barriers[0] == barriers[1]


def lowered_of(text: str) -> K.KernelProgram:
    return lower_tile(parse_tile(text), H200)


# ---- memory that serves twice


def four_folds(n: int = 20000) -> str:
    """A row that is kept, and three folds after its second sweep."""
    text = three_sweeps("shared", n=n, tile=1024, threads=64, many=2)
    changes = [
        ("r1: add f32[i, j]\n", "r1: add f32[i, j], r2: max f32[i, j], r3: min f32[i, j]\n"),
        ("    yield v9\n", "    c2 = combine max r2, w2\n    c3 = combine min r3, w3\n    yield v9, c2, c3\n"),
        ("    c2 =", f"    w2 = where j < {n} of v6 else identity.max\n    c2 ="),
        ("    c3 =", f"    w3 = where j < {n} of v6 else identity.min\n    c3 ="),
        ("  v10 = fold", "  u2 = fold max over j of r2\n  u3 = fold min over j of r3\n  u1 = fold"),
        ("of r1\n", "of r1\n  v10 = map u1 + u2 * u2 - u3\n"),
    ]
    for old, new in changes:
        text = text.replace(old, new)
    return text


def test_slots_of_folds_serve_again_where_shared_memory_is_short(cache: Path) -> None:
    p = parse_tile(four_folds())
    k = lower_tile(p, H200)
    aliases = [s for s in K.walk(k.body) if isinstance(s, K.Alias)]
    assert aliases
    owned = [s for s in K.walk(k.body) if isinstance(s, K.Shared)]
    assert footprint(k).shared_bytes == sum(map(K.shared_bytes, owned)) > dynamic_shared_bytes(k) - 16 * len(owned)
    check(p, k)
    run_on_cpu(k, p, cache)
    assert parse_kernel(show_kernel(k)) == k
    assert not any(isinstance(s, K.Alias) for s in K.walk(lower_tile(parse_tile(four_folds(8000)), H200).body))


def test_memory_that_is_still_in_use_does_not_serve_as_something_else(cache: Path) -> None:
    p = parse_tile(four_folds())
    k = lower_tile(p, H200)
    row = next(s for s in K.walk(k.body) if isinstance(s, K.Shared))
    broken = changed(K.Alias, lambda s: replace(s, of=row.name))(k)
    with pytest.raises(IRError, match="no barrier stands between"):
        verify_kernel(broken)
    given = inputs(p)
    with pytest.raises(IRError):
        run_kernel(broken, {b.name: to_flat(b, given[b.name]) for b in p.buffers if b.name in given})
    with pytest.raises(CpuRunError):
        run_on_cpu_once(broken, given, "forward", cache)
    larger = changed(K.Alias, lambda s: replace(s, size=1 << 20))(k)
    with pytest.raises(IRError, match="bytes in slots"):
        verify_kernel(larger)


# ---- planted faults


def without(kind: type, number: int = 0) -> Callable[[K.KernelProgram], K.KernelProgram]:
    """The kernel without its n-th statement of a kind."""
    return changed(kind, lambda s: None, number)


def changed(
    kind: type, f: Callable[..., K.Statement | None], number: int = 0
) -> Callable[[K.KernelProgram], K.KernelProgram]:
    """The kernel with its n-th statement of a kind changed, or left out."""

    def change(k: K.KernelProgram) -> K.KernelProgram:
        met = [0]

        def go(body: tuple[K.Statement, ...]) -> tuple[K.Statement, ...]:
            out: list[K.Statement] = []
            for s in body:
                new: K.Statement | None = s
                if isinstance(s, kind):
                    new = f(s) if met[0] == number else s
                    met[0] += 1
                if isinstance(new, K.For | K.If):
                    new = replace(new, body=go(new.body))
                out += [] if new is None else [new]
            return tuple(out)

        return replace(k, body=go(k.body))

    return change


def next_phase(s: K.WaitSlot) -> K.WaitSlot:
    return replace(s, phase=T.binary("sub", T.const(1, "i32"), s.phase))


def next_slot(s: K.Copy) -> K.Copy:
    return replace(s, slot=T.binary("mod", T.binary("add", s.slot, T.const(1, "i32")), T.const(3, "i32")))


# In a kernel with a bulk ring the waits of a kind stand in the order empty, full of each sweep.
FAULTS: dict[str, tuple[str, Callable[[K.KernelProgram], K.KernelProgram], str]] = {
    "no wait for own copies": ("async/d3", without(K.Wait), "read before a wait"),
    "a wait that leaves one group too many": (
        "async/d3",
        changed(K.Wait, lambda s: replace(s, pending=s.pending + 1)),
        "read before a wait",
    ),
    "own copies are not committed": ("async/d3", without(K.Commit, 1), "read before a wait|is copied into before"),
    "an own copy goes to the next slot": ("async/d3", changed(K.Copy, next_slot, 1), "before"),
    "no release of own copies": ("async/d3", without(K.Release), "copied into before its use 0 is released"),
    "no wait for a bulk copy": ("bulk/d3", without(K.WaitSlot, 1), "read before|released before"),
    "no wait for readers": ("bulk/d3", without(K.WaitSlot), "copied into before its use 0 is released"),
    "no release for a bulk copy": ("bulk/d3", without(K.Release), "waited for where nothing comes"),
    "a wrong phase of copies": ("bulk/d3", changed(K.WaitSlot, next_phase, 1), "waited for at parity"),
    "a wrong phase of readers": ("bulk/d3", changed(K.WaitSlot, next_phase, 0), "waited for at parity"),
    "bulk copies are not committed": (
        "bulk/d3",
        without(K.Commit, 1),
        "waited for where nothing comes|read before",
    ),
    "no wait for a kept row": ("shared+bulk", without(K.WaitSlot), "read before a wait"),
    "no wait for a kept row's own copies": ("shared+async/d3", without(K.Wait), "read before a wait"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_verifier_finds_a_planted_fault(name: str) -> None:
    stage, fault, why = FAULTS[name]
    k = lowered(stage, n=1024, tile=128, threads=64, vector="/v2")
    verify_kernel(k, H200)
    with pytest.raises(IRError, match=why):
        verify_kernel(fault(k), H200)


PROMISES = ("no release of own copies",)
"""A release that is no instruction: leaving it out changes nothing at run time."""


@pytest.mark.parametrize("name", [n for n in FAULTS if n not in PROMISES])
def test_the_interpreter_and_the_cpu_run_find_a_planted_fault(name: str, cache: Path) -> None:
    stage, fault, _ = FAULTS[name]
    p = parse_tile(three_sweeps(stage, n=1024, tile=128, threads=64, vector="/v2"))
    broken, given = fault(lower_tile(p, H200)), inputs(p)
    with pytest.raises(IRError):
        run_kernel(broken, {b.name: to_flat(b, given[b.name]) for b in p.buffers if b.name in given})
    found = []
    for order in ("forward", "random"):
        try:
            run_on_cpu_once(broken, given, order, cache)
        except (CpuRunError, AssertionError) as e:
            found.append(str(e))
    assert found


def run_on_cpu_once(k: K.KernelProgram, given: dict[str, np.ndarray], order: str, cache: Path) -> None:
    x, z = given["x"].copy(), np.full(given["x"].shape, np.nan, np.float32)
    Program([(k, emit(k))], cache).run(0, [x, z], order)
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(z, e / e.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-7)
