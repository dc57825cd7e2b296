"""The Python door: saved programs, what they need, and the backend of torch.compile."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import namedtuple
from enum import IntEnum
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import eggtile
import eggtile.api
from codegen.resources import dynamic_shared_bytes
from eggtile.bound import bound
from eggtile.capture import CaptureError
from eggtile.dynamo import backend
from eggtile.pipeline import Options, RequestError, compile_program
from eggtile.plan import head
from eggtile.saved import DIGEST_BYTES, FAMILY, HEAD

HEAVY = ("egglog", "egraph", "extract", "scipy", "eggtile.capture", "eggtile.pipeline", "torch._dynamo")


X = torch.ones(2)


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


# ---- saved programs


def test_a_saved_program_computes_the_same(tmp_path: Path) -> None:
    module, x = perceptron(), torch.randn(3, 8)
    optimized = eggtile.optimize(
        lambda x: {"y": module(x), "x": [x, x.t(), 7, None], "rows": (x * 2)[:, :1].expand(3, 5)}, [x]
    )
    optimized.save(tmp_path / "program.pt")
    loaded = eggtile.load(tmp_path / "program.pt")
    assert all(code[:4] == b"\x7fELF" for code in loaded.plan.binaries.values()) and loaded.plan.binaries
    got, wanted = loaded(x), optimized(x)
    assert torch.equal(got["y"], wanted["y"])
    assert got["x"][0] is x and got["x"][2:] == [7, None]
    assert got["x"][1].data_ptr() == x.data_ptr()
    assert got["rows"].stride() == wanted["rows"].stride()
    torch.testing.assert_close(got["y"], module(x))


def test_a_saved_program_writes_its_inputs(tmp_path: Path) -> None:
    eggtile.optimize(lambda x: x.add_(1), [torch.zeros(5)]).save(tmp_path / "program.pt")
    x = torch.zeros(5)
    assert eggtile.load(tmp_path / "program.pt")(x) is x
    assert torch.equal(x, torch.ones(5))


def test_a_saved_program_runs_without_capture_and_e_graph(tmp_path: Path) -> None:
    eggtile.optimize(lambda x: x.softmax(-1), [torch.randn(4, 9)]).save(tmp_path / "program.pt")
    code = f"""
