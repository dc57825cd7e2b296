"""The rules of tensor programs, loop programs and forms that their nodes alone do not hold; a breach is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ir import tensor as X
from ir import term as T
from ir.affine import affine
from ir.dtype import is_integer
from ir.loop import Buffer, Form, LoopProgram, Store
from ir.node import IRError, postorder
from ir.ops import MONOIDS
from ir.regions import tensors

ROLES = ("input", "output", "scratch")


# ---- tensor programs


def verify_tensor(program: X.TensorProgram) -> None:
    """Raise `IRError` where a tensor program breaks a rule."""
    inputs = {t.name: t for t in program.inputs}
    _distinct("input", [t.name for t in program.inputs])
    _distinct("result", [r.name for r in program.results])
    for t in tensors([r.value for r in program.results]):
        if isinstance(t, X.Input) and inputs.get(t.name) is not t:
            raise IRError(f"input {t.name} is used but not among the program's inputs")
        for check in _TENSOR_RULES.get(type(t), ()):
            check(t)
    for r in program.results:
        if len(r.strides) != len(r.value.shape):
            raise IRError(f"result {r.name}: {len(r.strides)} strides for {len(r.value.shape)} dimensions")
        if r.writes is None:
            if r.name in inputs:
                raise IRError(f"result {r.name} has the name of an input")
            continue
        if r.writes not in inputs:
            raise IRError(f"result {r.name} writes {r.writes}, which is not an input")
        old = inputs[r.writes]
        if (old.dtype, old.shape) != (r.value.dtype, r.value.shape):
            raise IRError(
                f"result {r.name} is {r.value.dtype}{list(r.value.shape)}, "
                f"the input {r.writes} that it replaces {old.dtype}{list(old.shape)}"
            )


def _distinct(what: str, names: Sequence[str]) -> None:
    for k, name in enumerate(names):
        if not name.isidentifier():
            raise IRError(f"{what} name {name!r} is not an identifier")
        if name in names[:k]:
            raise IRError(f"two {what}s are named {name}")


def _input_rule(t: X.Tensor) -> None:
    assert isinstance(t, X.Input)
    if len(t.strides) != len(t.extents):
        raise IRError(f"input {t.name}: {len(t.strides)} strides for {len(t.extents)} dimensions")


def _convert_rule(t: X.Tensor) -> None:
    assert isinstance(t, X.Convert)
    if t.origin not in T.ORIGINS:
        raise IRError(f"convert: origin {t.origin!r} is neither op nor cast")


def _fold_rule(t: X.Tensor) -> None:
    assert isinstance(t, X.Reduce | X.Scan)
    rank, dims = len(t.x.shape), t.dims if isinstance(t, X.Reduce) else (t.dim,)
    if tuple(sorted(set(dims))) != dims or not all(0 <= d < rank for d in dims):
        raise IRError(f"{t.monoid}: {list(dims)} are not sorted dimensions of a tensor of {rank}")
    if MONOIDS[t.monoid].pair and (len(dims) != 1 or t.x.shape[dims[0]] == 0):
        raise IRError(
            f"{t.monoid}: goes along one dimension that is not empty, not {list(dims)} of {list(t.x.shape)}"
        )


def _contract_rule(t: X.Tensor) -> None:
    assert isinstance(t, X.Contract)
    unknown = [c for c in t.out_labels if c not in t.x_labels + t.y_labels]
    if unknown or len(set(t.out_labels)) != len(t.out_labels):
        raise IRError(f"contract: output labels {list(t.out_labels)} are not distinct labels of the operands")


def _index_rule(t: X.Tensor) -> None:
    assert isinstance(t, X.View | X.Scatter)
    rank = len(t.extents) if isinstance(t, X.View) else len(t.updates.shape)
    shape = t.extents if isinstance(t, X.View) else t.updates.shape
    own = tuple(f"o{k}" for k in range(rank))
    sources = {T.Var(f"g{k}", s.dtype, own) for k, s in enumerate(t.sources)}
    kind = "view" if isinstance(t, X.View) else "scatter"
    for s in t.sources:
        if s.shape != shape:
            raise IRError(f"{kind}: a source has shape {list(s.shape)}, the coordinates {list(shape)}")
    wanted = len(t.x.shape) if isinstance(t, X.View) else len(t.base.shape)
    if len(t.index) != wanted:
        raise IRError(f"{kind}: {len(t.index)} index terms for a tensor of {wanted} dimensions")
    for i in t.index:
        if i.dtype != "i64":
            raise IRError(f"{kind}: an index term is {i.dtype}, not i64")
    terms = [*t.index, *([t.valid] if isinstance(t, X.View) and t.valid is not None else [])]
    if isinstance(t, X.View) and t.valid is not None and t.valid.dtype != "bool":
        raise IRError(f"view: the validity is {t.valid.dtype}, not bool")
    for part in postorder(*terms):
        if isinstance(part, T.Var) and part not in sources:
            raise IRError(f"{kind}: {part.name} of type {part.type} is not a source")
        if isinstance(part, T.Index) and part.axis not in own:
            raise IRError(f"{kind}: {part.axis} is not a coordinate of {rank} dimensions")
        if not isinstance(part, T.Const | T.Var | T.Index | T.Unary | T.Binary | T.Select | T.Round):
            raise IRError(f"{kind}: {type(part).__name__} does not stand in index terms")


_TENSOR_RULES: dict[type[X.Tensor], tuple[Callable[[X.Tensor], None], ...]] = {
    X.Input: (_input_rule,),
    X.Convert: (_convert_rule,),
    X.Reduce: (_fold_rule,),
    X.Scan: (_fold_rule,),
    X.Contract: (_contract_rule,),
    X.View: (_index_rule,),
    X.Scatter: (_index_rule,),
}


# ---- loop programs and forms


def verify_loop(program: LoopProgram) -> None:
    """Raise `IRError` where a loop program breaks a rule."""
    _verify_header(program.axes, program.buffers)
    buffers = {b.name: b for b in program.buffers}
    _verify_terms(_terms(program.results), program.axes, buffers)
    for s in program.results:
        _verify_store(s, program.axes, buffers)
    for load in _loads(program.results):
        if buffers[load.buffer].role != "input":
            raise IRError(f"{load.buffer} is {buffers[load.buffer].role}, and is read before it is made")


def verify_form(form: Form) -> None:
    """Raise `IRError` where a form breaks a rule."""
    _verify_header(form.axes, form.buffers)
    buffers = {b.name: b for b in form.buffers}
    made = {b.name for b in form.buffers if b.role == "input"}
    replaced: dict[str, str] = {}
    for kernel in form.kernels:
        terms = _terms(kernel.stores)
        _verify_terms(terms, form.axes, buffers)
        for t in postorder(*terms):
            if isinstance(t, T.At):
                raise IRError(f"kernel {kernel.name}: a term holds At along {t.axis}")
            if isinstance(t, T.Load) and t.buffer not in made:
                raise IRError(f"kernel {kernel.name} reads {t.buffer} before it is made")
            if isinstance(t, T.Load) and t.buffer in replaced:
                raise IRError(f"kernel {kernel.name} reads {t.buffer} after {replaced[t.buffer]} has replaced it")
        for part in kernel.parts:
            for s in part.stores:
                _verify_store(s, form.axes, buffers)
                if outside := sorted(s.axes - set(part.axes)):
                    raise IRError(
                        f"kernel {kernel.name}: the store to {s.buffer} runs over {outside[0]}, not an axis of its part"
                    )
        written = {s.buffer for s in kernel.stores}
        replaced.update((n, kernel.name) for n in written if buffers[n].role == "input")
        made |= written
    for b in form.buffers:
        if b.name not in made:
            raise IRError(f"{b.role} {b.name} is never made")


def _verify_header(axes: Mapping[str, int], buffers: Sequence[Buffer]) -> None:
    _distinct("buffer", [b.name for b in buffers])
    _distinct("axis", list(axes))
    for a, e in axes.items():
        if e < 0:
            raise IRError(f"axis {a} has extent {e}")
    for b in buffers:
        if len(b.shape) != len(b.strides):
            raise IRError(f"buffer {b.name}: {len(b.strides)} strides for {len(b.shape)} dimensions")
        if b.role not in ROLES:
            raise IRError(f"buffer {b.name}: role {b.role!r} is none of {', '.join(ROLES)}")


def _terms(stores: Sequence[Store]) -> list[T.Term]:
    return [t for s in stores for t in (*s.index, s.value)]


def _loads(stores: Sequence[Store]) -> Iterator[T.Load]:
    return (t for t in postorder(*_terms(stores)) if isinstance(t, T.Load))


def _verify_terms(roots: Sequence[T.Term], axes: Mapping[str, int], buffers: Mapping[str, Buffer]) -> None:
    opened: dict[T.Term, frozenset[T.State]] = {}
    for t in postorder(*roots):
        states = frozenset[T.State]().union(*(opened[k] for k in t.terms))
        match t:
            case T.Index(axis) | T.Extent(axis) | T.Scan(axis, _, _) | T.At(axis, _, _) if axis not in axes:
                raise IRError(f"axis {axis} has no extent")
            case T.Fold(bound, _, _) if unknown := [a for a in bound if a not in axes]:
                raise IRError(f"axis {unknown[0]} has no extent")
            case T.Load(buffer, type_, index):
                if buffer not in buffers:
                    raise IRError(f"no buffer is named {buffer}")
                b = buffers[buffer]
                if b.dtype != type_ or len(b.shape) != len(index):
                    raise IRError(
                        f"load {buffer}: {type_} at {len(index)} index terms from {b.dtype}{list(b.shape)}"
                    )
            case T.Prefix(which, axis, _):
                raise IRError(f"a term holds the prefix {which} along {axis}")
            case T.Var(name):
                raise IRError(f"the tile value {name} stands in a term of a loop program")
            case T.State():
                states = frozenset((t,))
            case T.Stream():
                states = _closed(t, states, axes)
        opened[t] = states
    for root in roots:
        for state in opened[root]:
            raise IRError(f"state {state.name} is read outside its stream")


def _closed(t: T.Stream, states: frozenset[T.State], axes: Mapping[str, int]) -> frozenset[T.State]:
    """The states that a stream leaves open, after its own are checked."""
    if t.axis not in axes:
        raise IRError(f"axis {t.axis} has no extent")
    _distinct("state", [c.name for c in t.carries])
    carries = {c.name: c for c in t.carries}
    for state in states:
        if state.name in carries:
            c = carries[state.name]
            if state.type not in (c.dtype, "any"):
                raise IRError(f"state {state.name} is read as {state.type} and becomes {c.dtype}")
            if not c.free - {t.axis} <= set(state.axes):
                raise IRError(f"state {state.name} has axes {list(state.axes)} and becomes one of {sorted(c.free)}")
    return frozenset(s for s in states if s.name not in carries)


def _verify_store(s: Store, axes: Mapping[str, int], buffers: Mapping[str, Buffer]) -> None:
    if s.buffer not in buffers:
        raise IRError(f"no buffer is named {s.buffer}")
    b = buffers[s.buffer]
    if len(s.index) != len(b.shape):
        raise IRError(f"store {s.buffer}: {len(s.index)} index terms for {len(b.shape)} dimensions")
    for i in s.index:
        if not is_integer(i.dtype):
            raise IRError(f"store {s.buffer}: an index term is {i.dtype}, not an integer")
    if s.value.dtype != "any" and T.round_to(b.dtype, "op", s.value) is not s.value:
        raise IRError(f"store {s.buffer}: the value is {s.value.dtype}, the buffer {b.dtype}")
    if s.monoid is not None and s.monoid not in MONOIDS:
        raise IRError(f"store {s.buffer}: unknown monoid {s.monoid!r}")
    if s.monoid is None and (lost := _undetermined(s, axes)):
        raise IRError(f"store {s.buffer}: points along {', '.join(lost)} share an element")


def _undetermined(s: Store, axes: Mapping[str, int]) -> list[str]:
    """Store axes that the index does not show to be determined by the element: strides of one dimension must nest."""
    left = {a for a in s.axes if axes[a] > 1}
    sums = [affine(i, axes) for i in s.index]
    found = True
    while left and found:
        found = False
        for total in sums:
            terms = sorted((abs(c), t.axis) for t, c in total.terms if isinstance(t, T.Index) and t.axis in left)
            opaque = any(t.free & left for t, _ in total.terms if not isinstance(t, T.Index))
            reach = 1
            for c, axis in terms:
                reach = 0 if c < reach or not reach else reach + c * (axes[axis] - 1)
            if terms and not opaque and reach:
                left -= {axis for _, axis in terms}
                found = True
    return sorted(left)
