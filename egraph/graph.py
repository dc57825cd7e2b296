"""The saturated e-graph as data: classes of nodes, their facts, and the report of how they came to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ir.loop import LoopProgram
from ir.node import IRError
from ir.term import Term


class EGraphError(IRError):
    """A law, a budget or a program that the e-graph refuses; the message is one sentence."""


class ENode(NamedTuple):
    """One way to make a class: `op` is the Term class's name, `payload` its other fields in order, `children` classes.

    A field that is a tuple is spread in place: a Fold has payload (*axes, monoid), a Load children (*index).
    A Prefix has payload (which, axis).
    """

    op: str
    payload: tuple[str | int, ...]
    children: tuple[int, ...]


@dataclass(frozen=True)
class PhaseReport:
    """One phase of saturation. `stop` is saturated, nodes, seconds or iterations; `nodes` counts at its end."""

    name: str
    seconds: float
    nodes: int
    iterations: int
    stop: str


@dataclass(frozen=True)
class LawReport:
    """How often a law matched; `seconds` is the time of its search and application."""

    name: str
    family: str
    class_: str
    matches: int
    seconds: float


@dataclass(frozen=True)
class AnalysisReport:
    """What no law is charged for: the rules that add to one table, by its name, or the engine's own work."""

    name: str
    matches: int
    seconds: float


@dataclass(frozen=True)
class Report:
    """Where the time went: the parts sum to `seconds` but for the clock's own reading.

    The laws and the analyses together are what the phases did.
    """

    phases: tuple[PhaseReport, ...]
    laws: tuple[LawReport, ...]
    analyses: tuple[AnalysisReport, ...]
    build_seconds: float
    insert_seconds: float
    read_seconds: float
    seconds: float
    nodes: int
    classes: int

    @property
    def stop(self) -> str:
        """`saturated`, or why the first phase that did not saturate stopped."""
        return next((p.stop for p in self.phases if p.stop != "saturated"), "saturated")


@dataclass(frozen=True)
class EGraph:
    """A program and its equals. Class ids are numbered from the canonical smallest term of each class.

    `classes` holds sorted nodes; `roots[k]` is the class of `program.results[k].value`; `free` and `folded` are the
    axes a class depends on and folds over inside; `safe` classes are at most 0, so that their exp cannot overflow;
    `positive` classes are never negative (0 only by underflow); `streams` are (fold class, axis) whose prefix
    recurrence can be built in one sweep; `new[axis, class]` is the class of the prefix value after a step; `carried`
    classes are what streams of a fold, and are not to be folded otherwise.
    `tensors` are whole-tensor names that stand in a class and are not a way to compute it.
    Of a graph that was saturated with `explain`, `origin` names the law that first made a node (or `written`, or
    `demand`) and `joins` the laws that made one class of what stood in two.
    """

    classes: Mapping[int, tuple[ENode, ...]]
    roots: tuple[int, ...]
    free: Mapping[int, frozenset[str]]
    folded: Mapping[int, frozenset[str]]
    dtype: Mapping[int, str]
    safe: frozenset[int]
    positive: frozenset[int]
    streams: frozenset[tuple[int, str]]
    carried: frozenset[int]
    new: Mapping[tuple[str, int], int]
    class_of: Mapping[Term, int]
    program: LoopProgram
    tensors: Mapping[int, tuple[ENode, ...]] = field(default_factory=dict)
    origin: Mapping[tuple[int, ENode], str] = field(default_factory=dict, compare=False)
    joins: Mapping[int, tuple[str, ...]] = field(default_factory=dict, compare=False)
    report: Report = field(compare=False, default=Report((), (), (), 0.0, 0.0, 0.0, 0.0, 0, 0))

    @property
    def nodes(self) -> int:
        """The number of nodes in all classes."""
        return sum(map(len, self.classes.values()))


@dataclass(frozen=True)
class Budget:
    """Where saturation stops: nodes in the graph, seconds over all phases, iterations of each phase."""

    nodes: int = 100_000
    seconds: float = 20.0
    iterations: int = 60
