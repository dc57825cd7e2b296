"""A program run twice at once: as it is, so that it sees its own types and values, and in float64 beside that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from eggtile.leaves import flat_tensors

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
TOTALS = {"sum", "cumsum", "count_nonzero", "prod", "cumprod", "bincount"}
"""Operators whose whole results count or add up, so that results between two right ones are right too."""

Widen = Callable[[torch.Tensor], torch.Tensor]
Change = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""What becomes of a tensor that a call computes; with its argument, where it is a function of that tensor alone."""


class Doubled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operator a second time, on the float64 counterparts of its operands.

    Types, scalars and branches are those of the program; the counterpart of a tensor that is met for the first time is made
    by `widen`, and what a call computes goes on as `change` gives it. Random numbers are the same in both.
    """

    def __init__(self, widen: Widen, change: Change | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.widen, self.change = widen, change
        self.random = False
        """Whether the program draws random numbers."""
        self._wide: MutableMapping[torch.Tensor, torch.Tensor] = WeakTensorKeyDictionary()
        self._totals: MutableMapping[torch.Tensor, bool] = WeakTensorKeyDictionary()

    def wide(self, t: torch.Tensor) -> torch.Tensor:
        """The counterpart of a tensor of the program."""
        found = self._wide.get(t)
        if found is None:
            found = self._wide[t] = self.widen(t)
        return found

    def total(self, t: torch.Tensor) -> bool:
        """Whether whole numbers are sums or follow from such."""
        return t in self._totals

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | named
        operands = flat_tensors(given)
        counterparts = {k: pytree.tree_map_only(torch.Tensor, self.wide, v) for k, v in given.items()}
        out = func(*args, **named)
        found = flat_tensors(out)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.random = True
            wide = [self._drawn(t) for t in found]
        elif func is torch.ops.aten.view.dtype:
            wide = [self.widen(t) for t in found]  # other numbers in the same bits
        else:
            wide = self._again(func, len(args), given, counterparts, found)
        for t, w in zip(found, wide, strict=True):
            self._wide[t] = w
            if not t.is_floating_point() and (_name(func) in TOTALS or any(map(self.total, operands))):
                self._totals[t] = True
        return out

    def _drawn(self, t: torch.Tensor) -> torch.Tensor:
        if t in self._wide:
            return self._wide[t].copy_(t)
        return self.widen(t)

    def _again(
        self, func: Any, places: int, given: dict[str, Any], wide: dict[str, Any], found: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The tensors that the call gives in float64."""
        operands = flat_tensors(wide)
        floats = any(t.is_floating_point() for t in found)
        wide |= {k: torch.float64 for k, v in wide.items() if isinstance(v, torch.dtype) and v in FLOATS}
        for a in func._schema.arguments:
            if a.name == "eps" and wide.get("eps") is None and operands:
                wide["eps"] = _eps(flat_tensors(given)[0])
            elif a.name == "half_to_float":
                wide["half_to_float"] = False
            elif a.name == "dtype" and wide.get("dtype") is None and floats and not operands:
                wide["dtype"] = torch.float64
        if floats and not any(t.is_floating_point() or t.is_complex() for t in operands):
            wide = {k: pytree.tree_map_only(torch.Tensor, _of_whole, v) for k, v in wide.items()}
        names = [a.name for a in func._schema.arguments][:places]
        out = flat_tensors(func(*(wide[n] for n in names), **{k: v for k, v in wide.items() if k not in names}))
        if [t.shape for t in out] != [t.shape for t in found]:
            return [self.widen(t) for t in found]  # as many numbers as the program's own values say
        out = [w.double() if t.is_floating_point() else w for w, t in zip(out, found, strict=True)]
        if self.change is None:
            return out
        alone = not any(isinstance(v, int | float) and not isinstance(v, bool) for v in wide.values())
        argument = operands[0] if len(operands) == 1 and alone else None
        held, writes = {_memory(t) for t in operands}, func._schema.is_mutable
        for n, w in enumerate(out):
            if writes:
                w.copy_(self.change(w, argument))
            elif _memory(w) not in held:
                out[n] = self.change(w, argument)
        return out


def _of_whole(t: torch.Tensor) -> torch.Tensor:
    return t if t.dtype == torch.bool else t.double()


def _eps(t: torch.Tensor) -> float:
    """What PyTorch takes where a norm is given none: that of the type that it computes in."""
    return torch.finfo(torch.float32 if t.dtype in FLOATS else torch.float64).eps


def _name(func: Any) -> str:
    return str(func._schema.name).partition("::")[2].rstrip("_")


def _memory(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()
