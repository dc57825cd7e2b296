"""What one part of a kernel computes: operations and loads per subterm and loop, counted once where a loop shares them.

Work is grouped by `missing`, the free axes of the part that a subterm lacks: every tile along them repeats it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from extract.facts import levels, masks, open_states, product, streams, swept
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
FREE_OPS = ("neg", "abs")  # modifiers of the instruction that reads them


@dataclass(frozen=True)
class Contraction:
    """A sum of products over `over`; `points` counts its multiplications."""

    a: Term
    b: Term
    over: Axes
    points: int
    tensor: bool


class PartWork:
    """Operations, loads, loops and the main contraction of terms that share the free axes `axes`."""

    def __init__(
        self, outs: Iterable[Term], axes: Axes, extents: Mapping[str, int], safe: Callable[[Term], bool]
    ) -> None:
        self.outs, self.axes, self.extents, self.safe = tuple(outs), axes, extents, safe
        self.counts: dict[Axes, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.loads: dict[T.Load, list[tuple[Axes, Context]]] = defaultdict(list)
        self.contractions: list[Contraction] = []
        self.flops = 0
        self.sweeps: dict[str, int] = {}
        self._points: dict[Axes, int] = {}
        for t in self.outs:
            for axis, n in levels(t).items():
                self.sweeps[axis] = max(self.sweeps.get(axis, 0), n)
        self._streams()
        self._kept = self._kept_shares()
        self._walk()

    def points(self, axes: Axes) -> int:
        """Number of positions along the axes; an empty axis counts as one position."""
        if axes not in self._points:
            self._points[axes] = math.prod(max(1, self.extents[a]) for a in axes)
        return self._points[axes]

    @property
    def main(self) -> Contraction | None:
        """The contraction that decides the tile: it spans most free axes, then most points."""
        spans = [(len((c.a.free | c.b.free) & self.axes), c.points, -k) for k, c in enumerate(self.contractions)]
        return self.contractions[-max(spans)[2]] if spans else None

    def _streams(self) -> None:
        self.updates: dict[str, set[Term]] = defaultdict(set)
        self.axis_of: dict[str, str] = {}
        for t in frozenset[T.Stream]().union(*map(streams, self.outs)):
            for c in t.carries:
                self.axis_of[c.name] = t.axis
                self.updates[t.axis].add(c.update)
        self.states = len(self.axis_of)

    def _kept_shares(self) -> dict[str, float]:
        """Per folded axis, the share of blocks in which a predicate over coordinates keeps anything."""
        kept: dict[str, float] = {}
        for p in frozenset[Term]().union(*map(masks, self.outs)):
            if len(p.free) == 2 and not p.free <= self.axes:
                share = kept_share(p, tuple((a, max(1, self.extents[a])) for a in sorted(p.free)))
                for axis in p.free - self.axes:
                    kept[axis] = min(kept.get(axis, 1.0), share)
        return kept

    # ---- counting

    def _walk(self) -> None:
        seen: set[tuple[Term, Context]] = set()
        stack: list[tuple[Term, Context]] = [(t, frozenset()) for t in self.outs]
        while stack:
            t, outer = stack.pop()
            context = frozenset(c for c in outer if c[0] in t.free)
            if (t, context) in seen:
                continue
            seen.add((t, context))
            bound = frozenset(a for a, _ in context)
            missing = self.axes - (t.free - bound)
            if isinstance(t, T.Load):
                self.loads[t].append((missing, context))
            kept = math.prod(self._kept.get(a, 1.0) for a in bound | set(swept(t)))
            inner = context
            if swept(t) and not (isinstance(t, T.Scan) and t.axis in self.axes):
                inner = frozenset(c for c in context if c[0] not in swept(t))
                inner |= {(a, levels(t)[a]) for a in swept(t)}
            stack.extend((k, inner) for k in self._count(t, missing, kept))

    def _count(self, t: Term, missing: Axes, kept: float) -> tuple[Term, ...]:
        """Add the node's own work; returns the children that are still to be counted."""
        factors = product(t)
        if factors is not None:
            a, b, over = factors
            points = self.points(t.free | over)
            tensor = a.dtype == b.dtype and a.dtype in TENSOR_TYPES and points >= TENSOR_POINTS
            self.contractions.append(Contraction(a, b, over, points, tensor))
            self._add(missing, "tensor" if tensor else "scalar", (2 if tensor else 1) * points, kept, t.dtype)
            self.flops += 2 * points
            rest = () if over else tuple(k for k in t.terms if open_states(k) and not _is_product(k, a, b))
            return (a, b, *rest)
        unit, n, flops = self._own(t)
        if n or flops:
            count = self._times(t)
            self._add(missing, unit, n * count, kept, t.dtype)
            self.flops += flops * math.ceil(count)
        return t.terms

    def _own(self, t: Term) -> tuple[str, float, int]:
        """Unit, instructions and floating-point operations of the node at one point."""
        match t:
            case T.Unary(op, x) if op in SPECIAL:
                price = UNSAFE if op in EXPONENTIALS and not self.safe(x) else 1
                return "special", SPECIAL[op] * price, 1
            case T.Unary(op, _):
                return "scalar", 0 if op in FREE_OPS else 1, int(op not in FREE_OPS and is_float(t.dtype))
            case T.Binary(op, x, _):
                return "scalar", 1, int(is_float(x.dtype) and op in BINARY)
            case T.Select(_, _, _) | T.Round(_, _, _):
                return "scalar", 1, 0
            case T.Fold(_, _, _) | T.Scan(_, _, _):
                return "scalar", 1, int(is_float(t.terms[0].dtype))
        return "scalar", 0, 0

    def _times(self, t: Term) -> float:
        """How often the node is computed: once a point, and once a step where it depends on states alone."""
        if isinstance(t, T.Fold):
            return self.points(t.x.free | frozenset(t.axes))
        times: float = self.points(t.free)
        for axis in {self.axis_of[s] for s in open_states(t) if s in self.axis_of}:
            if axis not in t.free:
                times *= -(-max(1, self.extents[axis]) // STEP)
            elif t not in self.updates[axis] and self._once_a_step(t, axis):
                times /= min(STEP, max(1, self.extents[axis]))
        return times

    def _once_a_step(self, t: Term, axis: str) -> bool:
        if axis not in t.free or t in self.updates[axis]:
            return True
        return bool(t.terms) and all(self._once_a_step(k, axis) for k in t.terms)

    def _add(self, missing: Axes, unit: str, n: float, kept: float, dtype: str) -> None:
        self.counts[missing][unit] += n * kept * (2 if dtype == "f64" else 1)


def _is_product(t: Term, a: Term, b: Term) -> bool:
    return isinstance(t, T.Binary) and t.op == "mul" and t.x is a and t.y is b


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
