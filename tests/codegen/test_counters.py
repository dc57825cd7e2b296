"""Counters of loops: in 64 bits where a sweep needs them, and only there; either way a kernel means the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from codegen.emit import emit
from codegen.lower import lower_tile
from codegen.passes import statements
from ir import kernel as K
from ir import term as T
from ir.kernel_text import parse_kernel, show_kernel
from ir.kernel_verify import verify_kernel
from ir.machine import H200
from ir.node import IRError
from ir.tile import TileProgram
from ir.tile_text import parse_tile
from tests.codegen.staged_rows import three_sweeps
from tests.codegen.test_passes import check
from tests.codegen.test_stages import LOWERED, run_on_cpu
from tests.codegen.tile_cases import program

SWEEPS = ["stream with two states", "columns over blocks", "transpose inside a stream", *LOWERED]
TILE = 256
LAST = 2**31 - TILE
"""The most positions whose last tile ends where i32 counts."""


def long_sum(n: int) -> TileProgram:
    """A row of `n` positions, summed up tile by tile."""
    return parse_tile(f"""tile long
schedule WORK=t64 TILE=i:1,k:{TILE}
buffer x: f32[2, {n}] input
buffer y: f32[2] output
part i: grid 2/1, k: stream {n}/{TILE}
  stream k carrying m: add f32[i, k]
    v0 = load x[i, k]
    w0 = where k < {n} of v0 else identity.add
    m2 = combine add m, w0
    yield m2
  m3 = fold add over k of m
  store y[i] = m3
""")


def sweeps(k: K.KernelProgram) -> list[K.For]:
    """The loops that are not unrolled."""
    return [s for s in K.walk(k.body) if isinstance(s, K.For) and not s.unroll]


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_counted_in_64_bits_means_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    p = parse_tile(three_sweeps(name)) if name in LOWERED else program(name)
    narrow = lower_tile(p, H200)
    monkeypatch.setattr(statements, "MOST_COUNTED", 0)
    wide = lower_tile(p, H200)
    assert {s.counter.dtype for s in sweeps(narrow)} == {"i32"}
    assert {s.counter.dtype for s in sweeps(wide) if s.name.endswith("_at")} == {"i64"}
    assert parse_kernel(show_kernel(wide)) == wide
    check(p, wide)
    if all(b.dtype == "f32" for b in p.buffers) and p.buffers[-1].role == "output":
        run_on_cpu(wide, p, tmp_path)


@pytest.mark.parametrize(("n", "dtype"), [(LAST - 1, "i32"), (LAST, "i32"), (LAST + 1, "i64"), (3 * 10**9, "i64")])
def test_a_counter_has_64_bits_exactly_where_what_it_ends_at_needs_them(n: int, dtype: str) -> None:
    k = lower_tile(long_sum(n), H200)
    (sweep,) = sweeps(k)
    assert sweep.counter.dtype == dtype
    assert ("for (long long" in emit(k)) == (dtype == "i64")
    assert parse_kernel(show_kernel(k)) == k


def test_a_counter_that_passes_its_type_is_refused() -> None:
    k = lower_tile(long_sum(LAST), H200)

    def longer(s: K.Statement) -> K.Statement:
        return replace(s, stop=T.const(LAST + 1, "i32")) if s in sweeps(k) else s

    with pytest.raises(IRError, match="a counter of i32 does not hold its bounds"):
        verify_kernel(replace(k, body=tuple(map(longer, k.body))))
