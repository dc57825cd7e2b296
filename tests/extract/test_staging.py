"""Lines whose loads go through shared memory: listed where they are legal, refused with a reason, and lowered as told."""

import math
from dataclasses import replace

import pytest

from codegen.lower import lower_tile
from extract.climbing import STAGES
from extract.points import point
from extract.spaces import Rules, space
from extract.stages import stages
from extract.tiling import tile_program
from ir import kernel as K
from ir import term as T
from ir.kernel_verify import footprint
from ir.machine import A100, H200
from ir.node import IRError
from ir.schedule import parse_schedule, staging
from tests.extract.kernels import CASES, add, buffer, exp, i, load, mul, put, sub
from tests.extract.test_spaces import listed, rows, shape

EVERY = [s for row in STAGES for s in row]


def exponents(m, n, dtype="f32"):
    """exp(x - max) / sum along rows."""
    x, out = buffer("x", dtype, m, n), buffer("out", dtype, m, n, role="output")
    v = load(x, i("a"), i("b"))
    e = exp(sub(v, T.fold("b", "max", v)))
    value = T.round_to(dtype, "op", mul(e, T.unary("recip", T.fold("b", "add", e))))
    return shape({"a": m, "b": n}, [x, out], put(out, (i("a"), i("b")), value))


def lowered(c, line, machine=H200):
    """The launches of a line."""
    found = stages(c.kernel, c.form.buffers, c.form.axes, line, machine)
    return [lower_tile(tile_program(s.kernel, s.buffers, s.axes, s.schedule), machine) for s in found]


def staged(s):
    return [line for line in s.lines if line.get("STAGE")]


@pytest.mark.parametrize(("m", "n", "dtype"), [(256, 4096, "f32"), (64, 32768, "f32"), (16, 70000, "bf16")])
def test_listed_ways_through_shared_memory_are_legal_and_lowered(m, n, dtype):
    for c in (exponents(m, n, dtype), rows(m, n, dtype)):
        s = listed(c)
        assert {line.get("STAGE") for line in staged(s)} == set(EVERY)
        for line in staged(s):
            assert s.check(line) == line
            (k,) = lowered(c, line)
            assert any(isinstance(x, K.Ring | K.Shared) and K.shared_bytes(x) > 4096 for x in K.walk(k.body))


@pytest.mark.parametrize("name", [n for n in CASES if listed(CASES[n]()).size > 1])
def test_what_one_point_loads_tells_which_points_like_it_are_legal(name):
    s = listed(CASES[name]())
    points = [point(line) for line in s.lines[:-1]]
    points = [p for p in points if p.cluster == p.pieces == 1]
    together = Rules(s.subject)
    for p in (replace(p, stage=stage) for p in points[:12] + points[::-1][:12] for stage in EVERY):
        assert together.unstaged(p) == Rules(s.subject).unstaged(p)
    assert len(together.programs) < len(points)


@pytest.mark.parametrize("name", CASES)
def test_what_the_space_takes_is_lowered_and_what_it_refuses_has_a_reason(name):
    c = CASES[name]()
    s, taken = listed(c), 0
    shorter = [
        replace(point(line), tiles=tuple((a, min(n, 4)) for a, n in point(line).tiles)) for line in s.lines[:-1:7]
    ]
    for p in (*map(point, s.lines[:-1:5]), *(p.with_vector(p.vector_axis, p.vector) for p in shorter)):
        for stage in ("shared", "async/d3", "bulk/d2", "shared+bulk"):
            try:
                line = s.check(replace(p, stage=stage).line())
            except IRError as e:
                assert "STAGE=" in str(e) or "register words" in str(e) or "TILE" in str(e)
                continue
            taken += 1
            lowered(c, line)
    assert taken or name not in ("normalised_rows", "scaled_rows")


def column_means(m, n):
    """x / sum(x) down columns, whose rows are long."""
    x, out = buffer("x", "f32", m, n), buffer("out", "f32", m, n, role="output")
    v = load(x, i("a"), i("b"))
    value = mul(v, T.unary("recip", T.fold("a", "add", v)))
    return shape({"a": m, "b": n}, [x, out], put(out, (i("a"), i("b")), value))


def test_columns_are_staged_in_tiles_that_walk_along_rows():
    c = column_means(4096, 4096)
    s = listed(c)
    assert {"async/d3", "async/d4", "bulk/d3"} & {line.get("STAGE") for line in staged(s)} >= {
        "async/d3",
        "async/d4",
    }
    for line in staged(s):
        assert s.check(line) == line
        lowered(c, line)


