"""Chosen kernels become a form: stores of results, scratch buffers, order, and copies where a store must wait.

A result is stored by the kernel that makes its value, unless that would overwrite an input which is still read, or
two stores to one buffer would meet out of order: then the value goes through a scratch buffer and a last kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import networkx as nx

from extract.candidates import Made
from extract.facts import buffers_read, streams, swept
from extract.rewrite import Names, rebuilt
from extract.source import ExtractError, Source, buffer_of, class_read
from extract.streams import merged
from ir import term as T
from ir.loop import Form, KernelForm, Part, Store
from ir.node import postorder
from ir.term import Term

Kernel = tuple[Made, ...]


@dataclass
class _Node:
    """A kernel to be: its values, and the numbers of the results that it stores."""

    parts: Kernel
    results: list[int]


class Assembly:
    """One form from kernels given as parts of (class, term); a term reads class c in its buffer."""

    def __init__(self, source: Source, extents: Mapping[str, int], kernels: Sequence[Kernel]) -> None:
        self.source, self.graph, self.extents = source, source.graph, extents
        self.program = source.graph.program
        self.nodes = [_Node(k, []) for k in kernels]
        self.maker = {c: i for i, k in enumerate(kernels) for p in k for c, _ in p}
        self.inputs = {b.name for b in self.program.buffers if b.role == "input"}
        self.order = nx.DiGraph()
        self.order.add_nodes_from(range(len(kernels)))
        for i, k in enumerate(kernels):
            for name in self._read(k):
                if class_read(name) in self.maker:
                    self.order.add_edge(self.maker[class_read(name)], i)
        for result in range(len(source.results)):
            self._place(result)

    # ---- where each result is stored

    def _place(self, k: int) -> None:
        store, c = self.source.results[k], self.graph.roots[k]
        if any(store.buffer in buffers_read(t) for t in store.index):
            raise ExtractError(f"the store to {store.buffer} reads its own index from {store.buffer}")
        maker = self.maker[c]
        alike = frozenset(self.source.store_axes(c)) == store.axes
        if alike and self._harmless(maker, store) and self._try(maker, k):
            return
        copy = len(self.nodes)
        self.nodes.append(_Node((((c, self.source.load(c)),),), []))
        self.order.add_edge(maker, copy)
        if not self._try(copy, k):
            raise ExtractError(f"the stores to {store.buffer} wait on each other")

    def _try(self, node: int, k: int) -> bool:
        """Let `node` store result k after all that must come before; False where that is a circle."""
        edges = list(self._before(node, k))
        if (node, node) in edges:
            return False
        new = [e for e in edges if not self.order.has_edge(*e)]
        self.order.add_edges_from(new)
        if not nx.is_directed_acyclic_graph(self.order):
            self.order.remove_edges_from(new)
            return False
        self.nodes[node].results.append(k)
        return True

    def _before(self, node: int, k: int) -> Iterable[tuple[int, int]]:
        store = self.source.results[k]
        for i, other in enumerate(self.nodes):
            if store.buffer in self.inputs and i != node and store.buffer in self._read_by(other):
                yield i, node
            for j in other.results:
                earlier = self.source.results[j]
                if earlier.buffer in self.inputs and i != node and earlier.buffer in self._reads_of(node, k):
                    yield node, i
                if earlier.buffer == store.buffer:
                    together = i == node and earlier.monoid is None and store.monoid is None
                    if not together:
                        yield i, node

    def _reads_of(self, node: int, k: int) -> set[str]:
        index = self.source.results[k].index
        return self._read_by(self.nodes[node]).union(*map(buffers_read, index))

    def _read_by(self, node: _Node) -> set[str]:
        index = [t for k in node.results for t in self.source.results[k].index]
        return self._read(node.parts).union(*map(buffers_read, index))

    def _read(self, kernel: Kernel) -> set[str]:
        return set[str]().union(*(buffers_read(t) for p in kernel for _, t in p))

    def _harmless(self, node: int, store: Store) -> bool:
        """Whether the kernel may overwrite an input: it reads no element of it but the one it is about to write."""
        if store.buffer not in self.inputs or store.buffer not in self._read(self.nodes[node].parts):
            return True
        parts = self.nodes[node].parts
        if len(parts) > 1:
            return False
        return all(_reads_only(t, store.buffer, store.index) for _, t in parts[0])

    # ---- the form

    def form(self, name: str) -> Form:
        """The form, kernels in order and numbered."""
        order = list(nx.lexicographical_topological_sort(self.order))
        read = {c for n in self.nodes for b in self._read(n.parts) if (c := class_read(b)) in self.maker}
        moved = self._moved(read)
        scratch = sorted(read - moved.keys(), key=lambda c: (order.index(self.maker[c]), c))
        taken = {b.name for b in self.program.buffers}
        free = (n for n in (f"t{k}" for k in range(len(scratch) + len(taken))) if n not in taken)
        names = {buffer_of(c): n for c, n in zip(scratch, free, strict=False)}
        kernels = []
        for number, i in enumerate(order):
            made = [self._part(self.nodes[i], p, scratch, moved) for p in self.nodes[i].parts]
            parts = [p for p in made if p.stores]
            kernels.append(KernelForm(f"k{number}", _renamed(merged(parts), names)))
        kept = [replace(self.source.scratch(c), name=names[buffer_of(c)]) for c in scratch]
        used = {a for k in kernels for a in _axes_of(k)}
        axes = {a: n for a, n in self.extents.items() if a in used or a in self.program.axes}
        return Form(name, axes, (*self.program.buffers, *kept), tuple(kernels))

    def _moved(self, read: set[int]) -> dict[int, Store]:
        """Classes that others read from the output buffer in which they are stored anyway."""
        out: dict[int, Store] = {}
        users = [s.buffer for s in self.source.results]
        for c in sorted(read):
            for k in self.nodes[self.maker[c]].results:
                store = self.source.results[k]
                alone = users.count(store.buffer) == 1 and store.buffer not in self.inputs
                whole = store.axes == frozenset(self.source.axes(c)) and store.monoid is None
                alike = self.program.buffer(store.buffer).dtype == self.source.dtype(c)
                if self.graph.roots[k] == c and alone and whole and alike:
                    out.setdefault(c, store)
        return out

    def _part(self, node: _Node, made: Made, scratch: Sequence[int], moved: Mapping[int, Store]) -> Part:
        stores = []
        axes: tuple[str, ...] = ()
        for c, t in made:
            copied = t is self.source.load(c)
            value = self._reading(t, moved)
            if c in scratch and not copied:
                stores.append(Store(buffer_of(c), self.source.load(c).index, value))
            for k in node.results:
                if self.graph.roots[k] == c:
                    s = self.source.results[k]
                    stores.append(Store(s.buffer, s.index, value, s.monoid))
                    axes = axes or (self.source.axes_of(s) if copied else ())
            axes = axes or self.source.store_axes(c)
        return Part(axes, tuple(stores))

    def _reading(self, t: Term, moved: Mapping[int, Store]) -> Term:
        """`t` with loads of values that stand in an output buffer turned to that buffer."""
        if not moved:
            return t

        def leaf(node: Term, kids: Sequence[Term]) -> Term:
            if isinstance(node, T.Load) and class_read(node.buffer) in moved:
                c = class_read(node.buffer)
                at = dict(zip(self.source.axes(c), kids, strict=True))
                return T.Load(moved[c].buffer, node.type, tuple(_at(i, at) for i in moved[c].index))
            return SAME.node(node, kids)

        return rebuilt([t], leaf)[0]


SAME = Names()


def _at(index: Term, at: Mapping[str, Term]) -> Term:
    def leaf(t: Term, kids: Sequence[Term]) -> Term:
        return at[t.axis] if isinstance(t, T.Index) else SAME.node(t, kids)

    return rebuilt([index], leaf)[0]


def _reads_only(root: Term, buffer: str, index: tuple[Term, ...]) -> bool:
    """Whether every load of `buffer` in `root` has this very index, over axes that no loop inside binds."""
    seen: set[tuple[Term, frozenset[str]]] = set()
    stack: list[tuple[Term, frozenset[str]]] = [(root, frozenset())]
    while stack:
        t, bound = stack.pop()
        if (t, bound) in seen or buffer not in buffers_read(t):
            continue
        seen.add((t, bound))
        if isinstance(t, T.Load) and t.buffer == buffer and (t.index != index or t.free & bound):
            return False
        stack.extend((k, bound | set(swept(t))) for k in t.terms)
    return True


def _axes_of(kernel: KernelForm) -> set[str]:
    out: set[str] = set()
    for t in postorder(*(t for s in kernel.stores for t in (*s.index, s.value))):
        out.update(swept(t))
        if isinstance(t, T.Index | T.Extent):
            out.add(t.axis)
    return out


def _renamed(parts: Sequence[Part], buffers: Mapping[str, str]) -> tuple[Part, ...]:
    """Scratch buffers by their names in the form, states numbered within the kernel."""
    stores = [s for p in parts for s in p.stores]
    values = [s.value for s in stores if streams(s.value)]
    states = dict.fromkeys(t.name for t in postorder(*values) if isinstance(t, T.Carry))
    names = Names(buffers=buffers, states={s: f"s{k}" for k, s in enumerate(states)})
    terms = iter(names.terms([t for s in stores for t in (s.value, *s.index)]))
    out = []
    for p in parts:
        new = [(s, next(terms), tuple(next(terms) for _ in s.index)) for s in p.stores]
        out.append(Part(p.axes, tuple(Store(buffers.get(s.buffer, s.buffer), i, v, s.monoid) for s, v, i in new)))
    return tuple(out)
