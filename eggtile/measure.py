"""One program against its contenders in this process: built, held to float64, then timed interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

from eggtile.api import Optimized
from eggtile.check import judge, longest_folds
from eggtile.conditioning import Sways
from eggtile.echo import cut
from eggtile.leaves import flat_tensors
from eggtile.pipeline import Options, RequestError, capture_and_lower
from eggtile.provenance import CLOCKS, query
from eggtile.ratios import OURS
from eggtile.reference import private_copy, run_eager, run_in_float64
from eggtile.timing import ROUNDS, Function, Tensors, copies_for, interleave, prepare, summary

Row = dict[str, Any]
Build = Callable[[Function, Tensors], Function]
"""Turns a program and example inputs into what is timed."""

DEFAULT: Final = "default"
PEERS = ("eager", "compile", "max-autotune")
TIMING = ("compile", "max-autotune")
"""Contenders that time kernels of their own at the first call."""


def builders(options: Options) -> dict[str, Build]:
    """All contenders: eggtile, the form as written in its default schedule, eager, and torch.compile in two modes."""
    written = Options(numerics=options.numerics, target=options.target, form=DEFAULT)
    whole: dict[str, Any] = {"fullgraph": True, "dynamic": False}
    return {
        OURS: lambda fn, inputs: Optimized(fn, inputs, "program", options),
        DEFAULT: lambda fn, inputs: Optimized(fn, inputs, "program", written),
        "eager": lambda fn, inputs: fn,
        "compile": lambda fn, inputs: torch.compile(fn, **whole),
        "max-autotune": lambda fn, inputs: torch.compile(fn, **whole, mode="max-autotune-no-cudagraphs"),
    }


def asked(known: Mapping[str, Build], names: Sequence[str]) -> dict[str, Build]:
    """The named contenders, ours first; an unknown name is refused with the known ones."""
    unknown = [n for n in names if n not in known]
    if unknown:
        raise RequestError(f"no contender is named {cut(', '.join(unknown))}; there are {', '.join(known)}")
    return {n: known[n] for n in dict.fromkeys((OURS, *names))}


def build_and_gate(
    fn: Function,
    sets: Sequence[Tensors],
    contenders: Mapping[str, Build],
    advance: Callable[[], object] = lambda: None,
    running: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> tuple[dict[str, Function], dict[str, Row]]:
    """Build every contender for the first input set and hold it to float64 on all of them.

    Gives the callables and a row each: errors and verdict, or how it failed; those that failed have no callable. The
    card is used within `running`, but for the first call of what times no kernels in it.
    """
    torch.compiler.reset()
    with running():
        wanted = [(x, run_eager(fn, x), run_in_float64(fn, x)) for x in sets]
        expected = [(x, eager, exact, Sways(fn, x, exact)) for x, eager, exact in wanted]
    longest = longest_folds(capture_and_lower(fn, sets[0], "program", Options()))
    calls: dict[str, Function] = {}
    found: dict[str, Row] = {}
    for name, build in contenders.items():
        start = time.perf_counter()
        try:
            with running() if name in TIMING else nullcontext():
                call = build(fn, sets[0])
                run_on_copies(call, sets[0])
            found[name] = {"first_call_s": time.perf_counter() - start}
            with running():
                verdicts = [
                    judge("cuda", run_on_copies(call, x), eager, exact, longest=longest, swayed=swayed)
                    for x, eager, exact, swayed in expected
                ]
        except RequestError:
            raise
        except Exception as error:  # a contender that fails is a result: it is recorded, the others go on
            found[name] = {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}
        else:
            worst = max(verdicts, key=lambda v: (not v.ok, v.max_rel_err)).json()
            found[name] |= {k: worst[k] for k in ("ok", "max_rel_err", "eager_rel_err", "reason")}
            calls[name] = call
        advance()
    return calls, found


def run_on_copies(fn: Function, inputs: Tensors) -> list[torch.Tensor]:
    """Outputs, then the inputs as the call leaves them."""
    private = [private_copy(t) for t in inputs]
    with torch.no_grad():
        outputs = flat_tensors(fn(*private))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return [*outputs, *private]


def cold_copies(inputs: Tensors) -> list[Tensors]:
    """The inputs and as many copies of them as make a rotation over all cold."""
    count = copies_for(sum(t.nbytes for t in inputs))
    return [inputs, *([private_copy(t) for t in inputs] for _ in range(count - 1))]


def time_calls(
    calls: Mapping[str, Function],
    copies: Sequence[Tensors],
    rounds: int = ROUNDS,
    modes: Sequence[str] = ("cold", "hot"),
) -> tuple[dict[str, Row], Row]:
    """Every callable's times in the modes (cold, hot), and the card's clocks before and during."""
    before, during = query(*CLOCKS), {}
    times: dict[str, Row] = {name: {} for name in calls}
    with ThreadPoolExecutor(1) as aside:
        for mode in modes:
            sets = copies if mode == "cold" else copies[:1]
            replays = {name: prepare(call, sets) for name, call in calls.items()}
            asking = aside.submit(query, *CLOCKS)
            samples = interleave(replays, rounds)
            for name, replay in replays.items():
                times[name][mode] = summary(replay, samples[name])
            during = asking.result()
            torch.cuda.empty_cache()
    return times, {"before": before, "during": during}
