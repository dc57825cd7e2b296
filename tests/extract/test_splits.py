"""A split kernel computes what the whole kernel computes, whatever the pieces hold and however they divide the axis."""

import numpy as np
import pytest

from extract.spaces import space
from extract.splits import made_pieces, shared, split, split_axis, split_counts, unsplittable
from extract.stages import stages
from extract.tiling import tile_program
from ir import term as T
from ir.loop import Form
from ir.loop_interp import run_form
from ir.machine import H200
from ir.node import IRError
from ir.schedule import parse_schedule
from ir.tile_interp import run_tile
from ir.tile_verify import verify_tile
from tests.extract.kernels import (
    CASES,
    add,
    best_positions,
    buffer,
    case,
    div,
    exp,
    f32,
    i,
    load,
    masked_rows,
    put,
    stream_states,
    sub,
)
from tests.extract.test_tiling_random import Maker

SPLITTABLE = [n for n, make in CASES.items() if split_axis((c := make()).kernel, c.form.buffers, c.form.axes)]


def as_read(buffers, memory):
    """The buffers as a launch finds them: what is in memory is read."""
    return tuple(b if b.name not in memory else as_input(b) for b in buffers)


def as_input(b):
    return type(b)(b.name, b.dtype, b.shape, b.strides, b.offset, "input", b.alignment)


def terms_say(c, pieces):
    """What the kernels of a split store, run one after another by the loop interpreter."""
    memory, stored = dict(c.inputs), {}
    for p in pieces:
        made = run_form(Form("form", p.axes, as_read(p.buffers, memory), (p.kernel,)), memory, True)
        memory.update(made)
        stored.update(made)
    return stored


def tiles_say(c, line):
    """What the launches of a line store, run one after another by the tile interpreter."""
    memory, stored = dict(c.inputs), {}
    for s in stages(c.kernel, c.form.buffers, c.form.axes, parse_schedule(line), H200):
        tiled = tile_program(s.kernel, as_read(s.buffers, memory), s.axes, s.schedule)
        verify_tile(tiled)
        made = run_tile(tiled, memory, True)
        memory.update(made)
        stored.update(made)
    return stored


def same(got, c, what=""):
    for name, array in run_form(c.form, c.inputs, True).items():
        np.testing.assert_allclose(got[name], array, rtol=1e-9, atol=1e-9, err_msg=what)


def log_sum(rows, columns, dtype="f32", x=None):
    """The logarithm of the sum of exponentials of rows, from a stream that keeps rows of -inf apart."""
    b, out = buffer("x", dtype, rows, columns), buffer("out", "f32", rows, role="output")
    v = load(b, i("a"), i("b"))
    m, z = T.State("m", "f32", ("a",)), T.State("z", "f32", ("a",))

    def kept(t):
        return T.select(T.binary("eq", T.unary("abs", t), f32(np.inf)), f32(0.0), t)

    new = T.binary("max", m, T.round_to("f32", "cast", v))
    shift = sub(kept(m), kept(new))
    carries = (
        T.Carry("m", "max", new),
        T.Carry(
            "z", "add", add(T.binary("mulz", z, exp(shift)), exp(T.binary("addz", v, T.unary("neg", kept(new)))))
        ),
    )
    m, z = T.Stream("b", carries, "m"), T.Stream("b", carries, "z")
    given = {} if x is None else {"x": x}
    return case({"a": rows, "b": columns}, [b, out], put(out, (i("a"),), add(kept(m), T.unary("log", z))), **given)


def mean(rows, columns, dtype):
    b, out = buffer("x", dtype, rows, columns), buffer("out", dtype, rows, role="output")
    count = T.round_to("f32", "op", T.Extent("b"))
    value = T.round_to(dtype, "op", div(T.fold("b", "add", load(b, i("a"), i("b"))), count))
    return case({"a": rows, "b": columns}, [b, out], put(out, (i("a"),), value))


def emptied_rows():
    """Rows that are -inf over whole pieces, and one that is -inf everywhere."""
    rows = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)
    rows[0, :40], rows[1, 33:], rows[2] = -np.inf, -np.inf, -np.inf
    return log_sum(4, 64, x=rows)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("name", SPLITTABLE)
def test_the_kernels_of_a_split_compute_the_whole(name, count):
    c = CASES[name]()
    axis = split_axis(c.kernel, c.form.buffers, c.form.axes)
    same(terms_say(c, split(c.kernel, c.form.buffers, c.form.axes, axis, count)), c)


@pytest.mark.parametrize("line", ["WORK=t32 REDUCE=split2", "WORK=t64 REDUCE=lanes+split5"])
@pytest.mark.parametrize("name", SPLITTABLE)
def test_the_launches_of_a_split_line_compute_the_whole(name, line):
    c = CASES[name]()
    same(tiles_say(c, line), c)


