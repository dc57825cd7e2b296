"""What a program holds besides its arguments: modules and tensors by identity, so that others in their place are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import is_
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

FOLLOWED = (torch.Tensor, torch.nn.Module, FunctionType, MethodType, partial)
_PLAIN = frozenset((type(None), bool, int, float, str, set))
_MOST_INSIDE = 256
"""Values of a list, a tuple or a dict that are looked at; longer ones are not followed."""


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
        open_ += [p for p in _parts(x) if type(p) not in _PLAIN and _followed(p)]
    return Held(tuple(objects), tuple(facts))


def _followed(x: object) -> bool:
    return 0 < len(x) <= _MOST_INSIDE if isinstance(x, list | tuple | dict) else isinstance(x, FOLLOWED)


def _place(t: torch.Tensor) -> object:
    """What `t.data = other` changes, and with it `module.half()` or `module.to(device)`."""
    if t.layout is not torch.strided:
        return t.dtype
    return t.data_ptr(), t.shape, t.stride(), t.dtype, t.device


def _parts(x: object) -> Iterator[object]:
    """What a module, a function or another callable leads to at once."""
    match x:
        case torch.nn.Module():
            yield from vars(x).values()
            if not type(x).__module__.startswith("torch."):
                yield type(x).forward
        case list() | tuple():
            yield from x
        case dict():
            yield from x.values()
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
    yield from (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    for name in _names(fn.__code__):
        value = fn.__globals__.get(name)
        if not isinstance(value, FunctionType) or value.__module__ == fn.__module__:
            yield value


def _names(code: CodeType) -> Iterator[str]:
    """The names that some code and the functions within it read."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
