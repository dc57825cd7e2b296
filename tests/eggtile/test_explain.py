"""Forms explained on the command line: laws, steps between two forms, a law left out, dumps compared and queried."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch.nn import functional as F

from eggtile.differ import differences
from eggtile.explore import form_errors, form_signature
from eggtile.pipeline import Options, RequestError, capture_and_lower, choose_forms
from eggtile.query import answers
from egraph import picture
from egraph.laws import LAWS
from egraph.saturate import saturate
from extract.cost import sweeps as sweeps_of
from ir.node import postorder
from ir.term import Fold, Term, Unary
from tests.eggtile.test_cli import called
from tests.extract.test_forms import exponentials

ROWS = "torch.softmax(torch.randn(4, 32), -1)"
STREAMS = "sum_of_products_streams"


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v


def masked_by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    late = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) * 0.25).masked_fill(late, float("-inf"))
    return torch.softmax(scores, -1) @ v


ATTENTION: dict[str, Callable[..., torch.Tensor]] = {
    "whole": F.scaled_dot_product_attention,
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "masked": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(24, 24).tril().bool()),
    "by hand": by_hand,
    "masked by hand": masked_by_hand,
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
    assert form_errors(region.program, region.listed) == [None] * len(region.listed)


def is_maximum(t: Term) -> bool:
    return isinstance(t, Fold) and t.monoid == "max"


def test_explore_names_the_laws_of_each_form_and_their_weakest_class() -> None:
    found = json.loads(called("explore", "-k", "4", "--json", "-c", ROWS).stdout)
    for f in found["forms"]:
        classes = {LAWS[name].class_ for name in f["laws"]}
        assert f["class"] == ("reassociating" if "reassociating" in classes else "exact")
        assert f["max_rel_err"] < 1e-12
    assert any(STREAMS in f["laws"] for f in found["forms"])
    assert found["egraph"]["stop"] == "saturated" and found["times"]["saturate"] > 0


def test_a_form_is_listed_once_and_the_one_as_written_is_marked() -> None:
    for code in (ROWS, "torch.randn(8) + 1"):
        found = json.loads(called("explore", "--json", "-c", code).stdout)["forms"]
        assert [f["id"] for f in found] == list(range(len(found)))
        keys = [tuple(k["key"] for k in f["kernels"]) for f in found]
        assert len(set(keys)) == len(keys)
        (default,) = (f for f in found if f["default"])
        assert default["laws"] == [] and default["class"] == "exact"
        (chosen,) = (f for f in found if f["chosen"])
        assert (chosen is default) == (code != ROWS)
    assert "0 chosen default" in called("explore", "-c", code).stdout


def test_why_gives_steps_that_hold_and_undoes_them_on_the_way_back() -> None:
    chains = [
        json.loads(called("explore", "-k", "4", "--json", "--why", *ends, "-c", ROWS).stdout)["regions"][0]
        for ends in (("default", "0"), ("0", "default"))
    ]
    there, back = (c["steps"] for c in chains)
    assert not any(c["not_replayed"] for c in chains)
    assert STREAMS in {s["law"] for s in there}
    assert all(s["error"] <= 1e-9 for s in there)
    assert [s["law"] for s in reversed(back)] == [s["law"] for s in there]
    assert all(s["undo"] for s in back) and not any(s["undo"] for s in there)
    assert "each replayed on terms" in called("explore", "-k", "2", "--why", "default", "0", "-c", ROWS).stdout
    assert called("explore", "--why", "0", "99", "-c", ROWS).exit_code == 2


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


class Page(HTMLParser):
    """The scripts of a page, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")]
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += data