import sys, torch, eggtile
y = eggtile.load({str(tmp_path / "program.pt")!r})(torch.zeros(4, 9))
assert abs(float(y.sum()) - 4) < 1e-5
print([m for m in {HEAVY!r} if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_saved_program_refuses_other_inputs_and_files(tmp_path: Path) -> None:
    path = tmp_path / "program.pt"
    eggtile.optimize(lambda x: x + 1, [torch.zeros(4, 6)]).save(path)
    loaded = eggtile.load(path)
    with pytest.raises(RequestError, match=r"x is float32\[6, 4\] with strides .* takes f32\[4, 6\]"):
        loaded(torch.zeros(6, 4))
    with pytest.raises(RequestError, match="takes f32"):
        loaded(torch.zeros(6, 4).t())
    with pytest.raises(RequestError, match="takes 1 inputs, not 2"):
        loaded(torch.zeros(4, 6), torch.zeros(4, 6))
    path.write_text("text")
    with pytest.raises(RequestError, match="is no saved program"):
        eggtile.load(path)
    torch.save({"format": "other"}, path)
    with pytest.raises(RequestError, match="is no saved program"):
        eggtile.load(path)
    path.write_bytes(FAMILY + b"12\nwhat follows")
    with pytest.raises(RequestError, match=r"saved by another version \(eggtile plan 12, .* save it again"):
        eggtile.load(path)


def scaled(pair: list[torch.Tensor], options: dict[str, Any], power: int) -> torch.Tensor:
    return (pair[0] * options["w"] + pair[1]) ** power + (options["shift"] or 0)


def test_a_saved_program_is_called_like_the_program(tmp_path: Path) -> None:
    x, y, w = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    calls = [
        (([x, y], {"w": w, "shift": None}, 2), {}),
        (([x, y],), {"power": 2, "options": {"shift": None, "w": w}}),
    ]
    fast = eggtile.optimize(scaled, calls[0][0])
    fast.save(tmp_path / "program.pt")
    loaded = eggtile.load(tmp_path / "program.pt")
    for args, named in calls:
        torch.testing.assert_close(loaded(*args, **named), scaled(*args, **named))
        torch.testing.assert_close(fast(*args, **named), loaded(*args, **named))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (([X, X], {"w": X, "shift": None}, 3), "the program was saved for 2 where 3 is given"),
        (([X, X], {"w": X, "shift": X}, 2), "the program was saved for None where a tensor is given"),
        (
            ([X], {"w": X, "shift": None}, 2),
            "takes ([tensor, tensor], {'w': tensor, 'shift': None}, 2), not ([tensor], {",
        ),
        (([X, X.half()], {"w": X, "shift": None}, 2), "pair[1] is float16[2] with"),
        (([X, X], {"w": 7, "shift": None}, 2), "options['w'] is a int; the program takes f32[2]"),
        ((X, X, X), "the program takes ([tensor, tensor], "),
        (([X, X],), "options is not given"),
    ],
)
def test_a_saved_program_says_in_which_place_a_call_differs(
    tmp_path: Path, args: tuple[Any, ...], said: str
) -> None:
    eggtile.optimize(scaled, ([X, X], {"w": X, "shift": None}, 2)).save(tmp_path / "program.pt")
    with pytest.raises(RequestError, match=re.escape(said)) as refused:
        eggtile.load(tmp_path / "program.pt")(*args)
    assert "\n" not in str(refused.value)


def defaulted(
    x: torch.Tensor,
    scale: float = 2.0,
    y: Any = None,
    size: tuple[int, ...] = (1, 2),
    f: Any = torch.relu,
    *,
    z: int = 1,
) -> torch.Tensor:
    return f(x * scale + z) + sum(size) + (0 if y is None else y)


def test_a_saved_program_takes_its_defaults_by_their_values(tmp_path: Path) -> None:
    for saved in ([X], [X, 2.0], [X, 2.0, None], [X, 2.0, None, (1, 2)]):
        eggtile.optimize(defaulted, saved).save(tmp_path / "program.pt")
        loaded = eggtile.load(tmp_path / "program.pt")
        for args, named in (
            ((X,), {}),
            ((X, 2.0), {}),
            ((X, 2.0, None, (1, 2)), {"z": 1}),
            ((), {"scale": 2.0, "x": X, "size": (1, 2)}),
        ):
            assert torch.equal(loaded(*args, **named), defaulted(X))
        for args, named, said in (
            ((X, 3.0), {}, "saved for 2.0 where 3.0 is given"),
            ((X, 2), {}, "saved for 2.0 where 2 is given"),
            ((X,), {"z": 5}, "saved for 1 where 5 is given"),
            ((X,), {"y": X}, "saved for None where a tensor is given"),
            ((X, 2.0, None, (1, 2), torch.relu), {}, "takes 4 inputs, not 5"),
            ((), {}, "x is not given"),
        ):
            with pytest.raises(RequestError, match=said):
                loaded(*args, **named)


def test_a_saved_program_that_differs_from_a_default_needs_what_it_is_saved_for(tmp_path: Path) -> None:
    eggtile.optimize(defaulted, [X, 3.0, X]).save(tmp_path / "program.pt")
    loaded = eggtile.load(tmp_path / "program.pt")
    assert torch.equal(loaded(X, 3.0, X), defaulted(X, 3.0, X))
    with pytest.raises(RequestError, match=r"saved for 3\.0 where 2\.0 is given"):
        loaded(X, y=X)
    with pytest.raises(RequestError, match="y is not given"):
        loaded(X, 3.0)


