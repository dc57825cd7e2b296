"""How several positions of a stream are taken at once: each state's update as what becomes of the old state, and a part.

Where an update is `moved (+) part`, (+) the state's monoid, and only `moved` reads states as they were before the step,
the parts of many positions fold together, and so do partial states, each moved to the common values of the others.
This is right where moving what the positions so far gave is giving it anew under the new values, which is tested on
numbers: then the law of one step holds for a step of any number of positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from extract.facts import open_states
from extract.rewrite import rebuilt, with_children
from ir import term as T
from ir.dtype import Array, is_float
from ir.node import postorder
from ir.ops import MONOIDS
from ir.term import Term, Var
from ir.term_interp import Evaluator

Carries = tuple[T.Carry, ...]
SAMPLE, SAMPLES = "sample", 16
POSITIONS, BEFORE = 5, 3  # of a stream on numbers: all of them, and those before the step
OTHER = 2  # extent of every other axis there


@dataclass(frozen=True)
class Step:
    """One state: its new value is `moved` (None: the old value as it is) combined with `part`."""

    carry: T.Carry
    part: Term
    moved: Term | None = None

    @property
    def counts(self) -> bool:
        """Whether the state is the number of positions."""
        return self.moved is None and self.carry.monoid == "add" and self.part is T.number(1)


def steps(stream: T.Stream) -> tuple[Step, ...] | None:
    """The steps of a stream's states, each after those it depends on; None where positions must be taken one by one."""
    return _steps(stream.axis, stream.carries)


@lru_cache(maxsize=512)
def _steps(axis: str, carries: Carries) -> tuple[Step, ...] | None:
    found = _shaped(axis, carries)
    return found if found is not None and _agree(axis, _of_any_inputs(carries)) else None


def _shaped(axis: str, carries: Carries) -> tuple[Step, ...] | None:
    """The steps as the updates are written, which need not be right."""
    new = {c.update: Var(f"new_{c.name}", c.dtype, ()) for c in carries}
    found = [_split(c, new, axis) for c in carries]
    known = [s for s in found if s is not None]
    if len(known) < len(found):
        return None
    return tuple(_ordered(known))


def _split(carry: T.Carry, new: Mapping[Term, Var], axis: str) -> Step | None:
    """The update as the moved old value and a part, if it has that shape."""
    row = MONOIDS[carry.monoid]
    if row.pair:
        return None
    hidden = {k: v for k, v in new.items() if k is not carry.update}
    sides: dict[bool, list[Term]] = {True: [], False: []}
    for t in _operands(carry.update, row.combine):
        sides[bool(_read_outside(hidden, t))].append(t)
    if not sides[True] or not sides[False]:
        return None
    moved, part = (_combined(sides[old], row.combine) for old in (True, False))
    if isinstance(moved, T.State) and moved.name == carry.name:
        return Step(carry, part)
    plain = _exchanged(moved, hidden)
    if axis in plain.free or carry.name not in open_states(plain):
        return None
    return Step(carry, part, moved)


def _operands(t: Term, op: str) -> Iterator[Term]:
    if isinstance(t, T.Binary) and t.op == op:
        yield from _operands(t.x, op)
        yield from _operands(t.y, op)
    else:
        yield t


def _combined(terms: Sequence[Term], op: str) -> Term:
    out = terms[0]
    for t in terms[1:]:
        out = T.binary(op, out, t)
    return out


def _read_outside(hidden: Collection[Term], root: Term) -> frozenset[str]:
    """Names of the states that are open in a term, but for what stands in `hidden` terms."""
    if not open_states(root):
        return frozenset()
    known: dict[Term, frozenset[str]] = {}
    for t in postorder(root):
        known[t] = frozenset() if t in hidden else open_states.rule(t, [known[k] for k in t.terms])
    return known[root]


def _exchanged(root: Term, new: Mapping[Term, Term]) -> Term:
    return rebuilt([root], lambda t, kids: new[t] if t in new else with_children(t, kids))[0]


def _ordered(found: list[Step]) -> Iterator[Step]:
    """Steps after the steps whose new values they use."""
    waiting = list(found)
    while waiting:
        later = {s.carry.update for s in waiting}
        ready = [s for s in waiting if not later - {s.carry.update} & _inside(s)]
        yield from ready
        waiting = [s for s in waiting if s not in ready]


def _inside(s: Step) -> set[Term]:
    return set(postorder(s.part, *(() if s.moved is None else (s.moved,))))


# ---- the test on numbers


