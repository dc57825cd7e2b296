"""Dumps of e-graphs: the same each time, compared, queried, drawn, and the page that holds all of an exploration."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from eggtile.differ import differences
from eggtile.dump_file import broken
from eggtile.explore import reads
from eggtile.explorer import page
from eggtile.graph_dump import to_object, written
from eggtile.pipeline import Compiled, Options, RequestError, capture_and_lower, choose_forms, restarted
from eggtile.query import answers
from egraph import picture
from egraph.saturate import saturate
from tests.eggtile.test_cli import called
from tests.eggtile.test_explain import ROWS, STREAMS, explored, found
from tests.extract.test_forms import exponentials

__all__ = ["explored", "found"]


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


def test_the_page_stands_alone_and_holds_every_form_law_and_class(
    explored: Compiled, found: dict[str, Any]
) -> None:
    text = page(explored, found)
    parsed = Page(text)
    assert (
        not parsed.loads and not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) and "@import" not in text
    )
    data, program = json.loads(parsed.scripts[0]), parsed.scripts[1]
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
def dumps(explored: Compiled, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dump of one program under two settings."""
    folder = tmp_path_factory.mktemp("dumps")
    settings = {"default": explored, "strict": choose_forms(restarted(explored, numerics="strict"))}
    for numerics, compiled in settings.items():
        (folder / f"{numerics}.json").write_text(written(compiled, "json", None))
    return {numerics: folder / f"{numerics}.json" for numerics in settings}


def test_a_diff_names_what_one_dump_has_more(dumps: dict[str, Path]) -> None:
    a, b = (json.loads(path.read_text()) for path in dumps.values())
    assert not any(side for sides in differences(a, a).values() for side in sides.values())
    found = differences(a, b)
    assert STREAMS in found["laws"]["only_a"] and not found["laws"]["only_b"]
    assert found["classes"]["only_a"] and not found["classes"]["only_b"]
    assert all(found["nodes"]["only_a"]) and found["forms"]["only_a"]
    assert f"- {STREAMS}" in called("diff", *map(str, dumps.values())).stdout
    assert "classes: 0 only in" in called("diff", *[str(dumps["strict"])] * 2).stdout


def test_a_dump_is_the_same_text_each_time_but_for_its_times(explored: Compiled, dumps: dict[str, Path]) -> None:
    first, again = json.loads(dumps["default"].read_text()), to_object(choose_forms(restarted(explored)))
    assert first.pop("times") and again.pop("times")
    assert json.dumps(first) == json.dumps(again)


def test_a_file_is_written_in_the_format_that_it_is_named_by(tmp_path: Path) -> None:
    path = tmp_path / "graph.svg"
    assert called("dump", "-o", str(path), "-k", "1", "-c", ROWS).exit_code == 0
    assert path.read_text().startswith("<svg")
    assert "say --format svg" in called("dump", "--format", "egg", "-o", "graph.svg", "-c", ROWS).stderr
    assert "say --format" in called("dump", "-o", "graph.graphml", "-c", ROWS).stderr


def test_a_format_of_one_graph_asks_which_one() -> None:
    compiled = capture_and_lower(lambda x: torch.linalg.inv(x.exp()).exp(), [torch.randn(4, 4)], "p", Options())
    choose_forms(compiled)
    with pytest.raises(RequestError, match="2 regions"):
        written(compiled, "dot", None)
    assert written(compiled, "dot", 1).startswith("digraph") and "(root 0 " in written(compiled, "egg", 0)
    assert written(compiled, "text", None).count("classes") == 2


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
        "forms where -laws",
        "forms where 'a' * 99999999999 == 'b'",
        f"forms where {'not ' * 3000}1",
    ],
)
def test_what_the_language_lacks_is_refused(dumps: dict[str, Path], text: str) -> None:
    with pytest.raises(RequestError):
        answers(json.loads(dumps["default"].read_text()), text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("forms where", "'forms where' ends after where; a condition"),
        ("classes where ", "ends after where"),
        ("forms where 1" + "0" * 400 + " / 3 > 1", "beyond the numbers"),
        ("forms where id ==", "invalid syntax at its end"),
        ("forms where id = 1", "at character 4, by 'id = 1'"),
        ("forms where (id == 1", "was never closed at character 1, by '[(]id == 1'"),
        ("forms wher id == 1", "forms or classes, then where and a condition, not 'forms wher id == 1'"),
    ],
)
def test_an_unfinished_query_is_told_where_it_goes_wrong(dumps: dict[str, Path], text: str, said: str) -> None:
    data = json.loads(dumps["default"].read_text())
    with pytest.raises(RequestError, match=said):
        answers(data, text)
    assert answers(data, " forms\nwhere id\n== 0 ") == answers(data, "forms where id == 0")


CHANGES: dict[str, tuple[str, Any]] = {
    "has no axes": ("regions/0/forms/0/kernels/0", {}),
    "forms[0].kernels is null": ("regions/0/forms/0/kernels", None),
    "classes is []": ("regions/0/classes", []),
    "nodes[0] is [1]": ("regions/0/classes/0/nodes", [[1]]),
    "class 0 has a node 'Banana'": ("regions/0/classes/0/nodes", [["Banana", [], []]]),
    "a class that is not there": ("regions/0/classes/0/nodes", [["Unary", ["neg"], [9999]]]),
    "class 0 has no node over smaller": ("regions/0/classes/0/nodes", [["Unary", ["neg"], [0]]]),
}


