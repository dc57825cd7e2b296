"""Kernel IR: text, the lockstep interpreter and the verifier on small kernels written as text."""

from __future__ import annotations

import numpy as np
import pytest

from ir.kernel_interp import from_flat, run_kernel, to_flat
from ir.kernel_text import parse_kernel, show_kernel
from ir.kernel_verify import footprint, verify_kernel
from ir.loop import Buffer
from ir.machine import H200
from ir.node import IRError

X = "x: f32[64] strides(1) input align 16"
Y = "y: f32[64] strides(1) output align 16"


def kernel(body: str, blocks: int = 1) -> str:
    """A kernel of 64 threads on x and y, one statement a line."""
    return f"kernel k({X}, {Y}) threads 64 blocks {blocks} {{\n{body.strip()}\n}}\n"


EVERYTHING = kernel("""
  i32 a = thread * 4 + -3
  i64 wide = i64.cast(thread) * i64(5000000000)
  f32 v[4]
  f32 s[4]
  shared f32 near[64]
  for (k = 0; 64; 16) {
    v[0] = f32(-0.0)
    if (k < 16) {
      v[0]..4 <- x[k * 4]; when thread < 1; other f32(1.5); cache stream
    }
    for (e = 0; 4; 1) unroll {
      s[e] = shuffle(v[e] * f32(1e-06), 16)
    }
    near[thread]..1 <- s[0]; when thread < 64
    barrier block
    s[0]..2 <- near[k]
    s[2]..1 <- near[thread]; when thread < 3; other f32.bits(0x7fc00001)
    barrier block
    y[wide]..1 <- s[0]; when (a < 12) & (wide < i64(64)); monoid add
    y[a + 3]..4 <- s[0]; cache stream
  }
""")


def test_every_statement_prints_and_parses_back() -> None:
    program = parse_kernel(EVERYTHING)
    assert parse_kernel(show_kernel(program)) == program
    assert show_kernel(program) == show_kernel(parse_kernel(show_kernel(program)))
    assert "thread * 4 + -3" in show_kernel(program)
    assert "i64(5000000000)" in show_kernel(program)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("f32 a = thread", "line 2: a is declared f32, but its value is i32"),
        ("i32 a = b", "line 2: .*b is neither"),
        ("f32 v[2]\nv[0]..1 <- z[0]", "line 3: neither v nor z"),
        ("go there", "line 2: 'go there' is no statement"),
        ("if (thread < 3) {", "a closing brace is missing"),
    ],
)
def test_text_that_is_no_kernel_is_refused_with_its_line(body: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        parse_kernel(kernel(body))


# ---- meaning


def run(body: str, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]], blocks: int = 1) -> list[float]:
    """What the kernel leaves in y."""
    out: list[float] = run_kernel(parse_kernel(kernel(body, blocks)), {"x": x})["y"].tolist()
    return out


def test_a_kernel_runs_in_lockstep() -> None:
    x = np.arange(64, dtype=np.float32)
    body = "f32 v[2]\nv[0]..1 <- x[thread]; other f32(0.0)\nv[1] = shuffle(v[0], 3)\ny[thread]..1 <- v[1]"
    assert run(body, x) == [float(t ^ 3) for t in range(64)]


def test_a_value_read_before_an_assignment_stays() -> None:
    body = "f32 v[1]\nv[0] = f32(1.0)\nf32 a = v[0]\nv[0] = f32(2.0)\nv[0] = v[0] + a\ny[thread]..1 <- v[0]"
    assert run(body, np.zeros(64, np.float32)) == [3.0] * 64


def test_a_branch_changes_its_threads_alone() -> None:
    body = "f32 v[1]\nv[0] = f32(1.0)\nif (thread < 3) {\nv[0] = f32(2.0)\n}\ny[thread]..1 <- v[0]"
    assert run(body, np.zeros(64, np.float32)) == [2.0] * 3 + [1.0] * 61


def test_updates_from_all_blocks_add_up() -> None:
    body = "f32 v[1]\nv[0] = f32(1.0)\ny[thread % 2]..1 <- v[0]; monoid add"
    out = run_kernel(parse_kernel(kernel(body, blocks=5)), {"y": np.zeros(64, np.float32)})["y"]
    assert out[:3].tolist() == [160.0, 160.0, 0.0]


def test_a_buffer_lies_in_its_storage_by_strides_and_offset() -> None:
    b = Buffer("x", "f32", (2, 3), (1, 4), offset=2)
    flat = to_flat(b, np.arange(6, dtype=np.float32).reshape(2, 3))
    assert flat[[2, 6, 10, 3, 7, 11]].tolist() == [0, 1, 2, 3, 4, 5]
    assert np.isnan(flat[[0, 1, 4, 5, 8, 9]]).all()
    assert from_flat(b, flat).tolist() == [[0, 1, 2], [3, 4, 5]]


