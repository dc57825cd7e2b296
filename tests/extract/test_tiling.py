"""The tile program of a kernel computes what the kernel's terms say, under every schedule."""

import numpy as np
import pytest

from extract.roles import listed_tiles
from extract.spaces import space
from extract.tiling import tile_program
from ir.loop_interp import run_form
from ir.machine import H200
from ir.schedule import parse_schedule
from ir.tile_interp import run_tile
from ir.tile_text import parse_tile, show_tile
from tests.extract.kernels import CASES, masked_rows


def program(c, line):
    return tile_program(c.kernel, c.form.buffers, c.form.axes, parse_schedule(line))


def check(c, line):
    tiled = program(c, line)
    assert parse_tile(show_tile(tiled)) == tiled
    want, got = run_form(c.form, c.inputs, True), run_tile(tiled, c.inputs, True)
    assert set(got) == {name for name in want if want[name].size or name in got}, show_tile(tiled)
    for name, array in got.items():
        np.testing.assert_allclose(array, want[name], rtol=1e-9, atol=1e-9, err_msg=show_tile(tiled))


@pytest.mark.parametrize("line", ["WORK=points128", "WORK=points1", "WORK=points4"])
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
    for line in list(tiles.values())[::2]:
        check(c, str(line))


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
