"""Regions of a tensor program between its eager calls, and the values that cross from one to another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ir import tensor as X
from ir.dtype import is_float

_WORK = (X.Reduce, X.Scan, X.Contract, X.Scatter)


@dataclass(frozen=True)
class Region:
    """What one loop program makes: program results, and values for later regions; then the calls that follow it."""

    results: tuple[X.Result, ...]
    crossing: tuple[X.Tensor, ...]
    calls: tuple[X.Call, ...]


def tensors(roots: Sequence[X.Tensor], leaves: Collection[X.Tensor] = ()) -> list[X.Tensor]:
    """Every tensor below the roots once, operands before users, not looking below leaves."""
    order: dict[X.Tensor, None] = {}
    stack = list(reversed(roots))
    while stack:
        t = stack[-1]
        missing = [k for k in t.tensors if k not in order] if t not in leaves and t not in order else []
        if missing:
            stack.extend(reversed(missing))
        else:
            order[stack.pop()] = None
    return list(order)


def regions(program: X.TensorProgram) -> tuple[Region, ...]:
    """The regions in order; results that replace an input's content come in the last."""
    order = tensors([r.value for r in program.results])
    level = _levels(order, _pinned(program, order))
    last = max((level[r.value] for r in program.results), default=0)
    at = {r.name: last if r.writes else level[r.value] for r in program.results}
    crossing = _crossing(program, order, level, at)
    calls = sorted((t for t in order if isinstance(t, X.Call)), key=lambda c: (c.key, c.result))
    return tuple(
        Region(
            tuple(sorted((r for r in program.results if at[r.name] == n), key=lambda r: r.writes is not None)),
            tuple(x for x in crossing if level[x] == n),
            tuple(c for c in calls if level[c] == n + 1),
        )
        for n in range(last + 1)
    )


def _levels(order: Sequence[X.Tensor], pinned: Collection[X.Tensor]) -> dict[X.Tensor, int]:
    """The region in which each tensor can first be computed: one past the operands of a call and past pinned values."""
    level: dict[X.Tensor, int] = {}
    for t in order:
        past = (level[x] + (x in pinned or isinstance(t, X.Call)) for x in t.tensors)
        level[t] = max(past, default=int(isinstance(t, X.Call)))
    return level


def _pinned(program: X.TensorProgram, order: Sequence[X.Tensor]) -> set[X.Tensor]:
    """Values whose last bits matter: computed once and read from a buffer by all, since sums in two orders may differ.

    They meet themselves in a comparison, at other positions or as an extremum, or they are given to a call and read
    beside it.
    """
    copies: dict[X.Tensor, frozenset[X.Tensor]] = {}
    inexact: dict[X.Tensor, bool] = {}
    for t in order:
        inexact[t] = _is_sum(t) or (not isinstance(t, X.Call) and any(inexact[x] for x in t.tensors))
        copied = _copied(t)
        copies[t] = frozenset[X.Tensor]().union(*(copies[x] for x in copied)) if copied else frozenset((t,))
    beside = frozenset(tensors([r.value for r in program.results], {t for t in order if isinstance(t, X.Call)}))
    found: set[X.Tensor] = set()
    for t in order:
        match t:
            case X.Map("lt" | "le" | "eq" | "ne", (x, y)) if x is not y:
                found |= copies[x] & copies[y]
            case X.Call():
                found |= beside.intersection(frozenset[X.Tensor]().union(*(copies[x] for x in t.tensors)))
    return {t for t in found if inexact[t] and is_float(t.dtype)}


def _is_sum(t: X.Tensor) -> bool:
    """Whether the node adds or multiplies many values, in an order that is not fixed."""
    match t:
        case X.Reduce(monoid, _, _) | X.Scan(monoid, _, _) | X.Scatter(monoid, _, _, _, _):
            return monoid in ("add", "mul")
    return isinstance(t, X.Contract)


def _copied(t: X.Tensor) -> tuple[X.Tensor, ...]:
    """The operands of which every element of the node is one, unchanged (or a constant); none for a node that computes."""
    match t:
        case X.View():
            return (t.x,)
        case X.Reduce("max" | "min", _, _) | X.Scan("max" | "min", _, _):
            return (t.x,)
        case X.Map("max" | "min", inputs):
            return inputs
        case X.Map("select", (_, x, y)):
            return (x, y)
        case X.Scatter(None, base, updates, _, _):
            return (base, updates)
    return ()


def _crossing(
    program: X.TensorProgram, order: Sequence[X.Tensor], level: Mapping[X.Tensor, int], at: Mapping[str, int]
) -> list[X.Tensor]:
    """Values kept in buffers between regions: operands of calls, and work that a later region reads.

    Views, and maps of inputs and call results, are computed again instead.
    """
    works: dict[X.Tensor, bool] = {}
    for t in order:
        works[t] = isinstance(t, _WORK) or (not isinstance(t, X.Call) and any(works[x] for x in t.tensors))
    found: dict[X.Tensor, None] = {}
    demands = [(r.value, at[r.name]) for r in program.results]
    for t in order:
        if isinstance(t, X.Call):
            found.update((x, None) for x in t.tensors if not isinstance(x, X.Input | X.Call))
        else:
            demands.extend((x, level[t]) for x in t.tensors)
    seen: set[tuple[X.Tensor, int]] = set()
    while demands:
        x, when = demands.pop()
        if (x, when) in seen or level[x] >= when or isinstance(x, X.Input | X.Call):
            continue
        seen.add((x, when))
        if works[x] and not isinstance(x, X.View):
            found[x] = None
        else:
            demands.extend((k, when) for k in x.tensors)
    return [t for t in order if t in found]
