"""Regions and kernels that are equal but for names: each is spelled without them, and what one gives serves the others."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from extract.key import Name, names_of, payload, unordered
from extract.regions import Cut, below
from extract.rewrite import Names
from extract.source import Source, buffer_of, class_read
from ir import term as T
from ir.loop import Buffer, KernelForm
from ir.node import postorder
from ir.term import Term

Made = tuple[tuple[int, Term], ...]
Kernel = tuple[Made, ...]
Text = tuple[Hashable, ...]
Head = tuple[Hashable, Sequence[Name], Sequence[Term]]
"""What is stored: a label, its buffer and axes, and terms."""


@dataclass(frozen=True)
class Spelling:
    """Stored terms without names: equal texts are equal terms, whose axes and buffers go with each other in order."""

    text: Text
    axes: tuple[str, ...]
    buffers: tuple[str, ...]


class Speller:
    """Spells terms over given axes and buffers. A shape is the number of all terms that differ by names alone."""

    def __init__(self, axes: Mapping[str, int], buffers: Iterable[Buffer], roles: bool) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._names: dict[Name, int] = {("axis", a): self._number(("axis", n)) for a, n in axes.items()}
        for b in buffers:
            self.add(b, b.role if roles else "")

    def add(self, b: Buffer, role: str = "") -> None:
        """Tell of another buffer."""
        kind = "buffer", b.dtype, b.shape, b.strides, b.offset, b.alignment, role
        self._names["buffer", b.name] = self._number(kind)

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

    def spelled(self, heads: Iterable[Head], nodes: Mapping[Term, Term]) -> Spelling:
        """The terms of the heads; `nodes` has all terms below them, children first, each with what stands in its place."""
        shape: dict[Term, int] = {}
        kids: dict[Term, Sequence[Term]] = {}
        held: dict[Term, Sequence[Name]] = {}
        for t, node in nodes.items():
            kids[t] = below = sorted(node.terms, key=shape.__getitem__) if unordered(node) else node.terms
            held[t] = names_of(node)
            own = [self._kind(n) for n in held[t]]
            own = sorted(own) if own and _is_set(node) else own
            shape[t] = self._number((type(node), payload(node), *own, *[shape[k] for k in below]))
        ordered = sorted(heads, key=lambda h: [shape[t] for t in h[2]])
        text, names = self._walked(ordered, nodes, kids, shape, held)
        axes, buffers = (tuple(n for kind, n in names if kind == wanted) for wanted in ("axis", "buffer"))
        return Spelling(text, axes, buffers)

    def _walked(
        self,
        heads: Iterable[Head],
        nodes: Mapping[Term, Term],
        kids: Mapping[Term, Sequence[Term]],
        shape: Mapping[Term, int],
        held: Mapping[Term, Sequence[Name]],
    ) -> tuple[Text, list[Name]]:
        """A walk that shapes direct, each term once, with names numbered by first use; and the names in order."""
        numbers: dict[Name, int] = {}
        text: list[Hashable] = []
        seen: dict[Term, int] = {}

        def numbered(names: Iterable[Name]) -> list[int]:
            return [numbers.setdefault(n, len(numbers)) for n in names]

        def uses(root: Term) -> list[int]:
            """The names below a term by the numbers that they have so far, which tells shapes apart that are equal."""
            found, stack, done = list[int](), [root], {root}
            while stack:
                t = stack.pop()
                found += sorted(numbers.get(n, len(nodes)) for n in held[t])
                stack += [k for k in kids[t] if k not in done]
                done.update(kids[t])
            return found

        for label, names, terms in heads:
            text.append((label, *numbered(names)))
            stack: list[tuple[Term, bool]] = [(t, False) for t in reversed(terms)]
            while stack:
                t, done = stack.pop()
                node = nodes[t]
                if done:
                    text.append(tuple(sorted(numbered(sorted(held[t], key=self._kind)))))
                elif t in seen:
                    text.append(seen[t])
                else:
                    seen[t] = len(seen)
                    if _is_set(node):  # numbered by the uses in the body
                        stack.append((t, True))
                    text.append((shape[t], *numbered(() if _is_set(node) else held[t])))
                    below = kids[t]
                    if unordered(node) and len({shape[k] for k in below}) < len(below):
                        below = sorted(below, key=lambda k: (shape[k], uses(k)))
                    stack.extend((k, False) for k in reversed(below))
        return tuple(text), list(numbers)

    def _kind(self, name: Name) -> int:
        return self._names.get(name, -1)

    def region(self, source: Source, cut: Cut) -> Spelling:
        """A region as written, from the classes that are given to its roots.

        Whether a value is an input of the program or of the region alone makes no difference.
        """
        roots = [source.terms[c] for c in sorted(cut.roots)]
        given = {source.terms[c]: c for c in cut.given}
        order = below(roots, given)
        loads = {t: source.load(given[t]) for t in order if t in given}
        for c in (*cut.roots, *(given[t] for t in loads)):
            self.add(source.scratch(c))
        heads: list[Head] = []
        for c, t in zip(sorted(cut.roots), roots, strict=True):
            heads.append(("", [("buffer", buffer_of(c)), *(("axis", a) for a in source.axes(c))], [t]))
        indices = {i: i for load in loads.values() for i in load.terms}
        return self.spelled(heads, indices | {t: loads.get(t, t) for t in order})

    def kernel(self, kernel: KernelForm) -> Spelling:
        """A kernel over the axes and buffers."""
        return self._stores(_heads(0, kernel))

    def kernels(self, kernels: Iterable[KernelForm]) -> Spelling:
        """Kernels that share buffers, in whatever order they come."""
        ordered = sorted(kernels, key=lambda k: repr(self.kernel(k).text))
        return self._stores([h for n, k in enumerate(ordered) for h in _heads(n, k)])

    def _stores(self, heads: Sequence[Head]) -> Spelling:
        return self.spelled(heads, {t: t for t in postorder(*(t for h in heads for t in h[2]))})


def _heads(number: int, kernel: KernelForm) -> list[Head]:
    out: list[Head] = []
    for k, p in enumerate(kernel.parts):
        for s in p.stores:
            names: list[Name] = [("buffer", s.buffer), *(("axis", a) for a in p.axes)]
            out.append(((number, k, s.monoid), names, [*s.index, s.value]))
    return out


def _is_set(t: Term) -> bool:
    """Whether the names in the node have no order."""
    return isinstance(t, T.Fold | T.State)


class Copy:
    """Carries the kernels of a solved region over to one with an equal spelling."""

    def __init__(self, source: Source, solved: Spelling, other: Spelling) -> None:
        self.source = source
        self.axes = dict(zip(solved.axes, other.axes, strict=True))
        self.buffers = dict(zip(solved.buffers, other.buffers, strict=True))
        self.classes = {
            class_read(old): class_read(new) for old, new in self.buffers.items() if class_read(old) >= 0
        }

    def kernels(self, kernels: Iterable[Kernel]) -> list[Kernel]:
        """The kernels over the other region's axes and buffers; values kept between them get buffers of their own."""
        kernels = list(kernels)
        for c in (c for kernel in kernels for part in kernel for c, _ in part):
            if c not in self.classes:
                self.classes[c] = self.source.copy(c, self.axes)
                self.buffers[buffer_of(c)] = buffer_of(self.classes[c])
        names = Names(self.axes, self.buffers)
        made = [(c, t) for kernel in kernels for part in kernel for c, t in part]
        terms = iter(names.terms([t for _, t in made]))
        return [
            tuple(tuple((self.classes[c], next(terms)) for c, _ in part) for part in kernel) for kernel in kernels
        ]
