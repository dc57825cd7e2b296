"""Loop programs and forms as text: axes, buffers, then stores, with shared terms on lines of their own; text parses back.

loop NAME                                 form NAME
axis a0 = 6                               law NAME                (cost 12.5 us, if it is known)
buffer x: f32[6, 4] input                 axis ... buffer ...
t0 = add[a1](x[a0, a1])                   kernel NAME
store y[a0] = t0                          part a0
store add z[x[a0, 0]] = t0                store y[a0] = t0
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from ir.lines import Lines
from ir.loop import Buffer, Form, KernelForm, LoopProgram, Part, Store, contiguous
from ir.text import Scope, parse_term, parse_terms, show_terms

# ---- printing


def show_loop(program: LoopProgram) -> str:
    """The program as text."""
    lines = [f"loop {program.name}", *_header(program.axes, program.buffers)]
    lines += _stores((("", program.results),))
    return "\n".join(lines) + "\n"


def show_form(form: Form) -> str:
    """The form as text, without its `details`."""
    lines = [f"form {form.name}", *(f"law {law}" for law in form.laws)]
    lines += [] if math.isnan(form.cost_us) else [f"cost {form.cost_us!r} us"]
    lines += _header(form.axes, form.buffers)
    for kernel in form.kernels:
        lines.append(f"kernel {kernel.name}")
        lines += _stores([(f"part {', '.join(p.axes)}".rstrip(), p.stores) for p in kernel.parts])
    return "\n".join(lines) + "\n"


def show_buffer(b: Buffer) -> str:
    """A buffer's line; contiguous strides, no offset and the usual alignment go unsaid."""
    text = f"buffer {b.name}: {b.dtype}{list(b.shape)} {b.role}"
    if b.strides != contiguous(b.shape):
        text += f" strides {list(b.strides)}"
    return text + f" offset {b.offset}" * (b.offset != 0) + f" align {b.alignment}" * (b.alignment != 16)


def _header(axes: Mapping[str, int], buffers: Sequence[Buffer]) -> list[str]:
    return [*(f"axis {a} = {e}" for a, e in axes.items()), *map(show_buffer, buffers)]


def _stores(groups: Sequence[tuple[str, Sequence[Store]]]) -> list[str]:
    """The stores under a line for each group, after the terms that they share."""
    stores = [s for _, group in groups for s in group]
    lines, texts = show_terms([t for s in stores for t in (*s.index, s.value)])
    rest = iter(texts)
    for head, group in groups:
        lines += [head] if head else []
        for s in group:
            index = ", ".join(next(rest) for _ in s.index) or "()"
            lines.append(f"store {s.monoid + ' ' if s.monoid else ''}{s.buffer}[{index}] = {next(rest)}")
    return lines


# ---- parsing

_BUFFER = re.compile(
    r"buffer (\w+): (\w+)\[([\d, ]*)\] (\w+)(?: strides \[([\d, -]*)\])?(?: offset (\d+))?(?: align (\d+))?"
)
_STORE = re.compile(r"store (?:(\w+) )?(\w+)\[(.*?)\] = (.*)")
_PART = re.compile(r"part ?(.*)")


def parse_loop(text: str) -> LoopProgram:
    """The program that `text` spells; raises `IRError` with the line where it is not one."""
    reader = Lines(text)
    (name,) = reader.match(re.compile(r"loop (.+)"), "loop NAME is expected")
    axes, buffers = _parse_header(reader)
    stores = _parse_stores(reader, Scope({b.name: b.dtype for b in buffers}, axes))
    reader.finish()
    return LoopProgram(name, axes, buffers, stores)


def parse_form(text: str) -> Form:
    """The form that `text` spells; raises `IRError` with the line where it is not one."""
    reader = Lines(text)
    (name,) = reader.match(re.compile(r"form (.+)"), "form NAME is expected")
    laws = tuple(m[0] for m in reader.all(re.compile(r"law (.*)")))
    costs = [float(m[0]) for m in reader.all(re.compile(r"cost (\S+) us"))]
    axes, buffers = _parse_header(reader)
    kernels = []
    for (kernel,) in reader.each(re.compile(r"kernel (\w+)")):
        scope = Scope({b.name: b.dtype for b in buffers}, axes)
        _parse_shared(reader, scope)
        parts = [
            Part(tuple(n.strip() for n in names.split(",") if n.strip()), _parse_stores(reader, scope))
            for (names,) in reader.each(_PART)
        ]
        kernels.append(KernelForm(kernel, tuple(parts)))
    reader.finish()
    return Form(name, axes, buffers, tuple(kernels), laws, costs[0] if costs else math.nan)


def parse_buffer(groups: Sequence[str]) -> Buffer:
    """The buffer of a matched line."""
    name, dtype, extents, role, strides, offset, alignment = groups
    shape = _numbers(extents)
    steps = contiguous(shape) if strides is None else _numbers(strides)
    return Buffer(name, dtype, shape, steps, int(offset or 0), role, int(alignment or 16))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n.strip())


def _parse_header(reader: Lines) -> tuple[dict[str, int], tuple[Buffer, ...]]:
    axes = {a: int(e) for a, e in reader.all(re.compile(r"axis (\w+) = (\d+)"))}
    return axes, tuple(parse_buffer(m) for m in reader.all(_BUFFER))


def _parse_shared(reader: Lines, scope: Scope) -> None:
    for name, text in reader.each(re.compile(r"(\w+) = (.*)")):
        scope.shared[name] = reader.checked(parse_term, text, scope)


def _parse_stores(reader: Lines, scope: Scope) -> tuple[Store, ...]:
    _parse_shared(reader, scope)
    stores = []
    for monoid, buffer, index, value in reader.each(_STORE):
        if buffer not in scope.buffers:
            raise reader.fail(f"no buffer is named {buffer}")
        terms = reader.checked(parse_terms, index, scope)
        stored = reader.checked(parse_term, value, scope)
        stores.append(Store(buffer, terms, stored, monoid))
    return tuple(stores)
