"""Attributes that a module writes while it is traced: they are put back, as a trace gives them values that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from eggtile.capture.types import CaptureError

_PLAIN = (bool, int, float, complex, str, bytes)


@contextmanager
def put_back(fn: Callable[..., Any]) -> Iterator[list[str]]:
    """Put back the attributes that modules change inside, and then name them; refuse a parameter that is made inside."""
    all_ = fn.named_modules() if isinstance(fn, torch.nn.Module) else ()
    modules = {name: m for name, m in all_ if not isinstance(m, torch.fx.GraphModule)}
    before = {name: {k: (v, _inside(v)) for k, v in vars(m).items()} for name, m in modules.items()}
    written: list[str] = []
    made: list[str] = []

    def note(module: torch.nn.Module, name: str, parameter: object) -> None:
        if any(module is m for m in modules.values()):
            made.append(name)

    hook = register_module_parameter_registration_hook(note)
    try:
        yield written
    finally:
        hook.remove()
        for name, m in modules.items():
            keys = [k for k in {**before[name], **vars(m)} if _restored(m.__dict__, before[name], k)]
            written += [f"{name}.{k}" if name else k for k in keys]
    if made:
        raise CaptureError(f"the program makes a parameter, {made[0]}: that is not supported")


def _inside(value: object) -> list[object] | dict[object, object] | None:
    """A copy of a list or a dict of the program's own."""
    return value.copy() if type(value) in (list, dict) else None  # type: ignore[attr-defined]


def _restored(now: dict[str, Any], before: Mapping[str, tuple[Any, Any]], key: str) -> bool:
    """Whether an attribute was given another value, which is put back."""
    if key not in before:
        del now[key]
        return True
    value, inside = before[key]
    is_other = not _same(now.get(key, before), value)
    now[key] = value
    if inside is not None and not _same(value, inside):
        value.clear()
        value.extend(inside) if isinstance(value, list) else value.update(inside)
        return True
    return is_other


def _same(a: Any, b: Any) -> bool:
    """Whether two values are one object, equal plain ones, or lists, tuples or dicts of such."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    match a:
        case dict():
            return list(a) == list(b) and all(map(_same, a.values(), b.values()))
        case list() | tuple():
            return len(a) == len(b) and all(map(_same, a, b))
    return type(a) in _PLAIN and bool(a == b)
