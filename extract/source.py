"""A program's e-graph as extraction reads it: what was written, how each class is stored, and how it can be computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from egraph.graph import EGraph, ENode
from extract.rewrite import Substitution, rebuilt, with_children
from ir import term as T
from ir.dtype import DType
from ir.loop import Buffer, Store, contiguous
from ir.node import IRError, postorder
from ir.term import Term


class ExtractError(IRError):
    """A graph or a program that extraction cannot cover; the message is one sentence."""


def buffer_of(c: int) -> str:
    """The name of the buffer that holds a class while kernels are chosen; no program can use it."""
    return f"%{c}"


def class_read(buffer: str) -> int:
    """The class that a buffer holds; -1 for a buffer of the program."""
    return int(buffer[1:]) if buffer[0] == "%" else -1


class Source:
    """The graph with its program's reading: readers of each class as written, results, storage orders, streams."""

    def __init__(self, graph: EGraph) -> None:
        self.graph = graph
        self.substitute = Substitution(graph.program.axes)
        self.results = tuple(
            replace(s, index=tuple(_resolved(t, self.substitute) for t in s.index)) for s in graph.program.results
        )
        self._innermost = _innermost_bytes(graph)
        self._order = {a: k for k, a in enumerate(graph.program.axes)}
        self._streams: dict[int, list[str]] = defaultdict(list)
        for c, axis in sorted(graph.streams):
            if (axis, c) in graph.new:
                self._streams[c].append(axis)
        self._copies: dict[int, tuple[str, tuple[str, ...]]] = {}
        self._first_copy = len(graph.classes) + max(graph.classes) + 1
        self._axes: dict[int, tuple[str, ...]] = {}
        self._read()

    def _read(self) -> None:
        """Distinct readers of each class in the program as written, and its nodes."""
        readers: dict[int, set[int]] = defaultdict(set)
        self.terms: dict[int, Term] = {}
        self.written: set[tuple[int, str, tuple[int, ...]]] = set()
        for t in postorder(*(s.value for s in self.graph.program.results)):
            c = self.graph.class_of[t]
            self.terms.setdefault(c, t)
            kids = tuple(self.graph.class_of[k] for k in t.terms)
            self.written.add((c, str(getattr(t, "op", "")), kids))
            for k in kids:
                readers[k].add(c)
        self.fan = {c: max(1, len(r)) for c, r in readers.items()}

    def values_of(self, c: int) -> list[Term]:
        """The written terms that a kernel which makes the class stands for: its results, or its first term."""
        results = (s.value for s in self.graph.program.results if self.graph.class_of[s.value] == c)
        return list(dict.fromkeys(results)) or [self.terms[c]]

    # ---- how a class is stored

    def axes(self, c: int) -> tuple[str, ...]:
        """The free axes of a class in storage order: the program's, but the axis most often contiguous last."""
        if c in self._copies:
            return self._copies[c][1]
        if c not in self._axes:
            axes = sorted(self.graph.free[c], key=lambda a: self._order[a])
            if axes:
                last = max(axes, key=lambda a: (self._innermost.get(a, 0), self._order[a]))
                axes.remove(last)
                axes.append(last)
            self._axes[c] = tuple(axes)
        return self._axes[c]

    def dtype(self, c: int) -> DType:
        """The dtype in which the class is stored."""
        return self._copies[c][0] if c in self._copies else self.graph.dtype[c]

    def copy(self, c: int, axes: Mapping[str, str]) -> int:
        """A new class like `c` over other axes: the same value in an equal region that is not solved again."""
        new = self._first_copy + len(self._copies)
        self._copies[new] = self.dtype(c), tuple(axes.get(a, a) for a in self.axes(c))
        return new

    def store_axes(self, c: int) -> tuple[str, ...]:
        """The axes over which a kernel that makes the class runs: those of its first result, or its own."""
        store = next((s for r, s in zip(self.graph.roots, self.results, strict=True) if r == c), None)
        return self.axes(c) if store is None else self.axes_of(store)

    def axes_of(self, store: Store) -> tuple[str, ...]:
        """The axes of a store in the order of its index."""
        order = [a for t in store.index for a in sorted(t.free, key=self._order.__getitem__)]
        order += sorted(store.axes - set(order), key=self._order.__getitem__)
        return tuple(dict.fromkeys(order))

    def stores(self, c: int, value: Term) -> tuple[Store, ...]:
        """What a kernel that makes the class stores: its results, or its scratch buffer."""
        mine = [s for r, s in zip(self.graph.roots, self.results, strict=True) if r == c]
        first = [replace(s, value=value) for s in mine if s.axes == mine[0].axes]
        return tuple(first) or (Store(buffer_of(c), self.load(c).index, value),)

    def scratch(self, c: int) -> Buffer:
        """The buffer in which the class is materialised."""
        shape = tuple(self.graph.program.axes[a] for a in self.axes(c))
        return Buffer(buffer_of(c), self.dtype(c), shape, contiguous(shape), role="scratch")

    def load(self, c: int) -> T.Load:
        """The class read back from its buffer."""
        return T.Load(buffer_of(c), self.dtype(c), tuple(T.Index(a) for a in self.axes(c)))

    # ---- how a class is computed

    def nodes(self, c: int) -> Iterator[ENode]:
        """The nodes that compute a class from other classes (a prefix value of an earlier step is a state)."""
        if c in self.graph.carried:
            return iter(())
        return (n for n in self.graph.classes[c] if n.op != "Prefix" or n.payload[0] == "old")

    def below(self, c: int) -> set[int]:
        """Classes from which the class is computed, the updates of its streams among them."""
        steps = {self.graph.new[a, c] for a in self.swept_by(c)}
        return steps.union(*(n.children for n in self.nodes(c)))

    def swept_by(self, c: int) -> list[str]:
        """Axes over which the class can be carried as a state of a stream."""
        return [*self._streams.get(c, ())]


def _resolved(index: Term, substitute: Substitution) -> Term:
    """An index of a store with explicit substitutions carried out."""

    def leaf(t: Term, kids: Sequence[Term]) -> Term:
        if not isinstance(t, T.At):
            return with_children(t, kids)
        done = substitute(kids[1], t.axis, kids[0])
        if done is None:
            raise ExtractError(f"a store's index holds a scan along {t.axis} at another position")
        return done

    return rebuilt([index], leaf)[0]


def _innermost_bytes(graph: EGraph) -> dict[str, int]:
    """Per axis, the bytes of all buffers in which it is the contiguous one."""
    out: dict[str, int] = defaultdict(int)
    buffers = {b.name: b for b in graph.program.buffers}
    places = [(t.buffer, t.index) for t in graph.class_of if isinstance(t, T.Load)]
    places += [(s.buffer, s.index) for s in graph.program.results]
    for name, index in sorted(set(places), key=lambda p: (p[0], [t.digest for t in p[1]])):
        for stride, t in zip(buffers[name].strides, index, strict=True):
            if stride == 1 and isinstance(t, T.Index):
                out[t.axis] += buffers[name].bytes
    return dict(out)
