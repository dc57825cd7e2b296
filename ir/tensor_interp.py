"""Tensor IR in numpy: the meaning of a program, node by node, sharing no code with the lowering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ir import meaning
from ir import tensor as X
from ir import term as T
from ir.dtype import Array, value_of
from ir.node import IRError, postorder
from ir.tensor import extents

Callee = Callable[..., Sequence[Array]]


def run_tensor(
    program: X.TensorProgram,
    inputs: Mapping[str, Array],
    exact: bool = False,
    calls: Mapping[int, Callee] | None = None,
) -> dict[str, Array]:
    """Results by name, as logical arrays of values (bf16 as float32).

    Where `exact`, floats are float64 and conversions to float types keep every bit. `calls` maps the key of a `Call`
    to a function from its operands' arrays to the sequence of its results' arrays.
    """
    interpreter = _Interpreter(inputs, exact, calls or {})
    roots = [r.value for r in program.results]
    order = [t for t in postorder(*roots) if isinstance(t, X.Tensor)]
    uses = Counter(k for t in order for k in _reads(t))
    uses.update(roots)
    for t in order:
        interpreter.values[t] = interpreter.evaluate(t)
        for k in _reads(t):
            uses[k] -= 1
            if not uses[k]:
                interpreter.values.pop(k, None)
    return {r.name: interpreter.values[r.value].copy() for r in program.results}


def _operator(t: X.Map) -> tuple[str, tuple[X.Tensor, ...]]:
    """The operator and its operands, where a product with a reciprocal is a division and a sum with a negation likewise."""
    for whole, inverse, op in (("mul", "recip", "div"), ("add", "neg", "sub")):
        if t.op == whole:
            for x, y in (t.inputs, t.inputs[::-1]):
                if isinstance(y, X.Map) and y.op == inverse:
                    return op, (x, y.inputs[0])
    return t.op, t.inputs


def _reads(t: X.Tensor) -> tuple[X.Tensor, ...]:
    return (*t.tensors, *_operator(t)[1]) if isinstance(t, X.Map) else t.tensors


class _Interpreter:
    def __init__(self, inputs: Mapping[str, Array], exact: bool, calls: Mapping[int, Callee]) -> None:
        self.inputs, self.exact, self.calls = inputs, exact, calls
        self.values: dict[X.Tensor, Array] = {}
        self.results: dict[int, Sequence[Array]] = {}

    def evaluate(self, t: X.Tensor) -> Array:
        value = self.values
        match t:
            case X.Input(name):
                return self._input(t, name)
            case X.Full(type_, bits, shape):
                return np.full(extents(shape), value_of(type_, bits), dtype=meaning.held(type_, self.exact))
            case X.Iota(extent):
                return np.arange(*extents((extent,)), dtype=np.int64)
            case X.Map():
                return self._map(t)
            case X.Convert(type_, _, x):
                return meaning.convert(value[x], type_, self.exact)
            case X.Reduce(monoid, dims, x):
                return meaning.fold(monoid, value[x], dims, t.dtype, self.exact)
            case X.Scan(monoid, dim, x):
                return meaning.scan(monoid, value[x], dim, t.dtype, self.exact)
            case X.Contract(x, y, x_labels, y_labels, out_labels):
                number = {label: k for k, label in enumerate(dict.fromkeys((*x_labels, *y_labels)))}
                a, b, out = ([number[s] for s in labels] for labels in (x_labels, y_labels, out_labels))
                return meaning.sum_of_products(value[x], a, value[y], b, out, t.dtype, self.exact)
            case X.View():
                return self._view(t)
            case X.Scatter():
                return self._scatter(t)
            case X.Call():
                return self._call(t)
        raise IRError(f"{type(t).__name__} has no numpy meaning")

    def _input(self, t: X.Input, name: str) -> Array:
        if name not in self.inputs:
            raise IRError(f"no value is given for input {name}")
        given = np.asarray(self.inputs[name])
        if given.shape != extents(t.extents):
            raise IRError(f"input {name}: the value has shape {given.shape}, the program {t.extents}")
        return meaning.convert(given, t.type, self.exact)

    def _map(self, t: X.Map) -> Array:
        op, inputs = _operator(t)
        return meaning.compute(op, [self.values[x] for x in inputs], [x.dtype for x in inputs], t.dtype, self.exact)

    def _coordinates(self, shape: tuple[int, ...], sources: tuple[X.Tensor, ...]) -> Callable[[T.Term], Array]:
        rank = len(shape)

        def leaf(t: T.Term) -> Array:
            match t:
                case T.Index(axis):
                    k = int(axis[1:])
                    return np.arange(shape[k], dtype=np.int64).reshape([-1 if d == k else 1 for d in range(rank)])
                case T.Var(name):
                    return self.values[sources[int(name[1:])]]
            raise IRError(f"an index map holds {type(t).__name__}, neither a coordinate nor a source")

        return leaf

    def _view(self, t: X.View) -> Array:
        shape, x = extents(t.extents), self.values[t.x]
        leaf = self._coordinates(shape, t.sources)
        fill = np.asarray(value_of(t.dtype, t.fill), dtype=x.dtype)
        if x.size == 0 or 0 in shape:
            return np.full(shape, fill)
        index = [
            np.clip(meaning.pointwise(i, leaf, self.exact), 0, e - 1) for i, e in zip(t.index, x.shape, strict=True)
        ]
        out = np.broadcast_to(x[tuple(index)], shape)
        if t.valid is not None:
            out = np.where(meaning.pointwise(t.valid, leaf, self.exact), out, fill)
        return np.ascontiguousarray(out).reshape(shape)

    def _scatter(self, t: X.Scatter) -> Array:
        updates, base = self.values[t.updates], self.values[t.base]
        if updates.size == 0 or base.size == 0:
            return base.copy()
        leaf = self._coordinates(updates.shape, t.sources)
        index = [np.broadcast_to(meaning.pointwise(i, leaf, self.exact), updates.shape) for i in t.index]
        inside = np.ones(updates.shape, dtype=bool)
        for i, e in zip(index, base.shape, strict=True):
            inside &= (i >= 0) & (i < e)
        return meaning.scatter(
            t.monoid, base, tuple(i[inside] for i in index), updates[inside], t.dtype, self.exact
        )

    def _call(self, t: X.Call) -> Array:
        if t.key not in self.calls:
            raise IRError(f"no function is given for the call {t.target} with key {t.key}")
        if t.key not in self.results:
            self.results[t.key] = self.calls[t.key](*(self.values[x] for x in t.operands))
        return meaning.convert(np.asarray(self.results[t.key][t.result]), t.type, self.exact)
