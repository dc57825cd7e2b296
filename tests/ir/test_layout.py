"""Layouts: modes, projections, normal forms, and the digits that a fold must combine."""

from __future__ import annotations

import numpy as np
import pytest

from ir.layout import Family, Layout, Mode
from ir.node import IRError

ROWS = Family(
    256,
    {"j": ((1, Mode(64, "j", 4)),), "i": ((64, Mode(4, "i", 1)),)},
    (Mode(4, "j", 1), Mode(2, "j", 256), Mode(3, "i", 4)),
)


def test_a_layout_places_every_element_once() -> None:
    table = ROWS.over(("i", "j")).table()
    places = table["i"] * 512 + table["j"]
    assert sorted(places.ravel()) == list(range(12 * 512))


@pytest.mark.parametrize("axes", [("i",), ("j",), ()])
def test_a_sub_tile_is_the_projection_of_the_tile(axes: tuple[str, ...]) -> None:
    whole, part = ROWS.over(("i", "j")), ROWS.over(axes)
    assert whole.project(axes).same(part)
    for axis in axes:
        mine, theirs = part.table()[axis], whole.table()[axis]
        assert [set(row) for row in mine] == [set(row) for row in theirs]


def test_modes_that_continue_each_other_are_one_mode() -> None:
    split = Layout((Mode(8, "j", 4), Mode(8, "j", 32)), (Mode(2, "j", 1), Mode(1, "i", 7), Mode(2, "j", 2)))
    assert split.normal() == Layout((Mode(64, "j", 4),), (Mode(4, "j", 1),))
    assert split.same(split.normal())


def test_layouts_that_place_elements_apart_differ() -> None:
    blocked, strided = (
        Layout((Mode(8, "j", 2),), (Mode(2, "j", 1),)),
        Layout((Mode(8, "j", 1),), (Mode(2, "j", 8),)),
    )
    assert not blocked.same(strided)
    assert not np.array_equal(blocked.table()["j"], strided.table()["j"])


def test_a_projection_may_keep_partial_results() -> None:
    partial = ROWS.over(("i", "j")).project(("i",), monoid="add")
    assert not partial.same(ROWS.over(("i",)))
    assert Mode(64, monoid="add") in partial.thread


def test_a_fold_combines_lanes_then_warps() -> None:
    assert ROWS.over(("i", "j")).digits(("j",)) == ((1, 32, Mode(32, "j", 4)), (32, 2, Mode(2, "j", 128)))
    assert ROWS.over(("i", "j")).digits(("i",)) == ((64, 4, Mode(4, "i", 1)),)
    assert ROWS.over(("i", "j")).cover("j") == 512


def test_digits_that_straddle_a_warp_are_refused() -> None:
    with pytest.raises(IRError, match="do not split"):
        Layout((Mode(2), Mode(12, "j", 1), Mode(8)), ()).digits(("j",))


def test_axes_of_one_tile_do_not_share_threads() -> None:
    shared = Family(64, {"i": ((1, Mode(64, "i", 1)),), "j": ((1, Mode(32, "j", 1)),)}, ())
    assert shared.over(("i",)).threads == shared.over(("j",)).threads == 64
    with pytest.raises(IRError, match="share threads"):
        shared.over(("i", "j"))
