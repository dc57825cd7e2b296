"""Barriers: one wherever an access to shared memory could meet an earlier one of another thread, and nowhere else.

A buffer that the kernel both loads and stores counts as shared: a block reads and writes the same elements of it, and
threads that hold copies of an element must have read it before its owner writes. What threads of several blocks touch
is ordered by barriers of the cluster, and is touched only once all its blocks have begun.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from codegen.passes.state import State
from ir import kernel as K

Touched = tuple[frozenset[str], frozenset[str]]
"""Shared arrays read and written since the last barrier."""

NOTHING: Touched = (frozenset(), frozenset())


def place_barriers(state: State) -> State:
    """The kernel with a barrier in front of every access that reads what was written, or writes what was read, since."""
    assert state.kernel is not None
    loaded = {s.buffer for s in K.walk(state.kernel.body) if isinstance(s, K.LoadGlobal)}
    stored = {s.buffer for s in K.walk(state.kernel.body) if isinstance(s, K.StoreGlobal)}
    everywhere = {s.shared for s in K.walk(state.kernel.body) if isinstance(s, K.StoreShared) and s.to != "own"}
    in_place = frozenset(loaded & stored)
    wide = everywhere | (in_place if state.kernel.cluster > 1 else frozenset())
    body, _ = _Placer(in_place, frozenset(wide)).placed(state.kernel.body, NOTHING)
    if everywhere:
        body = _begun(body)
    return replace(state, kernel=replace(state.kernel, body=body))


def _begun(body: tuple[K.Statement, ...]) -> tuple[K.Statement, ...]:
    """The body with a wait for the other blocks in front of the first store that reaches them, or barrier of all.

    They have arrived where they begin, and may not arrive again before they have waited.
    """
    first = next(k for k, s in enumerate(body) if any(_meets(inner) for inner in K.walk((s,))))
    return (*body[:first], K.Barrier("begun"), *body[first:])


def _meets(s: K.Statement) -> bool:
    return (isinstance(s, K.StoreShared) and s.to != "own") or s == K.Barrier("cluster")


def _either(a: Touched, b: Touched) -> Touched:
    return a[0] | b[0], a[1] | b[1]


@dataclass(frozen=True)
class _Placer:
    in_place: frozenset[str]
    wide: frozenset[str]
    """Memory that several blocks of a cluster touch."""

    def touches(self, s: K.Statement) -> tuple[str, bool] | None:
        """The memory that a statement accesses, and whether it reads it."""
        match s:
            case K.LoadShared(_, _, shared, slot=None):
                return shared, True
            case K.StoreShared(shared):
                return shared, False
            case K.LoadGlobal(_, _, buffer) if buffer in self.in_place:
                return buffer, True
            case K.StoreGlobal(buffer) if buffer in self.in_place:
                return buffer, False
        return None

    def after_block(self, touched: Touched) -> Touched:
        """What a barrier of the block leaves."""
        return touched[0] & self.wide, touched[1] & self.wide

    def placed(self, body: tuple[K.Statement, ...], touched: Touched) -> tuple[tuple[K.Statement, ...], Touched]:
        """The body with its barriers, and what it touched since the last one."""
        out: list[K.Statement] = []
        for s in body:
            if isinstance(s, K.For):
                inner, after = self.steps(s.body, touched)
                alone, after_alone = self.steps(s.body, NOTHING)
                if _barriers(alone) < _barriers(inner):
                    ordered = self.after_block(touched)
                    within, after_within = self.steps(s.body, ordered)
                    if _barriers(within) == _barriers(alone):
                        out.append(K.Barrier("block"))
                        inner, after, touched = within, after_within, ordered
                    else:
                        out.append(K.Barrier("cluster"))
                        inner, after, touched = alone, after_alone, NOTHING
                out.append(replace(s, body=inner))
                touched = _either(touched, after)
            elif isinstance(s, K.If):
                inner, after = self.placed(s.body, touched)
                out.append(replace(s, body=inner))
                touched = _either(touched, after)
            else:
                access = self.touches(s)
                if access is not None:
                    memory, reads = access
                    if memory in touched[1 if reads else 0]:
                        out.append(K.Barrier("cluster" if memory in self.wide else "block"))
                        touched = NOTHING if memory in self.wide else self.after_block(touched)
                    own = frozenset({memory})
                    touched = _either(touched, (own, frozenset()) if reads else (frozenset(), own))
                out.append(s)
        return tuple(out), touched

    def steps(self, body: tuple[K.Statement, ...], touched: Touched) -> tuple[tuple[K.Statement, ...], Touched]:
        """A loop's body, each of whose steps meets the accesses of the step before it."""
        _, once = self.placed(body, touched)
        return self.placed(body, _either(touched, once))


def _barriers(body: tuple[K.Statement, ...]) -> int:
    return sum(isinstance(s, K.Barrier) for s in K.walk(body))
