"""Tensor IR to Loop IR: every tensor becomes a scalar term over the named axes of its dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ir import tensor as X
from ir import term as T
from ir.access import aligned, coordinate, positions
from ir.axes import Atom, Axes
from ir.bind import Binder, substitute
from ir.counts import with_counts
from ir.dtype import DTYPES
from ir.loop import Buffer, LoopProgram, Store, Whole, contiguous
from ir.meaning import identity
from ir.node import IRError, postorder
from ir.ops import BINARY, MONOIDS, UNARY
from ir.regions import Region, regions, tensors
from ir.steps import CallStep as CallStep
from ir.steps import Lowered as Lowered
from ir.tensor import extents


def lower(program: X.TensorProgram) -> Lowered:
    """The program as loop programs between its calls.

    Inputs keep the caller's strides and offset. Outputs have eager's strides, but contiguous ones where eager's make
    elements share memory (an expanded result). A value that crosses a step is a scratch buffer, contiguous.
    """
    buffers = {t.name: _input_buffer(t) for t in program.inputs}
    made: dict[X.Tensor, Buffer] = {t: buffers[t.name] for t in program.inputs}
    steps: list[LoopProgram | CallStep] = []
    parts = regions(program)
    for n, region in enumerate(parts):
        for x in region.crossing:
            made[x] = _scratch(x, buffers)
        if region.results or region.crossing:
            name = program.name if len(parts) == 1 else f"{program.name}_{n}"
            steps.append(_loop_program(name, region, made, buffers))
        steps.extend(_calls(region.calls, made, buffers))
    return Lowered(tuple(steps), tuple(buffers.values()), program.notes)


def one_call(program: X.TensorProgram) -> Lowered:
    """A program whose results are one call's, of any extents, as that call on the inputs."""
    calls = [r.value for r in program.results if isinstance(r.value, X.Call)]
    results = tuple((k, r.name) for k, r in enumerate(program.results))
    arguments = calls[0].arguments if calls else ""
    step = CallStep(program.name, arguments, 0, tuple(x.name for x in program.inputs), results)
    return Lowered((step,), tuple(map(_input_buffer, program.inputs)), program.notes)


# ---- buffers


def _input_buffer(t: X.Input) -> Buffer:
    (offset,) = extents((t.offset,))
    alignment = math.gcd(16, offset * DTYPES[t.type].bytes)
    return Buffer(t.name, t.type, extents(t.extents), extents(t.strides), offset, alignment=alignment)


def _scratch(x: X.Tensor, buffers: dict[str, Buffer]) -> Buffer:
    shape = extents(x.shape)
    name = next(n for k in range(len(buffers) + 1) if (n := f"s{k}") not in buffers)
    strides = _apart(shape, extents(x.strides)) if isinstance(x, X.Call) else contiguous(shape)
    buffers[name] = Buffer(name, x.dtype, shape, strides, role="scratch")
    return buffers[name]


def _output(r: X.Result, buffers: dict[str, Buffer]) -> Buffer:
    if r.writes is not None:
        if r.writes not in buffers:
            raise IRError(f"result {r.name} writes {r.writes}, which is not an input")
        return buffers[r.writes]
    shape = extents(r.value.shape)
    buffers[r.name] = Buffer(r.name, r.value.dtype, shape, _apart(shape, extents(r.strides)), role="output")
    return buffers[r.name]


