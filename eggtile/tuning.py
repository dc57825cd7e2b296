"""The measuring loop of a program: kernels of its best forms, whole forms, extraction again, until the choice is stable."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

import torch

from codegen import gpu
from codegen.worker import Worker
from eggtile.candidates import Limits
from eggtile.pipeline import (
    TUNED,
    Compiled,
    Options,
    Region,
    RequestError,
    capture_and_lower,
    choose_forms,
    chosen_region,
)
from eggtile.provenance import CLOCKS, query
from eggtile.stores import here
from eggtile.tables import progress
from eggtile.tuner import Failure, KernelReport, Tuner
from eggtile.turn import card_lock
from extract.cost import Cost
from extract.key import canonical, form_key
from extract.prices import stores_something
from extract.signature import form_signature
from ir.loop import Form, KernelForm


@dataclass(frozen=True)
class FormReport:
    """A form of a region: what the model and the clock say of it, and whether it is chosen before and after.

    `kernels_us` is the sum of its kernels' best times, `whole_us` the time of all of it; None where it is not known.
    """

    region: int
    kernels: list[str]
    modelled_us: float
    kernels_us: float | None
    whole_us: float | None
    default: bool
    before: bool
    after: bool


@dataclass(frozen=True)
class Report:
    """The end of a tuning run: `chosen` are the keys of the chosen forms' kernels, `complete` says if in budget."""

    program: str
    kernels: list[KernelReport]
    chosen: list[str]
    forms: list[FormReport]
    forms_timed: int
    rounds: int
    seconds: float
    complete: bool

    @property
    def measured(self) -> int:
        """Lines that this run has measured."""
        return sum(k.measured for k in self.kernels)

    @property
    def right(self) -> bool:
        """Whether every kernel of the chosen forms has a line that passed the gate."""
        return all(k.best for k in self.kernels if k.key in self.chosen)

    def json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"measured": self.measured}

    @staticmethod
    def of(row: Mapping[str, Any]) -> Report:
        """The report whose JSON values these are."""
        own = {f.name: row[f.name] for f in fields(Report)}
        own["kernels"] = [
            KernelReport(**{**k, "failures": [Failure(**f) for f in k["failures"]]}) for k in row["kernels"]
        ]
        own["forms"] = [FormReport(**f) for f in row["forms"]]
        return Report(**own)


def check_budget(budget_s: float) -> None:
    """Refuse seconds in which nothing can be measured, and any where there is no GPU."""
    if not isinstance(budget_s, int | float) or not budget_s > 0:
        raise RequestError(f"a budget is a positive number of seconds, not {budget_s}")
    usable, why = gpu.available()
    if not usable:
        raise RequestError(f"there is no GPU to measure on ({why})")


@contextmanager
def tuner_of(options: Options, limits: Limits | None = None, measures: bool = True) -> Iterator[Tuner]:
    """A tuner for the GPU at hand, with a process that runs candidates as long as it is used."""
    usable, why = gpu.available()
    if measures and not usable:
        raise RequestError(f"there is no GPU to measure on ({why})")
    worker = Worker() if measures else None
    try:
        yield Tuner(options, here(options.machine(), usable), worker, limits, clocks, lock=card_lock())
    finally:
        if worker is not None:
            worker.close()


def clocks() -> str:
    """The card's clocks, power and temperature as they are now."""
    return json.dumps(query(*CLOCKS), sort_keys=True)


def tune(
    fn: Callable[..., object] | torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    name: str,
    tuner: Tuner,
    budget_s: float = 600.0,
) -> Report:
    """Measure the best forms and the default one, and extract again at measured prices, until that changes nothing."""
    start = time.monotonic()
    # the gate asks of exact forms what the others need not hold
    options = replace(tuner.options, explain=True, k=tuner.options.k or TUNED, hopeful=True)
    compiled = choose_forms(capture_and_lower(fn, inputs, name, replace(options, evidence=None)))
    before = [r.chosen for r in compiled.regions]
    _choose_again(compiled, options)
    reports: dict[str, KernelReport] = {}
    rounds = forms_timed = 0
    complete = False
    with progress() as bar:
        task = bar.add_task("measuring lines", total=None)
        tuner.settler.settled = lambda: bar.advance(task)
        while not complete:
            fresh = {key: at for key, at in _kernels(compiled, before).items() if key not in reports}
            bar.update(task, total=(len(reports) + len(fresh)) * tuner.limits.lines)
            for key, (kernel, form) in fresh.items():
                if time.monotonic() - start > budget_s:
                    break
                reports[key] = tuner.kernel(kernel, form)
                bar.update(task, completed=len(reports) * tuner.limits.lines)
            if time.monotonic() - start > budget_s:
                break
            rounds += 1
            found = [tuner.forms(r.program, _forms(r, b)) for r, b in zip(compiled.regions, before, strict=True)]
            forms_timed += sum(found)
            complete = not fresh and not sum(found)
            _choose_again(compiled, options)
    _choose_again(compiled, replace(options, hopeful=False))
    chosen = [canonical(k, r.chosen, options.quotients).key for r in compiled.regions for k in r.chosen.kernels]
    rows = [
        _form_report(n, form, region, old)
        for n, (region, old) in enumerate(zip(compiled.regions, before, strict=True))
        for form in _forms(region, old)
    ]
    seconds = time.monotonic() - start
    return Report(name, list(reports.values()), chosen, rows, forms_timed, rounds, seconds, complete)


def _choose_again(compiled: Compiled, options: Options) -> None:
    """Extract every region at the prices that the store gives now."""
    compiled.options = options
    compiled.steps = [
        chosen_region(s.program, s.graph, options) if isinstance(s, Region) else s for s in compiled.steps
    ]


def _forms(region: Region, before: Form) -> list[Form]:
    """The forms worth measuring, each once: the chosen one, the other best ones, the model's choice and the default."""
    found = (region.chosen, *region.forms, before, region.default)
    return list({form_key(f, region.prices.quotients): f for f in reversed(found)}.values())[::-1]


def _kernels(compiled: Compiled, before: Sequence[Form]) -> dict[str, tuple[KernelForm, Form]]:
    """The kernels of these forms by key."""
    found: dict[str, tuple[KernelForm, Form]] = {}
    for region, form in _every(compiled, before):
        for kernel in form.kernels:
            if stores_something(kernel, form):
                found.setdefault(canonical(kernel, form, region.prices.quotients).key, (kernel, form))
    return found


def _every(compiled: Compiled, before: Sequence[Form]) -> Iterator[tuple[Region, Form]]:
    for region, old in zip(compiled.regions, before, strict=True):
        for form in _forms(region, old):
            yield region, form


def _form_report(number: int, form: Form, region: Region, before: Form) -> FormReport:
    prices, costs = region.prices, cast(Mapping[str, Cost], form.details["kernels"])
    key, old, new, default = (form_key(f, prices.quotients) for f in (form, before, region.chosen, region.default))
    whole = prices.timed(form)
    return FormReport(
        number,
        form_signature(form),
        sum(costs[k.name].us for k in form.kernels),
        prices.kernels_us(form),
        whole.time_us if whole else None,
        key == default,
        key == old,
        key == new,
    )
