"""An optimised program follows its module's tensors, PyTorch's state and the names of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eggtile
from eggtile.pipeline import RequestError

X = torch.linspace(-1, 1, 24).reshape(3, 8)
W = torch.linspace(1, -1, 64).reshape(8, 8)
OUTSIDE = nn.Linear(8, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.act = nn.Linear(8, 4), nn.ReLU()
        self.register_buffer("shift", torch.ones(4))
        self.scale = torch.full((4,), 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.act(self.linear(x)) * self.scale + self.shift
        return F.dropout(y, 1.0, self.training)


CHANGES: dict[str, Callable[[Any], object]] = {
    "assigned state": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True),
    "parameter": lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(4, 8))),
    "module": lambda m: setattr(m, "linear", nn.Linear(8, 4)),
    "module without tensors": lambda m: setattr(m, "act", nn.Tanh()),
    "buffer": lambda m: setattr(m, "shift", torch.zeros(4)),
    "plain tensor": lambda m: setattr(m, "scale", torch.zeros(4)),
    "memory": lambda m: setattr(m.linear.weight, "data", torch.ones(4, 8)),
    "values": lambda m: m.linear.weight.data.fill_(0.5),
    "mode": lambda m: m.train(),
    "hook": lambda m: m.act.register_forward_hook(lambda *a: a[-1] * 3),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("reached", ["itself", "closure", "method"])
def test_what_a_module_holds_now_is_what_a_call_computes_with(what: str, reached: str) -> None:
    module = Net().eval()
    program = {"itself": module, "closure": lambda x: module(x), "method": module.forward}[reached]
    fast = eggtile.optimize(program, [X])
    before = fast(X)
    CHANGES[what](module)
    torch.testing.assert_close(fast(X), module(X).detach())
    assert not torch.equal(fast(X), before)


def test_only_what_changed_is_captured_anew(tmp_path: Path) -> None:
    module = Net().eval()
    fast = eggtile.optimize(module, [X])
    first, explored = fast.compiled, fast.explored
    fast(X)
    assert fast.compiled is first and fast.explored is explored
    CHANGES["buffer"](module)
    fast.save(tmp_path / "program.pt")
    torch.testing.assert_close(eggtile.load(tmp_path / "program.pt")(X), module(X).detach())
    assert fast.explored is not explored


def test_modules_that_a_function_names_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    for program in (lambda x: OUTSIDE(x), partial(F.linear, weight=W)):
        fast = eggtile.optimize(program, [X])
        fast(X)
        monkeypatch.setitem(globals(), "OUTSIDE", nn.Linear(8, 4))
        torch.testing.assert_close(fast(X), program(X).detach())


def by_default(x: torch.Tensor, m: nn.Module = nn.Linear(8, 4), *, w: nn.Module = nn.Linear(4, 4)) -> Any:
    return w(m(x))


class Names(nn.Module):
    """A module whose forward names another outside itself."""

    def forward(self, x: torch.Tensor) -> Any:
        return OUTSIDE(x)


def with_inner(x: torch.Tensor) -> Any:
    def inner(x: torch.Tensor) -> Any:
        return OUTSIDE(x)

    return inner(x)


@pytest.mark.parametrize("what", ["a default", "a forward", "a function within", "a list", "a dict of tuples"])
def test_modules_that_a_program_leads_to_are_followed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = nn.Linear(8, 4)
    monkeypatch.setitem(globals(), "OUTSIDE", own)
    ways: dict[str, Callable[..., Any]] = {
        "a default": by_default,
        "a forward": Names(),
        "a function within": with_inner,
        "a list": lambda x, kept=[own]: kept[0](x),
        "a dict of tuples": lambda x, kept={"a": (own,)}: kept["a"][0](x),
    }
    program = ways[what]
    fast = eggtile.optimize(program, [X])
    fast(X)
    changed = by_default.__defaults__[0] if what == "a default" else own  # type: ignore[index]
    changed.weight = nn.Parameter(torch.randn(4, 8))
    torch.testing.assert_close(fast(X), program(X).detach())


# ---- gradients


def test_an_input_that_requires_gradients_is_refused_and_weights_are_fine(tmp_path: Path) -> None:
    fast = eggtile.optimize(nn.Linear(8, 4), [X])
    fast.save(tmp_path / "program.pt")
    assert not fast(X).requires_grad
    for run in (fast, eggtile.load(tmp_path / "program.pt")):
        for given in (X.clone().requires_grad_(), nn.Parameter(X)):
            with pytest.raises(
                RequestError, match=r"computes no gradients; call the program under torch.no_grad\(\)"
            ):
                run(given)
            with torch.no_grad():
                assert run(given).shape == (3, 4)


# ---- autocast


def nested(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return (x @ W) @ W


def within(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ W).softmax(-1)


CAST: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "module": nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)).eval(),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "mixed": lambda x: torch.cat([x @ W, x]),
    "composite": lambda x: torch.einsum("ij,jk->ik", x @ W, W),
    "composite of composites": lambda x: torch.inner(x, W),
    "float32 by rule": lambda x: (x @ W).prod(-1),
    "eager call": lambda x: torch.linalg.inv(torch.eye(8) * 2) @ x.t(),
    "data dependent": lambda x: (x @ W)[x.sum(1) > 0],
    "nested": nested,
    "within": within,
}  # fmt: skip


@pytest.mark.parametrize("what", CAST)
def test_autocast_gives_what_eager_gives_under_it(what: str) -> None:
    program = CAST[what]
    with torch.no_grad():
        fast = eggtile.optimize(program, [X])
        for state in (torch.autocast("cpu", enabled=False), torch.autocast("cpu", torch.bfloat16),
                      torch.autocast("cpu", torch.float16), torch.autocast("cpu", enabled=False)):  # fmt: skip
            with state:
                got, wanted = fast(X), program(X)
            assert got.dtype == wanted.dtype
            torch.testing.assert_close(got, wanted)


# ---- arguments


def scaled(x: torch.Tensor, k: float = 2, y: torch.Tensor | None = None, *, z: float = 0) -> torch.Tensor:
    return x * k + z if y is None else x * k + y + z


def test_arguments_are_given_by_name_as_to_the_program() -> None:
    fast = eggtile.optimize(scaled, [X])
    for given in ({"x": X}, {"x": X, "k": 3}, {"x": X, "k": 3, "y": X}, {"y": X, "x": X}):
        assert torch.equal(fast(**given), scaled(**given))
    assert torch.equal(fast(X, y=X), scaled(X, y=X))
    for odd, said in (({"x": X}, "multiple values"), ({"q": 1}, "unexpected"), ({"z": 1}, "by name alone")):
        with pytest.raises(RequestError, match=said):
            fast(X, **odd)
    with pytest.raises(RequestError, match="names no arguments"):
        eggtile.optimize(torch.sin, [X])(x=X)


def test_a_saved_program_takes_its_inputs_by_name_too(tmp_path: Path) -> None:
    eggtile.optimize(lambda x, y: x - y, [X, X]).save(tmp_path / "program.pt")
    loaded, y = eggtile.load(tmp_path / "program.pt"), X * 3
    for got in (loaded(X, y), loaded(X, y=y), loaded(y=y, x=X)):
        assert torch.equal(got, X - y)
    for args, named, said in (
        ((X,), {"x": X}, "x is given twice"),
        ((X,), {"z": X}, "z is no input; inputs are x, y"),
        ((), {"y": X}, "x is not given"),
    ):
        with pytest.raises(RequestError, match=said):
            loaded(*args, **named)


def test_odd_inputs_and_options_are_refused_in_a_sentence() -> None:
    with pytest.raises(RequestError, match="x is on the device meta; programs run on cpu or cuda"):
        eggtile.optimize(lambda x: x + 1, [X])(X.to("meta"))
    with pytest.raises(RequestError, match="unknown numerics x; it is one of strict, default, fast"):
        eggtile.optimize(lambda x: x + 1, [X], numerics="x")
