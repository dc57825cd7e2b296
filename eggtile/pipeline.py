"""The whole way once: a captured program to regions, e-graphs, forms, scheduled kernels and CUDA text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import torch

from codegen.emit import emit
from codegen.lower import lower_tile, widest_value
from eggtile.capture import Captured, capture
from eggtile.clock import Clock
from eggtile.echo import cut
from eggtile.measured_lines import LegalPrices, measured_schedule
from eggtile.pins import Pin, check_once, pinned
from eggtile.plan import RequestError as RequestError
from eggtile.pointers import at_pointer as at_pointer
from egraph.graph import Budget, EGraph
from egraph.saturate import saturate
from extract.evidence import Evidence
from extract.forms import default_form, forms
from extract.key import Canonical, canonical, form_key
from extract.prices import Prices
from extract.signature import form_signature
from extract.spaces import Space, space
from extract.stages import Stage, stages
from extract.tiling import tile_program
from extract.undisturbed import undisturbed
from ir.kernel import KernelProgram
from ir.loop import Buffer, Form, KernelForm, LoopProgram
from ir.lower import CallStep, Lowered, lower, one_call
from ir.machine import MACHINES, Machine
from ir.node import IRError
from ir.schedule import Schedule
from ir.tile import TileProgram

NUMERICS = ("strict", "default", "fast")
LISTED = 12
"""How many forms are found where nothing else is asked for, so that their numbers are the same everywhere."""
TUNED = 3
"""How many forms a tuner measures in each round."""
MOST_HELD = 64  # elements of one value in a thread; with what is computed of them, about its registers
LINES_TRIED = 24
SPACES = 256
"""Schedule spaces that are kept: of a kernel its lines are chosen from, counted and shown."""

Observer = Callable[[str, str, str], None]
"""Called with a pass' name, the text before it and the text after it."""


@dataclass(frozen=True)
class Options:
    """What the user chose: numerics class, target, number of forms, laws left out, schedule lines.

    `schedule` is the line of every kernel but those that `pins` names, which have their own (`Compiled.names`).
    `form` is a form's number among `k` found ones, the form as written after them where it is none of them, or
    "default" for the latter; None leaves the choice to the model. `k` None finds the best form alone, or LISTED where a
    number is given. With `explain` forms name their laws. `budget` bounds the e-graph of each region, `extract_s` the
    seconds in which its forms are chosen, `report_s` those of a report on all regions. With `hopeful`
    kernels that are not measured are priced low, so that they are tried.
    """

    numerics: str = "default"
    target: str = "sm_90a"
    k: int | None = None
    form: int | Literal["default"] | None = None
    without: tuple[str, ...] = ()
    schedule: str | None = None
    pins: tuple[Pin, ...] = ()
    evidence: Evidence | None = None
    hopeful: bool = False
    explain: bool = False
    budget: Budget | None = None
    extract_s: float = 10.0
    report_s: float = 10.0

    @property
    def count(self) -> int:
        """The number of forms to find."""
        return self.k or (LISTED if isinstance(self.form, int) else 1)

    @property
    def quotients(self) -> bool:
        """Whether every division rounds once."""
        return self.numerics == "strict"

    def __post_init__(self) -> None:
        if self.numerics not in NUMERICS:
            raise RequestError(f"unknown numerics {cut(self.numerics)}; it is one of {', '.join(NUMERICS)}")
        check_once(self.pins)

    def machine(self) -> Machine:
        """The machine of the target; an unknown target is refused with the known ones."""
        if self.target not in MACHINES:
            raise RequestError(f"unknown target {cut(self.target)}; targets are {', '.join(MACHINES)}")
        return MACHINES[self.target]


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: `arguments` names buffers of the form, or the kernel's own, in parameter order."""

    tile: TileProgram
    kernel: KernelProgram
    text: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel of a form, scheduled and written: `launches` in order, and the `scratch` buffers between them."""

    form: KernelForm
    canonical: Canonical
    schedule: Schedule
    fallback: bool
    launches: tuple[Launch, ...]
    scratch: tuple[Buffer, ...] = ()

    @property
    def name(self) -> str:
        """The name of the canonical kernel; those of its launches start with it."""
        return self.canonical.kernel.name

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers of the canonical kernel as parameters."""
        return tuple(map(at_pointer, self.canonical.buffers))

    @property
    def only(self) -> Launch:
        """The launch of a kernel that has one."""
        if len(self.launches) > 1:
            raise RequestError(f"{self.schedule} makes {len(self.launches)} launches, not one")
        return self.launches[0]

    @property
    def tile(self) -> TileProgram:
        """The tile program of a kernel with one launch."""
        return self.only.tile

    @property
    def kernel(self) -> KernelProgram:
        """The kernel program of a kernel with one launch."""
        return self.only.kernel

    @property
    def text(self) -> str:
        """The CUDA text of all launches, as one file."""
        return emit(*(launch.kernel for launch in self.launches))


