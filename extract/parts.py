"""Parts of kernels with their terms changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from extract.rewrite import rebuilt, with_children
from ir import term as T
from ir.loop import KernelForm, Part
from ir.term import Term


def with_terms(part: Part, leaf: Callable[[Term, Sequence[Term]], Term]) -> Part:
    """The part with `leaf(node, new children)` in place of each node of its terms."""
    terms = rebuilt([t for s in part.stores for t in (s.value, *s.index)], leaf)
    stores = []
    for s in part.stores:
        value, *index = (terms.pop(0) for _ in range(1 + len(s.index)))
        stores.append(replace(s, value=value, index=tuple(index)))
    return replace(part, stores=tuple(stores))


def counted(kernel: KernelForm, axes: Mapping[str, int]) -> KernelForm:
    """The kernel with numbers in place of extents, so that none is of an axis that a part lacks."""

    def leaf(t: Term, kids: Sequence[Term]) -> Term:
        return T.number(axes[t.axis]) if isinstance(t, T.Extent) else with_children(t, kids)

    return replace(kernel, parts=tuple(with_terms(p, leaf) for p in kernel.parts))
