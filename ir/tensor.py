"""Tensor IR: a program over whole tensors, typed by dtype and shape. Operator names exist here and above, never below.

A tensor node has `dtype` and `shape`. Index maps are terms over output coordinates `o0, o1, ...` (axes of `ir.term`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ir.dtype import DType, compute_type
from ir.node import IRError, Node
from ir.ops import BINARY, MONOIDS, UNARY
from ir.term import Binary, Term, Unary, Var, fold_type, join

Dim = int | str
"""An extent: a number, or the text of an integer expression over symbols that `bind` replaces."""


def extents(shape: tuple[Dim, ...]) -> tuple[int, ...]:
    """A shape as numbers; raises where a symbol is not bound."""
    for e in shape:
        if not isinstance(e, int):
            raise IRError(f"extent {e} is symbolic; bind the program's symbols first")
    return tuple(int(e) for e in shape)


class Tensor(Node):
    """Base of tensor nodes."""

    def check(self) -> None:
        """Compute dtype and shape, which raises where a law is broken."""
        _ = self.dtype, self.shape

    @cached_property
    def dtype(self) -> DType:
        """Element type."""
        return self.type_law()

    @cached_property
    def shape(self) -> tuple[Dim, ...]:
        """Extents, outermost first."""
        return self.shape_law()

    def type_law(self) -> DType:
        """The dtype, from the operands'."""
        raise NotImplementedError

    def shape_law(self) -> tuple[Dim, ...]:
        """The shape, from the operands'."""
        raise NotImplementedError

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The children that are tensors."""
        return tuple([c for c in self.children if isinstance(c, Tensor)])


class Input(Tensor):
    """A program input as the caller passes it, with the strides and the offset (in elements) of its storage."""

    name: str
    type: DType
    extents: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim

    def type_law(self) -> DType:
        return self.type

    def shape_law(self) -> tuple[Dim, ...]:
        return self.extents


class Full(Tensor):
    """Every element is the constant with bit pattern `bits`."""

    type: DType
    bits: int
    extents: tuple[Dim, ...]

    def type_law(self) -> DType:
        return self.type

    def shape_law(self) -> tuple[Dim, ...]:
        return self.extents


class Iota(Tensor):
    """[0, 1, ..., extent - 1] as i64."""

    extent: Dim

    def type_law(self) -> DType:
        return "i64"

    def shape_law(self) -> tuple[Dim, ...]:
        return (self.extent,)


class Map(Tensor):
    """Elementwise operator of `ir.ops` (or `select`) on tensors of one shape; the type follows the term's law."""

    op: str
    inputs: tuple[Tensor, ...]

    def type_law(self) -> DType:
        arity = 1 if self.op in UNARY else 2 if self.op in BINARY else 3
        if len(self.inputs) != arity:
            raise IRError(f"{self.op}: {len(self.inputs)} operands, not {arity}")
        values = [Var(f"v{k}", t.dtype, ()) for k, t in enumerate(self.inputs)]
        if self.op in UNARY:
            return Unary(self.op, *values).dtype
        if self.op in BINARY:
            return Binary(self.op, *values).dtype
        if self.op == "select":
            if self.inputs[0].dtype != "bool":
                raise IRError(f"select: predicate is {self.inputs[0].dtype}, not bool")
            return join(values[1].dtype, values[2].dtype, "select")
        raise IRError(f"unknown elementwise operator {self.op!r}")

    def shape_law(self) -> tuple[Dim, ...]:
        shapes = {t.shape for t in self.inputs}
        if len(shapes) != 1:
            raise IRError(f"{self.op}: operand shapes {', '.join(map(str, sorted(shapes, key=str)))} differ")
        return self.inputs[0].shape


class Convert(Tensor):
    """x converted to `type`; `origin` is op or cast (a Round of Loop IR)."""

    type: DType
    origin: str
    x: Tensor

    def type_law(self) -> DType:
        return self.type

    def shape_law(self) -> tuple[Dim, ...]:
        return self.x.shape


class Reduce(Tensor):
    """Fold of the dimensions `dims` (sorted); arg-folds fold one dimension and give i64 positions."""

    monoid: str
    dims: tuple[int, ...]
    x: Tensor

    def type_law(self) -> DType:
        return "i64" if MONOIDS[self.monoid].pair else fold_type(self.monoid, self.x.dtype)

    def shape_law(self) -> tuple[Dim, ...]:
        return tuple(e for k, e in enumerate(self.x.shape) if k not in self.dims)