def shifted_products(m, n, k):
    """exp(s - max s) along rows of s = x @ y.T + z, which is added up anew where it is needed."""
    x, y, z = buffer("x", "f32", m, k), buffer("y", "f32", n, k), buffer("z", "f32", m, n)
    out = buffer("out", "f32", m, n, role="output")
    s = add(T.fold("c", "add", mul(load(x, i("a"), i("c")), load(y, i("b"), i("c")))), load(z, i("a"), i("b")))
    return shape(
        {"a": m, "b": n, "c": k}, [x, y, z, out], put(out, (i("a"), i("b")), exp(sub(s, T.fold("b", "max", s))))
    )


def test_a_sweep_whose_threads_share_out_an_inner_axis_first_is_not_staged():
    c = shifted_products(512, 512, 64)
    line = "WORK=t128 TILE=a:4,b:128,c:16/v4"
    s = listed(c)
    lowered(c, s.check(line))
    for stage in EVERY:
        with pytest.raises(IRError, match="no load of a swept axis"):
            s.check(f"{line} STAGE={stage}")


def test_a_machine_without_bulk_copies_lists_none():
    s = listed(exponents(64, 32768), A100)
    assert {line.get("STAGE") for line in staged(s)} == {"shared", "shared+async/d3", "async/d3", "async/d4"}
    with pytest.raises(IRError, match=r"STAGE=bulk/d3: the NVIDIA A100 has no bulk copies; near are .*async/d3"):
        s.check("WORK=t512 TILE=b:4096/v4 STAGE=bulk/d3")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("WORK=t512 TILE=b:32768/v4 STAGE=async/d3", "STAGE=async/d3: no load of a swept axis can be staged"),
        ("WORK=t512 TILE=b:4096/v4 STAGE=async", "STAGE=async is none of shared, async/dN"),
        ("WORK=t512 TILE=b:4096/v4 STAGE=async/d17", "is none of"),
        ("WORK=t512+c2 TILE=b:4096/v4 STAGE=async/d3", "STAGE=async/d3: blocks of a cluster stage nothing"),
        ("WORK=t1024 TILE=b:16384/v4 STAGE=async/d5", "327680 bytes of shared memory, at most 224256 fit"),
        ("WORK=t64 TILE=b:32 STAGE=async/d3", "no load of a swept axis can be staged"),
    ],
)
def test_what_cannot_be_staged_is_refused_with_near_lines(line, why):
    with pytest.raises(IRError, match=f"{why}.*; near are "):
        listed(exponents(1024, 32768)).check(line)


def test_a_row_of_odd_length_is_copied_by_elements_of_four_bytes():
    stages_of = {
        d: {line.get("STAGE") for line in staged(listed(exponents(1024, 4097, d)))} for d in ("f32", "bf16")
    }
    assert stages_of == {"f32": {s for s in EVERY if "bulk" not in s}, "bf16": {"shared"}}


def test_rows_that_fit_registers_do_not_go_through_shared_memory():
    for n in (1024, 4096, 32768, 65536, 131072):
        assert not listed(exponents((1 << 25) // n, n)).lines[0].get("STAGE")


def priced(c, line, machine=H200):
    rules = Rules(space(c.kernel, c.form.buffers, c.form.axes, machine).subject)
    return rules.us(point(parse_schedule(line)))


def test_a_kept_row_is_cheaper_than_one_that_is_read_again_and_a_deeper_ring_than_a_shallow_one():
    c = exponents(1024, 32768)
    again, kept = (priced(c, f"WORK=t512 TILE=b:4096/v4{s}") for s in ("", " STAGE=shared"))
    assert kept < again
    two, four = (priced(c, f"WORK=t256 TILE=b:1024/v4 STAGE=async/d{d}") for d in (2, 4))
    assert four < two


def test_few_blocks_fit_beside_a_kept_row():
    c = exponents(1024, 32768)
    rules = Rules(listed(c).subject)
    p = point(parse_schedule("WORK=t256 TILE=b:2048/v4 STAGE=shared"))
    part = rules.parts[0]
    assert part.staged_bytes(rules.tiles(part, p)) == 4 * 32768
    tiles = rules.tiles(part, p)
    assert part.resident(tiles, part.words(tiles)) == 1


def test_the_modelled_shared_memory_is_that_of_the_kernel():
    c = exponents(64, 32768)
    rules = Rules(listed(c).subject)
    for stage in ("shared", "async/d3", "shared+async/d3"):
        p = point(parse_schedule(f"WORK=t256 TILE=b:2048/v4 STAGE={stage}"))
        (k,) = lowered(c, p.line())
        modelled = rules.parts[0].staged_bytes(rules.tiles(rules.parts[0], p))
        assert 0 <= footprint(k).shared_bytes - modelled < 1024
        assert staging(p.line()) is not None and math.isfinite(rules.us(p))
