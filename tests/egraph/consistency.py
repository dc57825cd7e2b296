"""Every node of every class, evaluated over the classes' values: a law that is wrong anywhere makes two of them differ.

A class is evaluated in a context: for some axes, the step at which the axis stands (-1 below a fold that binds it) and
the length to which folds over it are cut. A prefix node evaluates its operand at every step. The value of a class
comes from its smallest term.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from egraph.graph import EGraph, ENode
from ir import meaning
from ir.dtype import Array, value_of
from ir.ops import BINARY, MONOIDS, UNARY

UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
Context = tuple[tuple[str, int, int], ...]


class Values:
    """Values of classes as float64 arrays with one dimension per axis (1 where the class does not depend on it)."""

    def __init__(self, graph: EGraph, buffers: Mapping[str, Array]) -> None:
        self.graph, self.buffers = graph, buffers
        self.axes = sorted(graph.program.axes)
        self.extents = [graph.program.axes[a] for a in self.axes]
        self.memo: dict[tuple[int, Context], Array] = {}
        self.written = {
            c: next(n for n in nodes if all(k < c for k in n.children)) for c, nodes in graph.classes.items()
        }

    def of(self, c: int, context: Context = ()) -> Array:
        used = self.graph.free[c] | self.graph.folded[c]
        context = tuple(x for x in context if x[0] in used)
        key = c, context
        if key not in self.memo:
            self.memo[key] = self.node(self.written[c], context)
        return self.memo[key]

    def node(self, n: ENode, context: Context) -> Array:
        """A node over the values of its children's classes."""
        at = {axis: (step, length) for axis, step, length in context}
        match n.op, n.payload:
            case "Const", (str(dtype), int(bits)):
                return self._scalar(value_of(dtype, bits))
            case "Identity", (monoid,):
                return self._scalar(meaning.identity(str(monoid), "f64"))
            case "Index", (axis,):
                return self._scalar(at[axis][0]) if at.get(axis, (-1,))[0] >= 0 else self._line(str(axis))
            case "Extent", (axis,):
                return self._scalar(at[axis][1] if axis in at else self.graph.program.axes[str(axis)])
            case "Load", (buffer, _):
                index = np.broadcast_arrays(*(self.of(k, context).astype(int) for k in n.children), self._scalar(0))
                held = np.asarray(self.buffers[str(buffer)], dtype=np.float64)
                return held[tuple(np.clip(i, 0, e - 1) for i, e in zip(index, held.shape, strict=False))]
            case "Unary", (op,):
                return np.asarray(UNARY[str(op)].meaning(self.of(n.children[0], context)), dtype=np.float64)
            case "Binary", (op,):
                x, y = (self.of(k, context) for k in n.children)
                if BINARY[str(op)].result == "logic":
                    x, y = x.astype(int), y.astype(int)
                return np.asarray(BINARY[str(op)].meaning(x, y), dtype=np.float64)
            case "Select", _:
                p, x, y = (self.of(k, context) for k in n.children)
                return np.where(p != 0, x, y)
            case "Round", (dtype, _):
                x = self.of(n.children[0], context)
                return np.trunc(x) if str(dtype)[0] in "iu" else x
            case "Fold", (*axes, monoid):
                return self._fold(n.children[0], [str(a) for a in axes], str(monoid), context)
            case "Scan", (axis, monoid):
                if any(a == axis for a, *_ in context):
                    raise AssertionError("a scan is not cut to a prefix here")
                k = self.axes.index(str(axis))
                x = self.of(n.children[0], context)
                x = np.broadcast_to(x, [e if d != k else self.extents[k] for d, e in enumerate(x.shape)])
                return np.asarray(UFUNCS[MONOIDS[str(monoid)].combine].accumulate(x, axis=k))
            case "At", (axis,):
                return self._at(str(axis), n, context)
            case "Prefix", (which, axis):
                return self._prefix(str(which), str(axis), n.children[0], context)
        raise AssertionError(f"no value for {n}")

    def _scalar(self, value: float) -> Array:
        return np.full([1] * len(self.axes), float(value))

    def _line(self, axis: str) -> Array:
        shape = [1] * len(self.axes)
        shape[self.axes.index(axis)] = -1
        return np.arange(self.graph.program.axes[axis], dtype=np.float64).reshape(shape)

    def _fold(self, body: int, axes: list[str], monoid: str, context: Context) -> Array:
        x = self.of(body, tuple((a, -1 if a in axes else step, length) for a, step, length in context))
        cut = {axis: length for axis, _, length in context}
        dims = tuple(self.axes.index(a) for a in axes)
        x = np.broadcast_to(x, [self.extents[k] if k in dims else e for k, e in enumerate(x.shape)])
        for a, k in zip(axes, dims, strict=True):
            x = np.take(x, range(cut.get(a, self.program_extent(a))), axis=k)
        start = meaning.identity(monoid, "f64")
        return np.asarray(UFUNCS[MONOIDS[monoid].combine].reduce(x, axis=dims, keepdims=True, initial=start))

    def program_extent(self, axis: str) -> int:
        return self.graph.program.axes[axis]

    def _at(self, axis: str, n: ENode, context: Context) -> Array:
        """What stands under At is whole: evaluated with nothing cut, then read at the index."""
        index = self.of(n.children[0], context).astype(int)
        x = self.of(n.children[1], ())
        for other, step, _ in context:
            if other != axis and step >= 0 and x.shape[self.axes.index(other)] > 1:
                x = np.take(x, [step], axis=self.axes.index(other))
        k = self.axes.index(axis)
        shape = np.broadcast_shapes([1 if d == k else e for d, e in enumerate(x.shape)], index.shape)
        x = np.broadcast_to(x, [x.shape[d] if d == k else e for d, e in enumerate(shape)])
        grid = list(np.meshgrid(*[np.arange(e) for e in shape], indexing="ij"))
        grid[k] = np.clip(np.broadcast_to(index, shape), 0, x.shape[k] - 1)
        return x[tuple(grid)]

    def _prefix(self, which: str, axis: str, c: int, context: Context) -> Array:
        """The operand cut at each step, or at the step of the context."""
        outer = tuple(x for x in context if x[0] != axis)
        steps = [s for a, s, _ in context if a == axis] or list(range(self.program_extent(axis)))
        if not steps:
            return np.take(self.of(c, outer), [], axis=self.axes.index(axis))
        out = []
        for t in steps:
            new = self.of(c, tuple(sorted((*outer, (axis, t, t + 1)))))
            old = self._state(c, axis, tuple(sorted((*outer, (axis, t, t)))))
            out.append({"new": new, "old": old, "ratio": new / old, "delta": new - old}[which])
        return np.concatenate(np.broadcast_arrays(*out), axis=self.axes.index(axis))

    def _state(self, c: int, axis: str, context: Context) -> Array:
        """A prefix before a step; a fold over the axis is a state, which starts at the monoid's identity."""
        folds = [n for n in self.graph.classes[c] if n.op == "Fold" and axis in n.payload[:-1]]
        return self.node(folds[0], context) if folds else self.of(c, context)


def disagreements(graph: EGraph, buffers: Mapping[str, Array], tolerance: float = 1e-9) -> Iterator[str]:
    """Nodes whose value is not that of their class, in full and, under each prefix, at each of its steps."""
    values = Values(graph, buffers)
    with np.errstate(all="ignore"):
        for c, nodes in graph.classes.items():
            axes = {j for (j, x) in graph.new if x == c}
            contexts: list[Context] = [(), *(((j, t, t + 1),) for j in axes for t in range(graph.program.axes[j]))]
            for n in nodes:
                for context in contexts:
                    want, got = np.broadcast_arrays(values.of(c, context), values.node(n, context))
                    scale = float(np.max(np.abs(np.where(np.isfinite(want), want, 0.0)), initial=1.0))
                    same = (
                        (want == got) | (np.abs(want - got) <= tolerance * scale) | (np.isnan(want) & np.isnan(got))
                    )
                    if not same.all():
                        yield f"class {c} at {context}: {n} gives {got[~same][:3]}, not {want[~same][:3]}"
                        break
