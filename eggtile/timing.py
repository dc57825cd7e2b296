"""How a time is taken: CUDA-graph replays of all contenders of a case, interleaved in one process.

One replay makes many calls. Cold calls rotate over copies of the inputs that together exceed twice the L2 cache; hot
calls use one copy. A sample is a replay's time over its calls; sample k of every contender is taken in round k, so
ratios are paired. Where a contender cannot be captured, its calls are timed between events and the row says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

L2_BYTES = 60_000_000
MOST_COPIES = 256
MOST_CALLS = 2000
REPLAY_MS = 8.0
ROUNDS = 15

Tensors = Sequence[torch.Tensor]
Function = Callable[..., Any]


def copies_for(bytes_of_inputs: int, l2_bytes: int = L2_BYTES) -> int:
    """How many copies of the inputs together exceed twice the L2 cache."""
    return min(MOST_COPIES, max(1, math.ceil(2 * l2_bytes / max(1, bytes_of_inputs))))


def calls_for(call_ms: float, copies: int, replay_ms: float = REPLAY_MS) -> int:
    """Calls in one replay: whole rotations over the copies that last about `replay_ms`."""
    wanted = min(MOST_CALLS, max(2, replay_ms / max(call_ms, 1e-3)))
    return copies * max(1, round(wanted / copies))


@dataclass(frozen=True)
class Replay:
    """`run` makes `calls` calls on the current stream; `how` is graph or events, `note` the reason for events."""

    run: Callable[[], None]
    calls: int
    how: str
    note: str = ""


def _elapsed_ms(run: Callable[[], object]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop))


def prepare(fn: Function, copies: Sequence[Tensors], replay_ms: float = REPLAY_MS) -> Replay:
    """Warm up, then capture the rotation over `copies`; the calls run without gradients."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())

    def rotate(calls: int) -> None:
        with torch.no_grad():
            for k in range(calls):
                fn(*copies[k % len(copies)])

    def capture(calls: int) -> Replay:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                rotate(calls)
        except RuntimeError as error:
            torch.cuda.synchronize()
            return Replay(lambda: rotate(calls), calls, "events", str(error).splitlines()[0])
        graph.replay()
        torch.cuda.synchronize()
        return Replay(graph.replay, calls, "graph")

    with torch.cuda.stream(stream):
        rotate(3)
        call_ms = _elapsed_ms(lambda: rotate(3)) / 3
        return lasting(capture, call_ms, len(copies), replay_ms)


def lasting(
    capture: Callable[[int], Replay],
    call_ms: float,
    copies: int,
    replay_ms: float = REPLAY_MS,
    elapsed_ms: Callable[[Callable[[], object]], float] = _elapsed_ms,
) -> Replay:
    """A replay that lasts about `replay_ms`, or has as many calls as one may have.

    Calls that are launched, `call_ms` each, wait for the host; the calls of a graph do not. So what is captured is timed,
    and captured again until it is long enough: the work before a short sample can change it by a tenth.
    """
    replay = capture(calls_for(call_ms, copies, replay_ms))
    while replay.how == "graph":
        calls = calls_for(elapsed_ms(replay.run) / replay.calls, copies, replay_ms)
        if calls <= 1.25 * replay.calls:
            break
        replay = capture(calls)
    return replay


def interleave(
    replays: Mapping[str, Replay],
    rounds: int = ROUNDS,
    elapsed_ms: Callable[[Callable[[], object]], float] = _elapsed_ms,
) -> dict[str, list[float]]:
    """Microseconds per call, `rounds` samples each; every second round goes through the contenders backwards."""
    samples: dict[str, list[float]] = {name: [] for name in replays}
    for k in range(rounds):
        for name in list(replays)[:: -1 if k % 2 else 1]:
            samples[name].append(1e3 * elapsed_ms(replays[name].run) / replays[name].calls)
    return samples


def summary(replay: Replay, samples: Sequence[float]) -> dict[str, object]:
    """The median with its quartiles, and the samples themselves, which pair with the other contenders'."""
    low, median, high = statistics.quantiles(samples, n=4)
    row: dict[str, object] = {"median_us": median, "low_us": low, "high_us": high, "samples_us": list(samples)}
    row.update(calls=replay.calls, how=replay.how)
    if replay.note:
        row["note"] = replay.note
    return row
