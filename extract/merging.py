"""How several positions of a stream are taken at once: each state's update as a rescaled old value and a contribution.

Where an update is `old (x) ratio (+) contribution`, with (x) the multiplication or addition that distributes over the
state's monoid (+), the contributions of many positions fold together, and so do partial states, each rescaled by its
ratio to the common state. This needs ratios that compose and contributions that rescale alike; both are tested on
numbers. The rescaled value is `mulz(ratio, old)`: what a partial state holds before it meets a value that counts, even
NaN, is forgotten when the ratio from there is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from extract.rewrite import rebuilt, with_children
from ir import term as T
from ir.dtype import Array, is_float
from ir.loop_interp import evaluate
from ir.meaning import identity
from ir.node import postorder
from ir.ops import MONOIDS
from ir.term import Term, Var

SCALES: Mapping[str, tuple[tuple[str, str], str]] = {
    "add": (("mulz", "mul"), "mul"),
    "max": (("addz", "add"), "add"),
}
"""Per monoid: the operators that rescale its results (the first forgets where the ratio does), and how ratios compose."""
SAMPLES = 64


@dataclass(frozen=True)
class Step:
    """One state: its new value is the old one, rescaled by `scale` and `ratio` where they are there, (+) `part`."""

    carry: T.Carry
    part: Term
    scale: str | None = None
    ratio: Term | None = None


@lru_cache(maxsize=512)
def steps(stream: T.Stream) -> tuple[Step, ...] | None:
    """The steps of a stream's states, each after those it depends on; None where positions must be taken one by one."""
    new = {c.update: Var(f"new_{c.name}", c.dtype, ("sample",)) for c in stream.carries}
    found = [_split(c, new, stream.axis) for c in stream.carries]
    known = [s for s in found if s is not None]
    if len(known) < len(found) or not all(_composes(s, stream) for s in known):
        return None
    return tuple(_ordered(known))


def _split(carry: T.Carry, new: Mapping[Term, Var], axis: str) -> Step | None:
    """The update as old value, ratio and contribution, if it has that shape."""
    row = MONOIDS[carry.monoid]
    if row.pair:
        return None
    factors = list(_factors(carry.update, row.combine))
    old = [t for t in factors if _rescaled(t, carry) is not None]
    rest = [t for t in factors if _rescaled(t, carry) is None]
    if len(old) != 1 or not rest:
        return None
    part = rest[0]
    for t in rest[1:]:
        part = T.binary(row.combine, part, t)
    found = _rescaled(old[0], carry)
    assert found is not None
    scale, ratio = found
    hidden = {k: v for k, v in new.items() if k is not carry.update}
    plain = _exchanged(part, hidden if ratio is not None else {})
    if any(isinstance(t, T.State) for t in postorder(plain)):
        return None
    if ratio is not None and axis in _exchanged(ratio, hidden).free:
        return None
    return Step(carry, part, scale, ratio)


def _factors(t: Term, op: str) -> Iterator[Term]:
    if isinstance(t, T.Binary) and t.op == op:
        yield from _factors(t.x, op)
        yield from _factors(t.y, op)
    else:
        yield t


def _rescaled(t: Term, carry: T.Carry) -> tuple[str | None, Term | None] | None:
    """The operator and the ratio by which `t` rescales the state itself."""

    def is_old(k: Term) -> bool:
        return isinstance(k, T.State) and k.name == carry.name

    if is_old(t):
        return None, None
    ops = SCALES[carry.monoid][0] if carry.monoid in SCALES else None
    if ops is not None and isinstance(t, T.Binary) and t.op in ops:
        for x, y in ((t.x, t.y), (t.y, t.x)):
            if is_old(x) and not any(is_old(k) for k in postorder(y)):
                return ops[0], y
    return None


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
    return set(postorder(s.part, *(() if s.ratio is None else (s.ratio,))))


# ---- the test on numbers


def _composes(s: Step, stream: T.Stream) -> bool:
    """Whether ratios compose like (x) and contributions rescale by them, on samples."""
    if s.ratio is None:
        return True
    compose = SCALES[s.carry.monoid][1]
    rng = np.random.default_rng(1)
    leaves: dict[Term, Term] = {}
    numbers: dict[str, Array] = {}
    points = {c.name: _growing(c, rng) for c in stream.carries}

    def at(t: Term, old: int, new: int) -> Array:
        inner: dict[Term, Term] = {}
        values = dict(numbers)
        for c in stream.carries:
            if c is not s.carry:
                inner[c.update] = Var(f"new_{c.name}", c.dtype, ("sample",))
                values[f"new_{c.name}"], values[f"old_{c.name}"] = points[c.name][new], points[c.name][old]
        term = rebuilt([t], lambda k, kids: inner[k] if k in inner else _sampled(k, kids, leaves, numbers, rng))[0]
        return evaluate(term, {"sample": SAMPLES}, {}, ("sample",), True, values | numbers)

    def close(x: Array, y: Array) -> bool:
        return np.allclose(x, y, rtol=1e-6, atol=1e-9)

    join = np.multiply if compose == "mul" else np.add
    with np.errstate(all="ignore"):
        ratio = {(o, n): at(s.ratio, o, n) for o, n in ((0, 0), (0, 1), (1, 2), (0, 2), (3, 0))}
        neutral = np.full(SAMPLES, 1.0 if compose == "mul" else 0.0)
        return (
            close(ratio[0, 0], neutral)
            and not np.isnan(join(ratio[3, 0], identity(s.carry.monoid, s.carry.dtype))).any()
            and close(join(ratio[0, 1], ratio[1, 2]), ratio[0, 2])
            and close(at(s.part, 1, 1), join(at(s.part, 0, 0), ratio[0, 1]))
        )


def _growing(c: T.Carry, rng: np.random.Generator) -> list[Array]:
    """Three values of a state in an order in which a stream may take them, and where it starts."""
    raw = np.sort(rng.standard_normal((3, SAMPLES)), axis=0)
    ordered = {"min": raw[::-1], "max": raw}.get(c.monoid, np.abs(raw).cumsum(0))
    return [*ordered, np.full(SAMPLES, float(identity(c.monoid, c.dtype)))]


def _sampled(
    t: Term,
    kids: Sequence[Term],
    leaves: dict[Term, Term],
    numbers: dict[str, Array],
    rng: np.random.Generator,
) -> Term:
    """The node over new children; anything that is not pointwise is a number of its own."""
    match t:
        case T.State(name):
            return Var(f"old_{name}", t.dtype, ("sample",))
        case T.Unary() | T.Binary() | T.Select() | T.Round() | T.Const() | T.Identity() | T.Var():
            return with_children(t, kids)
    if t not in leaves:
        name = f"leaf{len(leaves)}"
        leaves[t] = Var(name, t.dtype, ("sample",))
        raw = rng.standard_normal(SAMPLES)
        numbers[name] = raw if is_float(t.dtype) else (raw > 0) if t.dtype == "bool" else (4 * raw).astype(np.int64)
    return leaves[t]
