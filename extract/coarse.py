"""Exponentials of which the results keep few bits take few instructions: what they feed is rounded to 16 bits, or a log.

A coarse exponential of x is off by 1.3 * |x| and a few unit roundoffs of f32 where the exact one is off by one: at most
2**-17, since it leaves the range of f32 beyond |x| = 103. A rounding to f16 or bf16 hides that unless a difference comes
before it; the logarithm of a sum of them is off by that much in absolute terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from extract.rewrite import with_children
from ir import term as T
from ir import tile
from ir.dtype import DTYPES, is_float
from ir.loop import Buffer
from ir.node import postorder
from ir.term import Term
from ir.tile import Statement, TilePart

COARSE = {"exp": "exp_coarse", "sigmoid": "sigmoid_coarse"}
POSITIVE = (*COARSE, *COARSE.values(), "exp2")
KEEPING = ("mul", "mulz")
Flags = dict[str, bool]
"""What holds of values by their names: of all that can hold at a time, as streams make values of one another."""


def coarse(part: TilePart, buffers: Mapping[str, Buffer]) -> TilePart:
    """The part with coarse operators wherever the error of a value is hidden in everything that is made of it."""
    body = list(tile.walk(part.body))
    positive = _settled(lambda known: _positive_values(body, known))
    spare = _settled(lambda known: _step(body, known, positive, buffers))
    return replace(part, body=_written(part.body, spare, positive))


def _settled(step: Callable[[Flags], Flags]) -> Flags:
    """The flags that a step leaves as they are, starting with none, which counts as all."""
    known: Flags = {}
    while (found := step(known)) != known:
        known = found
    return known


def _positive_values(body: Sequence[Statement], known: Flags) -> Flags:
    """Whether each value is never negative, given what is known of those that it is made of."""
    out: Flags = {}
    for s in body:
        match s:
            case tile.Map(made, term):
                out[made] = _positive(term, known)
            case tile.Where(made, _, x, "add") | tile.TileFold(made, _, "add", x) | tile.Convert(made, x):
                out[made] = known.get(x, True)
            case tile.Combine(made, "add", x, y):
                out[made] = known.get(x, True) and known.get(y, True)
            case tile.Stream(_, carried, _, yields):
                out |= {
                    c.name: c.monoid == "add" and known.get(y, True) for c, y in zip(carried, yields, strict=True)
                }
            case tile.TileStore():
                pass
            case _:
                out[s.out] = False
    return out


def _step(body: Sequence[Statement], known: Flags, positive: Flags, buffers: Mapping[str, Buffer]) -> Flags:
    """Whether each value has accuracy to spare, given what is known of the values made of it; true where none is."""
    out: Flags = {}

    def note(name: str, hidden: bool) -> None:
        out[name] = out.get(name, True) and hidden

    for s in body:
        match s:
            case tile.TileStore(buffer, _, value, _):
                note(value, _short(buffers[buffer].dtype))
            case tile.Map(made, term):
                for t, hidden in _hidden(term, known.get(made, True), positive).items():
                    if isinstance(t, T.Var):
                        note(t.name, hidden)
            case tile.Where(made, _, x, _) | tile.Convert(made, x):
                note(x, known.get(made, True))
            case tile.TileFold(made, _, "add" | "max", x):
                note(x, known.get(made, True))
            case tile.Combine(made, "add" | "max", x, y):
                note(x, known.get(made, True))
                note(y, known.get(made, True))
            case tile.Stream(_, carried, _, yields):
                for c, y in zip(carried, yields, strict=True):
                    note(y, known.get(c.name, True))
            case _:
                for name in tile.reads(s):
                    note(name, False)
        if isinstance(s, tile.Where | tile.TileStore | tile.TileLoad):
            terms = (s.pred,) if isinstance(s, tile.Where) else s.index
            for t in postorder(*terms):
                if isinstance(t, T.Var):
                    note(t.name, False)
    return out


def _short(dtype: str) -> bool:
    return is_float(dtype) and DTYPES[dtype].bytes == 2


def _hidden(root: Term, hidden: bool, positive: Flags) -> dict[Term, bool]:
    """For every node of a term whether a small relative error of it is hidden, given that of the whole."""
    out = {root: hidden}
    for t in reversed(list(postorder(root))):
        for k, kept in zip(t.terms, _kept(t, out[t], positive), strict=True):
            out[k] = out.get(k, True) and kept
    return out


def _kept(t: Term, hidden: bool, positive: Flags) -> tuple[bool, ...]:
    """For every operand whether a small relative error is hidden in the result, whose own is `hidden`."""
    match t:
        case T.Round(dtype, _, _) if is_float(dtype):
            return (hidden or _short(dtype),)
        case T.Unary("log"):
            return (True,)
        case T.Unary("recip" | "neg"):
            return (hidden,)
        case T.Binary(op) if op in KEEPING:
            return (hidden, hidden)
        case T.Binary("add", x, y):
            return (hidden and _positive(x, positive) and _positive(y, positive),) * 2
        case T.Select():
            return (False, hidden, hidden)
    return (False,) * len(t.terms)


def _positive(t: Term, known: Flags) -> bool:
    """Whether a term is never negative, by its own shape."""
    match t:
        case T.Var(name):
            return known.get(name, True)
        case T.Const():
            return is_float(t.type) and t.value > 0
        case T.Unary(op) if op in POSITIVE:
            return True
        case T.Unary("recip", x) | T.Round(_, _, x):
            return _positive(x, known)
        case T.Binary("add", x, T.Unary("neg", y)) | T.Binary("add", T.Unary("neg", y), x) if x is y:
            return True
        case T.Binary("mul" | "add" | "mulz", x, y):
            return _positive(x, known) and _positive(y, known)
    return False


def _written(body: tuple[Statement, ...], spare: Flags, positive: Flags) -> tuple[Statement, ...]:
    out: list[Statement] = []
    for s in body:
        match s:
            case tile.Stream():
                out.append(replace(s, body=_written(s.body, spare, positive)))
            case tile.Map(made, term):
                out.append(tile.Map(made, _coarser(term, _hidden(term, spare.get(made, True), positive))))
            case _:
                out.append(s)
    return tuple(out)


def _made_coarse(t: Term) -> Term:
    """A coarse operator in place of an exact one; 1 + tanh(x) is twice the sigmoid of 2 * x, which loses nothing."""
    two = T.const(2.0, "f32")
    match t:
        case T.Unary(op, x) if op in COARSE:
            return T.unary(COARSE[op], x)
        case T.Binary("add", T.Unary("tanh", x), T.Const() as c) | T.Binary(
            "add", T.Const() as c, T.Unary("tanh", x)
        ):
            if c.value == 1.0:
                return T.binary("mul", two, T.unary("sigmoid_coarse", T.binary("mul", two, x)))
    return t


def _coarser(root: Term, hidden: Mapping[Term, bool]) -> Term:
    done: dict[Term, Term] = {}
    for t in postorder(root):
        kids = [done[k] for k in t.terms]
        new = t if all(k is old for k, old in zip(kids, t.terms, strict=True)) else with_children(t, kids)
        done[t] = _made_coarse(new) if hidden[t] and new.dtype == "f32" else new
    return done[root]
