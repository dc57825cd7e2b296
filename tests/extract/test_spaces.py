"""Schedule spaces list legal lines only, best first, and refuse others with the reason and what is near."""

import math
import time

import pytest

from codegen.lower import lower_tile
from extract import spaces
from extract.points import point
from extract.roles import cluster, listed_tiles, pieces
from extract.spaces import Rules, default_schedule, fallback_schedule, space
from extract.stages import stages
from extract.subject import Subject
from extract.tiling import tile_program
from ir import term as T
from ir.kernel import LoadGlobal, walk
from ir.machine import A100, H200
from ir.node import IRError
from ir.schedule import parse_schedule
from tests.extract.kernels import (
    CASES,
    buffer,
    case,
    decayed_sum,
    exp,
    i,
    load,
    mul,
    put,
    scaled_rows,
    stream_states,
)


def listed(c, machine=H200):
    return space(c.kernel, c.form.buffers, c.form.axes, machine)


def rows(m, n, dtype):
    x, out = buffer("x", dtype, m, n), buffer("out", dtype, m, n, role="output")
    v = load(x, i("a"), i("b"))
    value = T.round_to(dtype, "op", mul(v, T.unary("rsqrt", T.fold("b", "add", mul(v, v)))))
    return shape({"a": m, "b": n}, [x, out], put(out, (i("a"), i("b")), value))


def columns(m, n, dtype="f32"):
    x, out = buffer("x", dtype, m, n), buffer("out", "f32", n, role="output")
    return shape({"a": m, "b": n}, [x, out], put(out, (i("b"),), T.fold("a", "add", load(x, i("a"), i("b")))))


def elementwise(m, n, dtype):
    x, out = buffer("x", dtype, m, n), buffer("out", dtype, m, n, role="output")
    value = T.round_to(dtype, "op", exp(load(x, i("a"), i("b"))))
    return shape({"a": m, "b": n}, [x, out], put(out, (i("a"), i("b")), value))


def shape(axes, buffers, store):
    """A case without inputs, whose buffers may be large."""
    return case(axes, buffers, store, **{b.name: None for b in buffers})


@pytest.mark.parametrize("name", CASES)
def test_every_listed_line_is_legal_and_spelled_as_it_would_be_again(name):
    s = listed(CASES[name]())
    assert [s.check(line) for line in s.lines] == list(s.lines)
    assert len(set(s.lines)) == s.size
    assert [parse_schedule(str(line)) for line in s.lines] == list(s.lines)


@pytest.mark.parametrize("name", CASES)
def test_the_fall_back_is_last_and_the_default_first(name):
    c = CASES[name]()
    s = listed(c)
    assert s.lines[-1] == fallback_schedule(c.kernel)
    assert s.lines[0] == default_schedule(c.kernel, c.form.buffers, c.form.axes, H200)
    assert s.size > 1


def test_a_line_is_put_into_canonical_spelling():
    s = listed(scaled_rows())
    assert str(s.check("TILE=b:128/v4,a:2 WORK=t64")) == "WORK=t64 TILE=a:2,b:128/v4"
    assert str(s.check("WORK=t64 TILE=a:1,b:128 REDUCE=block")) == "WORK=t64 TILE=b:128"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("WORK=t64 STAGE=tma", "STAGE=tma is none of shared, async"),
        ("WORK=t64 PIPE=d2", "PIPE has no meaning for this kernel"),
        ("WORK=t100", "100 threads are no multiple of 32"),
        ("WORK=t2048", "2048 threads are no multiple of 32 up to 1024"),
        ("WORK=w4", "WORK=w4 is none of"),
        ("TILE=b:128", "WORK= is none of"),
        ("WORK=points128 TILE=b:128", "WORK=points takes no other field"),
        ("WORK=t64 TILE=c:4", "the kernel has no axis c"),
        ("WORK=t64 TILE=b:96", "b:96 is no power of two between 1 and 128"),
        ("WORK=t64 TILE=b:256", "b:256 is no power of two between 1 and 128"),
        ("WORK=t64 TILE=b:128/v3", "v3 is no power of two"),
        ("WORK=t64 TILE=b:128/v32", "v32 is no power of two up to the tile of b and 16"),
        ("WORK=t64 TILE=a:8/v8,b:128/v4", "a and b both have a vector"),
        ("WORK=t64 TILE=b:64,b:32", "once an axis"),
        ("WORK=t64 TILE=b:128 REDUCE=tree", "REDUCE=tree is none of block, lanes, serial"),
        ("WORK=t32 TILE=a:8,b:128 REDUCE=serial", "register words"),
        ("WORK=t64 TILE=b:128 STORE=tma", "STORE=tma is none of plain, stream, keep"),
        ("WORK=t64+c3 TILE=b:128", "a cluster of 3 blocks is no power of two up to 8"),
        ("WORK=t64+c16 TILE=b:128", "a cluster of 16 blocks is no power of two up to 8"),
        (
            "WORK=t64+c2 TILE=b:128 REDUCE=lanes",
            "2 blocks of a cluster share folds, of which REDUCE=lanes leaves none",
        ),
        ("WORK t64", "is not KEY=value"),
    ],
)
def test_an_illegal_line_is_refused_with_the_reason_and_three_near_lines(line, why):
    s = listed(scaled_rows())
    with pytest.raises(IRError, match=f"{why}.*; near are ") as e:
        s.check(line)
    near = str(e.value).split("; near are ")[1].split(" | ")
    assert len(near) == 3 and all(s.check(n) in s.lines for n in near)


