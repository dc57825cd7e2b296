"""Turns on the card: who times is alone, and nobody waits for those who only run."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from eggtile.turn import turn


def test_who_times_is_alone_and_those_who_run_are_not(tmp_path: Path):
    lock, inside, most = tmp_path / "lock", [], {True: 0, False: 0}

    def hold(alone: bool) -> None:
        with turn(lock, alone):
            inside.append(alone)
            most[alone] = max(most[alone], len(inside))
            time.sleep(0.05)
            inside.remove(alone)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hold, [False] * 6 + [True, True]))
    assert most[True] == 1
    assert most[False] > 1


def test_a_stream_of_runners_keeps_no_timer_waiting(tmp_path: Path):
    lock, end = tmp_path / "lock", time.monotonic() + 3.0
    timed: list[float] = []

    def runs() -> None:
        while time.monotonic() < end and not timed:
            with turn(lock, alone=False):
                time.sleep(0.02)

    def times() -> None:
        time.sleep(0.1)
        start = time.monotonic()
        with turn(lock, alone=True):
            timed.append(time.monotonic() - start)

    with ThreadPoolExecutor(8) as pool:
        work = [*(pool.submit(runs) for _ in range(6)), pool.submit(times)]
        for w in work:
            w.result()
    assert timed[0] < 1.0
