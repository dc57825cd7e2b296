"""What one part of a kernel computes: operations and loads per subterm and loop, counted once where a loop shares them.

Work is counted by the free axes of the part that a subterm lacks: every tile along them repeats it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from extract.facts import folds, levels, masks, open_states, product, streams, swept
from ir import term as T
from ir.dtype import DTYPES, Array, is_float
from ir.node import postorder
from ir.ops import BINARY, UNARY
from ir.term import Term

Axes = frozenset[str]
Context = frozenset[tuple[str, int]]
STEP = 64  # positions of a streamed axis that a tile handles between two updates of the states
UNSAFE = 1e4  # an exponential that may overflow where its quotient does not: never worth its price
TENSOR_TYPES = ("f16", "bf16")
TENSOR_POINTS = 4096  # a smaller product is not worth a tensor core's tile
SPECIAL: Mapping[str, int] = {
    "exp": 1, "exp2": 1, "log": 1, "log2": 1, "rsqrt": 1, "sqrt": 1, "tanh": 1, "sin": 1, "cos": 1,
    "recip": 2, "sigmoid": 2, "expm1": 4, "log1p": 4, "erf": 4, "tan": 4, "asin": 4, "acos": 4, "atan": 4,
    "sinh": 4, "cosh": 4,
}  # fmt: skip
EXPONENTIALS = ("exp", "exp2", "expm1", "sinh", "cosh")
NO_LOOPS: Context = frozenset()
FREE_OPS = ("neg", "abs")  # modifiers of the instruction that reads them


@dataclass(frozen=True)
class Contraction:
    """A sum of products over `over`; `points` counts its multiplications."""

    a: Term
    b: Term
    over: Axes
    points: int
    tensor: bool


Group = tuple[Axes, str, Axes]
"""Work that goes together: the axes that it varies over, its unit, and the axes whose skipped blocks it is spared in."""
Place = tuple[Term, Context, tuple[T.Stream, ...]]
"""A term in the loops around it, and those streams around it whose states it reads."""


class Item(NamedTuple):
    """The own work of a term at a place: operations of its group, and what is fetched or multiplied there."""

    own: Axes
    context: Context
    group: Group
    n: float
    flops: int
    load: T.Load | None = None
    contraction: Contraction | None = None
    exponent: Term | None = None


class Footprint(NamedTuple):
    """All work below a term, each item once: `items` has a bit for every one, `sums` their operations by group."""

    items: int
    sums: Mapping[Group, float]
    flops: int


NOTHING = Footprint(0, {}, 0)


class _Points(dict[Axes, int]):
    def __init__(self, extents: Mapping[str, int]) -> None:
        self.extents = extents

    def __missing__(self, axes: Axes) -> int:
        self[axes] = math.prod(max(1, self.extents[a]) for a in axes)
        return self[axes]


class Works:
    """Footprints of terms over axes with these extents. What a term takes is what its children take and its own work."""

    def __init__(self, extents: Mapping[str, int]) -> None:
        self.extents = extents
        self.items: list[Item] = []
        self._number: dict[tuple[Term, Context], int] = {}
        self._known: dict[Place, Footprint] = {}
        self.points: Callable[[Axes], int] = _Points(extents).__getitem__
        """Number of positions along axes; an empty axis counts as one position."""
        self.noted = 0
        """A bit for every item that is more than operations: loads, contractions, exponentials."""
        self.exponents = 0
        """A bit for every exponential."""
        self._kept: dict[Term, float] = {}

    def of(self, roots: Iterable[Term]) -> Footprint:
        """The work of terms that one kernel computes."""
        return self._joined([self._at((t, NO_LOOPS, ())) for t in roots])

    def unsafe(self, found: Footprint, safe: Callable[[Term], bool]) -> frozenset[Term]:
        """The arguments of exponentials in the work that may leave their range."""
        exponents = (self.items[k].exponent for k in bits(found.items & self.exponents))
        return frozenset(x for x in exponents if x is not None and not safe(x))

    def kept_share(self, p: Term) -> float:
        """The share of blocks along the axes of a predicate in which it holds somewhere."""
        if p not in self._kept:
            self._kept[p] = kept_share(p, tuple((a, max(1, self.extents[a])) for a in sorted(p.free)))
        return self._kept[p]

    def _at(self, root: Place) -> Footprint:
        stack = [] if root in self._known else [(root, self._below(root))]
        while stack:
            place, below = stack[-1]
            waiting = [k for k in below if k not in self._known]
            if waiting:
                stack += [(k, self._below(k)) for k in waiting]
                continue
            stack.pop()
            if place not in self._known:
                number = self._item(place)
                own = self.items[number]
                alone = Footprint(1 << number, {own.group: own.n} if own.n else {}, own.flops)
                self._known[place] = self._joined([*(self._known[k] for k in below), alone])
        return self._known[root]

    def _joined(self, parts: Sequence[Footprint]) -> Footprint:
        """Footprints together; what several have counts once."""
        if len(parts) == 1:
            return parts[0]
        first, *rest = sorted(parts, key=lambda f: -len(f.sums)) or [NOTHING]
        have, sums, flops = first.items, dict(first.sums), first.flops
        for f in rest:
            new = f.items & ~have
            have |= new
            whole = new == f.items
            flops += f.flops if whole else sum(self.items[k].flops for k in bits(new))
            for group, n in (
                f.sums.items() if whole else ((i.group, i.n) for i in map(self.items.__getitem__, bits(new)))
            ):
                sums[group] = sums.get(group, 0.0) + n
        return Footprint(have, sums, flops)

    def _below(self, place: Place) -> list[Place]:
        """Where the children are whose work is not the term's own."""
        t, context, around = place
        if swept(t) and not (isinstance(t, T.Scan) and all(a != t.axis for a, _ in context)):
            context = frozenset(c for c in context if c[0] not in swept(t)) | {(a, levels(t)[a]) for a in swept(t)}
        if isinstance(t, T.Stream):
            around = *around, t
        factors = product(t)
        kids: tuple[Term, ...] = t.terms
        if factors is not None:
            a, b, over = factors
            rest = () if over else (k for k in t.terms if open_states(k) and not _is_product(k, a, b))
            kids = a, b, *rest
        return [self._place(k, context, around) for k in kids]

    def _place(self, t: Term, context: Context, around: tuple[T.Stream, ...]) -> Place:
        if context:
            context = frozenset(c for c in context if c[0] in t.free)
        if around:
            around = tuple(s for s in around if any(c.name in open_states(t) for c in s.carries))
        return t, context, around

    def _item(self, place: Place) -> int:
        """The number of the own work of a term; one that stands in two streams alike is one."""
        t, context, around = place
        if (t, context) not in self._number:
            self._number[t, context] = len(self.items)
            item = self._own(t, context, around)
            if item.load or item.contraction or item.exponent:
                self.noted |= 1 << len(self.items)
            if item.exponent:
                self.exponents |= 1 << len(self.items)
            self.items.append(item)
        return self._number[t, context]

    def _own(self, t: Term, context: Context, around: tuple[T.Stream, ...]) -> Item:
        bound = frozenset(a for a, _ in context)
        own, spared = t.free - bound, bound | frozenset(swept(t))
        twice = 2 if t.dtype == "f64" else 1
        factors = product(t)
        if factors is not None:
            a, b, over = factors
            points = self.points(t.free | over)
            tensor = a.dtype == b.dtype and a.dtype in TENSOR_TYPES and points >= TENSOR_POINTS
            group = own, "tensor" if tensor else "scalar", spared
            work = (2.0 if tensor else 1.0) * points * twice
            return Item(own, context, group, work, 2 * points, contraction=Contraction(a, b, over, points, tensor))
        unit, n, flops = operations(t)
        count = self._times(t, around) if n or flops else 0.0
        work = n * count * twice
        exponent = t.x if isinstance(t, T.Unary) and t.op in EXPONENTIALS else None
        load = t if isinstance(t, T.Load) else None
        return Item(own, context, (own, unit, spared), work, flops * math.ceil(count), load, exponent=exponent)

    def _times(self, t: Term, around: Sequence[T.Stream]) -> float:
        """How often the node is computed: once a point, and once a step where it depends on states alone."""
        if isinstance(t, T.Fold):
            return self.points(t.x.free | frozenset(t.axes))
        times: float = self.points(t.free)
        for axis in sorted({s.axis for s in around}):
            updates = {c.update for s in around if s.axis == axis for c in s.carries}
            if axis not in t.free:
                times *= -(-max(1, self.extents[axis]) // STEP)
            elif t not in updates and _once_a_step(t, axis, updates):
                times = times / min(STEP, max(1, self.extents[axis]))
        return times


def bits(number: int) -> Iterator[int]:
    """The places of the bits that are set."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def _once_a_step(root: Term, axis: str, updates: Collection[Term]) -> bool:
    """Whether a term over the axis varies along it only through updates of states."""
    stack, seen = [root], {root}
    while stack:
        t = stack.pop()
        if axis in t.free and t not in updates:
            if not t.terms:
                return False
            stack += [k for k in t.terms if k not in seen]
            seen.update(t.terms)
    return True


def _is_product(t: Term, a: Term, b: Term) -> bool:
    return isinstance(t, T.Binary) and t.op == "mul" and t.x is a and t.y is b


def operations(t: Term) -> tuple[str, float, int]:
    """Unit, instructions and floating-point operations of the node at one point."""
    match t:
        case T.Unary(op, _) if op in SPECIAL:
            return "special", SPECIAL[op], 1
        case T.Unary(op, _):
            return "scalar", 0 if op in FREE_OPS else 1, int(op not in FREE_OPS and is_float(t.dtype))
        case T.Binary(op, x, _):
            return "scalar", 1, int(is_float(x.dtype) and op in BINARY)
        case T.Select(_, _, _) | T.Round(_, _, _):
            return "scalar", 1, 0
        case T.Fold(_, _, _) | T.Scan(_, _, _):
            return "scalar", 1, int(is_float(t.terms[0].dtype))
    return "scalar", 0, 0


class PartWork:
    """Operations, loads, loops and the main contraction of terms that share the free axes `axes`."""

    def __init__(
        self, outs: Sequence[Term], axes: Axes, works: Works, found: Footprint, unsafe: Collection[Term]
    ) -> None:
        self.axes, self.points = axes, works.points
        noted = [works.items[k] for k in bits(found.items & works.noted)]
        self.flops = found.flops
        self.contractions = [i.contraction for i in noted if i.contraction is not None]
        self.states = len({c.name for t in outs for s in streams(t) for c in s.carries})
        self.sweeps, self.folds = _most([levels(t) for t in outs]), _most([folds(t) for t in outs])
        self.loads: dict[T.Load, list[tuple[Axes, Context]]] = defaultdict(list)
        self.counts: dict[Axes, dict[str, float]] = {}
        kept = _kept_shares(outs, axes, works)
        dear = ((i.group, i.n * (UNSAFE - 1)) for i in noted if i.exponent in unsafe) if unsafe else ()
        for (own, unit, spared), n in (*found.sums.items(), *dear):
            work = n * math.prod([kept[a] for a in sorted(spared & kept.keys())]) if kept else n
            units = self.counts.setdefault(axes - own, {})
            units[unit] = units.get(unit, 0.0) + work
        for i in noted:
            if i.load is not None:
                self.loads[i.load].append((axes - i.own, i.context))

    @property
    def sides(self) -> tuple[Axes, Axes] | None:
        """The free axes of either operand of the contraction that decides the tile, more positions first.

        It spans most free axes, then most points. What buffers are called decides nothing.
        """

        def weight(c: Contraction) -> tuple[int, int, tuple[tuple[int, list[str]], ...]]:
            a, b = c.a.free & self.axes, c.b.free & self.axes
            return (
                len(a | b),
                c.points,
                tuple(sorted(((self.points(s), sorted(s)) for s in (a - b, b - a)), reverse=True)),
            )

        if not self.contractions:
            return None
        rows, columns = max(map(weight, self.contractions))[2]
        return frozenset(rows[1]), frozenset(columns[1])


def _most(counts: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """The largest number of every axis."""
    if len(counts) == 1:
        return counts[0]
    out: dict[str, int] = {}
    for found in counts:
        out.update({axis: max(n, out.get(axis, 0)) for axis, n in found.items()})
    return out


def _kept_shares(outs: Iterable[Term], axes: Axes, works: Works) -> dict[str, float]:
    """Per folded axis, the share of blocks in which a predicate over coordinates keeps anything."""
    kept: dict[str, float] = {}
    for p in frozenset[Term]().union(*map(masks, outs)):
        if len(p.free) == 2 and not p.free <= axes:
            share = works.kept_share(p)
            for axis in p.free - axes:
                kept[axis] = min(kept.get(axis, 1.0), share)
    return kept


@lru_cache(maxsize=1024)
def kept_share(p: Term, extents: tuple[tuple[str, int], ...], samples: int = 32) -> float:
    """The share of blocks of STEP positions in which a predicate over coordinates holds somewhere; 1 where unknown."""
    sizes = dict(extents)
    grid = np.meshgrid(*[np.linspace(0, n - 1, samples).astype(np.int64) for n in sizes.values()], indexing="ij")
    known: dict[Term, Array] = {T.Index(a): g for a, g in zip(sizes, grid, strict=True)}
    for t in postorder(p):
        if t in known:
            continue
        args = [known[k] for k in t.terms]
        match t:
            case T.Const(_, _):
                known[t] = np.asarray(t.value)
            case T.Unary(op, _):
                known[t] = UNARY[op].meaning(*args)
            case T.Binary(op, _, _):
                known[t] = BINARY[op].meaning(*args)
            case _:
                return 1.0
    margin = max(STEP / n for n in sizes.values())
    return float(min(1.0, np.broadcast_to(known[p], grid[0].shape).mean() + margin))


def bytes_of(dtype: str) -> int:
    """Bytes of one element."""
    return DTYPES[dtype].bytes