def test_the_page_stands_alone_and_holds_every_form_law_and_class(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    result = called("explore", "-k", "4", "--json", "--html", str(path), "-c", ROWS)
    found, text = json.loads(result.stdout), path.read_text()
    page = Page(text)
    assert not page.loads and not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) and "@import" not in text
    data, program = json.loads(page.scripts[0]), page.scripts[1]
    (region,) = data["regions"]
    assert [f["id"] for f in region["forms"]] == [f["id"] for f in found["forms"]]
    assert {x["name"] for x in found["egraph"]["laws"]} == {x["name"] for x in region["egraph"]["laws"]}
    assert {law for f in region["forms"] for law in f["laws"]} <= set(data["laws"])
    for f in region["forms"]:
        assert {s["law"] for s in region["steps"] if f["id"] in s["forms"]} - {"by definition"} == set(f["laws"])
        assert len(f["text"]["kernels"]) == len(f["kernels"]) and set(map(str, f["picked"])) <= set(
            region["classes"]
        )
    for s in region["steps"]:
        assert set(re.findall(r"\?(\w+)", "".join(s["sides"]))) <= set(s["variables"])
    drawn = {e.get("id") for e in ElementTree.fromstring(region["svg"]).iter()}
    assert {f"c{c}" for c in region["classes"]} <= drawn
    (chosen,) = (f for f in region["forms"] if f["chosen"])
    assert all("__global__" in data["kernels"][k["key"]]["cuda"] for k in chosen["kernels"])
    assert set(re.findall(r'\bat\("(\w+)"\)', program)) <= set(re.findall(r'id="(\w+)"', text))


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dump of one program under two settings."""
    folder = tmp_path_factory.mktemp("dumps")
    paths = {numerics: folder / f"{numerics}.json" for numerics in ("default", "strict")}
    for numerics, path in paths.items():
        assert called("dump", "--numerics", numerics, "-k", "6", "-o", str(path), "-c", ROWS).exit_code == 0
    return paths


def test_a_diff_names_what_one_dump_has_more(dumps: dict[str, Path]) -> None:
    a, b = (json.loads(path.read_text()) for path in dumps.values())
    assert not any(side for sides in differences(a, a).values() for side in sides.values())
    found = differences(a, b)
    assert STREAMS in found["laws"]["only_a"] and not found["laws"]["only_b"]
    assert found["classes"]["only_a"] and not found["classes"]["only_b"]
    assert all(found["nodes"]["only_a"]) and found["forms"]["only_a"]
    assert f"- {STREAMS}" in called("diff", *map(str, dumps.values())).stdout
    assert "classes: 0 only in" in called("diff", *[str(dumps["strict"])] * 2).stdout


def test_a_dump_is_the_same_text_each_time_but_for_its_times(dumps: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "again.json"
    assert called("dump", "-k", "6", "-o", str(path), "-c", ROWS).exit_code == 0
    first, again = (json.loads(p.read_text()) for p in (dumps["default"], path))
    assert first.pop("times") and again.pop("times")
    assert json.dumps(first) == json.dumps(again)


def test_a_file_is_written_in_the_format_that_it_is_named_by(tmp_path: Path) -> None:
    for name in ("svg", "egg", "dot"):
        assert called("dump", "-o", str(tmp_path / f"graph.{name}"), "-k", "1", "-c", ROWS).exit_code == 0
    assert (tmp_path / "graph.svg").read_text().startswith("<svg") and "(union $c" in (
        tmp_path / "graph.egg"
    ).read_text()
    assert (tmp_path / "graph.dot").read_text().startswith("digraph")
    assert "say --format svg" in called("dump", "--format", "egg", "-o", "graph.svg", "-c", ROWS).stderr
    two = "torch.linalg.inv(torch.diag(torch.randn(4).exp())).exp()"
    assert "2 regions" in called("dump", "--format", "dot", "-c", two).stderr
    assert called("dump", "--format", "dot", "--region", "1", "-c", two).stdout.startswith("digraph")


def test_queries_find_forms_and_classes(dumps: dict[str, Path]) -> None:
    data = json.loads(dumps["default"].read_text())
    (axis,) = {a for f in data["regions"][0]["forms"] for k in f["kernels"] for a in k["sweeps"]}
    once = answers(data, f"forms where sweeps({axis}) == 1 and reads(x0) <= 2 and kernels == 1")
    assert once and all(STREAMS in row["laws"] for row in once)
    assert {row["form"] for row in once} < {row["form"] for row in answers(data, "forms where not flops < 0")}
    folds = answers(data, 'classes where op == "Fold" and free == {a0} and origin == written')
    assert len(folds) == 2
    assert answers(data, "classes where op == Prefix and origin == sum_of_products_streams")
    assert answers(data, f"forms where {STREAMS} in laws") == answers(data, f'forms where "{STREAMS}" in laws')
    assert "found" in called("query", str(dumps["default"]), "forms where states >= 2").stdout
    assert "max[" in called("query", str(dumps["default"]), "classes where op == Fold").stdout


@pytest.mark.parametrize(
    "text",
    [
        "kernels where id == 1",
        "forms where id ==",
        "forms where (lambda: 1)()",
        "forms where id.real == 1",
        "forms where __import__(os)",
        "forms where sweeps(banana) == 1",
        "forms where id < laws_",
        "forms where sweeps == 1",
        "forms where cost < 3",
        "forms with one sweep",
    ],
)
def test_what_the_language_lacks_is_refused(dumps: dict[str, Path], text: str) -> None:
    with pytest.raises(RequestError):
        answers(json.loads(dumps["default"].read_text()), text)


def test_a_drawing_holds_every_class_or_says_how_many_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = saturate(exponentials(6, 10))
    boxes = [e for e in ElementTree.fromstring(picture.to_svg(graph)).iter() if e.tag.endswith("rect")]
    assert len(boxes) == len(graph.classes)
    monkeypatch.setattr(picture, "MOST_CLASSES", 5)
    assert f"{len(graph.classes) - 5} classes are not drawn" in picture.to_svg(graph)


def test_laws_are_listed_by_whole_names_and_shown_with_sides_or_rules() -> None:
    everything = called("laws").stdout
    assert all(name in everything for name in LAWS)
    assert "add[?s](add[?t](a * b) * c)" in called("laws", "contractions_associate").stdout
    assert "=> (union (New j e)" in called("laws", STREAMS).stdout
    assert [x["law"] for x in json.loads(called("laws", "--json").stdout)] == list(LAWS)
    assert f"did you mean {STREAMS}?" in called("laws", STREAMS[:-2]).stderr


def test_help_shows_what_stands_in_brackets() -> None:
    assert "dtype[shape]" in called("explore", "--help").stdout
