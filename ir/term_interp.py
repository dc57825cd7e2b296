"""Terms in numpy: every subterm is computed once, over its own free axes, for each step of the streams it stands in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ir import meaning
from ir import term as T
from ir.dtype import Array, DType
from ir.node import IRError, postorder


@dataclass
class Value:
    """An array with one dimension for each of `names`."""

    array: Array
    names: tuple[str, ...]


Axes = frozenset[str]
Need = tuple[T.Term, DType, Axes]
"""A term, the type in which it is wanted (its own, unless that is `any`), and the streamed axes that are whole there.

An axis of a stream is whole again below a fold, scan or substitution that binds it.
"""


@dataclass
class _Layer:
    """What is known for one step of a stream (or outside all): values of terms that depend on its axis or states."""

    names: Axes
    step: int = 0
    states: dict[str, Value] = field(default_factory=dict)
    memo: dict[Need, Value] = field(default_factory=dict)


class Evaluator:
    """Values of terms over their own free axes, each computed once; `roots` are all the terms that will be asked for."""

    def __init__(
        self,
        roots: Sequence[T.Term],
        axes: Mapping[str, int],
        buffers: Mapping[str, Array],
        exact: bool,
        values: Mapping[str, Array],
    ) -> None:
        self.axes, self.buffers, self.exact, self.values = axes, buffers, exact, values
        self.position = {a: k for k, a in enumerate(sorted(axes))}
        self.layers = [_Layer(frozenset())]
        self.open_states: dict[T.Term, Axes] = {}
        self.uses: Counter[T.Term] = Counter(roots)
        self.pinned: set[T.Term] = set()
        self.needs: dict[Need, list[Need]] = {}
        self.places: dict[tuple[Need, tuple[Axes, ...]], tuple[int, Need]] = {}
        self.ends: dict[tuple[str, tuple[T.Carry, ...], tuple[DType, ...]], dict[str, Value]] = {}
        for t in postorder(*roots):
            self._scan_node(t)

    def _scan_node(self, t: T.Term) -> None:
        states = frozenset[str]().union(*(self.open_states[k] for k in t.terms))
        match t:
            case T.State(name):
                states = frozenset((name,))
            case T.Stream(_, carries, _):
                states -= {c.name for c in carries}
                self.pinned.update(postorder(t))
        self.open_states[t] = states
        self.uses.update(need[0] for need in self._needs((t, t.dtype, frozenset())))

    def over(self, term: T.Term, order: tuple[str, ...], want: DType = "any") -> Array:
        """The value of `term` over the axes in `order`."""
        if not term.free <= set(order):
            raise IRError(f"the axes {', '.join(sorted(term.free))} of the term are not all in {order}")
        value = self.value((term, want if term.dtype == "any" else term.dtype, frozenset()))
        self._used(term)
        return np.broadcast_to(_aligned(value, order), [self.axes[a] for a in order]).copy()

    def value(self, goal: Need) -> Value:
        """The value of a term for the current step of the open streams."""
        stack = [goal]
        while stack:
            if self._known(stack[-1]) is None:
                needs = self._needs(stack[-1])
                operands = [self._known(n) for n in needs]
                missing = [n for n, v in zip(needs, operands, strict=True) if v is None]
                if missing:
                    stack.extend(missing)
                    continue
                layer, key = self._place(stack[-1])
                layer.memo[key] = self._compute(stack[-1], [v for v in operands if v is not None])
                for n in needs:
                    self._used(n[0])
            stack.pop()
        found = self._known(goal)
        assert found is not None
        return found

    # ---- what is known where

    def _place(self, need: Need) -> tuple[_Layer, Need]:
        """Where the value of a need is kept: at the innermost stream on whose step it depends."""
        term, dtype, whole = need
        if len(self.layers) == 1:
            return self.layers[0], (term, dtype, frozenset())
        key = need, tuple(layer.names for layer in self.layers)
        if key not in self.places:
            streamed = frozenset[str]().union(*key[1])
            bound = ((term.free - whole) & streamed) | self.open_states[term]
            inner = [n for n, x in enumerate(self.layers) if bound & (x.names | x.states.keys())]
            self.places[key] = max(inner, default=0), (term, dtype, bound)
        number, place = self.places[key]
        return self.layers[number], place

    def _known(self, need: Need) -> Value | None:
        layer, key = self._place(need)
        return layer.memo.get(key)

    def _used(self, term: T.Term) -> None:
        """Forget a value after its last use; values that streams use stay."""
        self.uses[term] -= 1
        if not self.uses[term] and term not in self.pinned:
            self.layers[0].memo.pop((term, term.dtype, frozenset()), None)

    # ---- what a node needs

    def _needs(self, need: Need) -> list[Need]:
        """The operands of a node."""
        if need not in self.needs:
            self.needs[need] = self._operands(need)
        return self.needs[need]

    def _operands(self, need: Need) -> list[Need]:
        term, dtype, whole = need

        def own(t: T.Term, want: DType, *bound: str) -> Need:
            return t, want if t.dtype == "any" else t.dtype, whole.union(bound)

        match term:
            case T.Stream() | T.Carry() | T.State() | T.Var() | T.Const() | T.Index() | T.Extent() | T.Identity():
                return []
            case T.Load(_, _, index):
                return [own(t, "i64") for t in index]
            case T.Fold(axes, "add", T.Binary("mul", x, y) as product) if meaning.operands(product)[0] == "mul":
                return [own(x, y.dtype, *axes), own(y, x.dtype, *axes)]
            case T.Fold(axes, _, x):
                return [own(x, dtype, *axes)]
            case T.Scan(axis, _, x):
                return [own(x, dtype, axis)]
            case T.At(axis, index, x):
                return [own(x, dtype, axis), own(index, "i64")]
            case T.Select(p, x, y):
                return [own(p, "bool"), own(x, dtype), own(y, dtype)]
            case T.Round(type_, _, x):
                return [own(x, type_)]
            case T.Unary() | T.Binary():
                _, terms = meaning.operands(term)
                typed = [t.dtype for t in terms if t.dtype != "any"]
                return [own(t, typed[0] if typed else dtype) for t in terms]
        raise IRError(f"{type(term).__name__} has no numpy meaning in a loop program")

    # ---- the meaning of a node

    def _compute(self, need: Need, args: list[Value]) -> Value:
        term, dtype, whole = need
        held = meaning.held(dtype, self.exact)
        match term:
            case T.Const():
                return Value(np.asarray(term.value, dtype=held), ())
            case T.Index(axis):
                return self._index(axis, whole)
            case T.Extent(axis):
                return Value(np.asarray(self.axes[axis], dtype=np.int64), ())
            case T.Identity(monoid):
                return Value(np.asarray(meaning.identity(monoid, dtype), dtype=held), ())
            case T.Var(name, _, axes):
                return self._var(name, axes, held, whole)
            case T.Load(buffer):
                return self._load(buffer, args, held)
            case T.State(name):
                return self._state(name, held)
            case T.Stream():
                return self._stream(term, dtype, whole)
            case T.Fold():
                return self._fold(term, args)
            case T.Scan():
                return self._scan(term, args[0], whole)
            case T.At(axis, _, _):
                return self._at(axis, args[0], args[1])
        op = meaning.operands(term)[0]
        names = self._union(args)
        arrays = [_aligned(v, names) for v in args]
        dtypes = [d for _, d, _ in self._needs(need)]
        return Value(meaning.compute(op, arrays, dtypes, dtype, self.exact), names)

    def _union(self, values: Sequence[Value]) -> tuple[str, ...]:
        return tuple(sorted({n for v in values for n in v.names}, key=self.position.__getitem__))

    def _line(self, axis: str) -> Value:
        if axis not in self.axes:
            raise IRError(f"axis {axis} has no extent")
        return Value(np.arange(self.axes[axis], dtype=np.int64), (axis,))

    def _step(self, axis: str, whole: Axes) -> int | None:
        if axis not in whole:
            for layer in reversed(self.layers):
                if axis in layer.names:
                    return layer.step
        return None

    def _index(self, axis: str, whole: Axes) -> Value:
        step = self._step(axis, whole)
        return self._line(axis) if step is None else Value(np.asarray(step, dtype=np.int64), ())

    def _taken(self, value: Value, whole: Axes) -> Value:
        """`value` at the current step of every streamed axis among its names."""
        array, names = value.array, list(value.names)
        for n in value.names:
            if (step := self._step(n, whole)) is not None:
                array = np.take(array, step, axis=names.index(n))
                names.remove(n)
        return Value(np.asarray(array), tuple(names))

    def _var(self, name: str, axes: tuple[str, ...], held: type[np.generic], whole: Axes) -> Value:
        if name not in self.values:
            raise IRError(f"no value is named {name}")
        names = tuple(sorted(axes, key=self.position.__getitem__))
        array = self.values[name].transpose([axes.index(n) for n in names]).astype(held)
        return self._taken(Value(array, names), whole)

    def _load(self, buffer: str, index: list[Value], held: type[np.generic]) -> Value:
        if buffer not in self.buffers:
            raise IRError(f"load of {buffer}: no such buffer is in sight")
        array, names = self.buffers[buffer], self._union(index)
        if len(index) != array.ndim:
            raise IRError(f"load {buffer}: {len(index)} index terms for {array.ndim} dimensions")
        if array.size == 0:
            return Value(np.zeros([self.axes[n] for n in names], dtype=held), names)
        where = tuple(np.clip(_aligned(i, names), 0, e - 1) for i, e in zip(index, array.shape, strict=True))
        return Value(np.asarray(array[where]).astype(held), names)

    def _broadcast(self, value: Value, axes: Sequence[str]) -> Value:
        """`value` with the dimensions `axes` present at their full extents."""
        names = tuple(sorted({*value.names, *axes}, key=self.position.__getitem__))
        return Value(np.broadcast_to(_aligned(value, names), [self.axes[n] for n in names]), names)

    def _fold(self, term: T.Fold, args: list[Value]) -> Value:
        if len(args) == 2:
            return self._contract(term, *args)
        value = self._broadcast(args[0], term.axes)
        places = tuple(value.names.index(a) for a in term.axes)
        out = meaning.fold(term.monoid, value.array, places, term.dtype, self.exact)
        return Value(out, tuple(n for n in value.names if n not in term.axes))

    def _contract(self, term: T.Fold, x: Value, y: Value) -> Value:
        names = self._union((x, y))
        absent = [a for a in term.axes if a not in names]
        if absent:
            x = self._broadcast(x, absent)
            names = self._union((x, y))
        number = {n: k for k, n in enumerate(names)}
        out = tuple(n for n in names if n not in term.axes)
        a, b, c = ([number[n] for n in labels] for labels in (x.names, y.names, out))
        return Value(meaning.sum_of_products(x.array, a, y.array, b, c, term.dtype, self.exact), out)

    def _scan(self, term: T.Scan, x: Value, whole: Axes) -> Value:
        value = self._broadcast(x, (term.axis,))
        place = value.names.index(term.axis)
        out = meaning.scan(term.monoid, value.array, place, term.dtype, self.exact)
        step = self._step(term.axis, whole)
        if step is None:
            return Value(out, value.names)
        return Value(np.take(out, step, axis=place), tuple(n for n in value.names if n != term.axis))

    def _at(self, axis: str, x: Value, index: Value) -> Value:
        if axis not in x.names:
            return x
        rest = Value(np.empty([1] * (len(x.names) - 1)), tuple(n for n in x.names if n != axis))
        names = self._union((rest, index))
        extent = self.axes[axis]
        if extent == 0:
            return Value(np.zeros([self.axes[n] for n in names], dtype=x.array.dtype), names)
        where = tuple(
            _aligned(Value(np.clip(index.array, 0, extent - 1), index.names) if n == axis else self._line(n), names)
            for n in x.names
        )
        return Value(x.array[where], names)

    def _state(self, name: str, held: type[np.generic]) -> Value:
        for layer in reversed(self.layers):
            if name in layer.states:
                v = layer.states[name]
                return Value(v.array.astype(held), v.names)
        raise IRError(f"state {name} is read outside its stream")

    def _stream(self, term: T.Stream, dtype: DType, whole: Axes) -> Value:
        wants = {c.name: dtype if c.dtype == "any" else c.dtype for c in term.carries}
        key = term.axis, term.carries, tuple(wants.values())
        if len(self.layers) == 1 and key in self.ends:  # another state of a sweep that is done
            return self.ends[key][term.result]
        states = {}
        for c in term.carries:
            start = meaning.identity(c.monoid, wants[c.name])
            states[c.name] = Value(np.asarray(start, dtype=meaning.held(wants[c.name], self.exact)), ())
        for step in range(self.axes[term.axis]):
            self.layers.append(_Layer(frozenset((term.axis,)), step, states))
            states = {c.name: self.value((c.update, wants[c.name], whole - {term.axis})) for c in term.carries}
            self.layers.pop()
        if len(self.layers) == 1:
            self.ends[key] = states
        return states[term.result]


def _aligned(value: Value, names: tuple[str, ...]) -> Array:
    """The array reshaped and transposed so that it broadcasts over `names`."""
    place = {n: k for k, n in enumerate(value.names)}
    if missing := place.keys() - set(names):
        raise IRError(f"axes {', '.join(sorted(missing))} are not among {names}")
    array = value.array.transpose([place[n] for n in names if n in place])
    return array.reshape([value.array.shape[place[n]] if n in place else 1 for n in names])
