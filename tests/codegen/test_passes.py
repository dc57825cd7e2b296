"""Lowered kernels mean what their tile programs mean; faults planted behind the passes are found."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from codegen.lower import CONSUMES, PASSES, lower_tile
from codegen.passes import unroll
from extract.spaces import KEYS as LINE_KEYS
from extract.spaces import space
from extract.tiling import tile_program
from ir import kernel as K
from ir import term as T
from ir.dtype import DTYPES, Array
from ir.kernel_interp import from_flat, run_kernel, to_flat
from ir.kernel_text import parse_kernel, show_kernel
from ir.kernel_verify import footprint, verify_kernel
from ir.machine import H200
from ir.meaning import pointwise
from ir.node import IRError, postorder
from ir.schedule import KEYS
from ir.tile import TileProgram
from ir.tile_interp import run_tile
from ir.tile_text import parse_tile
from tests.codegen.tile_cases import CASES, inputs, program, row
from tests.extract.kernels import CASES as FORMS


def check(p: TileProgram, k: K.KernelProgram, given: Mapping[str, Array] | None = None) -> None:
    """The kernel verifies, and gives what the tile program gives."""
    verify_kernel(k, H200)
    given = inputs(p) if given is None else {b.name: given[b.name] for b in p.buffers if b.name in given}
    want = run_tile(p, given)
    got = run_kernel(k, {b.name: to_flat(b, given[b.name]) for b in p.buffers if b.name in given})
    for name, values in want.items():
        b = p.buffer(name)
        room = 2e-5 if b.dtype == "f32" else 4 * DTYPES[b.dtype].unit_roundoff
        near = from_flat(b, got[name]).astype(np.float64)
        np.testing.assert_allclose(near, values.astype(np.float64), rtol=room, atol=room, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_means_what_its_tile_program_means(name: str) -> None:
    p = program(name)
    check(p, lower_tile(p, H200))


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_prints_and_parses_to_the_same_kernel(name: str) -> None:
    k = lower_tile(program(name), H200)
    assert parse_kernel(show_kernel(k)) == k


@pytest.mark.parametrize("name", ["row in vectors", "stream with two states", "scan add of 1000, 128 threads/v4"])
def test_every_pass_after_the_barriers_keeps_the_meaning(name: str) -> None:
    p = program(name)
    states: list[str] = []
    lower_tile(p, H200, lambda step, _, after: states.append(after) if step in names else None)
    for text in states:
        check(p, parse_kernel(text))


names = [step.name for step in PASSES][[step.name for step in PASSES].index("barriers") :]


@pytest.mark.parametrize("name", CASES)
def test_nests_that_stay_loops_mean_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll, "LIMIT", 3)
    p = program(name)
    k = lower_tile(p, H200)
    check(p, k)
    assert parse_kernel(show_kernel(k)) == k


@pytest.mark.parametrize("name", FORMS)
def test_kernels_of_forms_mean_what_their_terms_say(name: str) -> None:
    c = FORMS[name]()
    lines = space(c.kernel, c.form.buffers, c.form.axes, H200).lines
    for line in (lines[0], lines[len(lines) // 2], lines[-1]):
        p = tile_program(c.kernel, c.form.buffers, c.form.axes, line)
        check(p, lower_tile(p, H200), c.inputs)


def test_an_observer_sees_every_pass_from_the_text_of_the_one_before() -> None:
    seen: list[tuple[str, str, str]] = []
    lower_tile(program("row in vectors"), H200, lambda *step: seen.append(step))
    assert [s[0] for s in seen] == [p.name for p in PASSES]
    assert all(one[2] == two[1] for one, two in itertools.pairwise(seen))


def test_passes_read_known_keys() -> None:
    assert set(CONSUMES) <= {p.name for p in PASSES}
    assert {k for keys in CONSUMES.values() for k in keys} <= set(KEYS)


def test_every_key_that_a_line_may_have_is_read_by_some_pass() -> None:
    assert {k for keys in CONSUMES.values() for k in keys} == set(LINE_KEYS)


def test_a_row_takes_one_load_an_element_and_one_barrier_a_fold() -> None:
    k = lower_tile(parse_tile(row(2048, 256, vector="/v4")), H200)
    kinds = [type(s) for s in K.walk(k.body)]
    assert sum(s.width for s in K.walk(k.body) if isinstance(s, K.LoadGlobal)) == 2048 // 256
    assert all(s.width == 4 and s.pred is None for s in K.walk(k.body) if isinstance(s, K.LoadGlobal))
    assert kinds.count(K.Barrier) == kinds.count(K.Shared) == 2
    assert kinds.count(K.Shuffle) == 10
    assert K.For not in kinds
    assert footprint(k).registers < 40


def test_a_transpose_reads_and_writes_neighbours_by_way_of_one_barrier() -> None:
    k = lower_tile(program("two transposes in vectors"), H200)
    moves = [s for s in K.walk(k.body) if isinstance(s, K.LoadGlobal | K.StoreGlobal)]
    for s in moves:
        steps = {t: offset_in(k, s.offset, t) for t in (0, 1)}
        assert abs(steps[1] - steps[0]) == s.width
    assert sum(isinstance(s, K.Barrier) for s in K.walk(k.body)) == 1


def offset_in(k: K.KernelProgram, offset: T.Term, thread: int) -> int:
    """The value of an offset in a thread of block 0."""
    scalars = {s.name: s.value for s in k.body if isinstance(s, K.Let)}

    def value(t: T.Term) -> int:
        return int(pointwise(t, lambda v: np.asarray(known(v)), False))

    def known(v: T.Term) -> int:
        assert isinstance(v, T.Var)
        return {"thread": thread, "block": 0}[v.name] if v.name not in scalars else value(scalars[v.name])

    return value(offset)


@pytest.mark.parametrize(
    ("rows", "store", "hints"),
    [
        (200, "", {}),
        (2000, "", {"stream": 2}),
        (4000, "", {"keep": 1}),
        (200, "stream", {"stream": 2}),
        (200, "keep", {"keep": 1}),
        (4000, "stream", {"stream": 2}),
        (4000, "plain", {}),
    ],
)
def test_buffers_stream_past_the_cache_or_what_is_loaded_stays_by_how_much_of_it_they_fill(
    rows: int, store: str, hints: dict[str, int]
) -> None:
    extra = f" STORE={store}" if store else ""
    k = lower_tile(parse_tile(row(4096, 256, extra=extra, vector="/v4", blocks=rows, whole=True)), H200)
    accesses = Counter(s.cache for s in K.walk(k.body) if isinstance(s, K.LoadGlobal | K.StoreGlobal))
    assert {h: n for h, n in accesses.items() if h != "default"} == {h: 4 * n for h, n in hints.items()}


@pytest.mark.parametrize(
    ("stored", "along", "rest"),
    [
        ("65536, 4096", "grid", "store y[i, j] = v"),
        ("65536", "whole", "s = fold add over j of v\n  store y[i] = s"),
    ],
)
def test_what_folds_nothing_or_stores_little_keeps_nothing(stored: str, along: str, rest: str) -> None:
    text = f"""tile p
