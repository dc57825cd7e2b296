"""Kernel IR as CUDA C++ without headers: one `extern "C"` kernel, and the small device functions it calls.

The text is a function of the kernel alone. Functions made of PTX stand under `#ifdef __CUDACC__`; where the text runs
on a CPU, the host prelude has its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from codegen import access, cuda_ops
from codegen.copies import CopyWriter, barriers_of, in_ring
from codegen.cuda_ops import OR, SHIFT, STORAGE, SUM, TERNARY, VALUE, Function
from codegen.expr import EmitError, Expressions, Fact, Text
from codegen.packed import Renewal, least_blocks, renewals
from codegen.resources import SHARED_ALIGNMENT_BYTES, shared_offsets
from ir.dtype import DTYPES, DType
from ir.kernel import (
    Alias,
    Array,
    Assign,
    Barrier,
    For,
    If,
    KernelProgram,
    Let,
    LoadGlobal,
    LoadShared,
    Named,
    Pairwise,
    Ring,
    Shared,
    Shuffle,
    Statement,
    StoreGlobal,
    StoreShared,
    terms,
    walk,
)
from ir.loop import Buffer
from ir.node import postorder
from ir.term import Term, Var, binary, const

WORD_BYTES = 4
"""Bytes of a register; smaller elements share one."""
BARRIERS = {"block": "__syncthreads();", "warp": "__syncwarp();"}
CLUSTER_BARRIERS = {"cluster": "cluster_barrier", "begun": "cluster_wait", "gather": "cluster_gather"}
ARRIVE, BEGIN = "cluster_arrive", "after_earlier_kernels"


def emit(*kernels: KernelProgram) -> str:
    """The kernels as one text that NVRTC and nvcc compile; raises `EmitError` where it has none.

    Equal kernels stand once; a kernel whose name another has is numbered. Device functions are shared.
    """
    writers = [_Writer(k) for k in _distinctly_named(kernels)]
    bodies = [w.kernel_lines() for w in writers]
    accesses = {key: row for w in writers for key, row in w.accesses.items()}
    functions = _functions({name for w in writers for name in w.expressions.called}, accesses)
    return "\n".join([*functions, *(line for body in bodies for line in (*body, ""))])


def _distinctly_named(kernels: Sequence[KernelProgram]) -> list[KernelProgram]:
    out: list[KernelProgram] = []
    taken: set[str] = set()
    for k in dict.fromkeys(kernels):
        name = next(n for i in range(len(kernels)) if (n := f"{k.name}_{i}" if i else k.name) not in taken)
        taken.add(name)
        out.append(replace(k, name=name))
    return out


class _Writer:
    """Lines of a kernel's body, in order, and what they turned out to need."""

    def __init__(self, kernel: KernelProgram) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.depth = 1
        self.temps = 0
        statements = list(walk(kernel.body))
        self.arrays: dict[str, Array] = {}
        self.shared = {s.name: s for s in statements if isinstance(s, Shared | Ring | Alias)}
        self.copies = CopyWriter(self, kernel.block_threads)
        self.buffers = {b.name: b for b in kernel.buffers}
        self.written = {s.buffer for s in statements if isinstance(s, StoreGlobal)}
        self.offsets = shared_offsets(kernel)
        self.names = _names(kernel)
        self.taken = set(self.names.values())
        self.expressions = Expressions(self.arrays, self.name, self.fresh)
        self.accesses: dict[str, Function] = {}
        self.renewals = renewals(kernel)
        block, size = kernel.block_threads, kernel.cluster
        self.coordinates = {"block": "blockIdx.x", "thread": "threadIdx.x"}
        if size > 1:
            thread = f"blockIdx.x % {size} * {block} + threadIdx.x"
            self.coordinates = {"block": f"blockIdx.x / {size}", "thread": thread}

    def name(self, name: str) -> str:
        """The C++ name of a buffer, array or scalar."""
        return self.names.setdefault(name, name)

    def fresh(self) -> str:
        """A name for a shared subterm."""
        while f"t{self.temps}" in self.taken:
            self.temps += 1
        self.temps += 1
        return f"t{self.temps - 1}"

    def line(self, text: str) -> None:
        """One line at the present depth."""
        self.lines.append("  " * self.depth + text)

    def parameter(self, b: Buffer) -> str:
        """A buffer in the signature; one that the kernel changes though it is an input may be reached twice."""
        ctype = STORAGE[b.dtype]
        if b.name not in self.written:
            return f"const {ctype}* __restrict__ {self.name(b.name)}"
        return f"{ctype}* {'' if b.role == 'input' else '__restrict__ '}{self.name(b.name)}"

    def kernel_lines(self) -> list[str]:
        """The kernel, without the device functions that it calls."""
        kernel = self.kernel
        self.body(kernel.body)
        used = {t.name for s in walk(kernel.body) for t in postorder(*terms(s)) if isinstance(t, Var)}
        coordinates = [f"{n} = {text}" for n, text in self.coordinates.items() if n in used]
        head = [f"  const int {', '.join(coordinates)};"] if coordinates else []
        head.append(f"  {self.expressions.call(BEGIN)}();")
        if any(isinstance(s, Barrier) and s.scope == "begun" for s in walk(kernel.body)):
            head.append(f"  {self.expressions.call(ARRIVE)}();")
        if self.offsets:
            head.append(f"  extern __shared__ __align__({SHARED_ALIGNMENT_BYTES}) unsigned char smem[];")
        blocks = least_blocks(kernel, self.renewals)
        bounds = f"{kernel.block_threads}, {blocks}" if blocks else f"{kernel.block_threads}"
        cluster = f" __cluster_dims__({kernel.cluster}, 1, 1)" if kernel.cluster > 1 else ""
        signature = [
            f'extern "C" __global__ void __launch_bounds__({bounds}){cluster}',
            f"{kernel.name}({', '.join(self.parameter(b) for b in kernel.buffers)}) {{",
        ]
        return [*signature, *head, *self.lines, "}"]

    # ---- statements

    def body(self, statements: Sequence[Statement]) -> None:
        """All statements, at the present depth; a scalar that is set at once is declared with its value."""
        declared: Array | None = None
        for k, s in enumerate(statements):
            first = len(self.lines)
            self.statement(s)
            if self.depth == 1 and k in self.renewals:
                self.renew(self.renewals[k])
            if declared is not None:
                self._merge(declared, first)
            declared = s if isinstance(s, Array) and s.size == 1 else None

    def _merge(self, scalar: Array, first: int) -> None:
        """Join the declaration on the line before `first` with the assignment that ends the lines since, if one does."""
        name = self.name(scalar.name)
        pattern = rf"{'  ' * self.depth}{name} = (?!.*\b{name}\b)"
        *between, last = self.lines[first:] or [""]
        if re.match(pattern, last) and not any(re.search(rf"\b{name}\b", line) for line in between):
            self.lines[first - 1 :] = [*between, f"{'  ' * self.depth}{STORAGE[scalar.dtype]} {last.lstrip()}"]

    def renew(self, found: Renewal) -> None:
        """Pack arrays again, and compute scalars again from them, under names of their own."""
        for array in found.arrays:
            callee = self.expressions.call("repack")
            self.line(f"{callee}<{self.register(array).size}>({self.name(array)});")
        for let in found.scalars:
            (text,) = self.values(let.value)
            self.names[let.name] = self.fresh()
            self.line(f"const {VALUE[let.value.dtype]} {self.names[let.name]} = {text.text};")

    def statement(self, s: Statement) -> None:
        """One statement."""
        match s:
            case Let(name, value):
                (text,) = self.values(value)
                fact = self.expressions.fact(value)
                self.expressions.facts[name] = fact
                self.line(f"const {VALUE[value.dtype]} {self.name(name)} = {text.text};")
            case Array(name, dtype, size):
                self.arrays[name] = s
                self.line(f"{STORAGE[dtype]} {self.name(name)}{'' if size == 1 else f'[{size}]'};")
            case Shared(name, dtype, size):
                self._declare_shared(name, dtype, size)
            case Assign():
                self.line(self._assignment(s))
            case Pairwise():
                self._pairwise(s)
            case For():
                self._loop(s)
            case If(pred, body):
                (text,) = self.values(pred)
                self.line(f"if ({text.text}) {{")
                self.block(body)
            case LoadGlobal():
                self._load_global(s)
            case LoadShared(array, index, shared, offset, width, pred, other, slot):
                ring = self.shared[shared]
                if isinstance(ring, Ring) and slot is not None:
                    offset = in_ring(ring, slot, offset)
                access_ = access.Access(self.shared[shared].dtype, width)
                self._load(array, index, shared, access_, offset, pred, other)
            case StoreGlobal():
                self._store_global(s)
            case StoreShared(shared, offset, array, index, _, pred, "all" | "first" as to):
                self._store_across(shared, offset, array, index, pred, to)
            case StoreShared(shared, offset, array, index, width, pred):
                self._store(shared, offset, array, index, access.Access(self.shared[shared].dtype, width), pred)
            case Shuffle(array, index, value, mask):
                self._shuffle(array, index, value, mask)
            case Barrier(scope) if scope in CLUSTER_BARRIERS:
                self.line(f"{self.expressions.call(CLUSTER_BARRIERS[scope])}();")
            case Barrier(scope):
                self.line(BARRIERS[scope])
            case _:
                self.copies.statement(s)

    def block(self, body: Sequence[Statement]) -> None:
        """A nested body and its closing brace."""
        self.depth += 1
        self.body(body)
        self.depth -= 1
        self.line("}")

    def values(self, *wanted: Term) -> list[Text]:
        """Texts of values; the lines that make shared subterms are written first."""
        lines, texts = self.expressions.values(*wanted)
        for line in lines:
            self.line(line)
        return texts

    def stored(self, dtype: DType, value: Term) -> Text:
        """The text of a value as it lies in memory."""
        lines, (text,) = self.expressions.stored(dtype, value)
        for line in lines:
            self.line(line)
        return text

    def guard(self, pred: Term | None) -> str:
        """`if (pred) `, or nothing."""
        return f"if ({self.values(pred)[0].text}) " if pred is not None else ""

    def register(self, name: str) -> Array:
        """The register array of that name."""
        if name not in self.arrays:
            raise EmitError(f"{self.kernel.name}: no register array is named {name}")
        return self.arrays[name]

    def element(self, array: str, index: Term) -> str:
        """One element of a register array; arrays of size 1 are scalars."""
        if self.register(array).size == 1:
            return self.name(array)
        (text,) = self.values(index)
        return f"{self.name(array)}[{text.text}]"

    def pointer(self, array: str, index: Term) -> str:
        """The address of an element of a register array."""
        if self.register(array).size == 1:
            return f"&{self.name(array)}"
        return self.offset(self.name(array), *self.values(index))

    def offset(self, base: str, by: Text) -> str:
        """The address `by` elements past `base`."""
        return base if by.text == "0" else f"{base} + {by.at(SUM)}"

    def _assignment(self, s: Assign) -> str:
        element = self.element(s.array, s.index)
        return f"{element} = {self.stored(self.register(s.array).dtype, s.value).text};"

    def _pairwise(self, s: Pairwise) -> None:
        dtype = self.register(s.array).dtype
        callee = self.expressions.call(f"{s.op}2_{dtype}")
        self.line(f"{callee}({self.pointer(s.array, s.index)}, {self.pointer(s.other, s.at)});")

    def _declare_shared(self, name: str, dtype: DType, size: int) -> None:
        ctype, own = STORAGE[dtype], self.name(name)
        if self.offsets:
            self.line(f"{ctype}* const {own} = ({ctype}*)(smem + {self.offsets[name]});  // {size} elements")
            return
        align = f"__align__({SHARED_ALIGNMENT_BYTES}) " if size > 1 else ""
        self.line(f"__shared__ {align}{ctype} {own}[{size}];")

    def _loop(self, s: For) -> None:
        start, stop = self.values(s.start, s.stop)
        first = self.expressions.fact(s.start)
        self.expressions.facts[s.name] = Fact(first.nonnegative and s.step > 0, first.data)
        self.line("#pragma unroll" if s.unroll else "#pragma unroll 1")
        i = self.name(s.name)
        step = f"++{i}" if s.step == 1 else f"{i} += {s.step}"
        self.line(f"for ({VALUE[s.counter.dtype]} {i} = {start.text}; {i} < {stop.at(SHIFT)}; {step}) {{")
        self.block(s.body)

    def _load_global(self, s: LoadGlobal) -> None:
        hint = "default" if s.buffer in self.written else s.cache
        if s.cache not in access.HINTS:
            raise EmitError(f"load of {s.buffer}: cache hint {s.cache} is none of {', '.join(access.HINTS)}")
        found = access.Access(self.global_buffer(s.buffer).dtype, s.width, hint)
        self._load(s.array, s.index, s.buffer, found, s.offset, s.pred, s.other)

    def _load(
        self,
        array: str,
        index: Term,
        memory: str,
        how: access.Access,
        offset: Term,
        pred: Term | None,
        other: Term | None,
    ) -> None:
        self._same_type(array, memory, how.dtype)
        (at,) = self.values(offset)
        guard = self.values(pred)[0] if pred is not None else None
        missing = self.stored(how.dtype, other) if guard is not None and other is not None else None
        source = self.name(memory)
        if how.width == 1 and how.hint == "default":
            read = f"{source}[{at.text}]"
            if guard and missing:
                read = f"{guard.at(OR)} ? {read} : {missing.at(TERNARY)}"
            only = f"if ({guard.text}) " if guard and not missing else ""
            self.line(f"{only}{self.element(array, index)} = {read};")
            return
        target = self.pointer(array, index)
        below_a_word = how.width > 1 and DTYPES[how.dtype].bytes < WORD_BYTES
        if guard and missing and (below_a_word or how.hint != "default"):
            callee = self.access(f"load{how.suffix}_or", access.load_or(how))
            self.line(f"{callee}({target}, {self.offset(source, at)}, {guard.text}, {missing.text});")
            return
        callee = self.access(f"load{how.suffix}", access.load(how))
        self.line(f"{f'if ({guard.text}) ' if guard else ''}{callee}({target}, {self.offset(source, at)});")
        if missing:
            elements = [self.element(array, binary("add", index, const(k, index.dtype))) for k in range(how.width)]
            self.line(f"else {' = '.join([*elements, missing.text])};")

    def _store_global(self, s: StoreGlobal) -> None:
        if s.cache not in access.HINTS:
            raise EmitError(f"store to {s.buffer}: cache hint {s.cache} is none of {', '.join(access.HINTS)}")
        how = access.Access(self.global_buffer(s.buffer).dtype, s.width, s.cache)
        if s.monoid is None:
            self._store(s.buffer, s.offset, s.array, s.index, how, s.pred)
            return
        if s.width != 1:
            raise EmitError(f"store to {s.buffer}: an atomic update has width 1, not {s.width}")
        self._same_type(s.array, s.buffer, how.dtype)
        update = access.update(s.monoid, how.dtype)
        for name, row in update.functions.items():
            self.access(name, row)
        (at,) = self.values(s.offset)
        guard = self.guard(s.pred)
        value = self.element(s.array, s.index)
        self.line(f"{guard}{update.callee}({self.offset(self.name(s.buffer), at)}, {value});")

    def _store(
        self, memory: str, offset: Term, array: str, index: Term, how: access.Access, pred: Term | None
    ) -> None:
        self._same_type(array, memory, how.dtype)
        (at,) = self.values(offset)
        guard = self.guard(pred)
        if how.width == 1 and how.hint == "default":
            self.line(f"{guard}{self.name(memory)}[{at.text}] = {self.element(array, index)};")
            return
        callee = self.access(f"store{how.suffix}", access.store(how))
        self.line(f"{guard}{callee}({self.offset(self.name(memory), at)}, {self.pointer(array, index)});")

    def _store_across(self, shared: str, offset: Term, array: str, index: Term, pred: Term | None, to: str) -> None:
        (at,) = self.values(offset)
        guard, callee = self.guard(pred), self.expressions.call(f"store_{to}")
        blocks = f"<{self.kernel.cluster}>" if to == "all" else ""
        place, value = self.offset(self.name(shared), at), self.element(array, index)
        self.line(f"{guard}{callee}{blocks}({place}, {value});")

    def _shuffle(self, array: str, index: Term, value: Term, mask: int) -> None:
        dtype = self.register(array).dtype
        element = self.element(array, index)
        (text,) = self.values(value)
        if value.dtype != dtype:
            raise EmitError(f"shuffle into {array}: the value is {value.dtype}, the array {dtype}")
        call = f"__shfl_xor_sync(0xffffffffu, {text.text}, {mask})"
        if STORAGE[dtype] != VALUE[dtype]:
            call = f"{self.expressions.call(f'to_{dtype}')}({call})"
        self.line(f"{element} = {call};")

    def access(self, name: str, row: Function) -> str:
        """Note that the text calls this function; gives its name."""
        found = self.accesses.setdefault(f"{name} {row.text}", row)
        assert found.text == row.text
        return name

    def global_buffer(self, name: str) -> Buffer:
        """The parameter of that name."""
        if name not in self.buffers:
            raise EmitError(f"{self.kernel.name}: no parameter is named {name}")
        return self.buffers[name]

    def _same_type(self, array: str, memory: str, dtype: DType) -> None:
        if self.register(array).dtype != dtype:
            raise EmitError(f"{array} holds {self.register(array).dtype}, but {memory} holds {dtype}")