@pytest.mark.parametrize("said", CHANGES)
def test_a_dump_with_a_hole_is_refused_with_its_place(dumps: dict[str, Path], tmp_path: Path, said: str) -> None:
    data = json.loads(dumps["default"].read_text())
    place, value = CHANGES[said]
    *way, last = place.split("/")
    at: Any = data
    for key in way:
        at = at[int(key) if isinstance(at, list) else key]
    at[int(last) if isinstance(at, list) else last] = value
    (tmp_path / "d.json").write_text(json.dumps(data))
    for command in (("query", str(tmp_path / "d.json"), "classes"), ("diff", *[str(tmp_path / "d.json")] * 2)):
        outcome = called(*command)
        assert outcome.exit_code == 2 and said in outcome.stderr and outcome.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "node",
    [
        ["Index", [], []],
        ["Index", [1], []],
        ["Index", [["a"]], []],
        ["Const", ["f32"], []],
        ["Const", ["f32", "neg"], []],
        ["Const", [True, 0], []],
    ],
)
def test_a_dump_with_a_node_that_is_no_term_is_refused(dumps: dict[str, Path], node: list[Any]) -> None:
    (region, *_) = json.loads(dumps["default"].read_text())["regions"]
    assert broken(region) is None
    assert broken({**region, "classes": {**region["classes"], "0": {"nodes": [node], "origins": [""]}}})


@pytest.mark.parametrize("cost", ["Infinity", "NaN", "1e999", "true"])
def test_a_dump_with_a_cost_that_is_no_number_is_refused(dumps: dict[str, Path], tmp_path: Path, cost: str) -> None:
    data = json.loads(dumps["default"].read_text())
    data["regions"][0]["forms"][0]["cost_us"] = "HERE"
    (tmp_path / "d.json").write_text(json.dumps(data).replace('"HERE"', cost))
    outcome = called("query", str(tmp_path / "d.json"), "forms", "--json")
    assert outcome.exit_code == 2 and "cost_us" in outcome.stderr and outcome.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["\u00b2", "\u0663", "-1", "1" * 6000])
def test_the_name_of_a_class_is_a_number(dumps: dict[str, Path], name: str) -> None:
    (region, *_) = json.loads(dumps["default"].read_text())["regions"]
    c = {"nodes": [["Index", ["a0"], []]], "origins": [""]}
    assert broken({**region, "classes": {**region["classes"], name: c}})


def test_among_several_values_one_is_enough(dumps: dict[str, Path]) -> None:
    data = json.loads(dumps["default"].read_text())
    both = answers(data, "classes where op == Fold or op == Unary")
    assert both and answers(data, "classes where op in {Fold, Unary}") == both
    assert answers(data, "classes where not op in {Fold, Unary}") == answers(
        data, "classes where op not in {Fold, Unary}"
    )
    assert answers(data, "classes where origin in {written}") == answers(data, "classes where origin == written")


@pytest.mark.parametrize(
    "question", ["forms where laws == 0", "forms where laws != 'none'", "forms where 3 == laws"]
)
def test_a_set_is_compared_with_no_number(dumps: dict[str, Path], question: str) -> None:
    data = json.loads(dumps["default"].read_text())
    with pytest.raises(RequestError, match="compares"):
        answers(data, question)


def test_a_loop_that_others_use_is_one_loop_that_reads() -> None:
    program = capture_and_lower(
        lambda x: torch.softmax(x, -1), [torch.empty(6, 4000, device="meta")], "p", Options()
    )
    (kernel,) = choose_forms(program).regions[0].default.kernels
    assert list(reads(kernel).values()) == [3]


def test_what_is_divided_by_0_compares_with_nothing(dumps: dict[str, Path]) -> None:
    data = json.loads(dumps["default"].read_text())
    with pytest.raises(
        RequestError, match=r"none found, and 'flops / 0 < 1 .*' divides by 0 for (\d+) of \1 forms"
    ):
        answers(data, "forms where flops / 0 < 1 or flops / 0 >= 1")
    with pytest.raises(RequestError, match="divides by 0"):
        answers(data, "forms where 1/0")
    assert not answers(data, "forms where flops / 2 < 0")
    assert answers(data, "forms where bytes / (kernels - 1) > 0 or kernels == 1")


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b'{"regions": 3}',
        b'{"regions": [{}]}',
        b'{"regions": [{"forms": [{"id": 0}], "classes": {}}]}',
        b"\xff\xfe",
        b"[" * 100_000,
        b"1" * 6000,
    ],
)
def test_a_file_that_is_no_dump_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(content)
    for command in (("query", str(path), "forms"), ("diff", str(path), str(path))):
        found = called(*command)
        assert found.exit_code == 2 and found.stderr.count("\n") == 1


def test_a_drawing_holds_every_class_or_says_how_many_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = saturate(exponentials(6, 10))
    boxes = [e for e in ElementTree.fromstring(picture.to_svg(graph)).iter() if e.tag.endswith("rect")]
    assert len(boxes) == len(graph.classes)
    monkeypatch.setattr(picture, "MOST_CLASSES", 5)
    assert f"{len(graph.classes) - 5} classes are not drawn" in picture.to_svg(graph)


def test_a_long_query_is_not_repeated_whole(dumps: dict[str, Path]) -> None:
    name = "z" * 5000
    conditions = (f"{name} +* 1", f"{name} == 1", f"{name}(3)", f"sweeps({name}) == 1", f"laws({name}) == 1")
    texts = (f"'{name}' + 1 == 2", f"'{name}' < 1")
    for text in (name, *(f"forms where {c}" for c in (*conditions, *texts))):
        refused = called("query", str(dumps["default"]), text)
        assert refused.exit_code == 2 and refused.stderr.count("\n") == 1 and len(refused.stderr) < 500, (
            refused.stderr
        )
