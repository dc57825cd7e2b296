"""Roundings of eager operators that a kernel may leave out: where the value stays in registers and its range is safe."""

from __future__ import annotations

from dataclasses import replace

from extract.facts import product
from extract.rewrite import with_children
from ir import term as T
from ir.dtype import DTYPES
from ir.loop import Form, KernelForm, Part, Store
from ir.node import postorder
from ir.term import Term


def without_rounds(form: Form) -> Form:
    """The form with `kernel_without_rounds` of its kernels; `details` count the roundings left out."""
    kernels = tuple(map(kernel_without_rounds, form.kernels))
    dropped = sum(map(_rounds, form.kernels)) - sum(map(_rounds, kernels))
    return replace(form, kernels=kernels, details={**form.details, "dropped_rounds": dropped})


def _rounds(kernel: KernelForm) -> int:
    return sum(isinstance(t, T.Round) for t in postorder(*(s.value for s in kernel.stores)))


def kernel_without_rounds(kernel: KernelForm) -> KernelForm:
    """The kernel without the roundings between its operators; those of stores, of casts and of factors stay.

    A factor of a contraction stays narrow for the tensor cores, and a type of less range than its argument's (f16)
    stays for its overflow. What a stream carries is left as it is.
    """
    parts = []
    for p in kernel.parts:
        stores = tuple(Store(s.buffer, s.index, _dropped(s.value), s.monoid) for s in p.stores)
        parts.append(Part(p.axes, stores))
    return KernelForm(kernel.name, tuple(parts))


def _dropped(root: Term) -> Term:
    kept: set[Term] = {root}
    for t in postorder(root):
        factors = product(t)
        if factors is not None:
            kept.update(factors[:2])
        if isinstance(t, T.Stream):
            kept.update(postorder(t))
    new: dict[Term, Term] = {}
    for t in postorder(root):
        if isinstance(t, T.Round) and t not in kept and _harmless(t):
            new[t] = new[t.x]
        elif isinstance(t, T.Stream) or not t.terms:
            new[t] = t
        else:
            new[t] = with_children(t, [new[k] for k in t.terms])
    return new[root] if new[root].dtype == root.dtype else root


def _harmless(t: T.Round) -> bool:
    """Whether the rounding is an eager operator's, and keeps the range of a float of the same kind."""
    narrow, wide = DTYPES[t.type], DTYPES[t.x.dtype]
    return t.origin == "op" and narrow.kind == wide.kind == "float" and narrow.max_exponent == wide.max_exponent
