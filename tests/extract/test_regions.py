"""Regions: where a program is cut, what is shared, and what equal regions have in common."""

from __future__ import annotations

from egraph.saturate import saturate
from extract.alike import Speller
from extract.forms import forms
from extract.regions import cuts
from extract.source import Source
from ir import term as T
from ir.loop import LoopProgram
from ir.node import postorder
from tests.extract.programs import error
from tests.extract.test_forms import SLOW, layers


def source(p: LoopProgram) -> Source:
    return Source(saturate(p, phases=()))


def test_a_small_program_is_one_region() -> None:
    s = source(layers(1))
    (cut,) = cuts(s)
    assert cut.roots == frozenset(s.graph.roots)
    assert not cut.given


def test_layers_are_cut_at_the_values_that_everything_passes() -> None:
    s = source(layers(6))
    found = cuts(s)
    assert len(found) >= 6
    for cut in found:
        assert all(s.axes(c) == ("i", "c") for c in cut.roots)
    made: set[int] = set()
    for cut in found:
        assert cut.given <= made
        made |= cut.roots
    assert set(s.graph.roots) <= made


def test_regions_of_equal_layers_are_spelled_alike() -> None:
    s = source(layers(6))
    speller = Speller(s.graph.program.axes, s.graph.program.buffers, roles=False)
    keys = [speller.region(s, cut).text for cut in cuts(s)]
    assert len(set(keys)) <= 4 < len(keys)


def test_regions_have_several_forms_each() -> None:
    p = layers(2)
    found = forms(saturate(p), SLOW, k=2)
    assert len(found) == 2
    assert max(error(f, p) for f in found) < 1e-9


def test_a_dear_value_that_layers_share_is_made_once_before_them() -> None:
    p = layers(6, table=True)
    s = source(p)
    first, *rest = cuts(s)
    (c,) = first.roots
    made = s.terms[c]
    assert isinstance(made, T.Round) and made.free == {"i", "d"}
    assert all(c in cut.given for cut in rest)
    (f,) = forms(saturate(p), SLOW)
    assert error(f, p) < 1e-9
    cosines = [t for k in f.kernels for st in k.stores for t in postorder(st.value) if _is_cosine(t)]
    assert len(cosines) == 1


def _is_cosine(t: T.Term) -> bool:
    return isinstance(t, T.Unary) and t.op == "cos"
