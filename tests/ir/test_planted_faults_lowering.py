"""Faults planted in the lowering change results, and the interpreters see it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ir.axes
import ir.bind
import ir.factors
import ir.lower
from ir import term as T
from ir.access import Access, accesses
from ir.affine import Affine, divided
from ir.axes import Axes
from ir.bind import Binder, substitute
from ir.factors import Factors
from ir.loop import LoopProgram
from ir.loop_interp import run_loop
from ir.lower import lower
from ir.node import IRError
from ir.tensor import Reduce, Scan, Tensor, TensorProgram
from ir.tensor_interp import run_tensor
from tests.programs import POSITIONS, WRITTEN
from tests.words import Inputs, random_inputs

Patch = Callable[[pytest.MonkeyPatch], None]


class _Terms(SimpleNamespace):
    """The constructors of terms, some of them exchanged."""

    def __getattr__(self, name: str) -> Any:
        return getattr(T, name)


def _unite_always(self: Axes, a: int, b: int) -> None:
    self._parent[self._find(a)] = self._find(b)


def _strides_swapped(self: Factors, dim: int) -> tuple[tuple[int, int], ...]:
    found = _FACTORS(self, dim)
    return tuple((s, e) for (s, _), (_, e) in zip(reversed(found), found, strict=True))


_FACTORS = Factors.of
_FOLDED = Axes.folded
_NESTED = Binder._nested


def _always_valid(root: T.Term, *rest: Any) -> T.Term:
    return T.const(True, "bool") if root.dtype == "bool" else substitute(root, *rest)


def _no_remainder(op: str, x: Affine, by: int, extents: Any) -> Affine:
    return x if op == "mod" else divided(op, x, by, extents)


def _nested_blindly(self: Binder, x: T.Term, index: Any) -> T.Term:
    for a, i in sorted(index.items()):
        x = T.At(a, i, x)
    return x


def _first_only(self: Binder, x: T.Term, index: Any) -> T.Term:
    return _NESTED(self, x, dict(list(index.items())[:1]))


def _dimensions_reversed(kind: type[Tensor]) -> Callable[[Tensor], tuple[Access, ...]]:
    def reversed_(t: Tensor) -> tuple[Access, ...]:
        found = accesses(t)
        return tuple(Access(a.operand, a.index[::-1]) for a in found) if isinstance(t, kind) else found

    return reversed_


def _aligned_carelessly(t: Any) -> dict[int, int]:
    return {int(i.axis[1:]): d for d, i in enumerate(t.index) if isinstance(i, T.Index)}


FAULTS: dict[str, Patch] = {
    "two dimensions of one tensor share a name": lambda m: m.setattr(Axes, "_unite", _unite_always),
    "work is not renamed": lambda m: m.setattr(Binder, "_nested", lambda self, x, index: x),
    "only one of several axes is renamed": lambda m: m.setattr(Binder, "_nested", _first_only),
    "renamings capture each other": lambda m: m.setattr(Binder, "_nested", _nested_blindly),
    "the strides of factors are swapped": lambda m: m.setattr(Factors, "of", _strides_swapped),
    "the validity of a view is dropped": lambda m: m.setattr(ir.lower, "substitute", _always_valid),
    "comparisons are decided carelessly": lambda m: m.setattr(
        ir.bind, "compared", lambda op, x, y, extents: T.const(True, "bool")
    ),
    "a remainder is dropped": lambda m: m.setattr(ir.axes, "divided", _no_remainder),
    "a folded factor is forgotten": lambda m: m.setattr(Axes, "folded", lambda self, t: _FOLDED(self, t)[1:]),
    "a fold takes the wrong dimension": lambda m: m.setattr(ir.axes, "accesses", _dimensions_reversed(Reduce)),
    "positions that miss carry the wrong identity": lambda m: m.setattr(
        ir.lower, "T", _Terms(Identity=lambda monoid: T.Identity("mul" if monoid == "add" else "add"))
    ),
    "the base of a scatter is dropped": lambda m: m.setattr(
        ir.lower, "T", _Terms(binary=lambda op, x, y: y if isinstance(y, T.Fold) else T.binary(op, x, y))
    ),
    "the first update wins": lambda m: m.setattr(
        ir.lower, "T", _Terms(fold=lambda axes, o, x: T.fold(axes, "min" if o == "max" else o, x))
    ),
    "rounding is dropped": lambda m: m.setattr(ir.lower, "T", _Terms(round_to=lambda dtype, origin, x: x)),
    "a narrower scatter counts as whole": lambda m: (
        m.setattr("ir.access.aligned", _aligned_carelessly),
        m.setattr(ir.lower, "aligned", _aligned_carelessly),
    )[0],
    "a scan goes along another dimension": lambda m: m.setattr(ir.axes, "accesses", _dimensions_reversed(Scan)),
}


def wrong(p: TensorProgram, inputs: Inputs) -> bool:
    """Whether the lowered program is refused or gives other results than the tensor program."""
    try:
        (loop,) = lower(p).steps
        assert isinstance(loop, LoopProgram)
        for exact in (True, False):
            want, got = run_tensor(p, inputs, exact), run_loop(loop, inputs, exact)
            for r in p.results:
                if not np.allclose(got[r.writes or r.name], want[r.name], rtol=1e-5, atol=1e-6, equal_nan=True):
                    return True
    except IRError:
        return True
    return False


def wrong_programs() -> list[str]:
    cases = {name: build() for name, build in WRITTEN.items()}
    return [name for name, p in cases.items() if wrong(p, random_inputs(p, 0, POSITIONS))]


def test_without_a_fault_every_program_is_right() -> None:
    assert wrong_programs() == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault](monkeypatch)
    assert wrong_programs(), "no program shows the fault"
