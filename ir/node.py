"""Interned, frozen nodes: equal fields give the same object, so equality is identity and hashing is constant."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform


class IRError(Exception):
    """A node, text or program that breaks a rule of its level; the message is one sentence."""


class _Interned(type):
    """Metaclass that returns the existing node where one with the same class and fields lives."""

    pool: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()

    if not TYPE_CHECKING:

        def __call__(cls, *args, **kwargs):
            names = cls.__match_args__
            if kwargs or len(args) != len(names):
                missing = [n for n in names[len(args) :] if n not in kwargs]
                if missing or len(args) + len(kwargs) != len(names):
                    wrong = f"lacks {', '.join(missing)}" if missing else f"has the fields {', '.join(names)} alone"
                    raise TypeError(f"{cls.__name__} {wrong}")
                args = (*args, *(kwargs[n] for n in names[len(args) :]))
            key = (cls, *args)
            found = _Interned.pool.get(key)
            if found is None:
                found = object.__new__(cls)
                vars(found).update(zip(names, args, strict=True))  # half the time of a frozen class's own __init__
                found.__post_init__()
                _Interned.pool[key] = found
            return found


@dataclass_transform(frozen_default=True, eq_default=False)
class _Declared(_Interned):
    """Metaclass of node classes; subclasses declare their fields like a frozen dataclass."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        return dataclass(frozen=True, eq=False, repr=False)(super().__new__(mcs, name, bases, namespace))


class Node(metaclass=_Declared):
    """Base of all interned nodes. A subclass declares fields; children are fields that are nodes or tuples of nodes."""

    # of a node, not of the class: ClassVar keeps dataclasses from taking them for fields
    children: ClassVar[tuple[Node, ...]]
    """The nodes among the fields, in field order; tuples are searched one level deep."""
    digest: ClassVar[str]
    """A structural hash, equal over processes."""

    def __post_init__(self) -> None:
        held, kids, parts = vars(self), list[Node](), [type(self).__name__]
        names: tuple[str, ...] = self.__match_args__
        for name in names:
            value = held[name]
            parts.append(_stable(value))
            if isinstance(value, Node):
                kids.append(value)
            elif isinstance(value, tuple):
                kids += [v for v in value if isinstance(v, Node)]
        held["children"] = tuple(kids)
        held["digest"] = hashlib.blake2b("\x1f".join(parts).encode(), digest_size=10).hexdigest()
        self.check()

    def check(self) -> None:
        """Check the type law of the node; raise `IRError` with one sentence where it is broken."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.digest[:8]}>"

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        return self


def _stable(value: object) -> str:
    if isinstance(value, Node):
        return value.digest
    if isinstance(value, tuple):
        return "(" + ",".join(_stable(v) for v in value) + ")"
    return repr(value)


N = TypeVar("N", bound=Node)


def postorder(*roots: N) -> Iterator[N]:
    """Every node below the roots once, children before parents, without recursion."""
    seen: set[N] = set()
    stack: list[Any] = [*reversed(roots)]
    path: list[N] = []  # each None on the stack ends the children of the last of these
    while stack:
        node = stack.pop()
        if node is None:
            yield path.pop()
        elif node not in seen:
            seen.add(node)
            if node.children:
                path.append(node)
                stack.append(None)
                stack += node.children[::-1]
            else:
                yield node