def test_a_number_of_another_class_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="takes a Level, so it cannot be saved"):
        eggtile.optimize(lambda x, k: x * 2, [X, Level.HIGH]).save(tmp_path / "program.pt")


class Level(IntEnum):
    HIGH = 3


def test_a_list_of_one_tensor_is_saved_as_a_list(tmp_path: Path) -> None:
    eggtile.optimize(lambda rows: rows[0] + 1, [[X]]).save(tmp_path / "program.pt")
    assert torch.equal(eggtile.load(tmp_path / "program.pt")([X * 3]), X * 3 + 1)


def test_a_structure_without_a_text_is_not_saved(tmp_path: Path) -> None:
    pair = namedtuple("pair", "a b")
    for fn, given in ((lambda p: p.a + p.b, pair(X, X)), (lambda d: d[1, 2] + 1, {(1, 2): X})):
        with pytest.raises(RequestError, match="takes a structure that PyTorch writes no text of"):
            eggtile.optimize(fn, [given]).save(tmp_path / "program.pt")
    with pytest.raises(RequestError, match="takes a function, so it cannot be saved"):
        eggtile.optimize(lambda f, x: f(x) + 1, [torch.nn.functional.relu, X]).save(tmp_path / "p")


def test_a_program_that_calls_eager_is_not_saved(tmp_path: Path) -> None:
    for fn in (lambda x: torch.linalg.inv(x) + 1, lambda x: x[x > 0]):
        with pytest.raises(RequestError, match="eager PyTorch, so it cannot be saved"):
            eggtile.optimize(fn, [torch.eye(3)]).save(tmp_path / "program.pt")


@pytest.mark.parametrize("stage", ["", " STAGE=shared", " STAGE=async/d3", " STAGE=bulk/d4", " STAGE=shared+bulk"])
def test_a_planned_kernel_asks_for_the_shared_memory_of_the_whole(stage: str) -> None:
    line = f"WORK=t256 TILE=x1:4096/v4{stage}"
    compiled = compile_program(partial(torch.softmax, dim=-1), [torch.randn(4, 20480)], "p", Options(schedule=line))
    kernels = [launch.kernel for launch in compiled.launches]
    asked = [dynamic_shared_bytes(k) for k in kernels]
    assert any(asked) == bool(stage)
    assert [dynamic_shared_bytes(head(k)) for k in kernels] == asked


def test_a_program_that_returns_a_type_is_not_saved(tmp_path: Path) -> None:
    fast = eggtile.optimize(lambda x: {"y": x + 1, "type": torch.float32}, [X])
    assert fast(X)["type"] is torch.float32
    with pytest.raises(
        CaptureError, match="returns a dtype; what is captured returns tensors, numbers and text alone"
    ):
        fast.save(tmp_path / "program.pt")


def test_an_optimised_program_says_what_was_found_of_it(tmp_path: Path) -> None:
    x = torch.randn(4, 9)
    fast = eggtile.optimize(lambda x: x.softmax(-1), [x])
    torch.testing.assert_close(fast(x), x.softmax(-1))
    rows = fast.report()["forms"]
    assert [list(f.laws) for f in fast.forms] == [row["laws"] for row in rows]
    assert any(f.laws for f in fast.forms) and [not f["laws"] for f in rows if f["default"]] == [True]
    (chosen,) = (row for row in rows if row["chosen"])
    assert [k["key"] for k in chosen["kernels"]] == [k.canonical.key for k in fast.kernels]
    assert fast.egraph.report.stop == "saturated" and len(fast.egraph.classes) == fast.report()["egraph"]["classes"]
    fast.save(tmp_path / "program.pt")
    assert torch.equal(eggtile.load(tmp_path / "program.pt")(x), fast(x))


# ---- torch.compile


def compiled(fn: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(fn, backend="eggtile", **options)


def test_a_module_is_compiled_by_name() -> None:
    module, x = perceptron(), torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(module)(x), module(x))