Written = dict[tuple[str, str | None], CompiledKernel]
"""Kernels that are written, by key and the line that the user pins, if any."""


@dataclass
class Region:
    """A stretch of the program without calls: its e-graph, its forms at these prices, and the chosen one's kernels."""

    program: LoopProgram
    graph: EGraph
    default: Form
    forms: list[Form]
    chosen: Form
    prices: Prices
    kernels: list[CompiledKernel] = field(default_factory=list)

    @property
    def listed(self) -> list[Form]:
        """The forms by their numbers: the found ones, then the form as written where it is none of them."""
        return self.forms if any(f is self.default for f in self.forms) else [*self.forms, self.default]

    @property
    def launches(self) -> list[Launch]:
        """All launches of all kernels, in order."""
        return [launch for k in self.kernels for launch in k.launches]


@dataclass
class Compiled:
    """A program on its way to a machine; stages fill it in order. `arity` counts the inputs that a caller passes."""

    captured: Captured
    arity: int
    lowered: Lowered
    options: Options
    clock: Clock
    steps: list[Region | CallStep] = field(default_factory=list)

    @property
    def regions(self) -> list[Region]:
        """The steps that are regions."""
        return [s for s in self.steps if isinstance(s, Region)]

    @property
    def names(self) -> list[list[str]]:
        """The names of the chosen forms' kernels by region; of several regions with the region's number, like r1.k0."""
        heads = [f"r{n}." for n in range(len(self.regions))] if len(self.regions) > 1 else [""]
        return [[head + k.name for k in r.chosen.kernels] for head, r in zip(heads, self.regions, strict=False)]

    @property
    def kernels(self) -> list[CompiledKernel]:
        """All kernels of all regions, in order."""
        return [k for r in self.regions for k in r.kernels]

    @property
    def launches(self) -> list[Launch]:
        """All launches of all regions, in order."""
        return [launch for r in self.regions for launch in r.launches]

    @property
    def text(self) -> str:
        """The CUDA text of the whole program as one file, each distinct kernel once."""
        return emit(*(launch.kernel for launch in self.launches))


def capture_and_lower(
    fn: Callable[..., object] | torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    name: str,
    options: Options,
    clock: Clock | None = None,
    notes: tuple[str, ...] = (),
) -> Compiled:
    """Capture the program and lower it to regions of Loop IR; reports say the notes too."""
    clock = clock or Clock()
    with clock.span("capture"):
        captured = capture(fn, inputs, name)
        captured = replace(captured, program=replace(captured.program, notes=captured.program.notes + notes))
    with clock.span("lower"):
        lowered = lower(captured.computed) if captured.eager is None else one_call(captured.program)
    return Compiled(captured, len(inputs), lowered, options, clock)


def restarted(compiled: Compiled, **changes: Any) -> Compiled:
    """The same program before its forms are chosen, with other options, on the same clock."""
    options = replace(compiled.options, **changes)
    return Compiled(compiled.captured, compiled.arity, compiled.lowered, options, compiled.clock)