def test_a_machine_without_clusters_has_no_line_of_them():
    assert listed(scaled_rows()).check("WORK=t64+c2 TILE=b:128")
    with pytest.raises(IRError, match="a cluster of 2 blocks is no power of two up to 1"):
        listed(scaled_rows(), A100).check("WORK=t64+c2 TILE=b:128")


def test_a_kernel_that_folds_nothing_has_no_way_of_folding():
    with pytest.raises(IRError, match="the kernel folds nothing"):
        listed(CASES["pointwise"]()).check("WORK=t64 REDUCE=lanes")


def test_the_nearest_lines_differ_least():
    s = listed(scaled_rows())
    line = s.lines[5]
    assert s.nearest(str(line))[0] == line


def test_a_stream_that_goes_by_single_positions_has_no_other_tile():
    s = listed(decayed_sum())
    assert all("b" not in listed_tiles(line) for line in s.lines)
    with pytest.raises(IRError, match="b is streamed by single positions, not by 8"):
        s.check("WORK=t64 TILE=b:8")


def first_tiles(c):
    return {a: tile for a, (tile, _) in listed_tiles(listed(c).lines[0]).items()}


def test_a_row_of_moderate_length_stays_in_registers():
    assert first_tiles(rows(16384, 4096, "bf16"))["b"] == 4096
    assert first_tiles(rows(32, 2048, "f32"))["b"] == 2048


