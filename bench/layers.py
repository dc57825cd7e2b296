"""The covers of decoder layers: what is chosen, the kernels that a person would write, and the cheapest way to each value.

At small sizes the chosen cover runs as emitted text on the CPU and is held to float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench.decoder import MODELS, program
from bench.shrunk import shrunk
from eggtile.check import Verdict, check_compiled
from eggtile.explore import reads
from eggtile.pipeline import Compiled, Options, capture_and_lower, choose_forms, compile_kernels
from egraph.graph import EGraph
from extract.cost import Cost
from extract.facts import buffers_read, size
from extract.forms import forms
from extract.memory import peak_bytes
from extract.prescribed import prescribed
from ir import term as T
from ir.loop import Form, LoopProgram
from ir.machine import Machine
from ir.node import postorder
from ir.term import Term

STAGES = ("prefill", "decode")
PARAMETERS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "post_attention_layernorm", "gate_proj", "up_proj", "down_proj",
)  # fmt: skip
HEADS = PARAMETERS[:3]
BY_HAND: Mapping[str, tuple[tuple[tuple[str, ...], ...], ...]] = {
    "TinyLlama": (
        (("k_proj",), ("v_proj",)),
        (("q_proj",),),
        (HEADS,),
        (PARAMETERS[:4],),
        (PARAMETERS[:7],),
        (PARAMETERS,),
    ),
    "Qwen2.5-7B": (
        (("k_proj",), ("v_proj",)),
        (("q_proj",),),
        (HEADS,),
        (PARAMETERS[:4],),
        (PARAMETERS[:5],),
        (PARAMETERS[:7],),
        (PARAMETERS,),
    ),
}
"""The kernels of a prompt by hand, each by what it stores: the values that read these parameters and no other.

Keys and values with the norm before them and the rotation after; queries likewise; attention; the projection with the
sum; gate times up, the norm before them folded in (TinyLlama) or a kernel of its own (Qwen2.5-7B); the way down.
"""


def lines() -> Iterator[str]:
    """The report, case by case."""
    for name in MODELS:
        for stage in STAGES:
            yield from case_lines(name, stage)


def case_lines(name: str, stage: str) -> Iterator[str]:
    """One layer in one stage."""
    options = Options()
    large = captured(name, stage, small=False)
    (region,) = large.regions
    yield f"{name}, {stage}: {region.graph.nodes} nodes in {len(region.graph.classes)} classes"
    yield from form_lines("chosen", region.chosen)
    if stage == "prefill":
        yield from form_lines("by hand", by_hand(name, region.graph, options.machine()))
    else:
        (greedy,) = forms(region.graph, options.machine(), greedy=True)
        yield from form_lines("greedy", greedy)
    verdict = run_small(name, stage, region.program, region.chosen)
    yield (
        f"  the chosen kernels at small sizes on the CPU: {'right' if verdict.ok else f'WRONG, {verdict.reason}'}; "
        + (f"error {verdict.max_rel_err:.2g}, eager {verdict.eager_rel_err:.2g} (against float64)")
    )


def captured(name: str, stage: str, small: bool) -> Compiled:
    """The layer with its forms."""
    module, inputs = program(name, stage, small)
    return choose_forms(capture_and_lower(module, inputs, f"{stage}_layer", Options()))


def by_hand(name: str, graph: EGraph, machine: Machine) -> Form:
    """The kernels of `BY_HAND` at their least cost."""
    groups = [[stored(graph.program, frozenset(of)) for of in kernel] for kernel in BY_HAND[name]]
    return prescribed(graph, machine, groups)


def stored(p: LoopProgram, parameters: frozenset[str]) -> Term:
    """The first value that reads these parameters and no other, of those that others read; the last where none is."""
    order = list(postorder(*(s.value for s in p.results)))
    leaves: set[Term] = set()  # values that a value of other parameters reads, at its own or at another position
    for t in reversed(order):
        for k in t.terms:
            if (isinstance(t, T.At) and t in leaves) or _parameters(k) == parameters != _parameters(t):
                leaves.add(k)
    found = [t for t in order if not isinstance(t, T.At) and _parameters(t) == parameters]
    return min((t for t in found if t in leaves), key=lambda t: size(t), default=found[-1])


def _parameters(t: Term) -> frozenset[str]:
    return frozenset(p for p in PARAMETERS for b in buffers_read(t) if p in b)


def form_lines(title: str, form: Form) -> Iterator[str]:
    """A form's cost, then each kernel: its buffers, sweeps, work and cost."""
    costs: Mapping[str, Cost] = form.details["kernels"]  # type: ignore[assignment]
    yield (
        f"  {title}: {form.cost_us:.1f} us by the model in {len(form.kernels)} kernels,"
        f" {sum(c.flops for c in costs.values()) / 1e9:.2f} Gflop,"
        f" {sum(c.bytes for c in costs.values()) / 1e6:.1f} MB moved, {peak_bytes(form) / 1e6:.1f} MB at the peak"
    )
    for k in form.kernels:
        cost = costs[k.name]
        swept = " ".join(f"{a}:{n}" for a, n in cost.sweeps.items()) or "no loop"
        made = ", ".join(_shown(form, s.buffer) for s in k.stores)
        yield (
            f"    {k.name}: {cost.us:.1f} us, {cost.flops / 1e9:.3f} Gflop, {cost.bytes / 1e6:.2f} MB, sweeps {swept},"
            f" {cost.contractions} contractions, {cost.states} states; writes {made}; reads {', '.join(reads(k))}"
        )


def _shown(form: Form, name: str) -> str:
    b = form.buffer(name)
    return f"{name} {b.dtype}[{', '.join(map(str, b.shape))}]"


def run_small(name: str, stage: str, large: LoopProgram, form: Form) -> Verdict:
    """The form's kernels at small sizes, as emitted text on the CPU."""
    module, inputs = program(name, stage, small=True)
    compiled = choose_forms(capture_and_lower(module, inputs, f"{stage}_layer", Options()))
    (region,) = compiled.regions
    region.chosen = shrunk(form, large, region.program)
    return check_compiled(compile_kernels(compiled), module, inputs)