def choose_forms(compiled: Compiled) -> Compiled:
    """Saturate and extract every region; the form with the user's number, or else the cheapest, is chosen."""
    options = compiled.options
    for step in compiled.lowered.steps:
        if isinstance(step, CallStep):
            compiled.steps.append(step)
            continue
        with compiled.clock.span("saturate"):
            graph = saturate(
                step,
                numerics=options.numerics,
                without=options.without,
                budget=options.budget,
                tags={w.label: (w.term, w.operands) for w in step.tensors} if options.explain else None,
                explain=options.explain,
            )
        with compiled.clock.span("extract"):
            compiled.steps.append(chosen_region(step, graph, options))
    if isinstance(options.form, int):
        known = max((len(r.listed) for r in compiled.regions), default=0)
        if options.form >= known:
            raise RequestError(
                f"there is no form {options.form}; with -k {options.count} there are {known}, from 0"
            )
    return compiled


def chosen_region(program: LoopProgram, graph: EGraph, options: Options) -> Region:
    """Extract the forms of a region, at measured prices where there are some, and choose one.

    The form as written may take half of the time, and the search what is left, which is half of it at least.
    """
    machine, half = options.machine(), options.extract_s / 2
    since = time.thread_time()
    prices = LegalPrices(options.evidence, machine, options.quotients, options.hopeful)
    default = prices.form(default_form(program, machine, half))
    price, ratio = (prices, prices.ratio) if prices.known else (None, None)
    left_s = max(half, options.extract_s - (time.thread_time() - since))
    beyond = prices.beyond(program)
    found = distinct(forms(graph, machine, options.count, price, ratio, left_s, beyond=beyond), default)
    return Region(program, graph, default, found, pick(found, default, options), prices)


def distinct(found: Sequence[Form], default: Form) -> list[Form]:
    """The forms less those that differ from another by names alone; the form as written stands for its equals.

    Those whose signature and cost are its own differ from it by trivial moves.
    """
    as_written, own = form_key(default), (default.cost_us, form_signature(default))
    unique: dict[str, Form] = {}
    for f in found:
        key = form_key(f)
        equal = key == as_written or (f.cost_us, form_signature(f)) == own
        unique.setdefault(as_written if equal else key, default if equal else f)
    return [f if f is default else replace(f, name=f"f{n}") for n, f in enumerate(unique.values())]


def pick(found: list[Form], default: Form, options: Options) -> Form:
    """The form the user asks for, in a region that has it, or the cheapest; the default form where it is cheaper."""
    if options.form == "default":
        return default
    listed = found if any(f is default for f in found) else [*found, default]
    if options.form is not None and options.form < len(listed):
        return listed[options.form]
    best = found[0]
    return default if default.cost_us < best.cost_us else best


def compile_kernels(compiled: Compiled, observe: Observer | None = None) -> Compiled:
    """Schedule every kernel of the chosen forms and write its CUDA text."""
    options, names = compiled.options, compiled.names
    pins = pinned(options.pins, options.schedule, [n for own in names for n in own])
    seen: Written = {}
    for region, own in zip(compiled.regions, names, strict=True):
        region.kernels = [
            compile_kernel(k, region.chosen, options, compiled.clock, seen, observe, pins.get(name))
            for k, name in zip(region.chosen.kernels, own, strict=True)
        ]
    return compiled


def compile_kernel(
    kernel: KernelForm,
    form: Form,
    options: Options,
    clock: Clock,
    seen: Written,
    observe: Observer | None,
    pin: Pin | None = None,
) -> CompiledKernel:
    """Canonicalise, schedule, tile, lower and emit one kernel; one of a known key is written once for each pinned line."""
    machine = options.machine()
    with clock.span("schedule"):
        known = canonical(kernel, form, options.quotients)
    own = known.key, pin.line if pin else None
    if own not in seen:
        with clock.span("schedule"):
            buffers = tuple(at_pointer(b) for b in known.buffers)
            line = choose_schedule(known, options, machine, pin)
            found = stages(known.kernel, buffers, known.axes, line, machine)
        written = tuple(_written(stage, known.quotients, options, clock, observe) for stage in found)
        made = tuple(b for b in found[-1].buffers if b.name not in known.names)
        fallback = line.get("WORK").startswith("points")
        seen[own] = CompiledKernel(kernel, known, line, fallback, written, made)
    return _named(seen[own], kernel, known.names)


