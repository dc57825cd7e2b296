"""A program run twice at once: as it is, so that it sees its own types and values, and in float64 beside that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from eggtile.leaves import flat_tensors

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
TOTALS = {"sum", "cumsum", "count_nonzero", "prod", "cumprod", "bincount"}
"""Operators whose whole results count or add up, so that results between two right ones are right too."""
CASTS = {"_to_copy", "copy"}
"""Operators by which a program writes that its numbers are rounded to another type."""
CAST, SUMMED = 1, 2
"""What a tensor holds of casts: their results, or sums of these."""
DEFAULT_EPS = {"rms_norm", "_fused_rms_norm"}
"""Operators that take the eps of the type that they compute in where none is given."""

Widen = Callable[[torch.Tensor], torch.Tensor]
Call = Callable[[Mapping[str, Any]], list[torch.Tensor]]
"""A call of one operator with operands by name."""


class Rounding(Protocol):
    """How a run in float64 is moved by roundings to the types that the program has where they happen."""

    selecting: MutableMapping[int, bool]
    """By the number of a call: whether it hands on elements that it is given, and so rounds none."""

    def operand(self, t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What a call takes that computes with several elements, whose roundings are those inside."""

    def result(self, t: torch.Tensor, dtype: torch.dtype, argument: torch.Tensor | None) -> torch.Tensor:
        """What a call gives; with its argument, where it is a function of that tensor alone."""