@pytest.mark.parametrize("count", [1, 2, 5, 7])
@pytest.mark.parametrize("name", SPLITTABLE)
def test_pieces_of_one_launch_compute_the_whole(name, count):
    c = CASES[name]()
    axis = split_axis(c.kernel, c.form.buffers, c.form.axes)
    if c.form.axes[axis] % count:
        with pytest.raises(IRError, match=f"are no {count} equal pieces"):
            shared(c.kernel, c.form.buffers, c.form.axes, axis, count)
    else:
        piece, outer = shared(c.kernel, c.form.buffers, c.form.axes, axis, count)
        assert piece.axes[outer] == count
        same(terms_say(c, [piece]), c)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_blocks_of_a_cluster_compute_the_whole(count):
    for c in (log_sum(4, 64), emptied_rows(), mean(4, 64, "f32"), CASES["streamed rows"]()):
        n = c.form.axes["b"]
        if n % count == 0:
            same(tiles_say(c, f"WORK=t32+c{count} TILE=b:{n // count},bp:{count} REDUCE=split{count}"), c)


@pytest.mark.parametrize("work", ["t64+c4", "t128+c2"])
def test_the_warps_of_a_cluster_compute_the_whole(work):
    for c in (log_sum(4, 64), log_sum(3, 1000), log_sum(2, 70), emptied_rows(), mean(4, 64, "f32")):
        length = shared(c.kernel, c.form.buffers, c.form.axes, "b", 8, True)[0].axes["b"]
        same(tiles_say(c, f"WORK={work} TILE=b:{length},bp:8 REDUCE=lanes+split8"), c)


def test_pieces_of_a_cluster_are_as_many_as_its_blocks_or_warps():
    c = log_sum(4, 64)
    s = space(c.kernel, c.form.buffers, c.form.axes, H200)
    with pytest.raises(IRError, match="the 4 blocks of a cluster take a piece each"):
        s.check("WORK=t32+c4 TILE=b:8,bp:8 REDUCE=split8")
    with pytest.raises(IRError, match="the 8 warps of a cluster take a piece each"):
        s.check("WORK=t64+c4 TILE=b:8,bp:4 REDUCE=lanes+split4")
    with pytest.raises(IRError, match="bp numbers the 8 pieces, so that is its tile"):
        s.check("WORK=t32+c8 TILE=b:8 REDUCE=split8")


@pytest.mark.parametrize("seed", range(24))
def test_random_kernels_in_pieces_compute_the_whole(seed):
    c = Maker(seed).kernel()
    axis = split_axis(c.kernel, c.form.buffers, c.form.axes)
    for n in (2, 3) if axis else ():
        same(terms_say(c, split(c.kernel, c.form.buffers, c.form.axes, axis, n)), c)
        same(tiles_say(c, f"WORK=t32 REDUCE=split{n}"), c)
        if c.form.axes[axis] % n == 0:
            piece, outer = shared(c.kernel, c.form.buffers, c.form.axes, axis, n)
            same(terms_say(c, [piece]), c)
        if c.form.axes[axis] % 2 == 0 and n == 2:
            same(tiles_say(c, f"WORK=t32+c2 TILE={outer}:2 REDUCE=split2"), c)


@pytest.mark.parametrize("tile", ["b:1", "b:8", "a:4,b:4"])
@pytest.mark.parametrize("make", [masked_rows, emptied_rows, best_positions, lambda: best_positions("argmin")])
def test_pieces_without_a_value_that_counts_are_forgotten(make, tile):
    for n in (2, 3, 8):
        c = make()
        same(tiles_say(c, f"WORK=t32 TILE={tile} REDUCE=split{n}"), c, f"{n} pieces")


@pytest.mark.parametrize("line", ["WORK=t32 TILE=b:8 REDUCE=split4", "WORK=t32+c4 TILE=b:20,bp:4 REDUCE=split4"])
def test_the_states_of_a_stream_inside_go_over_the_pieces(line):
    x, out = buffer("x", "f32", 4, 80, 8), buffer("out", "f32", 4, role="output")
    _, z = stream_states(load(x, i("a"), i("b"), i("c")), "c", ("a", "b"))
    c = case({"a": 4, "b": 80, "c": 8}, [x, out], put(out, (i("a"),), T.fold("b", "add", z)))
    same(tiles_say(c, line), c)


def test_of_ties_in_several_pieces_the_first_wins():
    rows = np.zeros((3, 40), np.float32)
    rows[0, [9, 10, 35]], rows[1, [39, 30]], rows[2, [25, 5]] = 1.0, 2.0, np.nan
    x, out = buffer("x", "f32", 3, 40), buffer("out", "i64", 3, role="output")
    value = T.fold("b", "argmax", load(x, i("a"), i("b")))
    c = case({"a": 3, "b": 40}, [x, out], put(out, (i("a"),), value), x=rows)
    assert tiles_say(c, "WORK=t32 TILE=b:4 REDUCE=split4")["out"].tolist() == [9, 30, 5]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("extents", [(1, 1), (1, 130), (0, 130), (3, 1000)])
