"""The memory of a form is what is alive at once."""

from __future__ import annotations

from extract.forms import default_form
from extract.memory import kernel_uses, peak_bytes
from ir.lifetimes import lifetimes
from ir.machine import H200
from tests.extract.programs import Inputs, program

ROWS, WIDTH = 256, 2048


def test_the_peak_counts_scratch_from_its_first_use_to_its_last() -> None:
    inputs: Inputs = {"x": ("f32", ("i", "a0"))} | {f"w{k}": ("f32", (f"a{k}", f"a{k + 1}")) for k in range(5)}
    lets = "\n".join(
        f"y{k} = exp(add[a{k}]({f'y{k - 1}' if k else 'x[i, a0]'} * w{k}[a{k}, a{k + 1}]))" for k in range(5)
    )
    axes = {"i": ROWS} | {f"a{k}": WIDTH for k in range(6)}
    form = default_form(program(axes, inputs, [("o", ("i", "a5"), "y4")], lets), H200)
    scratch = {b.name: b.bytes for b in form.buffers if b.role == "scratch"}
    fixed = 4 * (2 * ROWS * WIDTH + 5 * WIDTH * WIDTH)
    assert len(scratch) == 4
    assert peak_bytes(form) == fixed + 2 * 4 * ROWS * WIDTH
    assert {n: lifetimes([kernel_uses(k) for k in form.kernels])[n] for n in scratch} == {
        "t0": (0, 1), "t1": (1, 2), "t2": (2, 3), "t3": (3, 4),
    }  # fmt: skip
