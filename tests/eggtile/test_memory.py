"""A run holds no scratch before its first launch or after its last; a report has the form's peak."""

from __future__ import annotations

import weakref

import torch

from eggtile.explore import report
from eggtile.pipeline import Options, compile_program
from eggtile.plan import PlannedLaunch, Work
from eggtile.runtime import in_turn
from ir.loop import Buffer


def test_a_run_lets_scratch_go_after_its_last_use() -> None:
    scratch = tuple(Buffer(f"t{k}", "f32", (8,), (1,), role="scratch") for k in range(3))
    names = (("x", "t0"), ("t0", "t1"), ("t1", "x", "t2"), ("t2", "y"))
    launches = tuple(PlannedLaunch(None, "", n) for n in names)  # type: ignore[arg-type]
    made: dict[str, weakref.ref[torch.Tensor]] = {}

    def make(b: Buffer) -> torch.Tensor:
        t = torch.empty(b.shape)
        made[b.name] = weakref.ref(t)
        return t

    given = {"x": torch.empty(0), "y": torch.empty(0)}
    alive = []
    for k, arguments in in_turn(Work(launches, scratch, ("x",)), given, make):
        assert len(arguments) == len(k.arguments)
        del arguments
        alive.append({n for n, ref in made.items() if ref() is not None})
    assert alive == [{"t0"}, {"t0", "t1"}, {"t1", "t2"}, {"t2"}]


def test_a_report_says_the_peak_and_what_each_kernel_writes() -> None:
    row = report(compile_program(lambda x: x + 1, [torch.randn(5)], options=Options(explain=True)))["forms"][0]
    assert row["peak_bytes"] == 2 * 5 * 4
    assert [k["writes"] for k in row["kernels"]] == [["y"]]
    assert (row["gap"], row["stop"]) == (0.0, ())
