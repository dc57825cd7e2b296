"""Every level of a compiled program as text, and the way of a kernel through the passes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from codegen.compile import compile_text
from codegen.disassemble import to_sass
from eggtile.echo import cut
from eggtile.files import write, writing
from eggtile.pipeline import Compiled, Region, RequestError
from egraph.dump import to_text
from ir.kernel_text import show_kernel
from ir.loop import LoopProgram
from ir.loop_text import show_form, show_loop
from ir.lower import CallStep
from ir.tensor_text import show_tensor
from ir.tile_text import show_tile


def _each(compiled: Compiled, show: Callable[[Region], str]) -> str:
    return "\n\n".join(show(r) for r in compiled.regions)


def _step(step: LoopProgram | CallStep) -> str:
    return show_loop(step) if isinstance(step, LoopProgram) else f"call {step.target}({', '.join(step.operands)})"


def _binaries(compiled: Compiled, show: Callable[[str], str]) -> str:
    return "\n\n".join(dict.fromkeys(show(k.text) for k in compiled.launches))


LEVELS: dict[str, Callable[[Compiled], str]] = {
    "torch": lambda c: c.captured.graph_text,
    "tensor": lambda c: show_tensor(c.captured.program),
    "loop": lambda c: "\n\n".join(map(_step, c.lowered.steps)),
    "egraph": lambda c: _each(c, lambda r: to_text(r.graph)),
    "form": lambda c: _each(c, lambda r: show_form(r.chosen)),
    "tile": lambda c: "\n\n".join(dict.fromkeys(show_tile(k.tile) for k in c.launches)),
    "kernel": lambda c: "\n\n".join(dict.fromkeys(show_kernel(k.kernel) for k in c.launches)),
    "cuda": lambda c: c.text,
    "ptx": lambda c: _binaries(c, lambda text: compile_text(text, c.options.target).ptx),
    "sass": lambda c: _binaries(c, lambda text: to_sass(compile_text(text, c.options.target).cubin)),
}
EARLY = ("torch", "tensor", "loop")
"""Levels that need no e-graph."""


def show_level(compiled: Compiled, level: str) -> str:
    """The text of one level; an unknown one is refused with the known ones."""
    if level not in LEVELS:
        raise RequestError(f"unknown level {cut(level)}; levels are {', '.join(LEVELS)}")
    return LEVELS[level](compiled)


def idle(compiled: Compiled) -> str:
    """Why a program has nothing to optimise, as a sentence; empty where it has."""
    why = "; ".join(compiled.captured.program.notes) or "all of it is calls to eager PyTorch"
    return "" if compiled.regions else f"the program has no kernel, so no e-graph and no form: {why}"


def _stops(region: Region) -> tuple[str, ...]:
    """What of the choice of forms ran out of its time."""
    found = region.chosen.details.get("stop")
    return found if isinstance(found, tuple) else ()


def stopped(phases: Iterable[tuple[str, str]]) -> list[str]:
    """The phases that a budget has stopped, of names and what stopped them, in words."""
    return [f"{name} by {stop}" for name, stop in phases if stop != "saturated"]


def cut_short(*runs: Compiled) -> list[str]:
    """A sentence for each region of which a budget has cut the search short in some of the runs."""
    found: dict[str, None] = {}
    for n, r in ((n, r) for compiled in runs for n, r in enumerate(compiled.regions)):
        phases = stopped((p.name, p.stop) for p in r.graph.report.phases)
        graph = [f"the e-graph ({', '.join(phases)})"] if phases else []
        what = graph + [f"the search for {s}" for s in _stops(r)]
        if what:
            found[f"a budget cuts {' and '.join(what)} of region {n} short, so forms may be missing"] = None
    return list(found)


def dump_levels(compiled: Compiled, folder: Path, passes: PassLog) -> list[Path]:
    """Write every level that needs no compiler to numbered files, and the state after every pass."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    texts = {level: show_level(compiled, level) for level in LEVELS if level not in ("ptx", "sass")}
    written = []
    for number, (level, text) in enumerate(texts.items()):
        written.append(folder / f"{number:02}_{level}.txt")
        write(written[-1], text + "\n")
    for number, step in enumerate(passes.steps):
        written.append(folder / f"passes_{number:02}_{step.name}.txt")
        write(written[-1], step.after + "\n")
    return written


@dataclass(frozen=True)
class PassStep:
    """One pass over one kernel: its name, the text before and after it."""

    name: str
    before: str
    after: str


@dataclass
class PassLog:
    """Collects what every pass did; an instance is the observer of `lower_tile`."""

    steps: list[PassStep] = field(default_factory=list)

    def __call__(self, name: str, before: str, after: str) -> None:
        self.steps.append(PassStep(name, before, after))

    def check(self, name: str) -> None:
        """Refuse the name of a pass that did not run."""
        names = list(dict.fromkeys(s.name for s in self.steps))
        if not names:
            raise RequestError("no pass has run, as there is no kernel")
        if name != "all" and name not in names:
            raise RequestError(f"no pass is named {cut(name)}; passes are {', '.join(names)}")

    def text(self, name: str, before: bool) -> str:
        """The state before or after the pass `name` (or every pass: all)."""
        self.check(name)
        chosen = [s for s in self.steps if name in ("all", s.name)]
        when = "before" if before else "after"
        return "\n\n".join(f"// {when} {s.name}\n{s.before if before else s.after}" for s in chosen)

    def diff(self) -> str:
        """All changes in order; every changed line starts with the name of its pass."""
        lines: list[str] = []
        width = max((len(s.name) for s in self.steps), default=0)
        for step in self.steps:
            changes = difflib.unified_diff(step.before.splitlines(), step.after.splitlines(), lineterm="", n=0)
            lines += [
                f"{step.name:<{width}} {line}"
                for line in changes
                if line[:1] in "+-" and not line.startswith(("+++", "---"))
            ]
        return "\n".join(lines)
