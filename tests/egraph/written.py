"""Programs of the e-graph's tests, written as text; what they stand for is named here and nowhere below Tensor IR."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ir import term as T
from ir.dtype import Array
from ir.loop import Buffer, LoopProgram, Store, contiguous
from ir.text import Scope, parse_term

AXES = {"b": 2, "c": 5, "d": 3, "e": 4, "f": 4, "h": 2, "i": 3, "j": 6}


def program(text: str, axes: Mapping[str, int] = AXES, dtypes: Mapping[str, str] | None = None) -> LoopProgram:
    """Lines `name = term`, the last ones without a name being results; buffers are f32[axes] by their first use."""
    found = dict(dtypes or {})
    scope = Scope(_Dtypes(found), axes)
    results: list[T.Term] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, value = line.rpartition(" := ")
        term = parse_term(value, scope)
        if name:
            scope.shared[name] = term
        else:
            results.append(term)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    stores = []
    for t in _loads(results):
        shapes[t.buffer] = t.type, tuple(axes[i.axis] if isinstance(i, T.Index) else 3 for i in t.index)
    buffers = [Buffer(n, d, s, contiguous(s)) for n, (d, s) in sorted(shapes.items())]
    for k, r in enumerate(results):
        order = sorted(r.free)
        shape = tuple(axes[a] for a in order)
        buffers.append(Buffer(f"out{k}", r.dtype, shape, contiguous(shape), role="output"))
        stores.append(Store(f"out{k}", tuple(T.Index(a) for a in order), r))
    return LoopProgram("p", dict(axes), tuple(buffers), tuple(stores))


class _Dtypes(dict[str, str]):
    """Buffers are f32 unless said otherwise; every capitalised or single-letter name may be a buffer."""

    def __missing__(self, name: str) -> str:
        return "f32"

    def __contains__(self, name: object) -> bool:
        return True


def _loads(roots: list[T.Term]) -> list[T.Load]:
    seen: dict[T.Term, None] = {}
    stack = list(roots)
    while stack:
        t = stack.pop()
        if t not in seen:
            seen[t] = None
            stack += t.terms
    return [t for t in seen if isinstance(t, T.Load)]


def inputs(p: LoopProgram, seed: int = 0, scale: float = 1.0) -> dict[str, Array]:
    """Normal values for floats, positions for integers, coins for bools."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for b in p.buffers:
        if b.role != "input":
            continue
        if b.dtype == "i64":
            out[b.name] = rng.integers(0, 3, b.shape)
        elif b.dtype == "bool":
            out[b.name] = rng.random(b.shape) < 0.6
        else:
            out[b.name] = rng.standard_normal(b.shape) * scale
    return out