def _tiled(stage: Stage, quotients: bool) -> TileProgram:
    return tile_program(stage.kernel, stage.buffers, stage.axes, stage.schedule, quotients)


def _written(stage: Stage, quotients: bool, options: Options, clock: Clock, observe: Observer | None) -> Launch:
    """Tile, lower and emit one launch; its arguments have the names that the stage gives them."""
    with clock.span("schedule"):
        tile = _tiled(stage, quotients)
    with clock.span("passes"):
        program = lower_tile(tile, options.machine(), observe)
    with clock.span("emit"):
        text = emit(program)
    return Launch(tile, program, text, tuple(b.name for b in program.buffers))


def _named(compiled: CompiledKernel, kernel: KernelForm, names: Mapping[str, str]) -> CompiledKernel:
    """The compiled kernel as the kernel of a form whose buffers have these names."""
    own = {b.name: f"{kernel.name}.{b.name}" for b in compiled.scratch}
    names = {**own, **names}
    launches = tuple(
        replace(k, arguments=tuple(names[b.name] for b in k.kernel.buffers)) for k in compiled.launches
    )
    scratch = tuple(replace(b, name=own[b.name]) for b in compiled.scratch)
    return replace(compiled, form=kernel, launches=launches, scratch=scratch)


def space_of(known: Canonical, machine: Machine) -> Space:
    """The schedule space of a kernel; it is listed once."""
    return _space(known.kernel, tuple(map(at_pointer, known.buffers)), tuple(known.axes.items()), machine)


@lru_cache(SPACES)
@undisturbed
def _space(
    kernel: KernelForm, buffers: tuple[Buffer, ...], axes: tuple[tuple[str, int], ...], machine: Machine
) -> Space:
    return space(kernel, buffers, dict(axes), machine)


def roomy_schedule(known: Canonical, buffers: Sequence[Buffer], machine: Machine) -> Schedule:
    """The model's first line whose values fit a thread's registers as they are laid out; failing that, the narrowest.

    The model counts registers before layouts are chosen, so a line may hold more than it thinks.
    """
    narrowest: tuple[int, Schedule] | None = None
    for line in space_of(known, machine).lines[:LINES_TRIED]:
        held = max(
            widest_value(_tiled(stage, known.quotients), machine)
            for stage in stages(known.kernel, buffers, known.axes, line, machine)
        )
        if held <= MOST_HELD:
            return line
        if narrowest is None or held < narrowest[0]:
            narrowest = held, line
    assert narrowest is not None, "a space has at least the fall-back"
    return narrowest[1]


def choose_schedule(known: Canonical, options: Options, machine: Machine, pin: Pin | None = None) -> Schedule:
    """The user's line where it is legal for the kernel, else the best that was measured, else the model's first choice."""
    if pin is None:
        buffers = tuple(map(at_pointer, known.buffers))
        measured = measured_schedule(known, buffers, options.evidence, machine)
        return measured or roomy_schedule(known, buffers, machine)
    try:
        return space_of(known, machine).check(pin.line)
    except IRError as e:
        raise pin.refusal(str(e)) from None


def compile_program(
    fn: Callable[..., object] | torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    name: str = "program",
    options: Options | None = None,
    clock: Clock | None = None,
    observe: Observer | None = None,
) -> Compiled:
    """The whole way from a PyTorch program to CUDA text."""
    compiled = capture_and_lower(fn, inputs, name, options or Options(), clock)
    return compile_kernels(choose_forms(compiled), observe)
