"""The numeric check of a two-sided law: its sides on random axes and values, bit for bit where it claims to be exact."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from egraph.law import Law
from ir import term as T
from ir.dtype import DTYPES, Array, DType, is_float, numpy_type, rounded
from ir.loop_interp import evaluate
from ir.node import IRError

AXES = ("r", "s0", "s1", "t0")
EXTENTS = (0, 1, 1, 2, 3, 4, 5, 6)
SETS = {"s": (("s0",), ("s0", "s1")), "t": (("t0",),)}
TYPES = ("f32", "bf16", "f16", "f64", "i32")
SCALES = (1.0, 40.0, 900.0)
OFFSETS = (0.0, 0.0, 0.0, 3e4)  # values far from 0 show sums that cancel
TOLERANCE = 1e-9
ROUNDINGS = 64
ODD = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 3e38, -3e38, 6e4, 1e-40, 0.1, 7.0)
POWERS = (2.0, 0.25, -8.0)


@dataclass
class Sample:
    """One instance of a law: its two sides, the extents of the axes and the values of its variables."""

    extents: dict[str, int]
    left: T.Term
    right: T.Term
    values: dict[str, Array]


def counterexample(law: Law, seed: int = 0, trials: int = 40) -> str | None:
    """Where the two sides differ by more than the law's class allows, or None after `trials` instances that agree."""
    rng = np.random.default_rng(seed)
    tried = 0
    for trial in range(trials):
        for sides in law.sides:
            try:
                sample = _sample(law, sides, TYPES[trial % len(TYPES)], rng, trial)
            except IRError:
                continue  # the operators of the law refuse this type
            if sample is not None:
                tried += 1
                found = _difference(law, sample)
                if found is not None:
                    return f"{law.name}: {found} (seed {seed}, trial {trial})"
    return None if tried else f"{law.name}: no instance meets its conditions"


def _sample(
    law: Law, sides: tuple[T.Term, T.Term], dtype: DType, rng: np.random.Generator, trial: int
) -> Sample | None:
    facts = {name: {c.name for c in law.given if name in c.variables} for name in law.kinds}
    if not is_float(dtype) and any(
        "floating" in f or f & {"positive", "nonpositive", "inverse"} for f in facts.values()
    ):
        return None
    sets = {name: choices[trial % len(choices)] for name, choices in SETS.items()}
    filled = {a for c in law.given if c.name == "occupied" for a in sets[c.variables[0]]}
    extents = {a: max(int(rng.choice(EXTENTS)), int(a in filled)) for a in AXES}
    bound: dict[str, T.Term] = {}
    values: dict[str, Array] = {}
    offset = OFFSETS[trial % len(OFFSETS)]
    power = POWERS[trial % len(POWERS)]
    for name, kind in law.kinds.items():
        if kind not in ("Term", "Predicate"):
            continue
        own = "bool" if kind == "Predicate" else dtype
        constant = _constant(facts[name], own, power, first=name == "c")
        if constant is not None:
            bound[name] = constant
            continue
        axes = _axes(law, name, sets, rng)
        bound[name] = T.Var(name, own, axes)
        values[name] = _values(
            law, facts[name], own, tuple(extents[a] for a in axes), rng, SCALES[trial % len(SCALES)], offset
        )
    left, right = (_instance(t, bound, sets, dtype) for t in sides)
    return Sample(extents, left, right, values)


def _constant(facts: set[str], dtype: DType, power: float, first: bool) -> T.Term | None:
    known = {"one": 1.0, "zero": 0.0, "minus_zero": -0.0, "inverse": power if first else 1 / power}
    for name in facts & known.keys():
        return T.const(known[name], dtype)
    return None


def _axes(law: Law, name: str, sets: Mapping[str, tuple[str, ...]], rng: np.random.Generator) -> tuple[str, ...]:
    """The row axis, and each folded axis unless a condition forbids it; some are left out at random."""
    out = ["r"]
    used = [s for s, kind in law.kinds.items() if kind == "Axes"]
    for s in used:
        rules = {c.name for c in law.given if c.variables == (name, s)}
        if "disjoint" not in rules:
            out += [a for a in sets[s] if "meets" in rules or rng.random() < 0.7]
    return tuple(sorted(out))


