"""How several positions of a stream are taken at once: each state's update as what becomes of the old state, and a part.

Where an update is `moved (+) part`, (+) the state's monoid, and only `moved` reads states as they were before the step,
the parts of many positions fold together, and so do partial states, each moved to the common values of the others.
This is right where moving what the positions so far gave is giving it anew under the new values, which is tested on
numbers: then the law of one step holds for a step of any number of positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from extract.facts import open_states
from extract.rewrite import rebuilt, with_children
from ir import term as T
from ir.dtype import Array, is_float
from ir.loop_interp import evaluate
from ir.node import postorder
from ir.ops import MONOIDS
from ir.term import Term, Var

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


@lru_cache(maxsize=512)
def steps(stream: T.Stream) -> tuple[Step, ...] | None:
    """The steps of a stream's states, each after those it depends on; None where positions must be taken one by one."""
    found = _shaped(stream)
    return found if found is not None and _agree(_of_any_inputs(stream)) else None


def _shaped(stream: T.Stream) -> tuple[Step, ...] | None:
    """The steps as the updates are written, which need not be right."""
    new = {c.update: Var(f"new_{c.name}", c.dtype, ()) for c in stream.carries}
    found = [_split(c, new, stream.axis) for c in stream.carries]
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
        sides[bool(open_states(_exchanged(t, hidden)))].append(t)
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

Values = Mapping[str, Array]


def _of_any_inputs(stream: T.Stream) -> T.Stream:
    """The stream over variables in place of values that do not depend on its states: one test serves all such streams."""
    own, known = {c.name for c in stream.carries}, dict[Term, Var]()

    def leaf(t: Term, kids: Sequence[Term]) -> Term:
        given = isinstance(t, T.Load | T.Scan | T.Stream | T.State) and not open_states(t) & own
        if given and t is not stream:
            return known.setdefault(t, Var(f"leaf{len(known)}", t.dtype, tuple(sorted(t.free))))
        return with_children(t, kids)

    (found,) = rebuilt([stream], leaf)
    assert isinstance(found, T.Stream)
    return found


@lru_cache(maxsize=512)
def _agree(stream: T.Stream) -> bool:
    """Whether the steps of a stream over variables are right on numbers."""
    found = _shaped(stream)
    return found is not None and _Numbers(stream, found).agree()


@dataclass
class _Numbers:
    """The states of a stream over random variables, from the parts of its first positions."""

    stream: T.Stream
    steps: Sequence[Step]
    leaves: dict[Var, Var] = field(default_factory=dict)
    numbers: dict[str, Array] = field(default_factory=dict)

    def agree(self) -> bool:
        """Whether every state, moved from the values at some position to those at the last, is what it should be."""
        terms = [t for s in self.steps for t in (s.part, *(() if s.moved is None else (s.moved,)))]
        self.axes = {a: OTHER for t in postorder(*terms) for a in (*t.free, *getattr(t, "axes", ()))}
        self.axes |= {self.stream.axis: POSITIONS, SAMPLE: SAMPLES}
        self.rng = np.random.default_rng(1)
        self.state_axes = {c.name: c.update.free - {self.stream.axis} for c in self.stream.carries}
        with np.errstate(all="ignore"):
            last = self._states(POSITIONS)
            return all(self._moves(self._states(k), last, k) for k in (BEFORE, 0))

    def _moves(self, old: Values, last: Values, positions: int) -> bool:
        for s in self.steps:
            state = T.State(s.carry.name, s.carry.dtype, tuple(sorted(self.state_axes[s.carry.name])))
            got = self._value(state if s.moved is None else s.moved, s, old, last)
            want = self._given(s, last, positions)
            if not np.isclose(got, want, rtol=1e-6, atol=1e-9, equal_nan=True).all():
                return False
            if positions and not np.isfinite(want).mean() > 0.5:
                return False
        return True

    def _states(self, positions: int) -> Values:
        """The states after the first positions."""
        out: dict[str, Array] = {}
        for s in self.steps:
            out[s.carry.name] = self._given(s, out, positions)
        return out

    def _given(self, s: Step, new: Values, positions: int) -> Array:
        """What the first positions give to a state, under given values of the others."""
        before = T.Binary("lt", T.Index(self.stream.axis), T.number(positions))
        part = T.Select(before, s.part, T.Identity(s.carry.monoid))
        return self._value(T.Fold((self.stream.axis,), s.carry.monoid, part), s, {}, new)

    def _value(self, t: Term, s: Step, old: Values, new: Values) -> Array:
        """A term over the axes of the state, with old states and new values of the other states as numbers."""
        values = {f"{kind}_{n}": v for kind, held in (("old", old), ("new", new)) for n, v in held.items()}
        others = {c.update: self._var(f"new_{c.name}", c) for c in self.stream.carries if c is not s.carry}
        own = {c.name: c for c in self.stream.carries}

        def leaf(k: Term, kids: Sequence[Term]) -> Term:
            if k in others:
                return others[k]
            if isinstance(k, T.State) and k.name in own:
                return self._var(f"old_{k.name}", own[k.name])
            if isinstance(k, Var):
                return self._leaf(k)
            return with_children(k, kids)

        order = (*sorted(self.state_axes[s.carry.name]), SAMPLE)
        return evaluate(rebuilt([t], leaf)[0], self.axes, {}, order, True, values | self.numbers)

    def _var(self, name: str, c: T.Carry) -> Var:
        return Var(name, c.dtype, (*sorted(self.state_axes[c.name]), SAMPLE))

    def _leaf(self, t: Var) -> Var:
        """The variable in every sample, with random numbers for it."""
        if t not in self.leaves:
            axes = (*sorted(t.free), SAMPLE)
            self.leaves[t] = Var(t.name, t.dtype, axes)
            raw = self.rng.standard_normal([self.axes[a] for a in axes])
            held = raw if is_float(t.dtype) else (raw > 0) if t.dtype == "bool" else (4 * raw).astype(np.int64)
            self.numbers[self.leaves[t].name] = held
        return self.leaves[t]