schedule WORK=t256 TILE=i:1,j:4096/v4
buffer x: f32[65536, 4096] input
buffer y: f32[{stored}] output
part i: grid 65536/1, j: {along} 4096/4096
  v = load x[i, j]
  {rest}
"""
    k = lower_tile(parse_tile(text), H200)
    assert {s.cache for s in K.walk(k.body) if isinstance(s, K.LoadGlobal)} == {"default"}


def test_an_index_past_32_bits_is_64_bits_wide() -> None:
    text = """tile p
schedule WORK=t128 TILE=i:1,j:128
buffer x: f32[70000, 70000] input
buffer y: f32[70000, 70000] output
part i: grid 70000/1, j: grid 70000/128
  v = load x[i, j]
  store y[i, j] = v
"""
    k = lower_tile(parse_tile(text), H200)
    (load,) = (s for s in K.walk(k.body) if isinstance(s, K.LoadGlobal))
    assert load.offset.dtype == "i64"
    assert load.pred is not None
    tests = [t for s in K.walk(k.body) for t in postorder(*K.terms(s)) if t.dtype == "bool" and t.terms]
    assert {c.dtype for t in tests for c in t.terms} == {"i32"}


def test_threads_that_are_no_warps_are_refused() -> None:
    with pytest.raises(IRError, match="multiple of 32"):
        lower_tile(parse_tile(row(5, 48)), H200)


# ---- faults


def everywhere(k: K.KernelProgram, change: Callable[[K.Statement], list[K.Statement]]) -> K.KernelProgram:
    """The kernel with every statement replaced by what `change` gives."""

    def body(lines: tuple[K.Statement, ...]) -> Iterator[K.Statement]:
        for s in lines:
            yield from change(replace(s, body=tuple(body(s.body))) if isinstance(s, K.For | K.If) else s)

    return replace(k, body=tuple(body(k.body)))


def changed(kind: type, **values: object) -> Callable[[K.KernelProgram], K.KernelProgram]:
    """Every statement of a kind with fields set; a function gets the statement."""

    def change(s: K.Statement) -> list[K.Statement]:
        if not isinstance(s, kind):
            return [s]
        fields = {k: v(s) if callable(v) else v for k, v in values.items()}
        return [replace(s, **fields)]  # type: ignore[arg-type]

    return lambda k: everywhere(k, change)


def without(kind: type) -> Callable[[K.KernelProgram], K.KernelProgram]:
    return lambda k: everywhere(k, lambda s: [] if isinstance(s, kind) else [s])


def without_scope(scope: str) -> Callable[[K.KernelProgram], K.KernelProgram]:
    return lambda k: everywhere(k, lambda s: [] if s == K.Barrier(scope) else [s])


def under_branch(kind: type) -> Callable[[K.KernelProgram], K.KernelProgram]:
    low = T.binary("lt", K.THREAD, T.const(20, "i32"))
    return lambda k: everywhere(k, lambda s: [K.If(low, (s,))] if isinstance(s, kind) else [s])


def one_slot_array(k: K.KernelProgram) -> K.KernelProgram:
    """All folds share the first fold's slots."""
    first = next(s.name for s in K.walk(k.body) if isinstance(s, K.Shared))

    def change(s: K.Statement) -> list[K.Statement]:
        match s:
            case K.Shared(name):
                return [s] if name == first else []
            case K.LoadShared() | K.StoreShared():
                return [replace(s, shared=first)]
        return [s]

    return everywhere(k, change)