def _values(
    law: Law,
    facts: set[str],
    dtype: DType,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    scale: float,
    offset: float,
) -> Array:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if not is_float(dtype):
        return rng.integers(-9, 9, shape).astype(numpy_type(dtype))
    out = rng.standard_normal(shape) * scale + offset
    if law.class_ in ("exact", "finite"):
        odd = [x for x in ODD if law.class_ == "exact" or np.isfinite(x)]
        out = np.where(rng.random(shape) < 0.6, rng.choice(odd, shape), out)
    if facts & {"positive", "nonnegative"}:
        out = np.abs(out) + (1e-3 if "positive" in facts else 0)
    if "nonpositive" in facts:
        out = -np.abs(out)
    if "bounded" in facts:
        out = np.tanh(out)
    if "plain" in facts:
        out = np.where((out == 0) & np.signbit(out), 1.0, out)
    with np.errstate(all="ignore"):
        out = rounded(out, dtype)
    if law.class_ == "finite":
        out = np.where(np.isfinite(out), out, np.asarray(1, out.dtype))
    return out


def _instance(t: T.Term, bound: Mapping[str, T.Term], sets: Mapping[str, tuple[str, ...]], dtype: DType) -> T.Term:
    """A pattern with its variables bound, its axis sets named and its free dtype chosen."""
    if isinstance(t, T.Var):
        return bound[t.name]
    args: list[object] = []
    for f in fields(t):
        value = getattr(t, f.name)
        if isinstance(value, T.Term):
            args.append(_instance(value, bound, sets, dtype))
        elif isinstance(value, tuple):
            names = re.findall(r"\b[st]\b", value[0])
            args.append(tuple(sorted({a for n in names for a in sets[n]})))
        else:
            args.append(dtype if value == "?d" else value)
    make: Callable[..., T.Term] = type(t)
    return make(*args)


def _difference(law: Law, sample: Sample) -> str | None:
    order = tuple(sorted(sample.left.free | sample.right.free))
    bitwise = law.class_ in ("exact", "finite")

    def sides(exact: bool) -> list[Array]:
        with np.errstate(all="ignore"):
            terms = (sample.left, sample.right)
            return [np.asarray(evaluate(t, sample.extents, {}, order, exact, sample.values)) for t in terms]

    left, right = sides(False)
    if bitwise:
        where = _bits_differ(left, right)
    else:
        true = sides(True)
        where = _less_right(sample.left.dtype, left, right, *true)
        if not where.any():
            left, right = true
            where = _apart(left, right)
    if not where.any():
        return None
    at = tuple(int(k) for k in np.unravel_index(int(np.argmax(where)), where.shape))
    return f"left is {left[at]} and right is {right[at]} of {sample.left.dtype}"


def _less_right(dtype: DType, left: Array, right: Array, true_left: Array, true_right: Array) -> Array:
    """Where a finite right side in its own type is farther from what it should be than the left one and some roundings."""
    if left.dtype.kind != "f":
        return np.asarray(left != right)
    finite = np.isfinite(left) & np.isfinite(true_left)
    size = np.max(np.abs(np.where(finite, true_left, 0)), initial=0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        errors = [np.abs(x.astype(np.float64) - y) for x, y in ((left, true_left), (right, true_right))]
    worst = np.max(np.where(finite, errors[0], 0), initial=0.0)
    return np.asarray(finite & ~(errors[1] <= 2 * worst + ROUNDINGS * DTYPES[dtype].unit_roundoff * size))


def _bits_differ(left: Array, right: Array) -> Array:
    if left.dtype.kind != "f":
        return np.asarray(left != right)
    both_nan = np.isnan(left) & np.isnan(right)
    return np.asarray(~both_nan & ((left != right) | (np.signbit(left) != np.signbit(right))))


def _apart(left: Array, right: Array) -> Array:
    if left.dtype.kind != "f":
        return np.asarray(left != right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    size = np.max(np.abs(np.where(np.isfinite(left), left, 0)), initial=0.0)
    with np.errstate(invalid="ignore"):
        error = np.abs(left - right)
    return np.asarray(~same & ~(error <= TOLERANCE * max(float(size), 1e-300)))
