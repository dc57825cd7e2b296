"""Verification accepts the hand-written programs and names what is wrong with changed ones."""

import re

import pytest

from ir.node import IRError
from ir.tile_text import parse_tile
from ir.tile_verify import verify_tile
from tests.ir.tile_programs import CHAIN, CONTRACTION, PROGRAMS, SHARED, SPLIT_FOLD


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hand_written_program_verifies(name):
    program = parse_tile(PROGRAMS[name])
    assert verify_tile(program) is program


FAULTS = {
    "both operands of a contraction unmasked": (
        CONTRACTION,
        [("a1, b1 onto", "a0, b0 onto")],
        "acc1: the contraction sees a0 and b0 past the extent of k",
    ),
    "one operand unmasked, which may be NaN": (CONTRACTION, [("a1, b1 onto", "a1, b0 onto")], "past the extent of k"),
    "a mask that ends too late": (CONTRACTION, [("k < 50 of a0", "k < 51 of a0")], "past the extent of k"),
    "a mask with another identity": (
        CHAIN,
        [("else identity.max ", "else identity.add ")],
        "m1: the fold sees s2 past the extent of j",
    ),
    "a mask of the predicate alone": (CHAIN, [("(j < 40) & (j <= i)", "j <= 63")], "past the extent of j"),
    "a state that takes unmasked values": (
        SPLIT_FOLD,
        [("combine add t, v1", "combine add t, v0")],
        "the state t changes past the extent of c",
    ),
    "a tile that is no power of two": (CONTRACTION, [("k: stream 50/16", "k: stream 50/12")], "12 is no power of two"),
    "a whole tile that is too short": (CONTRACTION, [("k: stream 50/16", "k: whole 50/16")], "does not cover"),
    "a role that is none": (CONTRACTION, [("j: grid", "j: grids")], "none of grid, stream, whole"),
    "a stream over a grid axis": (CONTRACTION, [("k: stream", "k: grid")], "the axis has the role grid"),
    "a value of a stream used after it": (
        CONTRACTION,
        [("v1 = map acc + v0 ", "v1 = map acc1 + v0")],
        "acc1 is made in a stream that is over",
    ),
    "a value made twice": (
        CONTRACTION,
        [("v2 = map bf16.op", "v1 = map bf16.op"), ("store y[i, j] = v2", "store y[i, j] = v1")],
        "v1 is made twice",
    ),
    "a store whose index lacks an axis": (
        CONTRACTION,
        [("store y[i, j]", "store y[i, 0]")],
        "the positions of j write one element",
    ),
    "a store along a stream that is over": (
        CONTRACTION,
        [("store y[i, j]", "store y[i, k]")],
        "k is used outside its stream",
    ),
    "a coordinate of a stream that is over": (
        CONTRACTION,
        [("load bias[j]", "load bias[k]")],
        "v0: the stream axis k is used outside its stream",
    ),
    "a yield that is rounded": (CHAIN, [("z: add f32", "z: add f16")], "z2 is f32 over"),
    "a yield with axes that the state lacks": (CHAIN, [("yield m2, z2, acc2", "yield m2, p0, acc2")], "over"),
    "a float index": (CHAIN, [("load q[h, i, d]", "load q[h, i, f32(0.0)]")], "is f32, not an integer"),
    "an unknown monoid of a fold": (SPLIT_FOLD, [("fold add over c", "fold sum over c")], "unknown monoid 'sum'"),
    "a value that lacks the shared axis": (
        SHARED, [("v1 = fold max over c", "v1 = fold max over s, c")], "so not shared over s as r"
    ),
    "blocks of another number": (SHARED, [("r: whole 4/4", "r: whole 2/2")], "s and r are no two whole axes of one"),
    "an unknown monoid": (CONTRACTION, [("of a0 else identity.add", "of a0 else identity.sum")], "sum"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused(name):
    text, changes, why = FAULTS[name]
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    with pytest.raises(IRError, match=why):
        verify_tile(parse_tile(bare(text)))


def bare(text):
    """The program without the types at the ends of lines, which a change may falsify."""
    return re.sub(r"\s{2,}\w+\[[\w, ]*\]$", "", text, flags=re.M)


def test_a_fold_over_a_grid_axis_is_refused():
    text = bare(SPLIT_FOLD).replace("fold add over c of t", "fold add over i of t").replace("p[i, s]", "p[0, s]")
    with pytest.raises(IRError, match="the grid axis i is spread over blocks"):
        verify_tile(parse_tile(text))


def test_a_state_over_padded_positions_may_rely_on_its_identity_there():
    text = bare(SPLIT_FOLD).replace("i: grid 3/1", "i: whole 3/4").replace("c < 250 of", "(c < 250) & (i < 3) of")
    text = text.replace("fold add over c of t", "fold add over i, c of t").replace("store p[i, s]", "store p[0, s]")
    verify_tile(parse_tile(text))
    with pytest.raises(IRError, match="v2: the fold sees t past the extent of i"):
        verify_tile(parse_tile(text.replace(" & (i < 3)", "")))