def _apart(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides where they nest, so that no two elements share memory, else contiguous ones."""
    reach = 1
    for stride, e in sorted((s, e) for s, e in zip(strides, shape, strict=True) if e > 1):
        if stride < reach:
            return contiguous(shape)
        reach = stride * (e - 1) + reach
    return strides


# ---- steps


def _calls(calls: Sequence[X.Call], made: dict[X.Tensor, Buffer], buffers: dict[str, Buffer]) -> list[CallStep]:
    steps = []
    for key in dict.fromkeys(c.key for c in calls):
        same = [c for c in calls if c.key == key]
        operands = tuple(made[x].name for x in same[0].operands)
        for c in same:
            made[c] = _scratch(c, buffers)
        results = tuple((c.result, made[c].name) for c in same)
        steps.append(CallStep(same[0].target, same[0].arguments, key, operands, results))
    return steps


def _loop_program(
    name: str, region: Region, made: Mapping[X.Tensor, Buffer], buffers: dict[str, Buffer]
) -> LoopProgram:
    """One region; scratch made here is its output, scratch of earlier steps its input."""
    leaves = {x: b for x, b in made.items() if x not in region.crossing}
    roots = [(r.value, _output(r, buffers)) for r in region.results] + [(x, made[x]) for x in region.crossing]
    order = tensors([x for x, _ in roots], leaves)
    axes = Axes(order, leaves)
    axes.keep(_used(_stores(_terms(axes, leaves, order, roots), roots), axes.extents))
    terms = _terms(axes, leaves, order, roots)
    stores = _stores(terms, roots)
    named = list(postorder(*(t for s in stores for t in (*s.index, s.value))))
    written = {b.name for _, b in roots}
    read = {t.buffer for t in named if isinstance(t, T.Load)}
    own = (
        Buffer(b.name, b.dtype, b.shape, b.strides, b.offset, _role(b, written), b.alignment)
        for b in buffers.values()
        if b.name in written | read
    )
    return LoopProgram(name, _used(stores, axes.extents), tuple(own), stores, _wholes(terms, order, set(named)))


def _wholes(terms: _Terms, order: Sequence[X.Tensor], kept: set[T.Term]) -> tuple[Whole, ...]:
    """The tensors whose terms, and whose operands' terms, stand in the program."""
    out = []
    for n, t in enumerate(order):
        operands = tuple(terms.of[x] for x in t.tensors if x in terms.of)
        if operands and kept.issuperset((terms.of[t], *operands)):
            what = t.op if isinstance(t, X.Map) else type(t).__name__.lower()
            out.append(Whole(f"{what}.{n}", terms.of[t], operands))
    return tuple(out)


def _terms(
    axes: Axes,
    leaves: Mapping[X.Tensor, Buffer],
    order: Sequence[X.Tensor],
    roots: Sequence[tuple[X.Tensor, Buffer]],
) -> _Terms:
    terms = _Terms(axes, leaves)
    for x, _ in roots:
        terms.coordinates(x)
    for t in order:
        terms.add(t)
    return terms


def _stores(terms: _Terms, roots: Sequence[tuple[X.Tensor, Buffer]]) -> tuple[Store, ...]:
    return tuple(Store(b.name, terms.coordinates(x), terms.of[x]) for x, b in roots)


def _role(b: Buffer, written: set[str]) -> str:
    if b.role != "scratch":
        return b.role
    return "output" if b.name in written else "input"


def _used(stores: Sequence[Store], known: Mapping[str, int]) -> dict[str, int]:
    """The extents of the axes that the stores name."""
    names: set[str] = set()
    for t in postorder(*(t for s in stores for t in (*s.index, s.value))):
        match t:
            case T.Index(axis) | T.Scan(axis, _, _) | T.At(axis, _, _):
                names.add(axis)
            case T.Fold(axes, _, _):
                names.update(axes)
    return {a: e for a, e in known.items() if a in names}


# ---- terms


class _Terms:
    """The term of every tensor of a region, over the axes that name its dimensions."""

    def __init__(self, axes: Axes, leaves: Mapping[X.Tensor, Buffer]) -> None:
        self.axes, self.leaves = axes, leaves
        self.binder = Binder(axes.extents, axes.fresh)
        self.of: dict[X.Tensor, T.Term] = {}

    def coordinates(self, t: X.Tensor) -> tuple[T.Term, ...]:
        """The coordinate along each dimension of a tensor."""
        return tuple(self.axes.coordinate(atoms) for atoms in self.axes.dims(t))

    def add(self, t: X.Tensor) -> None:
        """Make the term of a tensor whose operands have theirs."""
        if t in self.leaves:
            b = self.leaves[t]
            self.of[t] = T.Load(b.name, b.dtype, self.coordinates(t))
        else:
            self.of[t] = self._term(t)

    def _operands(self, t: X.Tensor) -> tuple[list[T.Term], dict[T.Term, T.Term]]:
        """The operands' terms over the axes of the node's frame, and what the sources `g0, ...` of its index terms are."""
        reads = self.axes.reads[t]
        first = len(reads) - (len(t.sources) if isinstance(t, X.View | X.Scatter) else 0)
        sources: dict[T.Term, T.Term] = {}
        for k, read in enumerate(reads[first:]):
            own = tuple(f"o{d}" for d in range(len(read.operand.shape)))
            x = self.binder.bind(self.of[read.operand], self.axes.index(t, read, {}))
            sources[T.Var(f"g{k}", read.operand.dtype, own)] = x
        values = [
            self.binder.bind(self.of[read.operand], self.axes.index(t, read, sources)) for read in reads[:first]
        ]
        return values, sources

    def _names(self, dims: Sequence[Sequence[Atom]]) -> tuple[str, ...]:
        return tuple(self.axes.name(a) for atoms in dims for a in atoms)

    def _term(self, t: X.Tensor) -> T.Term:
        values, sources = self._operands(t)
        match t:
            case X.Full(type_, bits, _):
                return T.Const(type_, bits)
            case X.Iota(_):
                return self.coordinates(t)[0]
            case X.Map(op, _):
                if op in UNARY:
                    return T.unary(op, *values)
                if op == "mul":
                    values = with_counts(values[0], values[1], self.axes.extents)
                return T.binary(op, *values) if op in BINARY else T.select(*values)
            case X.Convert(type_, origin, _):
                return T.round_to(type_, origin, values[0])
            case X.Reduce(monoid, _, _):
                names = self._names(self.axes.folded(t))
                if MONOIDS[monoid].pair and not names:
                    return T.number(0)
                return self._fold(names, monoid, values[0])
            case X.Scan(monoid, dim, _):
                names = self._names(self.axes.dims(t)[dim : dim + 1])
                if not names:
                    return T.number(0) if MONOIDS[monoid].pair else values[0]
                return T.Scan(names[0], monoid, values[0])
            case X.Contract():
                return self._fold(self._names(self.axes.folded(t)), "add", T.binary("mul", *values))
            case X.View(_, _, _, valid, fill, _):
                if valid is None:
                    return values[0]
                places = {**self.axes.coordinates(t), **sources}
                return T.select(substitute(valid, places, self.axes.extents), values[0], T.Const(t.dtype, fill))
            case X.Scatter():
                return self._scatter(t, values[0], values[1], sources)
        raise IRError(f"{type(t).__name__} cannot be lowered")

    def _fold(self, names: tuple[str, ...], monoid: str, x: T.Term) -> T.Term:
        """The fold; over no positions at all it is the identity, with the sign of zero that sums start from."""
        if all(self.axes.extents[a] for a in names):
            return T.fold(names, monoid, x)
        if MONOIDS[monoid].pair:
            return T.number(0)
        dtype = T.fold_type(monoid, x.dtype)
        return T.const(identity(monoid, dtype) or 0, dtype)

    def _scatter(self, t: X.Scatter, base: T.Term, update: T.Term, sources: Mapping[T.Term, T.Term]) -> T.Term:
        """The base combined with a fold over the updates' positions, of those that fall on the element."""
        frame = self.axes.coordinates(t)
        places: dict[T.Term, T.Term] = {coordinate(k): frame[c] for k, c in enumerate(positions(t))}
        places.update(sources)
        hit: T.Term = T.const(True, "bool")
        for d, i in enumerate(t.index):
            if d not in aligned(t).values():
                same = T.binary("eq", substitute(i, places, self.axes.extents), frame[coordinate(d)])
                hit = same if isinstance(hit, T.Const) else T.binary("and", hit, same)
        folded = self.axes.folded(t)
        if t.monoid is None:
            return self._last(folded, hit, base, update)
        if not all(a.extent for dim in folded for a in dim):
            return base
        hits = T.fold(self._names(folded), t.monoid, T.select(hit, update, T.Identity(t.monoid)))
        return T.round_to(t.dtype, "op", T.binary(MONOIDS[t.monoid].combine, base, hits))

    def _last(self, folded: Sequence[Sequence[Atom]], hit: T.Term, base: T.Term, update: T.Term) -> T.Term:
        """The update at the last position (in row-major order) that hits the element, else the base."""
        atoms = [a for dim in folded for a in dim]
        strides = contiguous(tuple(a.extent for a in atoms))
        position: T.Term = T.number(0)
        for a, s in zip(atoms, strides, strict=True):
            position = T.binary("add", position, T.binary("mul", T.Index(self.axes.name(a)), T.number(s)))
        last = self._fold(self._names(folded), "max", T.select(hit, position, T.number(-1)))
        index = {
            self.axes.name(a): T.binary("floordiv", last, T.number(s))
            if k == 0
            else T.binary("mod", T.binary("floordiv", last, T.number(s)), T.number(a.extent))
            for k, (a, s) in enumerate(zip(atoms, strides, strict=True))
            if s
        }
        return T.select(T.binary("le", T.number(0), last), self.binder.bind(update, index), base)
