"""A form that was chosen at large sizes, at those of a small program that differs from the large one by extents alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from extract.key import names_of, payload, unordered
from extract.parts import with_terms
from extract.rewrite import with_children
from ir import term as T
from ir.loop import Buffer, Form, KernelForm, LoopProgram, contiguous
from ir.node import IRError, postorder
from ir.term import Term

Number = tuple[str, int]


def shrunk(form: Form, large: LoopProgram, small: LoopProgram) -> Form:
    """The form of the large program with the extents and the constants of the small one.

    Raises `IRError` where the programs differ by more than that, or the form has a constant of its own that neither has.
    """
    numbers = constants(large, small)
    axes = {a: small.axes[_known(a, small.axes)] for a in form.axes}

    def leaf(t: Term, kids: Sequence[Term]) -> Term:
        if isinstance(t, T.Const):
            if (t.type, t.bits) not in numbers:
                raise IRError(f"the form has a {t.type} constant {t.value} that the program does not have")
            return T.Const(t.type, numbers[t.type, t.bits])
        return with_children(t, kids) if t.terms else t

    kernels = tuple(replace(k, parts=tuple(with_terms(p, leaf) for p in k.parts)) for k in form.kernels)
    own = {b.name: b for b in small.buffers}
    shapes = _shapes(kernels, axes)
    buffers = tuple(own.get(b.name) or _scratch(b, shapes[b.name]) for b in form.buffers)
    return replace(form, axes=axes, buffers=buffers, kernels=kernels)


def constants(large: LoopProgram, small: LoopProgram) -> Mapping[Number, int]:
    """For each constant of the large program, by type, its bits and the bits that the small one has in its place."""
    numbers: dict[Number, int] = {}
    for a, b in zip(_walk(large), _walk(small), strict=True):
        if type(a) is not type(b) or names_of(a) != names_of(b):
            raise IRError(f"the programs differ: {type(a).__name__} stands where {type(b).__name__} does")
        if isinstance(a, T.Const) and isinstance(b, T.Const):
            if numbers.setdefault((a.type, a.bits), b.bits) != b.bits:
                raise IRError(f"the constant {a.value} is {b.value} at one place and another number elsewhere")
        elif payload(a) != payload(b):
            raise IRError(f"the programs differ: {payload(a)} stands where {payload(b)} does")
    return numbers


def _walk(program: LoopProgram) -> list[Term]:
    """All terms of the results in an order that depends on names and shapes, not on constants."""
    order = list(postorder(*(t for s in program.results for t in (*s.index, s.value))))
    shape: dict[Term, str] = {}
    kids: dict[Term, Sequence[Term]] = {}
    for t in order:
        kids[t] = sorted(t.terms, key=shape.__getitem__) if unordered(t) else t.terms
        own = (
            type(t).__name__,
            () if isinstance(t, T.Const) else payload(t),
            names_of(t),
            [shape[k] for k in kids[t]],
        )
        shape[t] = hashlib.blake2b(repr(own).encode(), digest_size=10).hexdigest()
    out: list[Term] = []
    seen: set[Term] = set()
    stack = [t for s in reversed(program.results) for t in reversed((*s.index, s.value))]
    while stack:
        t = stack.pop()
        out.append(t)
        if t not in seen:
            seen.add(t)
            stack.extend(reversed(kids[t]))
    return out


def _known(axis: str, axes: Mapping[str, int]) -> str:
    """The axis of the program that an axis is, or that it was renamed from."""
    while axis not in axes:
        axis, _, number = axis.rpartition("_")
        if not number:
            raise IRError("a form has an axis that its program does not have")
    return axis


def _shapes(kernels: Sequence[KernelForm], axes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The extents over which each buffer is stored."""
    out: dict[str, tuple[int, ...]] = {}
    for s in (s for k in kernels for s in k.stores):
        if all(isinstance(t, T.Index) for t in s.index):
            out[s.buffer] = tuple(axes[t.axis] for t in s.index if isinstance(t, T.Index))
    return out


def _scratch(b: Buffer, shape: tuple[int, ...]) -> Buffer:
    return replace(b, shape=shape, strides=contiguous(shape))
