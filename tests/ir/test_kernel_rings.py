"""Rings, copies and aliases of Kernel IR: text, what the verifier refuses, and what the interpreter meets."""

from __future__ import annotations

import numpy as np
import pytest

from ir.kernel import KernelProgram
from ir.kernel_interp import from_flat, run_kernel, to_flat
from ir.kernel_text import parse_kernel, show_kernel
from ir.kernel_verify import footprint, verify_kernel
from ir.machine import A100, H200
from ir.node import IRError

PARAMETERS = "x: f32[2, 512] strides(512, 1) input align 16, y: f32[2, 512] strides(512, 1) output align 16"
OWN = f"""kernel own({PARAMETERS}) threads 32 blocks 2 {{
  ring f32 r[2][128]
  copy r[thread * 4]..4 <- x[block * 512 + thread * 4]; slot 0
  commit
  for (k = 0; 4; 1) {{
    if (k < 3) {{
      copy r[thread * 4]..4 <- x[block * 512 + k * 128 + thread * 4 + 128]; slot fmod(k + 1, 2)
    }}
    commit
    wait 1
    f32 v[4]
    v[0]..4 <- r[thread * 4]; slot fmod(k, 2)
    release r[fmod(k, 2)]
    y[block * 512 + k * 128 + thread * 4]..4 <- v[0]
  }}
}}
"""

BULK = f"""kernel bulk({PARAMETERS}) threads 64 blocks 2 {{
  bulk ring f32 r[2][128]
  if (thread == 0) {{
    bulk copy r[0]..(128) <- x[block * 512]; slot 0
    commit r[0]
  }}
  for (k = 0; 4; 1) {{
    if (k < 3) {{
      if (thread == 0) {{
        if (0 < k) {{
          wait empty r[fmod(k + 1, 2)] phase fmod(truncdiv(k - 1, 2), 2)
        }}
        bulk copy r[0]..(128) <- x[block * 512 + k * 128 + 128]; slot fmod(k + 1, 2)
        commit r[fmod(k + 1, 2)]
      }}
    }}
    wait full r[fmod(k, 2)] phase fmod(truncdiv(k, 2), 2)
    f32 v[2]
    v[0]..2 <- r[126 - thread * 2]; slot fmod(k, 2)
    release r[fmod(k, 2)]
    y[block * 512 + k * 128 + 126 - thread * 2]..2 <- v[0]
  }}
}}
"""

TWICE = """kernel twice(x: f32[64] strides(1) input align 16, y: f32[64] strides(1) output align 16) threads 64 blocks 1 {
  shared f32 s[64]
  f32 v[1]
  v[0]..1 <- x[thread]; other f32(0.0)
  s[thread]..1 <- v[0]
  barrier block
  f32 w[1]
  w[0]..1 <- s[63 - thread]
  barrier block
  alias f32 t[32] of s
  t[thread]..1 <- w[0]; when thread < 32
  barrier block
  f32 u[1]
  u[0]..1 <- t[fmod(thread, 32)]
  y[thread]..1 <- u[0]
}
"""


@pytest.mark.parametrize("text", [OWN, BULK, TWICE])
def test_rings_and_aliases_print_and_parse_to_the_same_kernel(text: str) -> None:
    kernel = parse_kernel(text)
    assert parse_kernel(show_kernel(kernel)) == kernel
    verify_kernel(kernel, H200)


def run(kernel: KernelProgram) -> tuple[np.ndarray, np.ndarray]:
    x, y = kernel.buffers
    values = np.arange(x.size, dtype=np.float32).reshape(x.shape)
    return values, from_flat(y, run_kernel(kernel, {"x": to_flat(x, values)})["y"])


@pytest.mark.parametrize("text", [OWN, BULK])
def test_what_goes_through_a_ring_arrives(text: str) -> None:
    values, got = run(parse_kernel(text))
    np.testing.assert_array_equal(got, values)


def test_memory_serves_twice() -> None:
    values, got = run(parse_kernel(TWICE))
    np.testing.assert_array_equal(got, np.tile(values[::-1][:32], 2))
    assert footprint(parse_kernel(TWICE)).shared_bytes == 256


def test_a_bulk_ring_takes_its_slots_and_two_barriers_each() -> None:
    assert footprint(parse_kernel(BULK)).shared_bytes == 2 * (128 * 4 + 16)
    assert footprint(parse_kernel(OWN)).shared_bytes == 2 * 128 * 4


