"""Every step of a derivation holds: replayed by matching the law's sides, or equal by numbers; and a wrong one is seen."""

from __future__ import annotations

import pytest

from egraph.derive import derivation, difference, replays
from egraph.laws import LAWS
from egraph.prefixes import spelled_out
from egraph.saturate import saturate
from egraph.trace import Explained
from extract.forms import forms
from ir import term as T
from ir.loop import LoopProgram
from ir.machine import H200
from ir.node import postorder
from tests.extract.programs import program
from tests.extract.test_laws_of_forms import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_step_to_every_form_holds_by_a_law_of_the_form(name: str) -> None:
    p, numerics = PROGRAMS[name]
    graph = saturate(p, numerics, explain=True)
    assert isinstance(graph, Explained)
    for f in forms(graph, H200, k=4):
        steps = derivation(graph, graph.trace.matches(f.details["reasons"])[0])  # type: ignore[arg-type]
        assert all(s.holds for s in steps), [s for s in steps if not s.holds]
        assert all(s.replayed for s in steps if LAWS[s.law].sides)
        assert {s.law for s in steps} == set(f.laws)


def rows() -> tuple[LoopProgram, T.Term, T.Term]:
    p = program({"i": 3, "j": 5}, {"x": ("f32", ("i", "j"))}, [("o", ("i",), "max[j](x[i, j])")])
    (most,) = (t for t in postorder(p.results[0].value) if isinstance(t, T.Fold))
    return p, most, most.x


def test_a_prefix_is_the_fold_up_to_its_step() -> None:
    p, most, x = rows()
    new, old = (T.Prefix(which, "j", most) for which in ("new", "old"))
    assert difference(p, new, T.Binary("max", old, x), 0) == 0.0
    assert difference(p, new, T.Scan("j", "max", x), 0) == 0.0
    assert not any(isinstance(t, T.Prefix) for t in postorder(spelled_out(new, {"i": 3, "j": 5})))


def test_a_wrong_step_is_seen() -> None:
    p, most, x = rows()
    new = T.Prefix("new", "j", most)
    assert difference(p, new, most, 0) != 0.0
    assert not replays(LAWS["factor_one_vanishes"], T.Binary("mul", x, T.const(1.0, "f32")), most)
    assert replays(LAWS["factor_one_vanishes"], T.Binary("mul", x, T.const(1.0, "f32")), x)
