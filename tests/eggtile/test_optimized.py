"""An optimised program follows what it holds, PyTorch's state and its arguments, and has the effects of the program."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import eggtile
from eggtile.capture import CaptureError
from eggtile.pipeline import RequestError, compile_program

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
    CHANGES["buffer"](module)
    with torch.no_grad():
        fast(X)
        assert fast.compiled is first and fast.explored is explored
    fast.save(tmp_path / "program.pt")
    torch.testing.assert_close(eggtile.load(tmp_path / "program.pt")(X), module(X).detach())
    CHANGES["module without tensors"](module)
    assert fast.compiled is not first and fast.explored is not explored


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


def test_arguments_are_given_as_to_the_program() -> None:
    fast = eggtile.optimize(scaled, [X])
    for given in ({"x": X}, {"x": X, "k": 3}, {"x": X, "k": 3, "y": X}, {"y": X, "x": X}, {"x": X, "z": 1}):
        assert torch.equal(fast(**given), scaled(**given))
    assert torch.equal(fast(X, y=X), scaled(X, y=X))
    for odd, said in (({"x": X}, "multiple values"), ({"q": 1}, "unexpected")):
        with pytest.raises(TypeError, match=said):
            fast(X, **odd)
    assert torch.equal(eggtile.optimize(lambda d, s: d["a"][0] * d["k"] if s == "t" else X, [{"a": [X], "k": 2}, "t"])(
        {"a": [X + 1], "k": 3}, "t"), (X + 1) * 3)  # fmt: skip


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


ODD: dict[str, tuple[Callable[[], object], str]] = {
    "device": (lambda: FAST(X.to("meta")), "x is on the device meta; programs run on cpu or cuda"),
    "numerics": (lambda: optimize(RELU, [X], numerics="x"), "unknown numerics x; it is one of strict, default, fast"),
    "program": (lambda: optimize(5, [X]), "the program is a int; eggtile takes a function or a module"),  # type: ignore[arg-type]
    "inputs": (lambda: optimize(RELU, iter([X])), "the inputs are a list_iterator; eggtile takes a list"),  # type: ignore[arg-type]
    "one tensor": (lambda: optimize(RELU, X), "the inputs are a Tensor; eggtile takes a list"),  # type: ignore[arg-type]
    "negated": (lambda: FAST(torch.randn(3, 8, dtype=torch.complex64).conj().imag), "give its resolve_neg"),
    "negated buffer": (lambda: optimize(partial(torch.mul, Z.conj().imag), [X])(X), "give its resolve_neg"),
    "nested": (lambda: FAST(torch.nested.nested_tensor([X[0], X[1, :2]])), "an input is a nested tensor"),
    "subclass": (lambda: FAST(X.as_subclass(Own)), "x is a Own; eggtile runs on plain tensors alone"),
    "functional": (lambda: torch.vmap(FAST)(X), "within a transform of torch.func"),
    "jvp": (lambda: torch.func.jvp(FAST, (X,), (X,)), "within a transform of torch.func"),
    "traced": (lambda: make_fx(FAST)(X), "within a tracer or a dispatch mode"),
    "shared buffers": (lambda: optimize(Shared(), [X])(X), "writes c, which shares memory with d"),
    "budget": (lambda: optimize(RELU, [X], budget=-1), "a budget is a positive number of seconds, not -1"),
}  # fmt: skip


class Own(torch.Tensor):
    """A tensor that is no plain one."""


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", torch.zeros(8))
        self.register_buffer("d", self.c[4:])  # type: ignore[index]

    def forward(self, x: torch.Tensor) -> Any:
        self.c.add_(1)  # type: ignore[operator]
        return x[:, :4] + self.d


RELU, Z = nn.ReLU(), torch.randn(3, 8, dtype=torch.complex64)
optimize = partial(eggtile.optimize, evidence="none")
FAST = optimize(lambda x: x * 2, [X])


@pytest.mark.parametrize("what", ODD)
def test_what_cannot_be_is_refused_in_a_sentence(what: str) -> None:
    run, said = ODD[what]
    with pytest.raises((RequestError, CaptureError), match=said) as refusal:
        run()
    assert "\n" not in str(refusal.value)


def test_forward_derivatives_are_refused() -> None:
    with fwAD.dual_level(), pytest.raises(RequestError, match="within a level of forward derivatives"):
        FAST(fwAD.make_dual(X, X))


# ---- what a program does besides


def own_write(write: Callable[[Any], object]) -> type[nn.Module]:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(8))
            self.n, self.k, self.seen, self.cache = 0, None, [], {}  # type: ignore[var-annotated]

        def forward(self, x: torch.Tensor) -> Any:
            with torch.no_grad():
                write(self)
            self.k = x if self.k is None else torch.cat([self.k, x])
            self.n += 1
            self.seen.append(self.n)
            if x.shape not in self.cache:
                self.cache[x.shape] = x * 3
            return x * self.n + self.k.sum(0) + self.w

    return Writes


WRITES: dict[str, Callable[[Any], object]] = {
    "add_": lambda m: m.w.add_(1),
    "copy_": lambda m: m.w.copy_(torch.ones(8) * (m.n + 1)),
    "detached": lambda m: m.w.detach().add_(1),
    "without gradients": lambda m: m.w.requires_grad_(False).add_(1),
    "clamp_": lambda m: m.w.clamp_(1, 2),
}


@pytest.mark.parametrize("what", WRITES)
def test_effects_are_those_of_the_program(what: str) -> None:
    ours, eager = (own_write(WRITES[what])() for _ in range(2))
    fast = optimize(ours, [X])
    assert not ours.n and not ours.seen and not ours.cache and ours.k is None and not ours.w.any()
    version = ours.w._version
    for x in (X, X + 1, X[:2]):
        torch.testing.assert_close(fast(x), eager(x).detach())
        assert (ours.n, ours.seen) == (eager.n, eager.seen)
        torch.testing.assert_close((ours.w, ours.k, ours.cache), (eager.w, eager.k, eager.cache))
    assert ours.w._version > version


def test_a_parameter_that_takes_the_place_of_another_is_one() -> None:
    module = own_write(lambda m: setattr(m, "w", nn.Parameter(m.w + 1)))()
    fast = optimize(module, [X])
    fast(X)
    assert isinstance(module.w, nn.Parameter) and torch.equal(module.w, torch.ones(8))


def test_a_captured_parameter_is_written(tmp_path: Path) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(8))

        @torch.no_grad()
        def forward(self, x: torch.Tensor) -> Any:
            self.w.add_(1)
            return self.w + x

    module = Counts()
    assert [r.writes for r in compile_program(module, [X]).captured.program.results] == [None, "w"]
    optimize(module, [X]).save(tmp_path / "program.pt")
    saved = eggtile.load(tmp_path / "program.pt")
    saved(X)
    assert torch.equal(saved(X), X + 2)
    table = nn.Embedding(5, 4, max_norm=0.5)
    again, rows = deepcopy(table), torch.tensor([1, 2])
    torch.testing.assert_close(optimize(table, [rows])(rows), again(rows).detach())
    torch.testing.assert_close(table.weight, again.weight)


def test_a_capture_puts_attributes_back_and_names_them() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.cache, self.size = [1], {}, (8,)  # type: ignore[var-annotated]

        def forward(self, x: torch.Tensor) -> Any:
            self.last, self.size = x * 2, (*self.size,)
            self.cache["x"] = x + 1
            self.seen.append(x)
            return x + 1

    module = Keeps()
    notes = compile_program(module, [X]).captured.program.notes
    assert notes == ("what the program writes to attributes is left out: seen, cache, last",)
    assert module.seen == [1] and not module.cache and not hasattr(module, "last")
    with pytest.raises(CaptureError, match="makes a parameter, w: that is not supported"):
        compile_program(own_write(lambda m: setattr(m, "w", nn.Parameter(m.w + 1)))(), [X])


def test_autograd_sees_what_is_written() -> None:
    fast = optimize(lambda a: a.add_(1) * 2, [X.clone()])
    w, z = torch.ones(3, 8, requires_grad=True), X.clone()
    loss = (w * z).sum()
    fast(z)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    norm = nn.BatchNorm1d(8)
    optimize(norm, [X])(X)
    assert norm.running_mean is not None and norm.running_mean._version


def test_caches_hold_what_the_program_puts_there() -> None:
    @lru_cache
    def table(n: int) -> torch.Tensor:
        return torch.arange(n) * 1.0

    acts: dict[str, torch.Tensor] = {}
    module = nn.Linear(8, 8)
    module.register_forward_hook(lambda m, args, out: acts.update(y=out))
    optimize(module, [X])(X)
    assert type(acts["y"]) is torch.Tensor
    assert torch.equal(optimize(lambda x: x + table(8), [X])(X), X + torch.arange(8))
    assert type(table(8)) is torch.Tensor


def test_threads_share_a_program_and_capture_beside_each_other() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    fast = optimize(module, [X])

    def work(n: int) -> None:
        x = torch.randn(n, 8)
        torch.testing.assert_close(fast(x), module(x).detach())
        torch.testing.assert_close(optimize(nn.Linear(8, n).requires_grad_(False), [x])(x).shape, (n, n))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(2, 8)))
    assert type(module[0].weight) is nn.Parameter


# ---- results


def test_results_are_the_tensors_that_eager_gives() -> None:
    norm, z, out = nn.BatchNorm1d(8), X.clone().requires_grad_(), torch.zeros(3, 8)
    got = optimize(lambda x, o: (x[1:], norm.running_mean, norm.weight, torch.mul(x, 2, out=o)), [X, out.clone()])
    with torch.no_grad():
        view, mean, weight, written = got(z, out)
    assert view.requires_grad and mean is norm.running_mean and weight is norm.weight and written is out


def test_gradients_of_weights_end_at_a_program_and_its_transforms_are_eager() -> None:
    assert not optimize(nn.Linear(8, 4), [X])(X).requires_grad
    for program in (lambda x: torch.func.grad(lambda z: (z**3).sum())(x), torch.vmap(lambda r: r / r.sum())):
        fast = optimize(program, [X])
        torch.testing.assert_close(fast(X), program(X))
        assert "transform" in fast.report()["notes"][0]


def test_a_program_that_data_decides_runs_in_eager_and_is_not_run_before() -> None:
    seen: list[int] = []

    def program(x: torch.Tensor) -> Any:
        seen.append(1)
        return x * 2 if x.sum() > 0 else x * 3

    fast = optimize(program, [X])
    assert not seen
    for x in (X.abs(), -X.abs()):
        assert torch.equal(fast(x), program(x))
    assert "whole program becomes a call to eager PyTorch: dynamo cannot trace it" in fast.report()["notes"][0]


def test_an_optimised_program_is_copied_and_goes_when_it_is_dropped() -> None:
    module = nn.Linear(8, 4)
    fast = optimize(module, [X])
    again = deepcopy(fast)
    assert again.fn is not module
    torch.testing.assert_close(pickle.loads(pickle.dumps(again))(X), fast(X))
    gone = ref(module)
    del module, fast
    gc.collect()
    assert gone() is None
