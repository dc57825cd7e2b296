"""Barriers: one wherever an access to shared memory could meet an earlier one of another thread, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

from codegen.passes.state import State
from ir import kernel as K

Touched = tuple[frozenset[str], frozenset[str]]
"""Shared arrays read and written since the last barrier."""

NOTHING: Touched = (frozenset(), frozenset())


def place_barriers(state: State) -> State:
    """The kernel with a barrier in front of every access that reads what was written, or writes what was read, since."""
    assert state.kernel is not None
    body, _ = _placed(state.kernel.body, NOTHING)
    return replace(state, kernel=replace(state.kernel, body=body))


def _either(a: Touched, b: Touched) -> Touched:
    return a[0] | b[0], a[1] | b[1]


def _placed(body: tuple[K.Statement, ...], touched: Touched) -> tuple[tuple[K.Statement, ...], Touched]:
    out: list[K.Statement] = []
    for s in body:
        match s:
            case K.For():
                inner, after = _steps(s.body, touched)
                alone, after_alone = _steps(s.body, NOTHING)
                if _barriers(alone) < _barriers(inner):
                    out.append(K.Barrier())
                    inner, after, touched = alone, after_alone, NOTHING
                out.append(replace(s, body=inner))
                touched = _either(touched, after)
            case K.If():
                inner, after = _placed(s.body, touched)
                out.append(replace(s, body=inner))
                touched = _either(touched, after)
            case K.LoadShared(_, _, shared) | K.StoreShared(shared):
                reads = isinstance(s, K.LoadShared)
                if shared in touched[1 if reads else 0]:
                    out.append(K.Barrier())
                    touched = NOTHING
                touched = _either(
                    touched, (frozenset({shared} if reads else ()), frozenset(() if reads else {shared}))
                )
                out.append(s)
            case _:
                out.append(s)
    return tuple(out), touched


def _steps(body: tuple[K.Statement, ...], touched: Touched) -> tuple[tuple[K.Statement, ...], Touched]:
    """A loop's body, each of whose steps meets the accesses of the step before it."""
    _, once = _placed(body, touched)
    return _placed(body, _either(touched, once))


def _barriers(body: tuple[K.Statement, ...]) -> int:
    return sum(isinstance(s, K.Barrier) for s in K.walk(body))
