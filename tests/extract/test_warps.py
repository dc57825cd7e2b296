"""Threads are dealt out in whole digits, and a request counts the sectors and lines that its lanes touch."""

import pytest

from extract.warps import Digits, conflicts, dealt, request


def test_sixteen_bytes_a_lane_side_by_side_fill_four_lines():
    assert (request(16, [(32, 16)]).sectors, request(16, [(32, 16)]).lines) == (16, 4)


def test_rows_apart_take_a_line_each():
    found = request(16, [(32, 256)])
    assert (found.useful, found.sectors, found.lines, found.waste, found.spare_lines) == (512, 32, 32, 2.0, 28)


def test_lanes_on_the_same_element_want_it_once():
    assert request(4, [(8, 4), (4, 0)]).useful == 32


def test_digits_that_continue_one_another_are_one_run():
    assert request(16, [(8, 16), (4, 128)]).lines == 4


def test_neighbours_closer_than_a_sector_share_it():
    assert request(2, [(32, 16)]).sectors == 16


@pytest.mark.parametrize(
    ("places", "apart", "times"),
    [(1, 64, 1), (8, 64, 8), (32, 32, 8), (8, 16, 4), (4, 16, 2), (8, 36, 1), (2, 4, 1)],
)
def test_places_a_multiple_of_the_banks_apart_are_read_one_after_another(places, apart, times):
    assert conflicts(places, apart) == times


@pytest.mark.parametrize(
    ("axes", "threads", "want"),
    [
        ([("x", 64, 8, 256), ("r", 32, 1, 256)], 256, {"x": Digits(1, 8, 8), "r": Digits(8, 32, 1)}),
        ([("x", 4096, 4, 128)], 128, {"x": Digits(1, 128, 4)}),
        ([("x", 4160, 4, 288)], 288, {"x": Digits(1, 288, 4)}),
        ([("x", 64, 4, 1), ("r", 128, 1, 128)], 128, {"x": Digits(1, 1, 4), "r": Digits(1, 128, 1)}),
    ],
)
def test_axes_get_whole_digits_of_threads(axes, threads, want):
    assert dealt(axes, threads, threads) == want
