"""Whatever the laws put into one class has one value, and every law is seen at work."""

from __future__ import annotations

from functools import cache

import pytest

from egraph.graph import EGraph
from egraph.laws import LAWS
from egraph.saturate import saturate
from tests.egraph.consistency import disagreements
from tests.egraph.layers import decoder
from tests.egraph.test_streams import CASES, HALF, ROUNDED_TEXTS
from tests.egraph.test_translation import CASES as SHIFTED
from tests.egraph.written import AXES, inputs, program

SMALL = {
    "association": "u := add[d](X[i, d] * Y[d, e])\nadd[e](u * Z[e, c])",
    "a common factor": "X[i, j] * Y[i] + X[i, j] * Z[j]",
    "sums of constants": "add[j](X[i]) + add[c, j](X[c])",
    "counts": "add[j](1) + add[c, j](c)",
    "maxima": "max[j](max[c](X[j, c] * f32(0.5) + Y[c])) + max[j](Z[i]) + min[j](min[c](X[j, c]))",
    "identities": "-(-X[i]) + (X[i] + f32(-0.0)) * f32(1.0) + (abs(Y[i]) + f32(0.0)) + recip(-X[i]) + -X[i] * Y[i]",
    "choices": "q := X[i] if X[i] < Y[i] else Z[i]\n(q if X[i] < Y[i] else W[i]) + max(X[i], X[i])"
    " + (X[i] if True else Y[i]) + (X[i] if False else Z[i]) + (Z[i] if X[i] < Y[i] else Z[i])",
    "products of exponentials": "m := max[j](X[i, j])\nexp(X[i, j] - m) * exp(X[i, c] - max[c](X[i, c]))",
    "approximations": "exp(log(exp(X[i]))) + log(exp(tanh(X[i]))) + recip(recip(X[i]))"
    " + recip(sqrt(abs(X[i]))) + recip(exp(X[i]))",
    "expansion": "mu := add[j](X[i, j]) * f32(0.2)\n"
    "add[j]((X[i, j] - mu) * Y[j]) + add[j]((X[i, j] - mu) * (X[i, j] - mu))",
    "a scan": "s := add[j](exp(X[i, j] - max[j](X[i, j])))\nscan.add[j](exp(X[i, j] - max[j](X[i, j])) / s)",
    "halves": "bf16.op(bf16.cast(X[i, j])) * Y[i] / f32(4.0)",
    "extents": "n := f32.op(extent(j))\nmu := add[j](X[i, j]) / n\nmax[j](X[i, j] - mu)",
    "a fold over several axes": "m := max[c, j](X[i, c, j])\nadd[c, j](exp(X[i, c, j] - m))",
}  # fmt: skip
ALL = {
    **{n: program(text, dtypes={"Y": "i64"} if n == "cross-entropy" else None) for n, (text, *_) in CASES.items()},
    **{n: program(text, dtypes=HALF) for n, text in ROUNDED_TEXTS.items()},
    **{n: program(text) for n, (text, _) in SHIFTED.items()},
    **{n: program(text) for n, text in SMALL.items()},
    "a layer": decoder(1),
}


@cache
def saturated(name: str) -> EGraph:
    return saturate(ALL[name], "fast")


@pytest.mark.parametrize("name", ALL)
def test_every_way_to_compute_a_class_gives_its_value(name: str) -> None:
    graph = saturated(name)
    assert graph.report.stop == "saturated"
    assert list(disagreements(graph, inputs(ALL[name]))) == []


TEXTS = {n: text for n, (text, *_) in CASES.items() if n != "cross-entropy"} | {
    n: t for n, (t, _) in SHIFTED.items()
}


@pytest.mark.parametrize("name", TEXTS)
def test_it_does_at_extents_of_1(name: str) -> None:
    for ones in ("j", "cdhj", "ie"):
        p = program(TEXTS[name], {**AXES, **dict.fromkeys(ones, 1)})
        assert list(disagreements(saturate(p, "fast"), inputs(p))) == []


def test_a_program_with_an_empty_axis_stays_as_written() -> None:
    for text in TEXTS.values():
        p = program(text, {**AXES, "j": 0})
        graph = saturate(p, "fast")
        assert not any(x.matches for x in graph.report.laws)
        assert list(disagreements(graph, inputs(p))) == []


def test_every_law_matches_somewhere() -> None:
    seen = {x.name for name in ALL for x in saturated(name).report.laws if x.matches}
    assert set(LAWS) - seen == set()