def test_extents_that_change_are_numbers_of_the_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0] + 1

    made = compiled(program, dynamic=True)
    for n in (3, 5, 7):
        assert torch.equal(made(torch.ones(n, 2)), torch.full((n, 2), n + 1.0))


def test_all_that_is_no_tensor_keeps_its_place_among_the_arguments() -> None:
    fn, tensors = bound(lambda x, k, d: x * k + d["y"][0], [X, 3, {"y": [X + 1, "text"]}])
    assert len(tensors) == 2 and torch.equal(fn(*tensors), X * 4 + 1)


def test_gradients_are_refused() -> None:
    graph = torch.fx.symbolic_trace(nn.Linear(2, 2))
    with pytest.raises(RequestError, match="computes no gradients"):
        backend(graph, [])(torch.ones(2, 2, requires_grad=True))


def test_numbers_are_constants_of_an_optimised_program() -> None:
    made = eggtile.optimize(lambda x, k, y: x * k + y, [torch.ones(3), 2, torch.ones(3)])
    for k in (2, 3, 2.5, True, 0.0, -0.0):
        got = made(torch.ones(3), k, -torch.zeros(3))
        assert torch.equal(got, torch.ones(3) * k) and torch.equal(got.signbit(), (torch.ones(3) * k).signbit())


def test_an_unknown_option_of_the_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        RequestError, match=r"numericz; did you mean numerics[?] options are numerics, target, evidence"
    ):
        backend(torch.fx.symbolic_trace(nn.Linear(2, 2)), [], {"numericz": "fast"})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no option is named numericz"):
        torch.compile(lambda x: x + 1, backend="eggtile", options={"numericz": "fast"})(torch.ones(2))


def test_a_damaged_saved_program_is_refused_as_that(tmp_path: Path) -> None:
    path = tmp_path / "program.pt"
    made = eggtile.optimize(lambda x: x + 1, [torch.zeros(4)])
    made.save(path)
    whole = path.read_bytes()
    made.save(again := tmp_path / "again.pt")
    assert again.read_bytes() == whole
    cuts = [whole[:size] for size in (len(HEAD) - 1, len(HEAD), len(whole) // 2, len(whole) - 1)]
    for given in (*cuts, whole + b"x", whole.replace(b"ELF", b"XYZ")):
        path.write_bytes(given)
        with pytest.raises(RequestError, match="damaged: what it holds is not what was written"):
            eggtile.load(path)
    for at in (*range(64), *range(64, len(whole), 97)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(RequestError, match=r"damaged|no saved program|another version") as refused:
            eggtile.load(path)
        assert "\n" not in str(refused.value)
    for place, said in ((tmp_path / "none", "there is no file"), (tmp_path, "cannot be read: Is a directory")):
        with pytest.raises(RequestError, match=said):
            eggtile.load(place)
    with pytest.raises(RequestError, match="cannot be written: No such file"):
        made.save(tmp_path / "none" / "program.pt")


def test_a_saved_program_with_rows_written_by_hand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "program.pt"
    eggtile.optimize(lambda x: x + 1, [torch.zeros(4)]).save(path)
    whole = path.read_bytes()
    start = len(HEAD) + DIGEST_BYTES
    row = torch.load(BytesIO(whole[start:]), weights_only=True)
    for key in row:
        torch.save({**row, key: []}, changed := BytesIO())
        for before in (whole[:start], b""):
            path.write_bytes(before + changed.getvalue())
            with pytest.raises(RequestError, match="damaged" if before else "no saved program"):
                eggtile.load(path)


def test_an_operand_that_is_no_tensor_is_refused_with_its_type() -> None:
    with pytest.raises(CaptureError, match="not a tensor"):
        compile_program(lambda x: x + torch.randn(8, generator=torch.Generator()), [torch.randn(3, 8)])