# ---- faults at run time

SET = "f32 v[4]\nv[0] = f32(1.0)\nshared f32 s[64]\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("f32 v[1]\ny[thread]..1 <- v[0]", "read before it is set"),
        ("f32 v[4]\nv[0]..4 <- x[thread * 4]; other f32(0.0)", "outside its 64 elements"),
        ("f32 v[2]\nv[0]..2 <- x[thread % 8 + 1]; other f32(0.0)", "not aligned"),
        (SET + "y[0]..1 <- v[0]", "written twice"),
        (
            SET + "y[thread]..1 <- v[0]\nif (thread < 9) {\nv[1]..1 <- y[thread + 1]; other f32(0.0)\n}",
            "another thread",
        ),
        (SET + "v[1]..1 <- s[thread]", "slot is read before it is set"),
        (SET + "s[thread]..1 <- v[0]\nv[1]..1 <- s[thread % 8]", "another thread writes it"),
        (SET + "s[thread // 2]..1 <- v[0]", "two threads write one slot"),
        (
            SET + "s[thread]..1 <- v[0]\nbarrier block\nv[1]..1 <- s[0]\ns[thread]..1 <- v[0]",
            "in the segment in which another thread uses it",
        ),
        ("if (thread < 40) {\nbarrier block\n}", "do not arrive"),
        (SET + "if (thread < 40) {\nv[1] = shuffle(v[0], 1)\n}", "do not arrive"),
        (SET + "v[1] = shuffle(v[0], 32)", "mask 32"),
        ("f32 v[1]\nv[1] = f32(0.0)", "no declared register"),
        (SET + "for (k = 0; thread; 1) {\nv[1] = f32(0.0)\n}", "differs between threads"),
    ],
)
def test_a_fault_stops_the_run(body: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        run(body, np.zeros(64, np.float32))


# ---- faults that the verifier finds


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("f32 v[2]\nf32 v[2]", "stands for two things"),
        ("f32 x[2]", "stands for two things"),
        ("f32 v[2]\nv[0] = v[1]", "used before it is set"),
        ("f32 v[2]\nv[0] = thread", "v holds f32, not i32"),
        ("f32 v[2]\nv[thread % 2] = f32(0.0)", "depends on a value of the thread"),
        ("f32 v[2]\nfor (k = 0; 3; 1) unroll {\nv[k] = f32(0.0)\n}", "outside its 2 registers"),
        ("f32 v[4]\nv[0]..4 <- x[thread * 2]; other f32(0.0)", "not proved aligned"),
        ("f32 v[8]\nv[0]..8 <- x[thread * 8]; other f32(0.0)", "is no vector"),
        ("if (thread < 40) {\nbarrier block\n}", "barrier under a branch"),
        (SET + "if (v[0] < f32(1.0)) {\nv[1] = shuffle(v[0], 1)\n}", "shuffle under a branch"),
        ("for (k = 0; thread; 1) {\n}", "bounds are not uniform"),
        (SET + "v[1]..1 <- s[thread]", "read before it is written"),
        (SET + "s[thread]..1 <- v[0]\nv[1]..1 <- s[thread]", "no barrier between"),
        (
            SET + "for (k = 0; 3; 1) {\ns[thread]..1 <- v[0]\nbarrier block\nv[1]..1 <- s[0]\n}",
            "written while it may still be read",
        ),
        ("shared f32 s[60000]", "240000 bytes of shared memory"),
    ],
)
def test_a_broken_rule_is_refused(body: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify_kernel(parse_kernel(kernel(body)), H200)


def test_a_branch_on_the_block_may_hold_collectives() -> None:
    verify_kernel(parse_kernel(kernel("i32 b = block % 2\nif (b < 1) {\nbarrier block\n}", blocks=4)), H200)


def test_a_footprint_counts_what_lives_at_once() -> None:
    body = "f32 a[8]\na[0] = f32(0.0)\nf32 b = a[0]\ni64 c = i64.cast(thread)\nf32 d = b + f32.cast(c)\nshared f64 s[10]"
    cost = footprint(parse_kernel(kernel(body)))
    assert (cost.registers, cost.shared_bytes) == (9, 80)


def test_a_state_lives_through_its_loop() -> None:
    body = "f32 a[8]\na[0] = f32(0.0)\nfor (k = 0; 9; 1) {\na[1] = a[0]\nf32 b[20]\nb[0] = f32(0.0)\n}"
    assert footprint(parse_kernel(kernel(body))).registers == 28