def moved(t: T.Term, n: int) -> T.Term:
    return T.binary("add", t, T.const(n, t.dtype))


def without_last_step(k: K.KernelProgram) -> K.KernelProgram:
    """States keep their value: what a stream yields is not assigned."""

    def change(s: K.Statement) -> list[K.Statement]:
        if isinstance(s, K.For):
            return [replace(s, body=tuple(b for b in s.body if not isinstance(b, K.Assign)))]
        return [s]

    return everywhere(k, change)


def meeting_first(k: K.KernelProgram) -> K.KernelProgram:
    """All blocks of a cluster meet where they begin."""
    return replace(k, body=(K.Barrier("cluster"), *k.body))


@dataclass(frozen=True)
class Fault:
    name: str
    case: str
    plant: Callable[[K.KernelProgram], K.KernelProgram]


WIDE, GATHERED = "row over blocks", "shared over blocks"
ROW, STREAM, CUT = "row of 1000, 256 threads, 1 rows", "stream with two states", "pointwise on odd extents"
FAULTS = (
    Fault("a barrier is missing", ROW, without(K.Barrier)),
    Fault("a barrier that half of the threads reach", ROW, under_branch(K.Barrier)),
    Fault("a shuffle that half of the lanes reach", ROW, under_branch(K.Shuffle)),
    Fault("a lane is folded twice", ROW, changed(K.Shuffle, mask=lambda s: max(1, s.mask // 2))),
    Fault("slots are used again", ROW, one_slot_array),
    Fault("every lane writes its warp's slot", ROW, changed(K.StoreShared, pred=None)),
    Fault("a warp is left out", ROW, changed(K.LoadShared, offset=T.const(0, "i32"))),
    Fault("loads have no predicate", ROW, changed(K.LoadGlobal, pred=None)),
    Fault("stores have no predicate", CUT, changed(K.StoreGlobal, pred=None)),
    Fault("a predicate is one too wide", CUT, changed(K.StoreGlobal, pred=lambda s: _wider(s.pred))),
    Fault("all replicas update", "scatter", changed(K.StoreGlobal, pred=lambda s: _any_replica(s.pred))),
    Fault("an index is not clamped", "gather", changed(K.LoadGlobal, offset=lambda s: _unclamped(s.offset))),
    Fault("the last step is missing", STREAM, changed(K.For, stop=lambda s: moved(s.stop, -s.step))),
    Fault("a step too many", "one point a thread", changed(K.For, stop=lambda s: moved(s.stop, s.step))),
    Fault("states are not carried", STREAM, without_last_step),
    Fault("a run is not aligned", "row in vectors", changed(K.LoadGlobal, offset=lambda s: moved(s.offset, 1))),
    Fault("a projection is off by one", "contraction", changed(K.StoreGlobal, index=lambda s: moved(s.index, 1))),
    Fault("no barrier of the cluster", WIDE, changed(K.Barrier, scope="block")),
    Fault("a block is not waited for", WIDE, without_scope("begun")),
    Fault("a block arrives again before it waits", WIDE, meeting_first),
    Fault("results stay in their block", WIDE, changed(K.StoreShared, to="own")),
    Fault("nobody waits for what is gathered", GATHERED, without_scope("gather")),
    Fault("what is gathered stays in its block", GATHERED, changed(K.StoreShared, to="own")),
    Fault("all blocks go on behind the gathering", GATHERED, changed(K.If, pred=lambda s: _any_thread(s.pred))),
    Fault("another block goes on behind the gathering", GATHERED, changed(K.If, pred=lambda s: _turned(s.pred))),
    Fault("a row is taken for its neighbour", "contraction", changed(K.LoadGlobal, index=T.const(0, "i32"))),
)


def _wider(pred: T.Term) -> T.Term:
    return T.binary("or", pred, T.binary("eq", K.THREAD, T.const(13, "i32"))) if pred is not None else pred


def _any_thread(pred: T.Term) -> T.Term:
    return T.binary("le", T.const(0, "i32"), K.THREAD)


def _turned(pred: T.Term) -> T.Term:
    return T.Unary("not", pred)


def _any_replica(pred: T.Term) -> T.Term:
    """The conjunction without the test that chooses one of the threads that hold a value."""
    match pred:
        case T.Binary("and", x, y):
            return T.binary("and", _any_replica(x), _any_replica(y))
        case T.Binary("eq"):
            return T.const(True, "bool")
    return pred


def _unclamped(t: T.Term) -> T.Term:
    match t:
        case T.Binary("min" | "max", x, T.Const()) | T.Binary("min" | "max", T.Const(), x):
            return _unclamped(x)
        case T.Binary(op, x, y):
            return T.binary(op, _unclamped(x), _unclamped(y))
        case T.Round(dtype, origin, x):
            return T.round_to(dtype, origin, _unclamped(x))
    return t


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_planted_fault_is_found(fault: Fault) -> None:
    p = program(fault.case)
    k = lower_tile(p, H200)
    check(p, k)
    broken = fault.plant(k)
    assert broken != k
    with pytest.raises((IRError, AssertionError)):
        check(p, broken)
