"""Regions that are equal but for names: each is spelled without names, and one's kernels are carried over to another."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from extract.key import Name, names_of, payload, unordered
from extract.regions import Cut, below
from extract.rewrite import Names
from extract.source import Source, buffer_of, class_read
from ir import term as T
from ir.loop import Buffer
from ir.term import Term

Made = tuple[tuple[int, Term], ...]
Kernel = tuple[Made, ...]


@dataclass(frozen=True)
class Spelling:
    """A region without names: equal texts are equal regions, whose axes and buffers go with each other in order."""

    text: tuple[Hashable, ...]
    axes: tuple[str, ...]
    buffers: tuple[str, ...]


class Speller:
    """Spells the regions of one program. A shape is the number of all terms that differ by names alone."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._numbers: dict[Hashable, int] = {}
        program = source.graph.program
        self._names: dict[Name, int] = {("axis", a): self._number(("axis", n)) for a, n in program.axes.items()}
        self._names |= {("buffer", b.name): self._stored(b) for b in program.buffers}

    def spelled(self, cut: Cut) -> Spelling:
        """The region as written, from the classes that are given to its roots.

        Whether a value is an input of the program or of the region alone makes no difference.
        """
        given = {self.source.terms[c]: c for c in cut.given}
        order = below([self.source.terms[c] for c in sorted(cut.roots)], given)
        loads = {t: self.source.load(given[t]) for t in order if t in given}
        for c in (*cut.roots, *(given[t] for t in loads)):
            self._names["buffer", buffer_of(c)] = self._stored(self.source.scratch(c))
        nodes = {i: i for load in loads.values() for i in load.terms} | {t: loads.get(t, t) for t in order}
        shape: dict[Term, int] = {}
        kids: dict[Term, Sequence[Term]] = {}
        for t, node in nodes.items():
            kids[t] = sorted(node.terms, key=shape.__getitem__) if unordered(node) else node.terms
            own = [self._names[n] for n in names_of(node)]
            own = sorted(own) if isinstance(node, T.Fold) else own
            shape[t] = self._number((type(node).__name__, payload(node), *own, *(shape[k] for k in kids[t])))
        text, names = _text(self.source, cut.roots, nodes, kids, shape)
        axes, buffers = (tuple(n for kind, n in names if kind == wanted) for wanted in ("axis", "buffer"))
        return Spelling(text, axes, buffers)

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

    def _stored(self, b: Buffer) -> int:
        return self._number(("buffer", b.dtype, b.shape, b.strides, b.offset, b.alignment))


def _text(
    source: Source,
    roots: Iterable[int],
    nodes: Mapping[Term, Term],
    kids: Mapping[Term, Sequence[Term]],
    shape: Mapping[Term, int],
) -> tuple[tuple[Hashable, ...], list[Name]]:
    """A walk that shapes direct, each term once, with names numbered by first use; and the names in order."""
    numbers: dict[Name, int] = {}
    text: list[Hashable] = []
    seen: dict[Term, int] = {}

    def numbered(names: Iterable[Name]) -> list[int]:
        return [numbers.setdefault(n, len(numbers)) for n in names]

    for c in sorted(roots, key=lambda c: (shape[source.terms[c]], c)):
        text.append(tuple(numbered([("buffer", buffer_of(c)), *(("axis", a) for a in source.axes(c))])))
        stack: list[tuple[Term, bool]] = [(source.terms[c], False)]
        while stack:
            t, done = stack.pop()
            node = nodes[t]
            if done:
                text.append(tuple(sorted(numbered(names_of(node)))))
            elif t in seen:
                text.append(seen[t])
            else:
                seen[t] = len(seen)
                if isinstance(node, T.Fold):  # its axes are a set: numbered by their uses in the body
                    stack.append((t, True))
                text.append((shape[t], *numbered(() if isinstance(node, T.Fold) else names_of(node))))
                stack.extend((k, False) for k in reversed(kids[t]))
    return tuple(text), list(numbers)


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