class Scan(Tensor):
    """Inclusive prefix fold along `dim`."""

    monoid: str
    dim: int
    x: Tensor

    def type_law(self) -> DType:
        return "i64" if MONOIDS[self.monoid].pair else fold_type(self.monoid, self.x.dtype)

    def shape_law(self) -> tuple[Dim, ...]:
        return self.x.shape


class Contract(Tensor):
    """Sum of products in the compute type: out[...] = sum x[x_labels] * y[y_labels] over the labels absent from out."""

    x: Tensor
    y: Tensor
    x_labels: tuple[str, ...]
    y_labels: tuple[str, ...]
    out_labels: tuple[str, ...]

    def type_law(self) -> DType:
        return compute_type(join(self.x.dtype, self.y.dtype, "contract"))

    def shape_law(self) -> tuple[Dim, ...]:
        extents: dict[str, Dim] = {}
        for labels, t in ((self.x_labels, self.x), (self.y_labels, self.y)):
            if len(labels) != len(t.shape):
                raise IRError(f"contract: {len(labels)} labels for a tensor of {len(t.shape)} dimensions")
            for label, e in zip(labels, t.shape, strict=True):
                if extents.setdefault(label, e) != e:
                    raise IRError(f"contract: extents {extents[label]} and {e} of {label} differ")
        return tuple(extents[label] for label in self.out_labels)


class View(Tensor):
    """out[o0, o1, ...] = x[index], where `valid` holds, else the constant `fill`.

    `index` has one i64 term per dimension of x, over the axes o0, o1, ... (permute, broadcast, slice, pad, flip,
    reshape). `valid` is a bool term or None (always). With `sources` (tensors of the output's shape) the terms may
    also hold `Var("g0", dtype, ("o0", ...))`, the element of source 0 at the output's coordinates: a gather.
    """

    x: Tensor
    extents: tuple[Dim, ...]
    index: tuple[Term, ...]
    valid: Term | None
    fill: int
    sources: tuple[Tensor, ...]

    def type_law(self) -> DType:
        return self.x.dtype

    def shape_law(self) -> tuple[Dim, ...]:
        if len(self.index) != len(self.x.shape):
            raise IRError(f"view: {len(self.index)} index terms for a tensor of {len(self.x.shape)} dimensions")
        for s in self.sources:
            if s.shape != self.extents:
                raise IRError(f"gather: index shape {s.shape} is not the output's {self.extents}")
        return self.extents


class Scatter(Tensor):
    """out = base, then for every position p of `updates`: out[index(p)] = out[index(p)] (+) updates[p].

    `index` has one term per dimension of base, over o0, o1, ... (the dimensions of updates) and `g0`, ... (sources of
    the shape of updates). `monoid` None means that the last position in row-major order wins. Positions whose index
    is out of range are dropped.
    """

    monoid: str | None
    base: Tensor
    updates: Tensor
    index: tuple[Term, ...]
    sources: tuple[Tensor, ...]

    def type_law(self) -> DType:
        if self.base.dtype != self.updates.dtype:
            raise IRError(f"scatter: base is {self.base.dtype}, updates are {self.updates.dtype}")
        return self.base.dtype

    def shape_law(self) -> tuple[Dim, ...]:
        return self.base.shape


class Call(Tensor):
    """Output `result` of an eager PyTorch call: what no node above says. `target` names the overload (aten.topk.default).

    `arguments` is the call's argument text with `{k}` standing for operand k; `key` tells apart equal calls with effects.
    """

    target: str
    operands: tuple[Tensor, ...]
    arguments: str
    result: int
    type: DType
    extents: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    key: int

    def type_law(self) -> DType:
        return self.type

    def shape_law(self) -> tuple[Dim, ...]:
        return self.extents


@dataclass(frozen=True)
class Result:
    """A program output: its value and the strides eager PyTorch gives it (elements). `writes` names the mutated input."""

    name: str
    value: Tensor
    strides: tuple[Dim, ...]
    writes: str | None = None


@dataclass(frozen=True)
class TensorProgram:
    """A captured program. Results with `writes` replace an input's content after every other result is computed.

    `notes` are sentences for the report (what became a call, and why); `symbols` gives each symbol's (min, max).
    """

    name: str
    inputs: tuple[Input, ...]
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()
    symbols: Mapping[str, tuple[int, int]] = field(default_factory=dict)
