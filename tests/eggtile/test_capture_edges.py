"""Programs at the edges of capture: data-dependent extents, writes to metadata, strides, and outputs that alias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from eggtile.api import optimize
from eggtile.capture import CaptureError
from eggtile.check import check_on_cpu, judge
from eggtile.pipeline import RequestError, compile_program
from eggtile.reference import private_copy, widened

Program = Callable[..., Any]


def doubled_where_positive(x: torch.Tensor) -> torch.Tensor:
    x[x > 0] *= 2
    return x


def transposed_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.t_()
    return y


# ---- data


DATA_DEPENDENT: dict[str, tuple[Program, torch.Tensor]] = {
    "a number of the data": (lambda a: a * a[0].item(), torch.randn(3)),
    "an integer of the data": (lambda a: a * a[0].item(), torch.tensor([3, 4])),
    "positions": (lambda a: a.nonzero() * 2, torch.randn(5)),
    "a masked part": (lambda a: a[a > 0] * 2, torch.randn(5)),
    "a masked part that is written": (doubled_where_positive, torch.randn(5)),
    "repeats": (lambda a: a.repeat_interleave(torch.tensor([1, 0, 2]), 0), torch.randn(3)),
    "counts": (torch.bincount, torch.tensor([1, 2])),
    "distinct values": (torch.unique, torch.tensor([3, 1, 3])),
}


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_programs_whose_extents_or_numbers_depend_on_data_are_one_call(name: str) -> None:
    fn, x = DATA_DEPENDENT[name]
    verdict = check_on_cpu(fn, [x])
    assert verdict.ok, verdict
    assert "whole program becomes a call" in verdict.notes[0]


def test_results_of_such_programs_have_the_extents_of_each_call() -> None:
    optimized = optimize(lambda a: {"kept": a[a > 0], "count": int((a > 0).sum())}, [torch.ones(6)])
    out = optimized(torch.tensor([1.0, -1.0, 2.0, -2.0, 3.0, -3.0]))
    assert out["kept"].tolist() == [1.0, 2.0, 3.0]
    assert out["count"] == 3


def test_a_program_that_raises_is_refused_with_its_error() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else x @ x

    with pytest.raises(CaptureError, match="the program cannot run: RuntimeError"):
        compile_program(wrong, [-torch.ones(2, 3)])
    with pytest.raises(CaptureError, match="the program cannot run: RuntimeError"):
        optimize(lambda x: x @ x, [torch.ones(2, 3)])
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        optimize(wrong, [torch.ones(2, 3)])(-torch.ones(2, 3))


# ---- shapes and shared memory


@pytest.mark.parametrize("name", ["t_", "unsqueeze_", "squeeze_", "set_"])
def test_an_input_that_changes_its_shape_is_refused_by_the_operator(name: str) -> None:
    def changed(x: torch.Tensor) -> torch.Tensor:
        arguments = {"t_": (), "set_": (x.clone(),)}.get(name, (0,))
        getattr(x, name)(*arguments)
        return x * 2

    with pytest.raises(CaptureError, match=f"^{name} changes the shape"):
        compile_program(changed, [torch.randn(1, 5)])
    x = torch.randn(1, 5)
    y = x.clone()
    assert torch.equal(optimize(changed, [x.clone()])(y), x.reshape(y.shape) * 2)


def test_a_value_of_the_program_may_change_its_shape() -> None:
    assert check_on_cpu(transposed_in_place, [torch.randn(4, 5)]).ok


def test_written_inputs_that_share_memory_are_refused_when_captured_and_when_called() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    a = torch.randn(8)
    with pytest.raises(CaptureError, match="writes x, which shares memory with y"):
        compile_program(program, [a, a])
    b = a.clone()
    assert torch.equal(optimize(program, [a, a])(b, b), (a + 1) * 2)
    optimized = optimize(program, [a[:4], a[4:]])
    with pytest.raises(RequestError, match="writes x, which shares memory with y"):
        optimized(a[:4], a[:4])
    assert torch.equal(optimize(torch.add, [a, a])(a, a), 2 * a)


def first_written(x: torch.Tensor) -> torch.Tensor:
    x[0, 1] = 0.1
    return x


OVERLAPPING: dict[str, tuple[Program, list[torch.Tensor]]] = {
    "an expanded value": (
        lambda x: first_written((x * 2).expand(-1, 6)),
        [torch.tensor([[torch.inf], [1e9], [2.0]])],
    ),
    "windows": (lambda x: first_written((x * 2).unfold(0, 4, 2)), [torch.arange(9.0)]),
    "strides by hand": (lambda x: first_written((x + 1).as_strided((3, 3), (1, 1))), [torch.arange(9.0)]),
    "a part of it": (lambda x: (x * 2).expand(4, 3)[2].mul_(3), [torch.tensor([[torch.inf, 1e9, 2.0]])]),
    "an expanded input": (first_written, [torch.tensor([[1e9], [2.0]]).expand(2, 3)]),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_a_write_through_a_view_whose_elements_share_memory_is_eagers(name: str) -> None:
    fn, inputs = OVERLAPPING[name]
    verdict = check_on_cpu(fn, inputs)
    assert verdict.ok, verdict
    assert "share memory" in verdict.notes[0]


# ---- strides


STRIDED: dict[str, tuple[Program, torch.Tensor]] = {
    "repeated rows": (lambda x: (x * 2).expand(4, 6), torch.randn(1, 6)),
    "repeated inner values": (lambda x: (x * 2)[..., None].expand(4, 6, 3).transpose(0, 2), torch.randn(4, 6)),
    "grids": (lambda x: torch.meshgrid(x + 1, x, indexing="xy"), torch.randn(5)),
    "windows": (lambda x: (x * 2).unfold(0, 4, 3), torch.randn(20)),
    "windows that repeat": (lambda x: (x * 2).unfold(0, 4, 3)[:, None].expand(6, 2, 4), torch.randn(20)),
    "strides by hand": (lambda x: (x * 3).as_strided((4, 4), (1, 2)), torch.randn(20)),
    "no elements": (lambda x: (x * 2).expand(4, 0), torch.randn(1, 0)),
}


@pytest.mark.parametrize("name", STRIDED)
def test_results_that_share_memory_in_eager_have_its_strides(name: str) -> None:
    fn, x = STRIDED[name]
    verdict = check_on_cpu(fn, [x])
    assert verdict.ok, verdict


def test_the_gate_compares_strides_but_for_single_elements() -> None:
    x = torch.randn(1, 4)
    assert judge("cpu", [x.as_strided((1, 4), (7, 1))], [x], [x.double()]).ok
    y = torch.zeros(4, 4)
    assert not judge("cpu", [y], [y.t()], [y.double()]).ok


def test_strides_that_a_kernel_of_the_cpu_chooses_are_those_of_the_trace() -> None:
    """On CUDA batch_norm keeps the strides of dense inputs, and group_norm does not keep channels_last."""
    x, images = torch.randn(3, 8, 4).mT, torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last)
    assert check_on_cpu(lambda x: F.batch_norm(x, None, None, training=True), [x]).ok
    assert check_on_cpu(lambda x: F.group_norm(x, 2), [images]).ok
    eager = x.contiguous()
    assert not judge("cpu", [x], [eager], [x.double()], traced=lambda: [eager, x]).ok


LAID = {
    "every other": lambda: torch.randn(3, 14)[:, ::2],
    "repeated": lambda: torch.randn(1, 4).expand(3, 4),
    "transposed, from a later row": lambda: torch.randn(4, 5).t()[1:],
    "none": lambda: torch.empty(0, 3),
    "one integer": lambda: torch.tensor(2),
}


@pytest.mark.parametrize("name", LAID)
def test_copies_for_a_reference_keep_strides_and_overlaps(name: str) -> None:
    t = LAID[name]()
    for copied in (widened(t), private_copy(t)):
        assert copied.stride() == t.stride()
        assert copied.numel() == 0 or copied.data_ptr() != t.data_ptr()
        assert torch.equal(copied.to(t.dtype), t)


# ---- outputs that alias


def sharing(outputs: Any, inputs: list[torch.Tensor]) -> list[tuple[bool, bool]]:
    """For every pair of an output and a tensor of the call: one object, one storage."""
    outs = pytree.tree_leaves(outputs)
    return [
        (t is u, t.untyped_storage().data_ptr() == u.untyped_storage().data_ptr())
        for k, t in enumerate(outs)
        for u in (*outs[:k], *inputs)
    ]


def added(x: torch.Tensor) -> Any:
    x.add_(1)
    return x, x[1:], x.view(-1)[3], x * 2


def row_written(x: torch.Tensor) -> torch.Tensor:
    y = x[1]
    return y.mul_(3)


ALIASING: dict[str, Program] = {
    "an input": lambda x: (x, x * 2),
    "an input in another way": lambda x: x.float().contiguous().to(torch.float32),
    "views of an input": lambda x: (x.t(), x[1:, ::2], x.reshape(-1)),
    "a written input and views": added,
    "a written view": row_written,
    "one tensor twice": lambda x: (lambda y: {"a": y, "b": (y, x)})(x * 2),
    "a copy": lambda x: (x.clone(), x.t().contiguous()),
}


@pytest.mark.parametrize("name", ALIASING)
def test_outputs_are_the_tensors_that_eager_gives(name: str) -> None:
    x, y = torch.randn(3, 4), torch.randn(7, 4)[2:5]
    ours, eager = y, y.clone()
    got, wanted = optimize(ALIASING[name], [x])(ours), ALIASING[name](eager)
    assert sharing(got, [ours]) == sharing(wanted, [eager])
    for g, w in zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True):
        torch.testing.assert_close(g, w)
        assert g.stride() == w.stride()
    assert torch.equal(ours, eager)


def test_outputs_that_are_inputs_cost_no_store() -> None:
    compiled = compile_program(lambda x: (x, x.t(), x + 1, x), [torch.randn(3, 4)])
    assert len(compiled.regions[0].program.results) == 1
    compiled = compile_program(lambda x: x.t(), [torch.randn(3, 4)])
    assert not compiled.regions
    assert "nothing is computed" in compiled.captured.program.notes[0]


def test_a_parameter_that_is_returned_is_no_result() -> None:
    module = torch.nn.Linear(3, 2)
    module.forward = lambda x: (x @ module.weight.t(), module.weight)  # type: ignore[method-assign]
    out, weight = optimize(module, [torch.randn(4, 3)])(torch.randn(4, 3))
    assert weight.data_ptr() == module.weight.data_ptr()
    assert out.shape == (4, 2)
