"""Kernel to kernel: what only the first block of a cluster uses is sent to it alone, and the other blocks are done.

The last barrier of a cluster may stand before statements whose stores all lie in threads of its first block: where every
thread holds the result, the first writes it. Then the others need not wait, nor get what is stored for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from codegen.passes.state import State
from ir import kernel as K
from ir import term as T
from ir.interval import Interval, Ranges
from ir.term import Term


def gather_last(state: State) -> State:
    """The kernel whose last exchange goes to the first block of each cluster, where that is enough."""
    kernel = state.kernel
    assert kernel is not None
    last = max((k for k, s in enumerate(kernel.body) if s == K.Barrier("cluster")), default=None)
    if last is None:
        return state
    before, after = kernel.body[:last], kernel.body[last + 1 :]
    if not _first_alone(after, kernel):
        return state
    read = {s.shared for s in K.walk(after) if isinstance(s, K.LoadShared)}
    read -= {s.shared for s in K.walk(before) if isinstance(s, K.LoadShared)}
    shared = tuple(s for s in after if isinstance(s, K.Shared))
    rest = tuple(s for s in after if not isinstance(s, K.Shared))
    body = (*_sent(before, read), *shared, K.Barrier("gather"), K.If(kernel.first_block, rest))
    return replace(state, kernel=replace(kernel, body=body))


def _sent(body: Sequence[K.Statement], names: set[str]) -> tuple[K.Statement, ...]:
    """The body with stores to all copies of these shared arrays going to the first."""
    out = list[K.Statement]()
    for s in body:
        if isinstance(s, K.For | K.If):
            s = replace(s, body=_sent(s.body, names))
        elif isinstance(s, K.StoreShared) and s.to == "all" and s.shared in names:
            s = replace(s, to="first")
        out.append(s)
    return tuple(out)


def _first_alone(body: Sequence[K.Statement], kernel: K.KernelProgram) -> bool:
    """Whether the statements meet no other block, and store in threads of the first block alone."""
    for s in K.walk(tuple(body)):
        match s:
            case K.Barrier("cluster" | "begun" | "gather"):
                return False
            case K.StoreShared() if s.to != "own":
                return False
            case K.StoreGlobal(_, _, _, _, _, pred) if pred is None or not _in_first(pred, kernel):
                return False
    return True


def _in_first(pred: Term, kernel: K.KernelProgram) -> bool:
    """Whether a predicate holds in threads of the first block alone."""
    match pred:
        case T.Binary("and", x, y):
            return _in_first(x, kernel) or _in_first(y, kernel)
        case T.Binary("eq", x, T.Const() as c) | T.Binary("eq", T.Const() as c, x) if x is K.THREAD:
            return int(c.value) < kernel.block_threads
    others: dict[Term, Interval] = {K.THREAD: (kernel.block_threads, kernel.threads - 1)}
    return Ranges(others).decide(pred) is False
