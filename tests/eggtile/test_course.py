"""What decides the course of an optimised program is followed: what it holds and names, and PyTorch's state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import eggtile

X = torch.linspace(-1, 1, 24).reshape(3, 8)
OUTSIDE = nn.Linear(8, 4)
optimize = partial(eggtile.optimize, evidence="none")


class Course(nn.Module):
    """A module whose course depends on its own state."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8)), None
        self.eps, self.causal, self.act, self.kind = 0.5, False, torch.relu, "plus"
        self.many = nn.Sequential(*(nn.Identity() for _ in range(260)), nn.Linear(8, 8))
        self.pair, self.box = [torch.ones(8), torch.zeros(8)], SimpleNamespace(w=torch.ones(8), k={"x": 1.0})
        self.call, self.queue = Times(2.0), deque([torch.ones(8)])

    def helped(self, x: torch.Tensor) -> Any:
        return x + OUTSIDE.bias[0]

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.a if self.a is not None else x * self.b
        x = self.many(x) + self.eps + sum(self.box.k.values()) if "x" in self.box.k else x
        x = self.act(self.helped(x).tril() if self.causal else self.helped(x))
        x = (x * self.pair[0] + self.pair[1] + self.box.w) if self.kind == "plus" else -x
        return self.call(x) * self.queue[0]


class Times:
    __slots__ = ("k",)

    def __init__(self, k: float) -> None:
        self.k = k

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k


def moved(m: Any) -> None:
    m.a, m.b = None, m.a


TURNS: dict[str, Callable[[Any], object]] = {
    "slot": moved,
    "late entry": lambda m: setattr(m.many[260], "weight", nn.Parameter(torch.ones(8, 8))),
    "global of a method": lambda m: setattr(OUTSIDE, "bias", nn.Parameter(torch.ones(4))),
    "number": lambda m: setattr(m, "eps", 2.0),
    "flag": lambda m: setattr(m, "causal", True),
    "text": lambda m: setattr(m, "kind", "minus"),
    "builtin": lambda m: setattr(m, "act", torch.tanh),
    "reversed list": lambda m: m.pair.reverse(),
    "attribute of an object": lambda m: setattr(m.box, "w", torch.full((8,), 7.0)),
    "renamed key": lambda m: m.box.k.update(y=m.box.k.pop("x")),
    "slot of a callable": lambda m: setattr(m.call, "k", 5.0),
    "queue": lambda m: m.queue.appendleft(torch.zeros(8) + 3),
    "strides": lambda m: setattr(m.many[260].weight, "data", torch.randn(8, 8).t()),
    "shape": lambda m: setattr(m.box.w, "data", torch.ones(1)),
    "type": lambda m: m.many.double() and m.many[260].float(),
}


@pytest.mark.parametrize("what", TURNS)
def test_what_decides_the_course_of_a_module_is_followed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OUTSIDE", nn.Linear(8, 4))
    module = Course()
    fast = optimize(module, [X])
    torch.testing.assert_close(fast(X), module(X).detach())
    TURNS[what](module)
    torch.testing.assert_close(fast(X), module(X).detach())


W2 = torch.ones(8)
BRANCHES: dict[str, Callable[..., Any]] = {
    "is_grad_enabled": lambda x: x * 2 if torch.is_grad_enabled() else x * 3,
    "is_inference_mode_enabled": lambda x: x * 2 if torch.is_inference_mode_enabled() else x * 3,
    "requires_grad": lambda x: x * 2 if x.requires_grad else x * 3,
    "a weight's requires_grad": lambda x: x * W2 if W2.requires_grad else x + W2,
    "storage_offset": lambda x: x * 2 if x.storage_offset() else x * 3,
    "a parameter": lambda x: x * 2 if isinstance(x, nn.Parameter) else x * 3,
    "default dtype": lambda x: x * torch.ones(8) / torch.arange(1, 9),
    "autocast": lambda x: x * 2 if torch.is_autocast_enabled("cpu") else x * 3,
}
BESIDES = torch.cat([X, X])


@pytest.mark.parametrize("what", BRANCHES)
def test_branches_on_state_are_those_of_eager(what: str) -> None:
    program = BRANCHES[what]
    fast = optimize(program, [X])

    def same(x: torch.Tensor = X) -> None:
        torch.testing.assert_close(fast(x), program(x).detach())

    same()
    with torch.no_grad():
        same()
        for x in (X.clone().requires_grad_(), nn.Parameter(X), BESIDES[1:4]):
            same(x)
    with torch.inference_mode():
        same()
    with torch.autocast("cpu", torch.bfloat16):
        same()
    torch.set_default_dtype(torch.float64)
    try:
        same()
    finally:
        torch.set_default_dtype(torch.float32)
        W2.requires_grad_(not W2.requires_grad)
    same()
    W2.requires_grad_(False)


def test_arguments_that_are_one_tensor_are_told_from_equal_ones() -> None:
    fast = optimize(lambda a, b: a * 2 if a is b else a * 3, [X, X + 1])
    assert torch.equal(fast(X, X), X * 2) and torch.equal(fast(X, X + 0), X * 3)


def test_any_number_of_shapes_is_compiled() -> None:
    fast = optimize(lambda x, k: x.softmax(-1) * k, [X, 1.0])
    for n in range(1, 14):
        x = torch.randn(n, 3)
        torch.testing.assert_close(fast(x, n), x.softmax(-1) * n)
    assert not fast._eager
    for zero in (0.0, -0.0):
        assert torch.equal(fast(X, zero).signbit(), (X.softmax(-1) * zero).signbit())


def test_hooks_on_all_modules_are_called() -> None:
    module = nn.Linear(8, 4)
    fast = optimize(module, [X])
    hook = register_module_forward_hook(lambda m, args, out: out * 2)
    try:
        torch.testing.assert_close(fast(X), module(X))
    finally:
        hook.remove()


def by_graph(k: float) -> Any:
    return torch._dynamo.allow_in_graph(lambda x: x * k)


def by_operator(k: float) -> Any:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * k

    made = torch.library.custom_op("eggtile_course::scale", mutates_args=(), schema="(Tensor x) -> Tensor")(scale)
    made.register_fake(torch.empty_like)
    return made


@pytest.mark.parametrize("made", [by_graph, by_operator])
def test_functions_of_one_name_are_told_apart(made: Callable[[float], Any]) -> None:
    held = {"f": made(2.0)}
    fast = optimize(lambda x: held["f"](x), [X])
    for k in (2.0, 5.0):
        held["f"] = made(k)
        assert torch.equal(fast(X), X * k)
