"""Programs from code, files and modules, and the sentences that refuse them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eggtile.capture import capture
from eggtile.source import SourceError, load


def names(code: str) -> list[str]:
    source = load(code, None, [])
    return [x.name for x in capture(source.fn, source.inputs, source.name).program.inputs]


def test_random_tensors_and_parameters_of_the_last_expression_are_inputs() -> None:
    assert names("nn.RMSNorm(64)(torch.randn(1, 32, 64))") == ["x0", "RMSNorm_weight"]
    code = "nn.LayerNorm(8)(torch.randn(4, 8)) + nn.LayerNorm(8)(torch.rand(4, 8))"
    assert names(code)[:2] == ["x0", "x1"]
    assert set(names(code)[2:]) == {f"LayerNorm{k}_{p}" for k in ("", "_1") for p in ("weight", "bias")}


def test_named_tensors_are_inputs_and_other_literals_constants() -> None:
    assert names("q = torch.randn(4); w = 3\nq * w + torch.arange(4)") == ["q"]
    assert names("m = nn.Linear(8, 8); x = torch.randn(2, 8)\ny = m(x)") == ["x", "m_weight", "m_bias"]
    assert names("torch.cat([torch.randn(2).half() for _ in range(2)]) + sum([1 for _ in range(3)])") == [
        "x0_0",
        "x0_1",
    ]
    assert names("ts = [torch.randn(3), torch.randn(2)]\ntorch.cat(ts)") == ["ts_0", "ts_1"]


def test_conversions_written_on_a_random_tensor_make_the_input() -> None:
    source = load("nn.Linear(4, 4).half()(torch.randn(2, 4).half().cuda())", None, [])
    program = capture(source.fn, source.inputs).program
    assert [(x.name, x.type) for x in program.inputs] == [
        ("x0", "f16"),
        ("Linear_weight", "f16"),
        ("Linear_bias", "f16"),
    ]


def test_modules_in_an_expression_do_not_drop_out() -> None:
    source = load("nn.Dropout(0.5)(torch.ones(64))", None, [])
    assert torch.equal(source.fn(*source.inputs), torch.ones(64))


def test_a_function_of_earlier_statements_is_traced() -> None:
    source = load("def f(x):\n    return x @ x.t()\nf(torch.randn(2, 3, device='cuda'))", None, [])
    assert source.fn(*source.inputs).shape == (2, 2)
    assert [x.extents for x in capture(source.fn, source.inputs).program.inputs] == [(2, 3)]


@pytest.mark.parametrize(
    ("code", "computed"),
    [
        ("x = torch.randn(4, 8); y = x.exp()\ny.sum(-1)", "y is an input"),
        ("m = nn.Linear(8, 8); x = torch.randn(2, 8)\nh = m(x); s = h.t()\nh @ s", "h, s are inputs"),
        ("x = [t.float() for t in torch.randn(2, 4).exp()]\ntorch.cat(x)", "x is an input"),
        ("x = torch.randn(4).half().cuda(); m = nn.Linear(4, 4)\ny = m(x.float())", ""),
        ("x = torch.empty(4).normal_(); ids = torch.arange(4)\nx[ids]", ""),
        ("torch.randn(4).exp().sum()", ""),
    ],
)
def test_what_earlier_statements_compute_is_told_to_be_an_input(code: str, computed: str) -> None:
    notes = load(code, None, []).notes
    assert bool(notes) == bool(computed) and all(computed in note for note in notes)


def test_the_seed_is_fixed() -> None:
    first, second = (load("torch.randn(3) + 1", None, []).inputs[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "torch.relu(torch.matmul(x+bias,w))",
            "line 1: x is not defined, at column 25, by '...u(torch.matmul(x+bias,w))'",
        ),
        ("x = 1\nfor i in range(3): pass", "line 2: the last statement is no expression"),
        ("x = 1\n  y", "line 2: unexpected indent"),
        ("x+", "line 1: invalid syntax, at column 3, by 'x+'"),
        ("", "the program is empty"),
        ("x = torch.randn(3)\ny = x @ torch.randn(4)\ny", ", in line 2, at column 5, by 'y = x @ torch.randn(4)'"),
    ],
)
def test_refusals_are_one_line_with_the_place(code: str, message: str) -> None:
    with pytest.raises(SourceError) as error:
        load(code, None, [])
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "programs.py"
    path.write_text(
        "import torch\n"
        "def f(a, b): return a + b\n"
        "def f_inputs(): return torch.randn(3), torch.randn(1)\n"
        "def g(x, i): return x[i]\n"
        "m = torch.nn.Linear(4, 2)\n"
        "number = 3\n"
    )
    return str(path)


def test_files_give_functions_and_modules_with_their_inputs(file: str) -> None:
    assert [t.shape for t in load(None, f"{file}:f", []).inputs] == [(3,), (1,)]
    assert [t.dtype for t in load(None, f"{file}:f", ["bf16[2]", "f32[]"]).inputs] == [
        torch.bfloat16,
        torch.float32,
    ]
    index = load(None, f"{file}:g", ["f32[3]", "i64[5]<3"]).inputs[1]
    assert index.dtype is torch.int64 and index.max() < 3
    assert isinstance(load(None, f"{file}:m", ["f32[3,4]"]).fn, torch.nn.Linear)
    assert load(None, "torch.nn.functional:relu", ["f32[3]"]).name == "relu"


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("g", [], "g needs inputs: define g_inputs()"),
        ("h", [], "defines no h"),
        ("number", [], "number in .* is a int, not a function or a Module"),
        ("g", ["q[3]"], r"q\[3\] is no input"),
    ],
)
def test_refusals_of_files(file: str, name: str, inputs: list[str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        load(None, f"{file}:{name}", inputs)


def test_a_missing_file_and_a_bad_name_are_refused() -> None:
    for path, message in (
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("f", "not f"),
        ("nomodule:f", "nomodule"),
    ):
        with pytest.raises(SourceError, match=message):
            load(None, path, [])
