"""Axes of a tensor program: one name for each class of equal dimensions, split into factors where reshapes demand it.

Dimensions related by equality share their factors. Within one node's frame no two factors share a name; where a
consumer would force that, its operand keeps its own name and is renamed when it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ir import tensor as X
from ir import term as T
from ir.access import Access, accesses, coordinate
from ir.affine import affine, divided
from ir.bind import substitute
from ir.factors import Factors
from ir.ops import MONOIDS


@dataclass(frozen=True)
class Atom:
    """A factor of a dimension: the coordinate is the sum of atoms * stride. `number` identifies it in the program."""

    number: int
    stride: int
    extent: int


@dataclass(frozen=True)
class Read:
    """An operand as its consumer reads it: for each atom of the operand the number of a frame atom, or an index term.

    Such a term stands over `#n`, the coordinate of the frame atom with number n, until axes have names.
    """

    operand: X.Tensor
    atoms: tuple[Atom, ...]
    index: tuple[T.Term | int, ...]


class Axes:
    """The atoms of every node's frame, how each node reads its operands, and the names of the axes."""

    def __init__(self, order: Sequence[X.Tensor], leaves: Collection[X.Tensor]) -> None:
        self.extents: dict[str, int] = {}
        self._frames: dict[X.Tensor, tuple[tuple[Atom, ...], ...]] = {}
        self._sizes: list[int] = []
        self._parent: list[int] = []
        self._owners: list[set[int]] = []
        self._names: dict[int, str] = {}
        self._count = 0
        self._kept = False
        self.reads: dict[X.Tensor, tuple[Read, ...]] = {}
        uses = {t: () if t in leaves else accesses(t) for t in order}
        whole = {t: k for t in uses if (k := _undivided(t)) is not None and t not in leaves}
        factors = Factors(order, uses, whole)
        for node, t in enumerate(order):
            self._frames[t] = tuple(
                tuple(self._atom(node, stride, e) for stride, e in factors.of(dim)) for dim in factors.frames[t]
            )
        for t in order:
            self.reads[t] = tuple(self._read(t, a) for a in uses[t])
        self._name_alike(order, leaves)

    def dims(self, t: X.Tensor) -> tuple[tuple[Atom, ...], ...]:
        """The atoms of each of the tensor's dimensions, outermost first."""
        return self._frames[t][: len(t.shape)]

    def folded(self, t: X.Tensor) -> tuple[tuple[Atom, ...], ...]:
        """The atoms of each dimension that the node folds away."""
        return self._frames[t][len(t.shape) :]

    def name(self, atom: Atom) -> str:
        """The axis name of an atom, given at its first use."""
        return self._named(atom.number)

    def _named(self, number: int) -> str:
        root = self._find(number)
        if root not in self._names:
            self._names[root] = f"unused{len(self.extents)}" if self._kept else self._next()
            self.extents[self._names[root]] = self._sizes[root]
        return self._names[root]

    def _next(self) -> str:
        self._count += 1
        return f"a{self._count - 1}"

    def fresh(self, axis: str) -> str:
        """Another axis of the extent of `axis`."""
        name = self._next()
        self.extents[name] = self.extents[axis]
        return name

    def keep(self, names: Collection[str]) -> None:
        """Number anew, without gaps, the axes in `names`; no term will need another, save fresh ones."""
        self._kept, self._count = True, 0
        kept = [(root, self._next(), name) for root, name in self._names.items() if name in names]
        self._names = {root: new for root, new, _ in kept}
        self.extents = {new: self.extents[old] for _, new, old in kept}

    def coordinate(self, atoms: Sequence[Atom]) -> T.Term:
        """The coordinate of a dimension, over named axes."""
        return _total([(T.Index(self.name(a)), a.stride) for a in atoms])

    def coordinates(self, t: X.Tensor) -> dict[T.Term, T.Term]:
        """The coordinates o0, o1, ... of the node's frame, over named axes."""
        return {coordinate(k): self.coordinate(atoms) for k, atoms in enumerate(self._frames[t])}

    # ---- atoms and their names

    def _atom(self, node: int, stride: int, extent: int) -> Atom:
        atom = Atom(len(self._parent), stride, extent)
        self._parent.append(atom.number)
        self._owners.append({node})
        self._sizes.append(extent)
        return atom

    def _find(self, n: int) -> int:
        while self._parent[n] != n:
            self._parent[n] = self._parent[self._parent[n]]
            n = self._parent[n]
        return n

    def _name_alike(self, order: Sequence[X.Tensor], leaves: Collection[X.Tensor]) -> None:
        """Unite atoms that are read one for one: views last, so that renamings stand where elements move anyway.

        What depends on no input is written out for each reader, so two readers of a count are not related by it.
        """
        constant: set[X.Tensor] = set()
        for t in order:
            if t not in leaves and all(r.operand in constant for r in self.reads[t]):
                constant.add(t)
        for last in (False, True):
            for t in order:
                for k, read in enumerate(self.reads[t]):
                    if read.operand not in constant and last == (isinstance(t, X.View) and k == 0):
                        for atom, at in zip(read.atoms, read.index, strict=True):
                            if isinstance(at, int):
                                self._unite(at, atom.number)

    def _unite(self, a: int, b: int) -> None:
        """Give two atoms one name, unless some frame would then hold that name twice."""
        a, b = self._find(a), self._find(b)
        if a == b or not self._owners[a].isdisjoint(self._owners[b]):
            return
        if len(self._owners[a]) < len(self._owners[b]):
            a, b = b, a
        self._parent[b] = a
        self._owners[a] |= self._owners[b]
        self._owners[b] = set()

    # ---- reads

    def _read(self, t: X.Tensor, access: Access) -> Read:
        atoms: list[Atom] = []
        index: list[T.Term | int] = []
        for dim, i in zip(self.dims(access.operand), access.index, strict=True):
            for atom, at in zip(dim, self._split(t, i, dim), strict=True):
                atoms.append(atom)
                index.append(at)
        return Read(access.operand, tuple(atoms), tuple(index))

    def _split(self, t: X.Tensor, i: T.Term, dim: Sequence[Atom]) -> list[T.Term | int]:
        """The index term `i` over frame coordinates, for each atom of the dimension that it indexes."""
        if not dim:
            return []
        if isinstance(i, T.Index):
            own = self._frames[t][int(i.axis[1:])]
            if [(a.stride, a.extent) for a in own] == [(a.stride, a.extent) for a in dim]:
                return [a.number for a in own]
        atoms = [a for dims in self._frames[t] for a in dims]
        extents = {f"#{a.number}": a.extent for a in atoms}
        spelled: dict[T.Term, T.Term] = {
            coordinate(k): _total([(T.Index(f"#{a.number}"), a.stride) for a in dims])
            for k, dims in enumerate(self._frames[t])
            if f"o{k}" in i.free
        }
        whole = affine(substitute(i, spelled, extents), extents)
        parts: list[T.Term | int] = []
        for k, atom in enumerate(dim):
            part = divided("floordiv", whole, atom.stride, extents)
            term = (divided("mod", part, atom.extent, extents) if k and atom.extent else part).term()
            plain = isinstance(term, T.Index) and extents[term.axis] == atom.extent
            parts.append(int(term.axis[1:]) if plain and isinstance(term, T.Index) else term)
        return parts

    def index(self, t: X.Tensor, read: Read, sources: Mapping[T.Term, T.Term]) -> dict[str, T.Term]:
        """For each axis of the operand's own term, the index term over named axes at which `t` reads it."""
        out: dict[str, T.Term] = {}
        for atom, at in zip(read.atoms, read.index, strict=True):
            if isinstance(at, int):
                out[self.name(atom)] = T.Index(self._named(at))
            else:
                own = sorted(a for a in at.free if a.startswith("#"))
                named: dict[T.Term, T.Term] = {T.Index(a): T.Index(self._named(int(a[1:]))) for a in own}
                out[self.name(atom)] = substitute(at, {**named, **sources}, self.extents)
        return out


def _undivided(t: X.Tensor) -> int | None:
    """The frame dimension that must stay one axis: arg-folds and scans go along one."""
    match t:
        case X.Scan(_, dim, _):
            return dim
        case X.Reduce(monoid, _, _) if MONOIDS[monoid].pair:
            return len(t.shape)
    return None


def _total(parts: Sequence[tuple[T.Term, int]]) -> T.Term:
    out: T.Term = T.number(0)
    for t, stride in parts:
        out = T.binary("add", out, T.binary("mul", t, T.number(stride)))
    return out