def test_a_mean_of_any_type_and_size(dtype, extents):
    c = mean(*extents, dtype)
    for n in (2, 5):
        axis = "b"
        same(terms_say(c, split(c.kernel, c.form.buffers, c.form.axes, axis, n)), c)
        if extents[1] > 1 and extents[0]:
            same(tiles_say(c, f"WORK=t32 TILE=b:16 REDUCE=split{n}"), c)


def test_an_empty_axis_in_pieces_gives_the_identity():
    c = mean(3, 0, "f32")
    (first, last) = split(c.kernel, c.form.buffers, c.form.axes, "b", 4)
    assert np.isnan(terms_say(c, (first, last))["out"]).all()


def test_only_states_that_are_read_are_stored():
    c = CASES["streamed rows"]()
    first, _ = split(c.kernel, c.form.buffers, c.form.axes, "b", 4)
    assert len(first.kernel.stores) == 2
    m, _ = stream_states(load(c.form.buffers[0], i("a"), i("b")), "b", ("a",))
    only = case({"a": 4, "b": 70}, c.form.buffers, put(c.form.buffers[1], (i("a"), 0), m))
    assert len(split(only.kernel, only.form.buffers, only.form.axes, "b", 4)[0].kernel.stores) == 1


def test_what_takes_positions_one_by_one_is_not_split():
    c, scan = CASES["decayed sum"](), CASES["running sums"]()
    assert unsplittable(c.kernel, "b") == "a stream over b takes its positions one by one"
    with pytest.raises(IRError, match="a scan along b is not split"):
        split(scan.kernel, scan.form.buffers, scan.form.axes, "b", 2)
    with pytest.raises(IRError, match="sweeps over no axis that can be split"):
        space(c.kernel, c.form.buffers, c.form.axes, H200).check("WORK=t32 REDUCE=split4")


def test_long_rows_on_few_blocks_are_split_by_default():
    c = log_sum(16, 128256, x=np.zeros((16, 128256), np.float32))
    s = space(c.kernel, c.form.buffers, c.form.axes, H200)
    assert "split" in str(s.lines[0])
    assert any("split" not in str(line) and line.get("WORK")[0] == "t" for line in s.lines)
    assert str(s.check(str(s.lines[0]))) == str(s.lines[0])
    assert len(stages(c.kernel, c.form.buffers, c.form.axes, s.lines[0], H200)) == 1
    assert {len(stages(c.kernel, c.form.buffers, c.form.axes, line, H200)) for line in s.lines} == {1, 2}


@pytest.mark.parametrize("name", CASES)
def test_small_kernels_stay_whole(name):
    c = CASES[name]()
    s = space(c.kernel, c.form.buffers, c.form.axes, H200)
    assert "split" not in str(s.lines[0])


def test_rows_that_fill_the_machine_stay_whole():
    c = log_sum(4096, 4096, x=np.zeros((4096, 4096), np.float32))
    assert "split" not in str(space(c.kernel, c.form.buffers, c.form.axes, H200).lines[0])


@pytest.mark.parametrize(("n", "asked", "made"), [(1000, 999999999, 1000), (1000, 7, 6), (1000, 8, 8), (45, 10, 9)])
def test_a_line_is_spelled_with_the_pieces_that_are_made(n, asked, made):
    x, out = buffer("x", "f32", 4, n), buffer("out", "f32", 4, role="output")
    c = case({"a": 4, "b": n}, [x, out], put(out, (i("a"),), T.fold("b", "add", load(x, i("a"), i("b")))))
    s = space(c.kernel, c.form.buffers, c.form.axes, H200)
    line = s.check(f"WORK=t128 REDUCE=lanes+split{asked}")
    assert str(line) == f"WORK=t128 REDUCE=lanes+split{made}" and s.check(line) == line
    assert stages(c.kernel, c.form.buffers, c.form.axes, line, H200)[0].axes["bp"] == made


@pytest.mark.parametrize("extent", [*range(2, 300, 7), 1000, 12501, 128257])
def test_the_pieces_that_are_made_are_made_again_when_they_are_asked_for(extent):
    for count in (2, 3, 7, 64, 130, 132, 999, 10**9):
        made = made_pieces(extent, count)
        assert 1 < made <= count and made_pieces(extent, made) == made
    assert all(made_pieces(extent, n) == n for n in split_counts(extent, 1, 132))


@pytest.mark.parametrize(
    ("blocks", "counts"), [(1, {264, 132, 528}), (16, {264, 9, 17, 33}), (64, {3, 5, 9}), (300, set())]
)
def test_pieces_of_one_block_each_are_for_few_rows(blocks, counts):
    assert set(split_counts(10**9 + 7, blocks, 132)) == counts