def _names(kernel: KernelProgram) -> dict[str, str]:
    """C++ names of those that C++ or the emitter has taken."""
    own = [b.name for b in kernel.buffers]
    own += [s.name for s in walk(kernel.body) if isinstance(s, Named)]
    own += [barriers_of(s.name) for s in walk(kernel.body) if isinstance(s, Ring) and s.bulk]
    taken = set(own) | cuda_ops.RESERVED | {kernel.name}
    names: dict[str, str] = {"block": "block", "thread": "thread"}
    for name in own:
        mine = name
        while mine in cuda_ops.RESERVED or mine == kernel.name or (mine != name and mine in taken):
            mine += "_"
        taken.add(mine)
        names[name] = mine
    return names


def _functions(called: set[tuple[str, str]], accesses: Mapping[str, Function]) -> list[str]:
    """The device functions that bodies call; those of PTX last, under a guard."""
    extra = [accesses[key] for key in sorted(accesses)]
    called = {*called, *(need for row in extra for need in row.needs)}
    called |= {need for key in called if key in cuda_ops.FUNCTIONS for need in cuda_ops.FUNCTIONS[key].needs}
    rows = [row for key, row in cuda_ops.FUNCTIONS.items() if key in called]
    plain = [_device(r) for r in (*rows, *extra) if not r.ptx]
    first, last = [_device(r) for r in rows if r.ptx], [_device(r) for r in extra if r.ptx]
    groups = (_guarded(first), plain, _guarded(last)) if plain else (_guarded(first + last),)
    return [line for group in groups if group for line in (*group, "")]


def _device(row: Function) -> str:
    return f"{row.template + chr(10) if row.template else ''}static __device__ __forceinline__ {row.text}"


def _guarded(functions: list[str]) -> list[str]:
    return ["#ifdef __CUDACC__", *functions, "#endif"] if functions else []
