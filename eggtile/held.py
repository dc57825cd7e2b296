"""What a program holds besides its arguments: modules and tensors by identity, so that others in their place are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import is_
from types import FunctionType, MethodType
from typing import Any

import torch

FOLLOWED = (torch.Tensor, torch.nn.Module, FunctionType, MethodType, partial)
_PLAIN = frozenset((type(None), bool, int, float, str, set, dict, list, tuple))


@dataclass(frozen=True, eq=False)
class Held:
    """Objects in the order in which a program leads to them, and facts of each that may change while it is the same."""

    objects: tuple[object, ...]
    facts: tuple[object, ...]

    def same(self, other: Held) -> bool:
        """Whether both are the same objects in the same state; values that tensors hold do not count."""
        alike = len(self.objects) == len(other.objects) and self.facts == other.facts
        return alike and all(map(is_, self.objects, other.objects))


def held(fn: Callable[..., Any]) -> Held:
    """What `fn` holds: of a module its tensors, its modules and their mode; of a function what it names outside itself."""
    objects: list[object] = []
    facts: list[object] = []
    seen: set[int] = set()
    open_: list[object] = [fn]
    while open_:
        x = open_.pop()
        objects.append(x)
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, torch.Tensor):
            facts.append(_place(x))
            continue
        if isinstance(x, torch.nn.Module):
            facts.append(x.training)
        open_ += [p for p in _parts(x) if type(p) not in _PLAIN and isinstance(p, FOLLOWED)]
    return Held(tuple(objects), tuple(facts))


def _place(t: torch.Tensor) -> object:
    """What `t.data = other` changes, and with it `module.half()` or `module.to(device)`."""
    if t.layout is not torch.strided:
        return t.dtype
    return t.data_ptr(), t.shape, t.stride(), t.dtype, t.device


def _parts(x: object) -> Iterator[object]:
    """What a module, a function or another callable leads to at once."""
    match x:
        case torch.nn.Module():
            for table in (x._parameters, x._buffers, x._modules, x._forward_pre_hooks, x._forward_hooks, vars(x)):
                yield from table.values()
        case partial():
            yield from (x.func, *x.args, *x.keywords.values())
        case MethodType():
            yield from (x.__func__, x.__self__)
            if not isinstance(x.__self__, FOLLOWED):
                yield from _fields(x.__self__)
        case FunctionType():
            yield from _named(x)
        case _:
            yield from (type(x).__call__, *_fields(x)) if callable(x) else ()


def _fields(x: object) -> Iterable[object]:
    return getattr(x, "__dict__", {}).values()


def _named(fn: FunctionType) -> Iterator[object]:
    """What a function names outside itself; of the functions among it those of its own file."""
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
    for name in fn.__code__.co_names:
        value = fn.__globals__.get(name)
        if not isinstance(value, FunctionType) or value.__module__ == fn.__module__:
            yield value