def test_short_rows_share_a_block():
    tiles = first_tiles(rows(100000, 64, "f32"))
    assert tiles["b"] == 64 and tiles["a"] >= 8


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("n", [32, 64, 128, 256])
def test_lanes_share_a_short_row_and_a_warp_wants_whole_lines(n, dtype):
    c = rows((1 << 25) // n, n, dtype)
    first = point(listed(c).lines[0])
    rules = Rules(Subject(c.kernel, c.form.buffers, c.form.axes, H200))
    (part,) = rules.parts
    tiles = rules.tiles(part, first)
    assert tiles.sharing({"b"})[1] == min(32, n // first.vector)
    for k, access in enumerate(part.accesses):
        found = part.request(access, tiles, k < len(part.loads))
        assert (found.waste, found.spare_lines, found.useful) == (1.0, 0, 512)


def test_a_thread_a_row_costs_as_many_lines_as_rows():
    c = rows(1 << 19, 64, "f32")
    rules = Rules(Subject(c.kernel, c.form.buffers, c.form.axes, H200))
    apart, together = (
        point(parse_schedule(f"WORK=t128 TILE=a:128,b:64/v4 REDUCE={r}")) for r in ("serial", "lanes")
    )
    assert rules.us(apart) > 2 * rules.us(together)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("n", [1000, 4095, 4097, 4160, 8193, 12288])
def test_a_row_of_any_length_is_held_by_threads_of_which_few_idle(n, dtype):
    c = rows((1 << 25) // n, n, dtype)
    first = point(listed(c).lines[0])
    rules = Rules(Subject(c.kernel, c.form.buffers, c.form.axes, H200))
    tiles = rules.tiles(rules.parts[0], first)
    assert dict(first.tiles)["b"] == n
    assert tiles.elements(("a", "b")) / (tiles.held(frozenset("ab")) * first.threads) > 0.85


def test_what_runs_at_a_time_and_no_cache_holds_is_read_from_memory_again():
    c = rows(1024, 32768, "f32")
    rules = Rules(Subject(c.kernel, c.form.buffers, c.form.axes, H200))
    twice = rules.us(point(parse_schedule("WORK=t256 TILE=a:4,b:4096/v4")))
    assert 0.9 < twice / 99.4 < 1.1


def test_a_long_row_is_swept_by_tiles():
    first = listed(rows(1024, 131072, "f32"), A100).lines[0]
    assert 256 <= dict(point(first).tiles)["b"] <= 16384


@pytest.mark.parametrize(("count", "other"), [(64, set()), (4096, {"plain", "keep"}), (65536, {"plain", "stream"})])
def test_the_best_lines_are_listed_with_the_other_cache_hints(count, other):
    lines = listed(rows(count, 2048, "f32")).lines
    assert {s.get("STORE") for s in lines} - {""} == other
    assert not other or {str(s) for s in lines[1:3]} == {f"{lines[0]} STORE={o}" for o in other}


def test_blocks_of_a_cluster_share_a_few_long_rows():
    x, out = buffer("x", "bf16", 16, 128256), buffer("out", "f32", 16, role="output")
    v = load(x, i("a"), i("b"))
    total = T.fold("b", "add", exp(T.binary("sub", v, T.fold("b", "max", v))))
    first = listed(shape({"a": 16, "b": 128256}, [x, out], put(out, (i("a"),), total))).lines[0]
    assert point(first).cluster == 8 and dict(point(first).tiles) == {"b": 128256}


def test_blocks_of_a_cluster_share_columns_of_whole_lines():
    first = point(listed(columns(8192, 4096, "bf16")).lines[0])
    assert first.cluster > 1 and dict(first.tiles)["b"] * 2 == 128


def test_a_fold_along_columns_reads_runs_of_neighbours():
    tiles = first_tiles(columns(16384, 4096))
    assert tiles["b"] >= 8 and tiles["a"] >= 32


def rules_of(c):
    return Rules(Subject(c.kernel, c.form.buffers, c.form.axes, H200))


def laid_out(rules, line):
    """The one part of a kernel, and its tiles under a line."""
    (part,) = rules.parts
    return part, rules.tiles(part, point(parse_schedule(line)))


def test_blocks_begin_one_after_another():
    rules = rules_of(elementwise(16384, 4096, "bf16"))
    many, fewer = (rules.us(point(parse_schedule(f"WORK=t128 TILE=b:{n}/v8"))) for n in (1024, 2048))
    assert many > (1 << 16) * H200.rates.block_us > 1.1 * fewer


def halves_swapped(m, n):
    x, out = buffer("x", "bf16", m, n), buffer("out", "bf16", m, n, role="output")
    there = T.binary("add", i("b"), T.number(n // 2)), T.binary("add", i("b"), T.number(-n // 2))
    first = T.binary("lt", i("b"), T.number(n // 2))
    value = T.round_to(
        "bf16", "op", mul(load(x, i("a"), i("b")), T.select(first, *(load(x, i("a"), j) for j in there)))
    )
    return shape({"a": m, "b": n}, [x, out], put(out, (i("a"), i("b")), value))


def test_loads_that_may_leave_their_buffer_come_one_by_one_and_what_one_tile_holds_comes_once():
    rules = rules_of(halves_swapped(65536, 128))
    part, whole = laid_out(rules, "WORK=t128 TILE=a:8,b:128/v8")
    assert sorted(part.width(access, whole) for access in part.loads) == [1, 1, 8]
    once = 2 * 65536 * 128 * 2
    assert part.moved(whole, 65536 // 8, 8)[:2] == pytest.approx((once, once), rel=0.02)
    assert part.moved(laid_out(rules, "WORK=t128 TILE=a:16,b:64/v8")[1], 65536 // 8, 8)[1] > 1.9 * once


def softmax(m, n, dtype):
    x, out = buffer("x", dtype, m, n), buffer("out", dtype, m, n, role="output")
    v = load(x, i("a"), i("b"))
    e = exp(T.binary("add", v, T.unary("neg", T.fold("b", "max", v))))
    value = T.round_to(dtype, "op", mul(e, T.unary("recip", T.fold("b", "add", e))))
    return shape({"a": m, "b": n}, [x, out], put(out, (i("a"), i("b")), value))


@pytest.mark.parametrize(
    ("size", "line"),
    [
        ((16384, 4096, "f32"), "WORK=t512 TILE=b:4096/v4 STORE=stream"),
        ((16384, 4096, "bf16"), "WORK=t256 TILE=b:4096/v8 STORE=stream"),
        ((65536, 1024, "bf16"), "WORK=t128 TILE=a:4,b:1024/v8"),
        ((1024, 32768, "bf16"), "WORK=t1024 TILE=b:32768/v8"),
        ((1024, 131072, "f32"), "WORK=t1024 TILE=b:16384/v4"),
        ((1024, 131072, "f32"), "WORK=t512+c8 TILE=b:131072/v4"),
    ],
)
def test_the_space_holds_a_row_in_a_warp_in_a_block_in_a_loop_and_in_a_cluster(size, line):
    for c in (softmax(*size), rows(*size)):
        assert str(listed(c).check(line)) == line


def test_a_row_that_a_block_holds_is_not_spread_over_a_cluster():
    assert point(listed(softmax(4, 4096, "bf16")).lines[0]).cluster == 1


def test_a_loop_keeps_a_state_for_every_position_of_its_step():
    x, out = buffer("x", "f32", 64, 65536), buffer("out", "f32", 64, role="output")
    m, z = stream_states(load(x, i("a"), i("b")), "b", ("a",))
    rules = rules_of(shape({"a": 64, "b": 65536}, [x, out], put(out, (i("a"),), mul(m, z))))
    part, step = laid_out(rules, "WORK=t128 TILE=b:2048/v4")
    assert part.carried(step) == 2 * 16
    assert part.carried(laid_out(rules, "WORK=t1024 TILE=b:65536/v4")[1]) == 0
    assert part.spilled(step) == 0 < part.spilled(laid_out(rules, "WORK=t128 TILE=b:4096/v4")[1])


def scaled_by_a_sum(m, n, p):
    x, y, out = (
        buffer(b, "f32", m, k, role=r) for b, k, r in (("x", n, "input"), ("y", p, "input"), ("out", n, "output"))
    )
    value = mul(load(x, i("a"), i("b")), T.fold("c", "add", load(y, i("a"), i("c"))))
    return shape({"a": m, "b": n, "c": p}, [x, y, out], put(out, (i("a"), i("b")), value))


def test_results_that_follow_a_fold_of_others_take_registers():
    rules = rules_of(scaled_by_a_sum(128, 262144, 4))
    assert rules.us(point(parse_schedule("WORK=t128 TILE=b:32768/v4"))) == float("inf")
    assert rules.us(point(parse_schedule("WORK=t128 TILE=b:4096/v4"))) < float("inf")


def test_results_of_columns_that_lie_in_one_bank_cost_more_than_their_share():
    rules = rules_of(columns(8192, 4096, "bf16"))
    few, many = (
        (lambda part, tiles: part.exchange(tiles)[0])(*laid_out(rules, f"WORK=t{n} TILE=a:1024,b:64/v8"))
        for n in (128, 512)
    )
    assert many > 6 * few


def test_what_only_results_need_is_loaded_in_the_last_sweep():
    x, w, out = (
        buffer("x", "f32", 64, 8192),
        buffer("w", "f32", 8192),
        buffer("out", "f32", 64, 8192, role="output"),
    )
    v = load(x, i("a"), i("b"))
    value = mul(mul(v, load(w, i("b"))), T.fold("b", "add", mul(v, v)))
    part, tiles = laid_out(
        rules_of(shape({"a": 64, "b": 8192}, [x, w, out], put(out, (i("a"), i("b")), value))),
        "WORK=t128 TILE=b:1024/v4",
    )
    assert {a.buffer.name: part.loaded(n, tiles) for n, a in enumerate(part.loads)} == {"x": 2, "w": 1}


def test_an_elementwise_kernel_moves_sixteen_bytes_at_once():
    assert max(v for _, v in listed_tiles(listed(elementwise(4096, 4096, "bf16")).lines[0]).values()) == 8
    assert max(v for _, v in listed_tiles(listed(elementwise(4096, 4096, "f32")).lines[0]).values()) == 4
    assert "/v" not in str(listed(elementwise(4096, 4095, "f32")).lines[0])


def test_a_space_lists_in_milliseconds():
    c = rows(16384, 4096, "bf16")
    start = time.perf_counter()
    listed(c)
    assert time.perf_counter() - start < 0.25


def test_another_machine_has_a_space_too():
    assert listed(rows(16384, 4096, "f16"), A100).size > 10


@pytest.mark.parametrize(
    ("line", "reason"),
    [("WORK=t64 TILE=b:0", "b:0 is a tile of no position"), ("WORK=t64 REDUCE=split1", "two pieces or more")],
)
def test_tiles_of_nothing_and_single_pieces_are_refused(line, reason):
    c = CASES["streamed rows"]()
    with pytest.raises(IRError, match=reason):
        space(c.kernel, c.form.buffers, c.form.axes, H200).check(line)


LONG_ROWS = [(4, 131072, "f32"), (1, 40000, "bf16"), (64, 50257, "f32"), (16, 128256, "bf16")]


@pytest.mark.parametrize(("m", "n", "dtype"), LONG_ROWS)
def test_splits_that_are_not_thought_of_would_not_be_chosen(m, n, dtype, monkeypatch):
    c = rows(m, n, dtype)
    found = listed(c)
    monkeypatch.setattr(spaces, "WORTH_A_LAUNCH", -math.inf)
    every = listed(c)
    assert found.lines[0] == every.lines[0] and found.us[0] == every.us[0]


@pytest.mark.parametrize("c", [rows(2, 2**31 + 64, "f16"), columns(2**31 + 7, 3)], ids=["row", "columns"])
def test_every_line_of_a_sweep_that_needs_64_bits_is_lowered(c):
    found = listed(c)
    for line in found.lines:
        assert found.check(line) == line
        if line.get("STAGE"):  # rings are verified step by step, for seconds
            continue
        for stage in stages(c.kernel, c.form.buffers, c.form.axes, line, H200):
            lower_tile(tile_program(stage.kernel, stage.buffers, stage.axes, stage.schedule, False), H200)
    assert found.check("WORK=points128") == found.lines[-1]


def sums(n, dtype, shift=0):
    x, out = buffer("x", dtype, n), buffer("out", "f32", role="output")
    at = T.binary("add", i("a"), T.number(-shift)) if shift else i("a")
    value = T.round_to("f32", "cast", load(x, at))
    if shift:
        value = T.select(T.binary("le", T.number(0), at), value, T.const(0.0, "f32"))
    return shape({"a": n}, [x, out], put(out, (), T.fold("a", "add", value)))


SUMS = [
    sums(2**24, "i8"),
    sums(10**8 + 1, "i8"),
    sums(10**7 + 1, "f32"),
    sums(10**7 + 2, "f32"),
    sums(2**20, "f32", 1),
]


@pytest.mark.parametrize("c", SUMS, ids=["even", "odd bytes", "odd", "even by 2", "shifted"])
def test_loads_move_as_many_elements_at_once_as_the_model_says(c):
    (x, _), found = c.form.buffers, listed(c)
    for line in [*dict.fromkeys([s for s in found.lines if not s.get("STAGE")])][:12]:
        first, *_ = stages(c.kernel, c.form.buffers, c.form.axes, line, H200)
        k = lower_tile(tile_program(first.kernel, first.buffers, first.axes, first.schedule, False), H200)
        rules, p = Rules(found.subject, pieces(line), cluster(line)), point(line)
        (part,) = rules.parts
        modelled = {part.width(a, rules.tiles(part, p)) for a in part.loads}
        assert modelled == {s.width for s in walk(k.body) if isinstance(s, LoadGlobal) and s.buffer == x.name}, line


@pytest.mark.parametrize(("tile", "words"), [(8192, 64), (4096, 32), (16384, 0)])
def test_a_loop_keeps_the_prefixes_of_a_step_in_registers(tile, words):
    x, out = buffer("x", "f16", 512, 16384), buffer("out", "f16", 512, 16384, role="output")
    prefixes = T.Scan("b", "add", load(x, i("a"), i("b")))
    c = shape({"a": 512, "b": 16384}, [x, out], put(out, (i("a"), i("b")), T.round_to("f16", "op", prefixes)))
    found = listed(c)
    rules = Rules(found.subject)
    (part,) = rules.parts
    tiles = rules.tiles(part, point(parse_schedule(f"WORK=t128 TILE=b:{tile}/v8")))
    assert part.carried(tiles) == words
    assert part.spilled(rules.tiles(part, point(found.lines[0]))) < 32
