"""Masks go where loads leave the identity, and only there: by count, and by what kernels make of hard inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from codegen.lower import PASSES, lower_tile
from codegen.passes.state import State
from ir import kernel as K
from ir.dtype import Array
from ir.kernel_interp import from_flat, run_kernel, to_flat
from ir.machine import H200
from ir.tile import Where, walk
from ir.tile_interp import run_tile
from ir.tile_text import parse_tile

HEAD = """tile p
schedule WORK=t64 TILE=i:2,j:128/v2
buffer x: {dtype}[4, 100] input
buffer y: f32[4] output
part i: grid 4/2, j: whole 100/128
  v = load x[i, j]
"""
PEAK = """  m0 = where j < 100 of v else identity.max
  m1 = fold max over j of m0
"""
SHIFT = "  u = map f32(0.0) if abs(m1) == f32(inf) else m1\n"
SUM = """  t1 = where j < 100 of t else identity.add
  s = fold add over j of t1
  store y[i] = s
"""
LEFT: Mapping[str, tuple[str, int]] = {
    "the largest": (PEAK + "  store y[i] = m1\n", 0),
    "a sum": ("  t = map v\n" + SUM, 0),
    "a sum of squares": ("  t = map v * v\n" + SUM, 0),
    "exponentials under a finite shift": (PEAK + SHIFT + "  t = map exp(v - u)\n" + SUM, 0),
    "exponentials of scaled values": (PEAK + SHIFT + "  t = map exp(f32(0.5) * v - u)\n" + SUM, 0),
    "exponentials under any shift": (PEAK + "  t = map exp(v - m1)\n" + SUM, 1),
    "exponentials under a shift of their own": (PEAK + "  t = map exp(v - v)\n" + SUM, 1),
    "squares about a mean": (PEAK + SHIFT + "  t = map (v - u) * (v - u)\n" + SUM, 1),
    "what is chosen where a shift is no number": (
        PEAK + SHIFT + "  t = map f32(5.0) if isnan(v - u) else exp(v - u)\n" + SUM, 1,
    ),
    "one of two values": (PEAK + SHIFT + "  w = load x[i, j]\n  t = map exp(v - u) + w\n" + SUM, 1),
    "a product with what hides infinities": (PEAK + SHIFT + "  t = map mulz(v, m1)\n" + SUM, 1),
}  # fmt: skip


def left(text: str) -> int:
    """Masks that are there behind the pass."""
    state = State(parse_tile(text), H200, 64)
    for step in PASSES:
        state = step.run(state)
        if step.name == "masks":
            return sum(isinstance(s, Where) for p in state.tile.parts for s in walk(p.body))
    raise AssertionError("there is no such pass")


def hard(dtype: str) -> list[Array]:
    """Rows of 100 with infinities of both signs, NaN, -0.0, rows that are all -inf, and huge values."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4, 100)).astype(np.float32)
    odd = x.copy()
    odd[0, 7], odd[1], odd[2, 99], odd[3, :50] = -np.inf, -np.inf, np.nan, -np.inf
    ends = x.copy()
    ends[0, 3], ends[1], ends[2], ends[3, 5] = np.inf, -0.0, 1e30, -1e30
    return [x, odd, ends]


@pytest.mark.parametrize("name", LEFT)
def test_masks_stay_where_a_value_outside_is_not_known_to_be_the_identity(name: str) -> None:
    body, masks = LEFT[name]
    assert left(HEAD.format(dtype="f32") + body) == masks


@pytest.mark.parametrize("name", LEFT)
def test_kernels_without_masks_mean_what_their_tile_programs_mean(name: str) -> None:
    p = parse_tile(HEAD.format(dtype="f32") + LEFT[name][0])
    k = lower_tile(p, H200)
    for x in hard("f32"):
        want = run_tile(p, {"x": x})["y"]
        got = from_flat(p.buffer("y"), run_kernel(k, {"x": to_flat(p.buffer("x"), x)})["y"])
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


PIECES = """tile p
schedule WORK=t32+c2 TILE=i:1,p:2,j:{length}/v4 REDUCE=split2
buffer x: f32[3, {extent}] input
buffer y: f32[3] output
part i: grid 3/1, p: whole 2/2, j: whole {length}/{length}
  v = load x[i, p * {length} + j]
  m0 = where p * {length} + j < {bound} of v else identity.max
  m1 = fold max over j of m0
  m2 = fold max over p of m1
  store y[i] = m2
"""


@pytest.mark.parametrize(
    ("length", "extent", "bound", "width"),
    [
        (64, 100, 100, 4),
        (64, 102, 102, 2),
        (64, 101, 101, 1),
        (64, 104, 100, 1),
        (64, 100, 104, 1),
        (50, 100, 100, 2),
    ],
)
def test_loads_past_a_row_come_in_vectors_where_masks_hide_what_is_past_it(
    length: int, extent: int, bound: int, width: int
) -> None:
    p = parse_tile(PIECES.format(length=length, extent=extent, bound=bound))
    k = lower_tile(p, H200)
    assert {s.width for s in K.walk(k.body) if isinstance(s, K.LoadGlobal)} == {width}
    x = np.random.default_rng(0).standard_normal((3, extent)).astype(np.float32) - 5
    got = from_flat(p.buffer("y"), run_kernel(k, {"x": to_flat(p.buffer("x"), x)})["y"])
    np.testing.assert_array_equal(got, run_tile(p, {"x": x})["y"])
