"""Prices come from what is measured, of kernels and of whole forms, and else from families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from egraph.saturate import saturate
from extract.cost import Cost, kernel_cost
from extract.evidence import Evidence
from extract.forms import forms
from extract.key import canonical, form_key
from extract.measurement import FORM, Measurement
from extract.prices import HOPELESS_US, NEAR, Prices, family_of, shape_of, shapes_of, stored
from ir.loop import Form, KernelForm
from ir.machine import H200
from ir.schedule import schedule
from ir.term import Term
from tests.extract.programs import program
from tests.extract.test_evidence import OK, at


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Evidence]:
    evidence = Evidence(tmp_path / "e.sqlite", code="v1")
    yield evidence
    evidence.close()


SOFTENED = "exp(x[i, c] - max[c](x[i, c])) / add[c](exp(x[i, c] - max[c](x[i, c])))"
NORMAL = "x[i, c] * rsqrt(add[c](x[i, c] * x[i, c]) / f32(10.0) + f32(1e-05))"


def two_forms(price: object = None) -> list[Form]:
    p = program({"i": 6, "c": 10}, {"x": ("f32", ("i", "c"))}, [("o", ("i", "c"), NORMAL)])
    return forms(saturate(p), H200, k=4, price=price)  # type: ignore[arg-type]


def measured(f: Form, kernel: KernelForm, us: float | None, status: str = "ok") -> Measurement:
    cost = kernel_cost(kernel, f, H200)
    family = family_of(kernel, cost, schedule(WORK="t64"))
    row = replace(OK, key=canonical(kernel, f).key, family=family, modelled_us=cost.us, shapes=shapes_of(kernel, f))
    return at(row, us, status)


def priced(store: Evidence, f: Form, number: int) -> float | None:
    kernel = f.kernels[number]
    return Prices(store, H200)(kernel, f, kernel_cost(kernel, f, H200))


def test_prices_turn_the_choice_to_what_was_measured_fast(store: Evidence) -> None:
    first = two_forms()
    assert (len(first[0].kernels), len(first[1].kernels)) == (1, 2)
    store.add(measured(first[0], first[0].kernels[0], 50.0))
    store.add(*(measured(first[1], k, 1.0) for k in first[1].kernels))
    again = two_forms(Prices(store, H200))
    assert len(again[0].kernels) == 2
    assert again[0].cost_us == pytest.approx(2.0)


def test_a_kernel_without_a_right_line_is_priced_out(store: Evidence) -> None:
    f = two_forms()[0]
    store.add(measured(f, f.kernels[0], 1.0, "wrong"))
    assert priced(store, f, 0) == HOPELESS_US
    assert len(two_forms(Prices(store, H200))[0].kernels) == 2


def test_unmeasured_kernels_take_a_ratio_of_their_family_if_it_has_a_few(store: Evidence) -> None:
    f, g = two_forms()[:2]
    assert priced(store, g, 0) is None
    row = measured(f, f.kernels[0], 1.0)
    for ratio, key in ((3.0, "a"), (8.0, "b"), (2.0, "c")):
        assert priced(store, g, 1) is None
        store.add(at(replace(row, key=key), ratio * (row.modelled_us or 0)))
    cost = kernel_cost(g.kernels[1], g, H200)
    assert shape_of(stored(g.kernels[1]), cost) == row.family.split("/", 1)[1] == "c0/plain/affine"
    assert priced(store, g, 1) == pytest.approx(3.0 * cost.us)
    assert Prices(store, H200, hopeful=True)(g.kernels[1], g, cost) == pytest.approx(2.0 * cost.us)


def alike(store: Evidence, rows: Sequence[tuple[str, float, float]]) -> None:
    """Store kernels of one shape: unit, modelled time, measured time."""
    for n, (unit, modelled_us, us) in enumerate(rows):
        family = f"{unit}/c0/plain/affine"
        store.add(at(replace(OK, key=f"k{n}", family=family, modelled_us=modelled_us), us))


def test_the_unit_that_the_model_flatters_least_prices_a_shape(store: Evidence) -> None:
    f = two_forms()[0]
    alike(store, [("scalar", 1.0, 30.0), ("scalar", 1.0, 20.0), ("wgmma", 1.0, 1.25)])
    assert priced(store, f, 0) == pytest.approx(1.25 * kernel_cost(f.kernels[0], f, H200).us)


def test_kernels_are_priced_as_those_of_about_their_time(store: Evidence) -> None:
    f = two_forms()[0]
    us = kernel_cost(f.kernels[0], f, H200).us
    small, large = [("scalar", us, 3 * us)] * (2 * NEAR), [("scalar", 50 * us, 100 * us)] * (20 * NEAR)
    alike(store, [*small, *large])
    assert priced(store, f, 0) == pytest.approx(3 * us)
    terms, cost = stored(f.kernels[0]), kernel_cost(f.kernels[0], f, H200)
    assert Prices(store, H200).ratio(terms, replace(cost, us=60 * us)) == pytest.approx(2.0)


def test_a_guess_is_below_the_model_only_to_find_out(store: Evidence) -> None:
    f = two_forms()[0]
    us = kernel_cost(f.kernels[0], f, H200).us
    alike(store, [("scalar", us, 0.5 * us)] * NEAR)
    assert priced(store, f, 0) == pytest.approx(us)
    cost = kernel_cost(f.kernels[0], f, H200)
    assert Prices(store, H200, hopeful=True)(f.kernels[0], f, cost) == pytest.approx(0.5 * us)


def test_a_form_that_takes_longer_than_its_kernels_is_priced_so(store: Evidence) -> None:
    one, two = two_forms()[:2]
    store.add(measured(one, one.kernels[0], 3.0), *(measured(two, k, 1.0) for k in two.kernels))
    both = replace(OK, key=form_key(two), schedule="WORK=t64 | WORK=t32", family=FORM, modelled_us=2.0)
    whole = replace(both, error=None, bound=None)
    for us, wanted in ((2.15, 2.0), (3.5, 3.5), (1.0, 1.0)):
        store.add(at(whole, us))
        prices = Prices(store, H200)
        assert prices.form_us(two) == pytest.approx(wanted)
        assert prices.form(two).cost_us == pytest.approx(wanted)
        assert prices.form_us(one) == prices.form(one).cost_us == 3.0
    store.clear(key=measured(two, two.kernels[1], 1.0).key)
    assert Prices(store, H200).form_us(two) is None


def test_equal_kernels_have_equal_shapes_whatever_they_are_called() -> None:
    f = two_forms()[1]
    assert shapes_of(f.kernels[1], f) == "f32[6,10] <- f32[6,10] f32[6]"
    assert shapes_of(f.kernels[0], f) == "f32[6] <- f32[6,10]"


def test_what_kernels_alike_were_measured_at_turns_the_choice_of_one_form_as_of_many() -> None:
    p = program({"i": 4, "c": 8}, {"x": ("f32", ("i", "c"))}, [("o", ("i", "c"), SOFTENED)])
    graph = saturate(p)

    def ratio(terms: Sequence[Term], cost: Cost) -> float:
        return 0.7 if cost.states else 0.9

    def price(kernel: KernelForm, form: Form, cost: Cost) -> float:
        return ratio(stored(kernel), cost) * cost.us

    (by_model,) = forms(graph, H200)
    (one,), many = (forms(graph, H200, k=k, price=price, ratio=ratio) for k in (1, 12))
    assert by_model.details["sweeps"] == {"c": 2}
    assert one.details["sweeps"] == many[0].details["sweeps"] == {"c": 1}
    assert one.cost_us == many[0].cost_us


def test_a_family_is_not_ahead_for_not_being_measured(store: Evidence) -> None:
    f = two_forms()[0]
    cost = kernel_cost(f.kernels[0], f, H200)
    alike(store, [("scalar", cost.us, 1.1 * cost.us)] * NEAR)
    streamed = replace(cost, states=2)
    assert Prices(store, H200).ratio(stored(f.kernels[0]), streamed) == pytest.approx(1.1)


def test_rows_of_other_shapes_or_of_a_failing_line_are_left_out_alone(store: Evidence) -> None:
    f = two_forms()[0]
    row = measured(f, f.kernels[0], 3.0)
    other = replace(at(row, 1.0), where=replace(row.where, driver="999"))
    lines = [replace(row, schedule="WORK=t32"), replace(at(row, 0.2), schedule="WORK=t96", shapes="f32[7]")]
    store.add(at(row, 2.0), *lines, replace(at(other, None, "wrong"), taken="2027-01-01T00:00:00+00:00"))
    assert priced(store, f, 0) == 3.0
    store.add(replace(other, taken="2027-01-02T00:00:00+00:00"))
    assert priced(store, f, 0) == 1.0
    store.add(replace(at(row, 0.3), where=replace(row.where, target="sm_80")))
    assert priced(store, f, 0) == 1.0


def test_a_form_is_priced_by_rows_that_fit_its_kernels_and_leave_it_a_time(store: Evidence) -> None:
    f = two_forms()[1]
    row = replace(OK, key=form_key(f), family=FORM, modelled_us=2.0, error=None, bound=None)
    store.add(*(measured(f, k, 1.0) for k in f.kernels), at(replace(row, schedule="WORK=t64"), 0.5))
    assert Prices(store, H200).form_us(f) == 2.0
    store.add(at(replace(row, schedule="WORK=t64 | WORK=t32", modelled_us=1e6), 1.0))
    assert Prices(store, H200).form_us(f) == 2.0
    store.add(at(replace(row, schedule="WORK=t64 | WORK=t32"), 1.0))
    assert Prices(store, H200).form_us(f) == 1.0
    picky = Prices(store, H200)
    picky.legal = lambda line, known: line != "WORK=t32"  # type: ignore[method-assign]
    assert picky.form_us(f) == 2.0
