"""Forms explained on the command line: laws, steps between two forms, a law left out, dumps compared and queried."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eggtile.differ import differences
from eggtile.pipeline import RequestError
from eggtile.query import answers
from egraph import picture
from egraph.laws import LAWS
from egraph.saturate import saturate
from tests.eggtile.test_cli import called
from tests.extract.test_forms import exponentials

ROWS = "torch.softmax(torch.randn(4, 32), -1)"
STREAMS = "sum_of_products_streams"


def test_explore_names_the_laws_of_each_form_and_their_weakest_class() -> None:
    found = json.loads(called("explore", "-k", "4", "--json", "-c", ROWS).stdout)["forms"]
    for f in found:
        classes = {LAWS[name].class_ for name in f["laws"]}
        assert f["class"] == ("reassociating" if "reassociating" in classes else "exact")
    assert any(STREAMS in f["laws"] for f in found)
    assert [f["laws"] for f in found if f["default"]] == [[]]


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
    row = json.loads(called("explore", "--json", "--without", STREAMS, "-c", ROWS).stdout)["regions"][0]
    assert row["best"]["cost_us"] < row["best_without"]["cost_us"]
    assert row["best"]["signature"] != row["best_without"]["signature"]
    assert STREAMS not in row["best_without"]["laws"]
    assert called("explore", "--without", "gravity", "-c", ROWS).exit_code == 2


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
    assert STREAMS in called("diff", *map(str, dumps.values())).stdout


def test_queries_find_forms_and_classes(dumps: dict[str, Path]) -> None:
    data = json.loads(dumps["default"].read_text())
    (axis,) = {a for f in data["regions"][0]["forms"] for k in f["kernels"] for a in k["sweeps"]}
    once = answers(data, f"forms where sweeps({axis}) == 1 and reads(x0) <= 2 and kernels == 1")
    assert once and all(STREAMS in row["laws"] for row in once)
    assert {row["form"] for row in once} < {row["form"] for row in answers(data, "forms where not flops < 0")}
    folds = answers(data, 'classes where op == "Fold" and free == {a0} and origin == written')
    assert len(folds) == 2
    assert answers(data, "classes where op == Prefix and origin == sum_of_products_streams")
    assert "found" in called("query", str(dumps["default"]), "forms where states >= 2").stderr


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
    assert "<svg" in picture.to_html(graph) and "</html>" in picture.to_html(graph)
