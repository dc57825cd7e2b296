"""Forms explained: listed once, right, with the laws behind each, the steps between two, and what a law is worth."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from bench.cases import case
from eggtile.accuracy import form_errors
from eggtile.explore import report
from eggtile.pipeline import Compiled, Options, RequestError, capture_and_lower, choose_forms
from eggtile.why import chains
from egraph.laws import LAWS
from extract.cost import sweeps as sweeps_of
from extract.signature import form_signature
from ir.node import postorder
from ir.term import Fold, Term, Unary
from tests.eggtile.test_cli import called

ROWS = "torch.softmax(torch.randn(2, 262144), -1)"
STREAMS = "sum_of_products_streams"


def masked_by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    late = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) * 0.25).masked_fill(late, float("-inf"))
    return torch.softmax(scores, -1) @ v


ATTENTION: dict[str, Callable[..., torch.Tensor]] = {
    "whole": F.scaled_dot_product_attention,
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "masked": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(24, 24).tril().bool()),
    "by hand": masked_by_hand,
}


@pytest.mark.parametrize("spelling", ATTENTION)
def test_attention_has_forms_of_one_two_and_three_sweeps_and_all_are_right(spelling: str) -> None:
    inputs = [torch.randn(1, 2, 24, 16) for _ in range(3)]
    (region,) = choose_forms(capture_and_lower(ATTENTION[spelling], inputs, "p", Options(k=12))).regions
    assert len({tuple(form_signature(f)) for f in region.listed}) >= 6
    errors = form_errors(region.program, region.listed)
    assert all(e is not None and e < 1e-12 for e in errors)
    (keys,) = {t.axes for r in region.program.results for t in postorder(r.value) if is_maximum(t)}
    sweeps = {sum(sweeps_of(k).get(keys[0], 0) for k in f.kernels) for f in region.listed}
    assert sweeps >= {1, 2, 3}


def gathered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x, -1) - x.gather(1, y[:, None]).squeeze(1)


LARGE: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "attention": (F.scaled_dot_product_attention, [torch.empty(1, 16, 2048, 128) for _ in range(3)]),
    "gather": (gathered, [torch.empty(4096, 32000), torch.empty(4096, dtype=torch.long)]),
}


@pytest.mark.parametrize("name", LARGE)
def test_forms_of_large_programs_are_checked_at_smaller_extents(name: str) -> None:
    (region,) = choose_forms(capture_and_lower(*LARGE[name], "p", Options(k=3))).regions
    (part,) = region.default.kernels[-1].parts
    wrong = replace(part, stores=tuple(replace(s, value=Unary("neg", s.value)) for s in part.stores))
    *before, last = region.default.kernels
    planted = replace(region.default, kernels=(*before, replace(last, parts=(wrong,))))
    *errors, seen = form_errors(region.program, [*region.listed, planted])
    assert all(e is not None and e < 1e-12 for e in errors)
    assert seen is not None and seen > 1


def test_a_program_that_computes_with_large_coordinates_is_not_checked() -> None:
    (region,) = choose_forms(
        capture_and_lower(lambda x: x * torch.arange(1 << 20), [torch.empty(1 << 20)], "p", Options())
    ).regions
    assert form_errors(region.program, region.listed) is None


def is_maximum(t: Term) -> bool:
    return isinstance(t, Fold) and t.monoid == "max"


@pytest.fixture(scope="session")
def explored() -> Compiled:
    """Rows that sum to 1, with six forms."""
    options = Options(k=6, explain=True)
    return choose_forms(capture_and_lower(lambda x0: torch.softmax(x0, -1), [torch.randn(2, 262144)], "p", options))


@pytest.fixture(scope="session")
def found(explored: Compiled) -> dict[str, Any]:
    """What is reported of them."""
    return report(explored)


def test_explore_names_the_laws_of_each_form_and_their_weakest_class() -> None:
    found = json.loads(called("explore", "-k", "4", "--json", "-c", ROWS).stdout)
    for f in found["forms"]:
        classes = {LAWS[name].class_ for name in f["laws"]}
        assert f["class"] == ("reassociating" if "reassociating" in classes else "exact")
        assert f["max_rel_err"] < 1e-12
    assert any(STREAMS in f["laws"] for f in found["forms"])
    assert found["egraph"]["stop"] == "saturated" and found["times"]["saturate"] > 0


def test_a_form_is_listed_once_and_the_one_as_written_is_marked(found: dict[str, Any]) -> None:
    forms = found["forms"]
    assert [f["id"] for f in forms] == list(range(len(forms)))
    keys = [tuple(k["key"] for k in f["kernels"]) for f in forms]
    assert len(set(keys)) == len(keys)
    (default,) = (f for f in forms if f["default"])
    assert default["laws"] == [] and default["class"] == "exact" and not default["chosen"]
    assert "0 chosen default" in called("explore", "-c", "torch.randn(8) + 1").stdout


def test_forms_that_no_law_tells_apart_differ_in_what_they_write_to_memory() -> None:
    fn, options = (lambda x: x.softmax(-1)), Options(k=12, explain=True)
    compiled = choose_forms(capture_and_lower(fn, [torch.randn(8, 64)], "p", options))
    written = {f"[a0{more}]": text for more, text in (("", "max[a1](x[a0, a1]) "), (", a1", "exp(x[a0, a1] - "))}
    said = set()
    for a, b in permutations(map(str, range(len(compiled.regions[0].listed))), 2):
        (found,) = chains(compiled.regions, a, b)
        assert (found["difference"] is None) == bool(found["steps"])
        for index, text in written.items() if not found["steps"] else ():
            one, two = (any(f"{index}:" in line for line in found[end]["signature"]) for end in ("from", "to"))
            assert (f"{index} = {text}" in found["difference"]) == (one != two)
            assert one <= two or f"form {a} writes t" in found["difference"]
            said.add(one != two)
    assert said == {True, False}
    assert chains(compiled.regions, "0", "0")[0]["difference"] == "0 and 0 are the same form"
    shown = called("explore", "-k", "12", "--why", "0", "2", "-c", "torch.randn(8, 64).softmax(-1)").stdout
    assert (
        "form 2 writes t0[a0] = max[a1](" in shown
        and "to memory, which form 0 computes where it is used\n" in shown
    )


def test_why_gives_steps_that_hold_and_undoes_them_on_the_way_back(explored: Compiled) -> None:
    there, back = (chains(explored.regions, *ends) for ends in (("default", "0"), ("0", "default")))
    assert not there[0]["not_replayed"] and not back[0]["not_replayed"]
    made, undone = there[0]["steps"], back[0]["steps"]
    assert STREAMS in {s["law"] for s in made}
    assert all(s["error"] <= 1e-9 for s in made)
    assert [s["law"] for s in reversed(undone)] == [s["law"] for s in made]
    assert all(s["undo"] for s in undone) and not any(s["undo"] for s in made)
    assert "each replayed on terms" in called("explore", "-k", "2", "--why", "default", "0", "-c", ROWS).stdout
    for name in ("99", "x", "-1", "\u00b2"):
        with pytest.raises(RequestError, match=f"there is no form {name}; forms are 0 to"):
            chains(explored.regions, "0", name)


def test_without_a_law_the_best_form_is_dearer_or_the_same() -> None:
    left_out = ["--without", STREAMS, "--without", "operands_commute"]
    row = json.loads(called("explore", "--json", *left_out, "-c", ROWS).stdout)["regions"][0]
    one, other, both = row["without"]
    assert [r["without"] for r in (one, other, both)] == [
        [STREAMS],
        ["operands_commute"],
        [STREAMS, "operands_commute"],
    ]
    assert row["best"]["cost_us"] == other["cost_us"] < one["cost_us"] == both["cost_us"]
    assert row["best"]["signature"] != one["signature"]
    assert STREAMS in row["best"]["laws"] and STREAMS not in one["laws"]
    assert called("explore", "--without", "gravity", "-c", ROWS).exit_code == 2
    assert called("explore", "--without", STREAMS, "--why", "0", "1", "-c", ROWS).exit_code == 2


def test_laws_are_listed_by_whole_names_and_shown_with_sides_or_rules() -> None:
    everything = called("laws").stdout
    assert all(name in everything for name in LAWS)
    assert "add[?s](add[?t](a * b) * c)" in called("laws", "contractions_associate").stdout
    assert "=> (union (New j e)" in called("laws", STREAMS).stdout
    assert [x["law"] for x in json.loads(called("laws", "--json").stdout)] == list(LAWS)
    assert f"did you mean {STREAMS}?" in called("laws", STREAMS[:-2]).stderr


def test_help_shows_what_stands_in_brackets() -> None:
    assert "dtype[shape]" in called("explore", "--help").stdout


@pytest.mark.parametrize("name", ["at.sdpa_causal_32x2048x128", "at.hand_causal_32x2048x128"])
def test_attention_in_bf16_streams_by_named_moves_of_roundings_which_strict_lacks(name: str) -> None:
    built = case(name).built()
    inputs = [torch.empty(i.shape, dtype=torch.bfloat16) for i in built.inputs]
    best, strict = (
        report(
            choose_forms(capture_and_lower(built.fn, inputs, "p", Options(k=4, numerics=n, explain=True))), False
        )
        for n in ("default", "strict")
    )
    (chosen,) = (f for f in best["forms"] if f["chosen"])
    assert [set(k["sweeps"].values()) for k in chosen["kernels"]] == [{1}]
    moves = {name for name in chosen["laws"] if LAWS[name].class_ == "rounding"}
    assert moves and "default" not in best
    assert all(
        max(sum((Counter(k["sweeps"]) for k in f["kernels"]), Counter()).values()) > 1 for f in strict["forms"]
    )
    assert moves <= {x["law"] for x in strict["default"]["missing"]}
    assert strict["default"]["cost_us"] == chosen["cost_us"]


def balanced(x: torch.Tensor) -> torch.Tensor:
    x = x.exp()
    for _ in range(3):
        x = x / x.sum(-1, True)
        x = x / x.sum(0, True)
    return x


def single_rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.layer_norm(x, (13,)), x.logsumexp(0), x.var(0, correction=0), torch.softmax(x, 0)


def normalised_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(F.layer_norm(x, (13,)) @ w) @ w.T + x, (13,))


def test_no_step_says_that_a_value_equals_itself() -> None:
    program = "F.layer_norm(F.gelu(torch.randn(8, 64)), (64,), torch.randn(64))"
    text = called("explore", "-k", "2", "--why", "0", "1", "-c", program).stdout
    lines = text.splitlines()
    assert not any(y == f"    =  {x.strip()}" for x, y in pairwise(lines))
    assert "shifted_factor_leaves_product" in text and "a fact about it that later ones need" in text


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [(balanced, [(4, 5)]), (single_rows, [(1, 13)]), (normalised_twice, [(5, 13), (13, 6)])],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_step_finds_terms_equal_that_other_forms_of_the_program_made_equal(
    fn: Callable[..., object], shapes: list[tuple[int, ...]]
) -> None:
    inputs = [torch.randn(s) for s in shapes]
    compiled = choose_forms(capture_and_lower(fn, inputs, "p", Options(k=6, explain=True)))
    for n in range(len(compiled.regions[0].listed)):
        (found,) = chains(compiled.regions, "default", str(n))
        assert found["not_replayed"] == 0 and all(s["holds"] for s in found["steps"])
