"""Terms rebuilt bottom up, identities made constants, shared subterms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ir import meaning
from ir import term as T
from ir.dtype import DType, compute_type
from ir.node import IRError, postorder
from ir.term import Term


def with_children(t: Term, kids: Sequence[Term]) -> Term:
    """A pointwise node like `t` over other children, through the normalising constructors."""
    if all(new is old for new, old in zip(kids, t.children, strict=True)):
        return t
    match t:
        case T.Load(buffer, dtype, _):
            return T.Load(buffer, dtype, tuple(kids))
        case T.Unary(op, _):
            return T.unary(op, kids[0])
        case T.Binary(op, _, _):
            return T.binary(op, kids[0], kids[1])
        case T.Select(_, _, _):
            return T.select(kids[0], kids[1], kids[2])
        case T.Round(dtype, origin, _):
            new = T.round_to(dtype, origin, kids[0])
            return new if new.dtype == dtype else T.Round(dtype, origin, kids[0])
    raise IRError(f"{type(t).__name__} does not belong into a tile or kernel program")


def rebuilt(root: Term, node: Callable[[Term, Sequence[Term]], Term], memo: dict[Term, Term] | None = None) -> Term:
    """`root` with node(t, new children) in place of each subterm t, children first; `memo` keeps what is done."""
    done: dict[Term, Term] = {} if memo is None else memo
    stack = [root]
    while stack:
        t = stack[-1]
        missing = [k for k in t.terms if k not in done]
        if missing and t not in done:
            stack += missing
            continue
        if t not in done:
            done[t] = node(t, [done[k] for k in t.terms])
        stack.pop()
    return done[root]


def replaced(root: Term, leaf: Callable[[Term], Term | None], memo: dict[Term, Term] | None = None) -> Term:
    """`root` with each leaf that `leaf` knows replaced by what it gives."""

    def node(t: Term, kids: Sequence[Term]) -> Term:
        new = leaf(t) if not kids else None
        return with_children(t, kids) if new is None else new

    return rebuilt(root, node, memo)


def typed(root: Term, want: DType = "f32") -> Term:
    """The term with every `Identity` as a constant of the type that its place asks for; `want` is the root's place."""
    memo: dict[tuple[Term, DType], Term] = {}

    def go(t: Term, place: DType) -> Term:
        place = place if t.dtype == "any" else t.dtype
        if (t, place) not in memo:
            if isinstance(t, T.Identity):
                memo[t, place] = T.const(meaning.identity(t.monoid, place), place)
            else:
                known = [k.dtype for k in t.terms if k.dtype not in ("any", "bool")]
                inner = place if isinstance(t, T.Select) or not known else known[0]
                inner = t.type if isinstance(t, T.Round) else inner
                memo[t, place] = with_children(t, [go(k, inner) for k in t.terms])
        return memo[t, place]

    return go(root, want) if any(isinstance(t, T.Identity) for t in postorder(root)) else root


def conjunction(preds: Sequence[Term]) -> Term | None:
    """All of `preds`, or None where there are none."""
    out: Term | None = None
    for p in preds:
        out = p if out is None else T.binary("and", out, p)
    return out


def widened(t: Term) -> Term:
    """An integer term as i64."""
    return T.round_to("i64", "cast", t)


def digit(index: Term, before: int, size: int) -> Term:
    """Digit of a linear i64 index: (index // before) % size."""
    return T.binary("mod", T.binary("floordiv", index, T.number(before)), T.number(size))


def linear(terms: Mapping[Term, int], constant: int = 0) -> Term:
    """The i64 sum of coefficient * term and a constant, the constant last."""
    out: Term | None = None
    for t, c in terms.items():
        if c == 0:
            continue
        product = T.binary("mul", t, T.number(abs(c)))
        signed = product if c > 0 else T.unary("neg", product)
        out = signed if out is None else T.binary("add", out, signed)
    if out is None:
        return T.number(constant)
    return T.binary("add", out, T.number(constant))


def assigned(value: Term, dtype: DType) -> Term:
    """A value as it is assigned to an array of `dtype`: of that type, or f16 or bf16 that widens."""
    if value.dtype == dtype:
        return value
    if value.dtype != "any" and not (compute_type(value.dtype) == dtype == "f32"):
        raise IRError(f"a value of {value.dtype} is assigned to an array of {dtype}")
    return typed(value, dtype) if value.dtype == "any" else T.Round(dtype, "cast", value)
