"""Factors of dimensions: which products of smaller extents every dimension is split into, so that reshapes are affine.

A dimension is cut at strides; its cuts divide each other in a chain. Equal dimensions are one class with one set of
cuts. A reshape says that one class is a segment of another; a reshape whose cuts would break a chain is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ir import term as T
from ir.access import Access, frame
from ir.tensor import Tensor


class _Conflict(Exception):
    """A cut that does not fit the chain of a class."""


@dataclass
class _Class:
    extent: int
    cuts: set[int] = field(default_factory=set)
    whole: bool = False
    outer: list[tuple[_Class, int]] = field(default_factory=list)
    """Classes of which this one is a segment that starts at the stride."""
    inner: list[tuple[_Class, int]] = field(default_factory=list)
    """Classes that are segments of this one."""


class Factors:
    """The classes of the dimensions of all frames; `whole` names the nodes whose folded or scanned dimension stays one."""

    def __init__(
        self, order: Sequence[Tensor], uses: Mapping[Tensor, Sequence[Access]], whole: Mapping[Tensor, int]
    ) -> None:
        self._parent: list[int] = []
        self._classes: list[_Class] = []
        self.frames: dict[Tensor, tuple[int, ...]] = {}
        for t in order:
            self.frames[t] = tuple(self._dimension(e) for e in frame(t))
        reshapes: list[tuple[Tensor, T.Term, int]] = []
        for t in order:
            for access in uses[t]:
                for i, dim in zip(access.index, self.frames[access.operand], strict=False):
                    own = self.frames[t][int(i.axis[1:])] if isinstance(i, T.Index) else -1
                    if own >= 0 and self._classes[own].extent == self._classes[dim].extent:
                        self._parent[self._find(own)] = self._find(dim)
                    else:
                        reshapes.append((t, i, dim))
        for t, k in whole.items():
            self._class(self.frames[t][k]).whole = True
        for t, i, dim in reshapes:
            self._reshape(self.frames[t], i, self._class(dim))

    def of(self, dim: int) -> tuple[tuple[int, int], ...]:
        """The (stride, extent) of each factor of a dimension, outermost first; none where the extent is 1."""
        c = self._class(dim)
        bounds = [c.extent, *sorted(c.cuts, reverse=True), 1]
        if c.extent in (0, 1):
            return () if c.extent else ((1, 0),)
        return tuple((low, high // low) for high, low in pairwise(bounds))

    def _dimension(self, extent: int) -> int:
        self._parent.append(len(self._parent))
        self._classes.append(_Class(extent))
        return len(self._parent) - 1

    def _find(self, n: int) -> int:
        while self._parent[n] != n:
            self._parent[n] = self._parent[self._parent[n]]
            n = self._parent[n]
        return n

    def _class(self, dim: int) -> _Class:
        return self._classes[self._find(dim)]

    # ---- reshapes

    def _reshape(self, dims: tuple[int, ...], i: T.Term, operand: _Class) -> None:
        """Cut classes so that the operand's dimension, read at `i`, is a product of factors of the frame."""
        found = _segment(i)
        if found is None or operand.extent < 2:
            return
        strides, start, length = found
        parts = sorted((s, k) for k, s in strides.items() if self._class(dims[k]).extent > 1)
        size = 1
        for s, k in parts:
            if s != size:
                return
            size *= self._class(dims[k]).extent
        if not size or (length or -(-size // start)) != operand.extent or size % (start * operand.extent):
            return
        flat = self._class(dims[parts[0][1]]) if len(parts) == 1 else _Class(size)
        segments = [(self._class(dims[k]), s) for s, k in parts] if len(parts) > 1 else []
        _link(flat, [*segments, (operand, start)])


def _link(flat: _Class, segments: Sequence[tuple[_Class, int]]) -> None:
    """State that each class is the segment of `flat` at its stride; take everything back where that cannot be."""
    journal: list[tuple[_Class, int]] = []
    for c, s in segments:
        flat.inner.append((c, s))
        c.outer.append((flat, s))
    try:
        for c, s in segments:
            _cut(flat, s, journal)
            _cut(flat, s * c.extent, journal)
            for cut in list(c.cuts):
                _cut(flat, s * cut, journal)
        for cut in list(flat.cuts):
            _spread(flat, cut, journal)
    except _Conflict:
        for c, cut in journal:
            c.cuts.discard(cut)
        for c, s in segments:
            flat.inner.remove((c, s))
            c.outer.remove((flat, s))


def _cut(c: _Class, cut: int, journal: list[tuple[_Class, int]]) -> None:
    """Cut a class, and all classes that share the factor."""
    work = [(c, cut)]
    while work:
        c, cut = work.pop()
        if cut in (1, c.extent) or cut in c.cuts:
            continue
        if c.whole or c.extent % cut or any(cut % other and other % cut for other in c.cuts):
            raise _Conflict
        c.cuts.add(cut)
        journal.append((c, cut))
        work.extend((outer, s * cut) for outer, s in c.outer)
        work.extend((inner, cut // s) for inner, s in c.inner if s < cut < s * inner.extent)


def _spread(flat: _Class, cut: int, journal: list[tuple[_Class, int]]) -> None:
    for inner, s in flat.inner:
        if s < cut < s * inner.extent:
            _cut(inner, cut // s, journal)


def _segment(i: T.Term) -> tuple[dict[int, int], int, int | None] | None:
    """`i` as (sum of coordinate * stride) // start % length: strides by coordinate, start, length or None."""
    match i:
        case T.Binary("floordiv", x, T.Const() as by) if (found := _segment(x)) is not None:
            strides, start, length = found
            n = int(by.value)
            if n < 1 or (length is not None and length % n):
                return None
            return strides, start * n, None if length is None else length // n
        case T.Binary("mod", x, T.Const() as by) if (found := _segment(x)) is not None:
            strides, start, length = found
            n = int(by.value)
            return None if n < 1 or (length is not None and length % n) else (strides, start, n)
        case T.Index(axis):
            return {int(axis[1:]): 1}, 1, None
        case T.Binary("mul", x, T.Const() as by) if (found := _segment(x)) is not None and found[1:] == (1, None):
            return {k: s * int(by.value) for k, s in found[0].items()}, 1, None
        case T.Binary("add", x, y):
            a, b = _segment(x), _segment(y)
            if a is None or b is None or a[1:] != (1, None) or b[1:] != (1, None) or a[0].keys() & b[0].keys():
                return None
            return {**a[0], **b[0]}, 1, None
    return None
