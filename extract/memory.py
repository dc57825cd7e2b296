"""The memory of a form while it runs: a scratch buffer lives from its first use to its last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from extract.facts import buffers_read
from ir.lifetimes import lifetimes
from ir.loop import Buffer, Form, KernelForm


def kernel_uses(kernel: KernelForm) -> frozenset[str]:
    """The buffers that a kernel reads or writes."""
    terms = (t for s in kernel.stores for t in (*s.index, s.value))
    return frozenset(s.buffer for s in kernel.stores).union(*map(buffers_read, terms))


def peak_bytes(form: Form) -> int:
    """The most bytes that are alive at once: inputs and outputs throughout, scratch from its first to its last use."""
    uses = [kernel_uses(k) for k in form.kernels]
    held = sum(b.bytes for b in form.buffers if b.role != "scratch")
    return held + max(_alive({b.name: b for b in form.buffers if b.role == "scratch"}, uses), default=0)


def _alive(scratch: Mapping[str, Buffer], uses: Sequence[frozenset[str]]) -> list[int]:
    alive = [0] * len(uses)
    for name, (first, last) in lifetimes(uses).items():
        if name in scratch:
            for step in range(first, last + 1):
                alive[step] += scratch[name].bytes
    return alive
