"""Schedule lines pinned to one kernel of a program, or to all of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from eggtile.check import check_compiled
from eggtile.pins import Pin, pins_of
from eggtile.pipeline import Compiled, Options, compile_program
from tests.eggtile.test_cli import called

TWO = "x, y = torch.randn(8, 6), torch.randn(4, 5)\n(x.exp() * x.amax(0), y.softmax(0), y.exp() * y.amax(0))"
REGIONS = "x = torch.randn(8, 8)\ntorch.linalg.inv(x + 1) + x.sum(0)"
SMALL, LARGE = "WORK=t32 TILE=x0:4", "WORK=t64 TILE=x0:2,x1:4"


def listed(code: str) -> dict[str, list[str]]:
    """The lines of each kernel that `schedules` prints."""
    out = json.loads(called("schedules", "--json", "-c", code).stdout)
    return {row["kernel"]: row["lines"] for row in out["kernels"]}


def equal_kernels() -> tuple[Callable[..., object], list[torch.Tensor]]:
    """A program of kernels around calls, of which the second and the third are equal."""
    call = torch.linalg.matrix_exp
    return lambda x: call(call(call(x.sin()).sin()).sin()), [torch.randn(4, 8, 8)]


def lines_of(compiled: Compiled) -> list[str]:
    return [str(k.schedule) for k in compiled.kernels]


@pytest.mark.parametrize("code", [TWO, REGIONS])
def test_every_listed_line_of_a_kernel_is_taken_for_it(code: str) -> None:
    known = listed(code)
    assert len(known) == 2
    for name, lines in known.items():
        for line in lines[:: max(len(lines) // 6, 1)]:
            shown = called("compile", "--ir", "cuda", "--schedule", f"{name}: {line}", "-c", code)
            assert shown.exit_code == 0, (line, shown.stderr)
        pinned = ("--schedule", f"{name}: {lines[-2]}")
        assert called("run", "--on", "cpu", *pinned, "-c", code).exit_code == 0
        assert f"{name}: {lines[-2]}" in called("bench", *pinned, "-c", code).stdout.replace(" *", "")


def test_kernels_that_are_not_named_have_the_usual_choice() -> None:
    known = listed(TWO)
    fn, inputs = (lambda x: (x.exp() * x.amax(0), x.T.softmax(-1).sum(0))), [torch.randn(8, 6)]
    usual = compile_program(fn, inputs, options=Options())
    (first, second), names = lines_of(usual), usual.names[0]
    assert names == list(known) == ["k0", "k1"]
    pinned = compile_program(fn, inputs, options=Options(pins=(Pin("k1", "WORK=points128"),)))
    assert lines_of(pinned) == [first, "WORK=points128"]
    both = compile_program(fn, inputs, options=Options(schedule="WORK=points64", pins=(Pin("k0", first),)))
    assert lines_of(both) == [first, "WORK=points64"] != [first, second]


def test_equal_kernels_have_each_its_own_line() -> None:
    fn, inputs = equal_kernels()
    usual = compile_program(fn, inputs)
    assert usual.kernels[1].canonical.key == usual.kernels[2].canonical.key
    first, second, _, last = lines_of(usual)
    pins = pins_of([f"r1.k0: {SMALL}", f"r2.k0:{LARGE}"])
    compiled = compile_program(fn, inputs, options=Options(**pins))
    assert lines_of(compiled) == [first, SMALL, LARGE, last]
    assert check_compiled(compiled, fn, inputs).ok
    one = compile_program(fn, inputs, options=Options(pins=(Pin("r2.k0", LARGE),)))
    assert lines_of(one) == [first, second, LARGE, last]


REFUSED = {
    "an illegal line": (
        ["k1: TILE=x9:4 WORK=t128"], "the schedule of k1 is refused: TILE: the kernel has no axis x9; near are "
    ),
    "a line for all that one refuses": (["WORK=t100"], "the schedule of k0 is refused: WORK: 100 threads"),
    "an unknown kernel": (["k7: WORK=t128"], "there is no kernel k7 to pin a schedule to; kernels are k0, k1"),
    "a kernel twice": (["k1: WORK=t128", "k1: WORK=t64"], "the kernel k1 is given 2 schedules; give it one"),
    "two lines for all": (["WORK=t128", "WORK=t64"], "2 schedules are given for every kernel, WORK=t128 and WORK=t64"),
    "an empty line": (["k0:"], "the schedule of k0 is refused: "),
    "a long word": (["k0: " + "W" * 5000], "the schedule of k0 is refused: schedule: 'WWWW"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_are_one_line_and_name_the_kernel(what: str) -> None:
    texts, sentence = REFUSED[what]
    shown = called("compile", *(w for text in texts for w in ("--schedule", text)), "-c", TWO)
    assert shown.exit_code == 2
    assert shown.stderr.startswith(f"eggtile: {sentence}") and shown.stderr.count("\n") == 1
    assert len(shown.stderr) < 500


def test_the_kernel_of_another_region_is_not_meant() -> None:
    shown = called("compile", "--schedule", f"k0: {SMALL}", "-c", REGIONS)
    assert shown.stderr == "eggtile: there is no kernel k0 to pin a schedule to; kernels are r0.k0, r1.k0\n"
