"""Hand-written tile programs print, parse back, and compute what they say."""

import numpy as np
import pytest

from ir.dtype import rounded
from ir.node import IRError
from ir.tile import infer
from ir.tile_interp import run_tile
from ir.tile_text import parse_tile, show_tile
from tests.ir.tile_programs import CHAIN, CONTRACTION, GATHERED_CONTRACTION, PROGRAMS, SPLIT_FOLD, SPLIT_MERGE

RNG = np.random.default_rng(7)


def values(shape, dtype="f32"):
    return rounded(RNG.standard_normal(shape).astype(np.float32), dtype)


def close(got, want, tolerance=1e-5):
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_as_it_is_written_and_parses_back_to_itself(name):
    program = parse_tile(PROGRAMS[name])
    assert show_tile(program) == PROGRAMS[name]
    assert parse_tile(show_tile(program)) == program


@pytest.mark.parametrize("exact", [False, True])
def test_a_contraction_with_a_ragged_axis_has_bias_and_activation_in_its_epilogue(exact):
    a, b, bias = values((37, 50), "bf16"), values((50, 20), "bf16"), values(20, "bf16")
    out = run_tile(parse_tile(CONTRACTION), {"a": a, "b": b, "bias": bias}, exact)
    t = a.astype(np.float64) @ b + bias
    close(out["y"], 0.5 * t * (1 + np.tanh(t)), 1e-12 if exact else 2e-2)


def test_a_split_fold_and_its_merge_give_the_mean():
    x = values((3, 1000))
    partial = run_tile(parse_tile(SPLIT_FOLD), {"x": x})
    close(partial["p"], x.reshape(3, 4, 250).sum(-1), 1e-4)
    close(run_tile(parse_tile(SPLIT_MERGE), partial)["y"], x.mean(-1))


def test_a_streamed_chain_with_row_state_equals_the_two_step_computation():
    q, k, v = values((2, 40, 8), "bf16"), values((1, 40, 8), "bf16"), values((1, 40, 8), "bf16")
    out = run_tile(parse_tile(CHAIN), {"q": q, "k": k, "v": v}, exact=True)["o"]
    s = np.einsum("hid,jd->hij", q.astype(np.float64), k[0]) * np.float32(0.35355338)
    s = np.where(np.tril(np.ones((40, 40), bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    close(out, np.einsum("hij,je->hie", p / p.sum(-1, keepdims=True), v[0]), 1e-12)


def test_a_gathered_contraction_reads_the_rows_that_an_index_buffer_names():
    x, w, rows = values((30, 32), "f16"), values((10, 32), "f16"), RNG.integers(0, 30, 21)
    out = run_tile(parse_tile(GATHERED_CONTRACTION), {"x": x, "w": w, "rows": rows})
    close(out["y"], x.astype(np.float64)[rows] @ w.T.astype(np.float64), 1e-4)


def test_a_value_is_typed_with_its_axes_in_the_order_of_the_part():
    program = parse_tile(CHAIN)
    found = infer(program.parts[0], {b.name: b for b in program.buffers})
    assert (found["s0"].dtype, found["s0"].axes) == ("f32", ("h", "i", "j"))
    assert (found["acc"].dtype, found["acc"].axes) == ("f32", ("h", "i", "e"))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("load bias[j]", "load bias[j, k]", "2 index terms for 1 dimensions"),
        ("bf16[i, k]\n    b0", "f16[i, k]\n    b0", "a0 is bf16"),
        ("mma over k of a1", "mma over k of a9", "a9 is used before it is made"),
        ("yield acc1", "yield acc1, acc", "1 states and yields 2"),
        ("store y[i, j] = v2", "stored y[i, j] = v2", "not a statement"),
        ("store y[i, j]", "store z[i, j]", "no buffer is named z"),
        ("i: grid 37/16", "i grid 37/16", "a part is written"),
        ("buffer y: bf16[37, 20] output", "buffer y bf16[37, 20]", "a buffer is written"),
        ("acc: add f32", "acc: f32", "a state is written"),
    ],
)
def test_a_text_with_a_fault_is_refused_with_its_line(old, new, why):
    assert old in CONTRACTION
    with pytest.raises(IRError, match=f"line .*{why}"):
        parse_tile(CONTRACTION.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a1, b1 onto acc ", "a0, b1 onto acc "),
        ("k < 50 of b0", "k < 49 of b0"),
        ("else identity.add                 bf16[j, k]", "else identity.max                 bf16[j, k]"),
        ("k: stream 50/16", "k: stream 40/16"),
        ("onto acc ", ""),
        ("load b[k, j]", "load b[j, k]"),
    ],
)
def test_a_planted_fault_changes_the_numbers(old, new):
    assert old in CONTRACTION
    a, b, bias = values((37, 50), "bf16"), values((50, 20), "bf16"), values(20, "bf16")
    inputs = {"a": a, "b": b, "bias": bias}
    right = run_tile(parse_tile(CONTRACTION), inputs, exact=True)["y"]
    wrong = run_tile(parse_tile(CONTRACTION.replace(old, new)), inputs, exact=True)["y"]
    assert not np.allclose(right, wrong, rtol=1e-3, atol=1e-3)
