"""The signature of a form, as text: what tells it from others without its terms."""

from __future__ import annotations

from collections.abc import Mapping

from extract.cost import Cost
from ir.loop import Form
from ir.text import show_term


def form_signature(form: Form) -> list[str]:
    """Per kernel what it stores, over which axes, its loops over each axis, contractions and states."""
    costs: Mapping[str, Cost] = form.details["kernels"]  # type: ignore[assignment]
    out = []
    own = {b.name for b in form.buffers if b.role == "scratch"}
    for k in form.kernels:
        cost = costs[k.name]
        loops = " ".join(f"{a}:{n}" for a, n in sorted(cost.sweeps.items())) or "no loop"
        axes = {s.buffer: f"[{', '.join(map(show_term, s.index))}]" if s.buffer in own else "" for s in k.stores}
        made = ", ".join(f"{buffer}{index}" for buffer, index in axes.items())
        counts = ((cost.contractions, "contraction"), (cost.states, "state"))
        more = "".join(f", {n} {name}{'s' * (n > 1)}" for n, name in counts if n)
        out.append(f"{k.name} makes {made}: {loops}{more}")
    return out
