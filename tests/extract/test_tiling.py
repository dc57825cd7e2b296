"""The tile program of a kernel computes what the kernel's terms say, under every schedule."""

import re

import numpy as np
import pytest

from extract.roles import listed_tiles
from extract.spaces import space
from extract.tiling import tile_program
from ir import term as T
from ir.loop_interp import run_form
from ir.machine import H200
from ir.schedule import parse_schedule
from ir.tile_interp import run_tile
from ir.tile_text import parse_tile, show_tile
from ir.tile_verify import verify_tile
from tests.extract.kernels import CASES, case, masked_rows, put


def program(c, line):
    return tile_program(c.kernel, c.form.buffers, c.form.axes, parse_schedule(line))


def check(c, line):
    tiled = program(c, line)
    assert parse_tile(show_tile(tiled)) == tiled
    verify_tile(tiled)
    want, got = run_form(c.form, c.inputs, True), run_tile(tiled, c.inputs, True)
    assert set(got) == {name for name in want if want[name].size or name in got}, show_tile(tiled)
    for name, array in got.items():
        np.testing.assert_allclose(array, want[name], rtol=1e-9, atol=1e-9, err_msg=show_tile(tiled))


@pytest.mark.parametrize("line", ["WORK=points128", "WORK=points2"])
@pytest.mark.parametrize("name", CASES)
def test_the_fall_back_is_right_for_every_kernel(name, line):
    check(CASES[name](), line)


@pytest.mark.parametrize("name", CASES)
def test_every_listed_schedule_is_right(name):
    c = CASES[name]()
    lines = space(c.kernel, c.form.buffers, c.form.axes, H200).lines
    tiles = {}
    for line in lines:
        tiles.setdefault(tuple(sorted((a, t) for a, (t, _) in listed_tiles(line).items())), line)
    for line in list(tiles.values())[:: max(1, len(tiles) // 6)]:
        check(c, str(line))


def test_an_extent_may_be_of_an_axis_that_the_kernel_lacks():
    c = CASES["scalar"]()
    (store,) = c.kernel.stores
    value = T.binary("mul", store.value, T.round_to("f32", "op", T.Extent("gone")))
    n = case({"gone": 7}, c.form.buffers, put(c.form.buffers[1], (), value))
    check(n, "WORK=points32")


@pytest.mark.parametrize(
    "line", ["WORK=points32", "WORK=t32 TILE=a:4,b:16", "WORK=t32 TILE=b:64", "WORK=t32 TILE=b:128"]
)
def test_a_stream_forgets_what_it_held_before_it_met_a_value_that_counts(line):
    c = masked_rows()
    x = c.inputs["x"].astype(np.float64)
    with np.errstate(invalid="ignore"):
        p = np.exp(x - x.max(-1, keepdims=True))
    got = run_tile(program(c, line), c.inputs, True)["out"]
    np.testing.assert_allclose(got, p / p.sum(-1, keepdims=True), rtol=1e-9)


ROWS_BY_TILES = """\
tile kernel
schedule WORK=t32 TILE=a:4,b:32
buffer x: f32[5, 100] input
buffer w: f32[100] input
buffer out: f32[5, 100] output
part a: grid 5/4, b: stream 100/32
  stream b carrying r0: add f32[a, b]
    v2 = load x[a, b]                                         f32[a, b]
    v3 = map v2 * v2                                          f32[a, b]
    v4 = where b < 100 of v3 else identity.add                f32[a, b]
    v5 = combine add r0, v4                                   f32[a, b]
    yield v5
  v6 = fold add over b of r0                                  f32[a]
  v7 = map rsqrt(v6 / f32(100.0) + f32(1e-06))                f32[a]
  stream b
    v0 = load w[b]                                            f32[b]
    v1 = load x[a, b]                                         f32[a, b]
    v8 = map v0 * (v1 * v7)                                   f32[a, b]
    store out[a, b] = v8
"""


def test_a_long_row_is_folded_by_tiles_and_read_again():
    assert show_tile(program(CASES["scaled rows"](), "WORK=t32 TILE=a:4,b:32")) == ROWS_BY_TILES


FAULTS = {
    "a mask left out": ("scaled rows", "TILE=b:128", r"(\w+) = where .* of (\w+) else \S+", r"\1 = map \2"),
    "a mask that ends too late": ("column sums", "TILE=r:16,c:32", r"r < 50", "r < 51"),
    "a sweep that ends too early": ("scaled rows", "TILE=b:16", r"stream 100/16", "stream 96/16"),
    "a state that is not combined": (
        "column sums",
        "TILE=r:16,c:32",
        r"combine add \w+, (\w+)",
        r"map f32.cast(\1)",
    ),
    "a step's tile that is not merged": ("streamed rows", "TILE=b:16", r"fold add over b", "fold max over b"),
    "partial states that are not rescaled": (
        "streamed rows",
        "TILE=b:16",
        r"map mulz\(z_0, exp\(m_0 - v7\)\)",
        "map z_0",
    ),
    "an old state that is not rescaled": ("streamed chain", "TILE=d:4,e:4,j:4", r"map mulz\(o_0, v7\)", "map o_0"),
    "a scan that starts again at each step": (
        "running sums",
        "TILE=b:16",
        r"combine add r0, v2",
        "map f32.cast(v2)",
    ),
    "a row read again along the other axis": (
        "several results",
        "TILE=b:8",
        r"(stream b\n +v0 = load x)\[a, b\]",
        r"\1[b, a]",
    ),
    "a gather that takes its own row": ("gathered", "TILE=a:4,b:4", r"load x\[[^,]+,", "load x[a,"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_tile_program_is_seen(name):
    case, line, old, new = FAULTS[name]
    c = CASES[case]()
    text = re.sub(r" {2,}\w+\[[\w, ]*\]$", "", show_tile(program(c, f"WORK=t32 {line}")), flags=re.M)
    assert run_tile(parse_tile(text), c.inputs, True).keys()
    wrong, count = re.subn(old, new, text)
    assert count, text
    want = run_form(c.form, c.inputs, True)
    got = run_tile(parse_tile(wrong), c.inputs, True)
    assert not all(np.allclose(got[n], want[n], rtol=1e-6, equal_nan=True) for n in got), wrong
