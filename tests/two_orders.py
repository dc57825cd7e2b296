"""Forms whose kernels add up one sum in two orders: in every second kernel it is off by what an order may change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from egraph.saturate import saturate
from extract.forms import default_form, forms
from extract.parts import with_terms
from extract.rewrite import with_children
from ir import term as T
from ir.loop import Form, LoopProgram, Part
from ir.machine import H200
from ir.term import Term

ANOTHER_ORDER = 1 + 2.0**-20


def in_two_orders(form: Form, turn: int) -> Form:
    """The form whose sums are off in the kernels of odd numbers, or of even ones."""

    def leaf(t: Term, kids: Sequence[Term]) -> Term:
        if isinstance(t, T.Fold) and t.monoid == "add":
            return T.binary("mul", T.fold(t.axes, t.monoid, kids[0]), T.const(ANOTHER_ORDER, "f32"))
        return with_children(t, kids) if t.terms else t

    def parts(n: int) -> tuple[Part, ...]:
        return tuple(with_terms(p, leaf) if n % 2 == turn else p for p in form.kernels[n].parts)

    return replace(form, kernels=tuple(replace(k, parts=parts(n)) for n, k in enumerate(form.kernels)))


def all_forms(program: LoopProgram) -> Iterator[Form]:
    """The form as written, and those that are listed."""
    yield default_form(program, H200)
    for numerics in ("default", "strict"):
        yield from forms(saturate(program, numerics), H200, k=12)
