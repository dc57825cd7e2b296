"""Register loops are written out, so that register indices are constants and predicates are decided one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codegen.passes.nest import Names
from codegen.passes.state import State
from codegen.passes.terms import replaced
from ir import kernel as K
from ir import term as T
from ir.node import IRError
from ir.term import Const, Term, Var

LIMIT = 2048
"""Statements above which a nest stays a loop that the CUDA compiler unrolls."""


def unroll(state: State) -> State:
    """Write out every unrolled loop of at most LIMIT statements."""
    kernel = state.kernel
    assert kernel is not None
    names = {s.name for s in K.walk(kernel.body) if isinstance(s, K.Named)}
    writer = _Unroller(Names(names | {b.name for b in kernel.buffers}))
    return replace(state, kernel=replace(kernel, body=writer.body(kernel.body, {})))


class _Unroller:
    def __init__(self, names: Names) -> None:
        self.names = names

    def body(self, body: tuple[K.Statement, ...], values: Mapping[Term, Term]) -> tuple[K.Statement, ...]:
        """The body with loop variables at the constants `values`; scalars made in a copy get names of their own."""
        out: list[K.Statement] = []
        local, memo = dict(values), dict[Term, Term]()

        def here(t: Term) -> Term:
            return replaced(t, local.get, memo) if local else t

        for s in body:
            match s:
                case K.For(_, _, _, _, True) if _count(s) <= LIMIT:
                    for k in range(_bound(s.start), _bound(s.stop), s.step):
                        out += self.body(s.body, {**local, s.counter: T.const(k, s.counter.dtype)})
                case K.For() | K.If():
                    new = K.map_terms(s, here)
                    assert isinstance(new, K.For | K.If)
                    out.append(replace(new, body=self.body(s.body, local)))
                case K.Let(name, value) if values:
                    fresh = self.names.fresh(name)
                    out.append(K.Let(fresh, here(value)))
                    local[Var(name, value.dtype, ())] = Var(fresh, value.dtype, ())
                case _:
                    out.append(K.map_terms(s, here))
        return tuple(out)


def _bound(t: Term) -> int:
    if not isinstance(t, Const):
        raise IRError("an unrolled loop has bounds that are no constants")
    return int(t.value)


def _count(s: K.Statement) -> int:
    if not isinstance(s, K.For | K.If):
        return 1
    inner = sum(map(_count, s.body))
    if not isinstance(s, K.For) or not s.unroll:
        return inner
    return inner * len(range(_bound(s.start), _bound(s.stop), s.step))