def _of_any_inputs(carries: Carries) -> Carries:
    """The states over variables in place of values that do not depend on them: one test serves all such streams.

    Those are what is read, what other sweeps give, positions, and conditions over coordinates: steps that are right
    of any condition are so wherever a mask or a piece of the stream begins and ends.
    """
    own, known = {c.name: f"s{n}" for n, c in enumerate(carries)}, dict[Term, Var]()
    inner = {c.name for t in postorder(*carries) if isinstance(t, T.Stream) for c in t.carries}

    def leaf(t: Term, kids: Sequence[Term]) -> Term:
        read = isinstance(t, T.Load | T.Scan | T.Stream) or (isinstance(t, T.State) and t.name not in inner)
        place = bool(t.free) and isinstance(t, T.Index | T.Unary | T.Binary) and not is_float(t.dtype)
        if (read or place) and not open_states(t) & (own.keys() | inner):
            return known.setdefault(t, Var(f"leaf{len(known)}", t.dtype, tuple(sorted(t.free))))
        if isinstance(t, T.State):
            return T.State(own.get(t.name, t.name), t.dtype, t.axes)
        return with_children(t, kids)

    updates = rebuilt([c.update for c in carries], leaf)
    return tuple(T.Carry(own[c.name], c.monoid, t) for c, t in zip(carries, updates, strict=True))


@lru_cache(maxsize=512)
def _agree(axis: str, carries: Carries) -> bool:
    """Whether the steps of states over variables are right on numbers.

    They are where every state, moved from its value after some positions to the last values of the others, is what these
    positions give under the last values.
    """
    found = _shaped(axis, carries)
    if found is None:
        return False
    last = _states(found, axis, POSITIONS)
    pairs = [
        (_placed(_old(s) if s.moved is None else s.moved, s, found, old, last), _given(s, found, axis, last, k))
        for k, old in ((k, _states(found, axis, k)) for k in (BEFORE, 0))
        for s in found
    ]
    roots = [t for pair in pairs for t in pair]
    axes = {a: OTHER for t in postorder(*roots) for a in (*t.free, *getattr(t, "axes", ()))}
    axes |= {axis: POSITIONS, SAMPLE: SAMPLES}
    rng = np.random.default_rng(1)
    numbers = {t.name: _numbers(t, axes, rng) for t in postorder(*roots) if isinstance(t, Var)}
    with np.errstate(all="ignore"):
        known = Evaluator(roots, axes, {}, True, numbers)
        for n, (got, want) in enumerate(pairs):
            order = tuple(sorted({*got.free, *want.free, SAMPLE}))
            a, b = known.over(got, order), known.over(want, order)
            if not np.isclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True).all():
                return False
            if n < len(found) and not np.isfinite(b).mean() > 0.5:
                return False
    return True


def _old(s: Step) -> T.State:
    return T.State(s.carry.name, s.carry.dtype, ())


def _states(found: Sequence[Step], axis: str, positions: int) -> dict[str, Term]:
    """The states after the first positions."""
    out: dict[str, Term] = {}
    for s in found:
        out[s.carry.name] = _given(s, found, axis, out, positions)
    return out


def _given(s: Step, found: Sequence[Step], axis: str, new: Mapping[str, Term], positions: int) -> Term:
    """What the first positions give to a state, under given values of the others."""
    before = T.Binary("lt", T.Index(axis), T.number(positions))
    part = T.Select(before, _placed(s.part, s, found, {}, new), T.Identity(s.carry.monoid))
    return T.Fold((axis,), s.carry.monoid, part)


def _placed(t: Term, s: Step, found: Sequence[Step], old: Mapping[str, Term], new: Mapping[str, Term]) -> Term:
    """A term of a step over the old states and the new values of the other states, and variables of every sample."""
    others = {o.carry.update: o.carry.name for o in found if o is not s}

    def leaf(k: Term, kids: Sequence[Term]) -> Term:
        if k in others:
            return new.get(others[k], k)
        if isinstance(k, T.State):
            return old.get(k.name, k)
        if isinstance(k, Var) and SAMPLE not in k.axes:
            return Var(k.name, k.dtype, (*k.axes, SAMPLE))
        return with_children(k, kids)

    return rebuilt([t], leaf)[0]


def _numbers(t: Var, axes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Random numbers for a variable."""
    raw = rng.standard_normal([axes[a] for a in t.axes])
    return raw if is_float(t.dtype) else (raw > 0) if t.dtype == "bool" else (4 * raw).astype(np.int64)