class Doubled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operator a second time, on the float64 counterparts of its operands.

    Types, scalars and branches are those of the program; the counterpart of a tensor that is met for the first time is made
    by `widen`, and calls round as `rounding` says. Roundings that the program writes, as casts to a narrower type, are
    `kept` or left out. Random numbers are the same in both.
    """

    def __init__(self, widen: Widen, rounding: Rounding | None = None, kept: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.widen, self.rounding, self.kept = widen, rounding, kept
        self.random = False
        """Whether the program draws random numbers."""
        self.types: set[torch.dtype] = set()
        """The floating types that calls take and give."""
        self.calls = 0
        self._casts: MutableMapping[torch.Tensor, int] = WeakTensorKeyDictionary()
        self._wide: MutableMapping[torch.Tensor, torch.Tensor] = WeakTensorKeyDictionary()
        self._totals: MutableMapping[torch.Tensor, bool] = WeakTensorKeyDictionary()

    def wide(self, t: torch.Tensor) -> torch.Tensor:
        """The counterpart of a tensor of the program."""
        found = self._wide.get(t)
        if found is None:
            found = self._wide[t] = self.widen(t)
        return found

    def sums_casts(self, t: torch.Tensor) -> bool:
        """Whether a tensor of the program follows from a sum of what it casts to fewer digits."""
        return self._casts.get(t, 0) == SUMMED

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
        self.calls += 1
        self.types |= {t.dtype for t in (*operands, *found) if t.is_floating_point()}
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
        operands, floats = flat_tensors(wide), any(t.is_floating_point() for t in found)
        wide = _in_float64(func, given, wide, floats)
        names = [a.name for a in func._schema.arguments][:places]

        def call(operands: Mapping[str, Any]) -> list[torch.Tensor]:
            rest = {k: v for k, v in operands.items() if k not in names}
            return flat_tensors(func(*(operands[n] for n in names), **rest))

        held, writes = {_memory(t) for t in operands}, func._schema.is_mutable
        casts = _name(func) in CASTS and _narrows(given, found)
        selects = self._selects(func, call, wide, floats) and not casts
        if self.rounding is None:
            self._trace_casts(func, call, given, wide, found, casts)
        if self.rounding and not selects and not casts and torch.Tag.pointwise not in func.tags:
            wide |= self._moved(func, given)
        out = call(wide)
        if [t.shape for t in out] != [t.shape for t in found]:
            return [self.widen(t) for t in found]  # as many numbers as the program's own values say
        out = [w.double() if t.is_floating_point() else w for w, t in zip(out, found, strict=True)]
        alone = not any(isinstance(v, int | float) and not isinstance(v, bool) for v in wide.values())
        argument = operands[0] if len(operands) == 1 and alone and operands[0].is_floating_point() else None
        for n, (w, t) in enumerate(zip(out, found, strict=True)):
            if casts and self.kept:
                rounded = w.to(t.dtype).double()
            elif self.rounding and t.is_floating_point() and not selects:
                rounded = self.rounding.result(w, t.dtype, argument)
            else:
                continue
            if writes:
                w.copy_(rounded)
            elif _memory(w) not in held:
                out[n] = rounded
        return out

    def _trace_casts(
        self,
        func: Any,
        call: Call,
        given: Mapping[str, Any],
        wide: Mapping[str, Any],
        found: Sequence[torch.Tensor],
        casts: bool,
    ) -> None:
        """Note whether the results hold what is cast, or sums of such."""
        held = max((self._casts.get(t, 0) for t in flat_tensors(given)), default=0)
        floats = any(t.is_floating_point() for t in found)
        if casts:
            held = max(held, CAST)
        elif held == CAST and floats and not (torch.Tag.pointwise in func.tags or _is_view(func)):
            held = CAST if _commutes(call, wide) else SUMMED
        if held:
            for t in found:
                self._casts[t] = held

    def _selects(self, func: Any, call: Call, wide: Mapping[str, Any], floats: bool) -> bool:
        """Whether the call hands on elements of its operands, whatever these are."""
        if self.rounding is None or not floats:
            return True
        known = self.rounding.selecting
        if self.calls not in known:
            known[self.calls] = _is_view(func) or _commutes(call, wide)
        return known[self.calls]

    def _moved(self, func: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """The floating operands that the call only reads, as roundings inside it move them."""
        rounding = self.rounding
        assert rounding is not None

        def move(t: torch.Tensor) -> torch.Tensor:
            return rounding.operand(self.wide(t), t.dtype) if t.is_floating_point() else self.wide(t)

        written = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        read = {k: v for k, v in given.items() if k not in written}
        floating = {k: v for k, v in read.items() if any(t.is_floating_point() for t in flat_tensors(v))}
        return {k: pytree.tree_map_only(torch.Tensor, move, v) for k, v in floating.items()}


def _in_float64(func: Any, given: Mapping[str, Any], wide: Mapping[str, Any], floats: bool) -> dict[str, Any]:
    """The arguments of a call as it takes them to compute in float64, whether it gives `floats` or not."""
    operands = flat_tensors(wide)
    out = {k: torch.float64 if isinstance(v, torch.dtype) and v in FLOATS else v for k, v in wide.items()}
    for a in func._schema.arguments:
        if a.name == "eps" and _name(func) in DEFAULT_EPS and out.get("eps") is None:
            out["eps"] = _eps(flat_tensors(given)[0])
        elif a.name == "half_to_float":
            out["half_to_float"] = False
        elif a.name == "dtype" and out.get("dtype") is None and floats and not operands:
            out["dtype"] = torch.float64
    if floats and not any(t.is_floating_point() or t.is_complex() for t in operands):
        return {k: pytree.tree_map_only(torch.Tensor, _of_whole, v) for k, v in out.items()}
    return out


def _commutes(call: Call, operands: Mapping[str, Any]) -> bool:
    """Whether the call gives of x |x| what x |x| is of what it gives, as what only hands on elements does for random x."""
    generators: dict[torch.device, torch.Generator] = {}

    def drawn(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t.clone()
        if t.device not in generators:
            generators[t.device] = torch.Generator(t.device).manual_seed(0)
        return torch.randn(t.shape, generator=generators[t.device], dtype=torch.float64, device=t.device)

    first = {k: pytree.tree_map_only(torch.Tensor, drawn, v) for k, v in operands.items()}
    second = {k: pytree.tree_map_only(torch.Tensor, _squared, v) for k, v in first.items()}
    try:
        pairs = zip(map(_squared, call(first)), call(second), strict=True)
        return all(a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in pairs)
    except (RuntimeError, ValueError):  # the operator takes no such values
        return False


def _squared(t: torch.Tensor) -> torch.Tensor:
    return t * t.abs() if t.is_floating_point() else t.clone()


def _is_view(func: Any) -> bool:
    """Whether what the operator returns is the memory of an operand that it does not write."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _narrows(given: Mapping[str, Any], found: Sequence[torch.Tensor]) -> bool:
    """Whether a call has a result of fewer digits than an operand."""
    floats = [t.dtype for t in flat_tensors(given) if t.is_floating_point()]
    return any(
        t.is_floating_point() and torch.finfo(t.dtype).eps > torch.finfo(d).eps for t in found for d in floats
    )


def _of_whole(t: torch.Tensor) -> torch.Tensor:
    return t if t.dtype == torch.bool else t.double()


def _eps(t: torch.Tensor) -> float:
    """What PyTorch takes where a norm is given none: that of the type that it computes in."""
    return torch.finfo(torch.float32 if t.dtype in FLOATS else torch.float64).eps


def _name(func: Any) -> str:
    return str(func._schema.name).partition("::")[2].rstrip("_")


def _memory(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()