WRONG: dict[str, tuple[str, str, str, str]] = {
    "a copy of two bytes": (
        OWN.replace("f32", "f16"),
        "thread * 4]..4 <- x[block * 512 + thread * 4];",
        "thread * 4]..1 <- x[block * 512 + thread * 4];",
        "a copy of 2 bytes is none of 4, 8, 16",
    ),
    "an own copy that is not aligned": (
        OWN,
        "x[block * 512 + thread * 4]",
        "x[block * 512 + thread * 2]",
        "not proved aligned",
    ),
    "a slot that depends on the thread": (
        OWN,
        "r[thread * 4]; slot fmod(k, 2)",
        "r[thread * 4]; slot fmod(thread, 2)",
        "more than loop counters",
    ),
    "a slot that is not there": (OWN, "slot 0", "slot 2", "there is no slot 2"),
    "a ring that is read without a slot": (
        OWN,
        "<- r[thread * 4]; slot fmod(k, 2)",
        "<- r[thread * 4]",
        "read at a slot",
    ),
    "a ring of own copies with bulk copies": (
        OWN,
        "ring f32",
        "bulk ring f32",
        "ring, or a copy of the other kind",
    ),
    "a copy of what the kernel stores": (
        OWN,
        "<- x[block * 512 + thread * 4]",
        "<- y[block * 512 + thread * 4]",
        "only reads",
    ),
    "a bulk copy by all threads": (BULK, "if (thread == 0)", "if (0 <= thread)", "by more than one thread"),
    "a bulk copy of an odd size": (BULK, "..(128)", "..(126)", "not proved to be of multiples of 16 bytes"),
    "a bulk copy from an odd place": (
        BULK,
        "x[block * 512]",
        "x[block * 512 + 2]",
        "not proved to be of multiples of 16 bytes",
    ),
    "a bulk copy of a buffer of low alignment": (
        BULK,
        "input align 16",
        "input align 4",
        "not proved to be of multiples of 16 bytes",
    ),
    "a bulk copy beyond its slot": (BULK, "r[0]..(128)", "r[4]..(128)", "goes beyond the 128 elements"),
    "a wait by some threads": (
        OWN,
        "    wait 1\n",
        "    if (thread < 16) {\n      wait 1\n    }\n",
        "may take differently",
    ),
    "a store into a ring": (
        OWN,
        "    release r[fmod(k, 2)]\n",
        "    r[thread * 4]..4 <- v[0]\n",
        "only copies go into a ring",
    ),
    "a ring in a cluster": (OWN, "threads 32 blocks 2", "threads 64 blocks 2 cluster 2", "a ring in a cluster"),
    "an alias without a barrier": (
        TWICE,
        "63 - thread]\n  barrier block\n",
        "63 - thread]\n",
        "no barrier stands between",
    ),
    "an alias that is too large": (TWICE, "t[32] of s", "t[65] of s", "260 bytes in s, which has 256"),
    "an alias of nothing": (TWICE, "of s", "of v", "no shared memory of its own"),
    "a ring that does not fit": (
        OWN,
        "[2][128]",
        "[460][128]",
        "235520 bytes of shared memory, the machine has 232448",
    ),
    "a bulk copy on its way at the end": (
        BULK,
        "    if (k < 3) {\n      if (thread",
        "    if (k < 4) {\n      if (thread",
        "on its way when the kernel ends",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_verifier_refuses(name: str) -> None:
    text, old, new, why = WRONG[name]
    assert old in text
    with pytest.raises(IRError, match=why):
        verify_kernel(parse_kernel(text.replace(old, new)), H200)


def test_a_machine_without_bulk_copies_refuses_a_bulk_ring() -> None:
    verify_kernel(parse_kernel(OWN), A100)
    with pytest.raises(IRError, match="the NVIDIA A100 has no bulk copies"):
        verify_kernel(parse_kernel(BULK), A100)


FAULTS = {
    "a read before the wait": (OWN, "    wait 1\n", "", "before the copy into it is waited for"),
    "a read of what another thread copied": (OWN, "<- r[thread * 4];", "<- r[124 - thread * 4];", "another thread"),
    "a copy out of bounds": (OWN, "k * 128 + thread * 4 + 128]", "k * 128 + thread * 4 + 512]", "outside its 1024"),
    "a copy where it may be read": (BULK, "0 < k", "8 < k", "may still be read"),
    "a wrong phase": (
        BULK,
        "phase fmod(truncdiv(k, 2), 2)",
        "phase fmod(truncdiv(k, 2) + 1, 2)",
        "before the copy|not end",
    ),
    "a release that is missing": (BULK, "    release r[fmod(k, 2)]\n", "", "does not end"),
    "an alias of what is in use": (TWICE, "63 - thread]\n  barrier block\n", "63 - thread]\n", "still in use"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_interpreter_meets(name: str) -> None:
    text, old, new, why = FAULTS[name]
    assert old in text
    with pytest.raises(IRError, match=why):
        run(parse_kernel(text.replace(old, new)))
