"""Asynchronous copies into shared memory as CUDA text: rings, their mbarriers, copies, waits and releases."""

from __future__ import annotations

from typing import Protocol

from codegen.cuda_ops import STORAGE, SUM, Function
from codegen.expr import Text
from codegen.resources import SHARED_ALIGNMENT_BYTES, barrier_offset
from ir.dtype import DTYPES, DType
from ir.kernel import Alias, BulkCopy, Commit, Copy, Release, Ring, Statement, Wait, WaitSlot
from ir.term import Term, binary, const, round_to

_SHARED = "(unsigned)__cvta_generic_to_shared({})"


def _asm(head: str, ptx: str, *operands: str, template: str = "") -> Function:
    body = f'  asm volatile("{ptx}" ::{", ".join(operands)} : "memory");'
    return Function(f"{head} {{\n{body}\n}}", ptx=True, template=template)


def _address(name: str) -> str:
    return f'"r"({_SHARED.format(name)})'


# The level-1 cache takes no part in copies of 16 bytes, which are the only ones that may pass by it.
FUNCTIONS: dict[str, Function] = {
    "begin_copy": Function(
        "void begin_copy(void* to, const void* from, bool on) {\n"
        f"  const unsigned at = {_SHARED.format('to')};\n"
        "  const int read = on ? bytes : 0;\n"
        "  if (bytes == 16)\n"
        '    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(read) : "memory");\n'
        "  else\n"
        '    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"\n'
        '                 ::"r"(at), "l"(from), "n"(bytes == 16 ? 8 : bytes), "r"(read) : "memory");\n'
        "}",
        ptx=True,
        template="template <int bytes>",
    ),
    "commit_copies": _asm("void commit_copies()", "cp.async.commit_group;"),
    "wait_copies": _asm(
        "void wait_copies()", "cp.async.wait_group %0;", '"n"(pending)', template="template <int pending>"
    ),
    # The barriers of the copies of all slots, then those of their releases; the copying unit sees them as threads do.
    "ready_barriers": Function(
        "void ready_barriers(unsigned long long* b, int slots, int readers) {\n"
        "  if (threadIdx.x == 0) {\n"
        "    for (int k = 0; k < 2 * slots; ++k)\n"
        '      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"\n'
        f'                   ::{_address("b + k")}, "r"(k < slots ? 1 : readers));\n'
        '    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n'
        '    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n'
        "  }\n"
        "  __syncthreads();\n"
        "}",
        ptx=True,
    ),
    "begin_bulk_copy": Function(
        "void begin_bulk_copy(void* to, const void* from, int bytes, unsigned long long* full) {\n"
        f"  const unsigned barrier = {_SHARED.format('full')};\n"
        '  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"\n'
        '               ::"r"(barrier), "r"(bytes) : "memory");\n'
        '  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::\n'
        f'               {_address("to")}, "l"(from), "r"(bytes), "r"(barrier) : "memory");\n'
        "}",
        ptx=True,
    ),
    "commit_bulk_copies": _asm(
        "void commit_bulk_copies(unsigned long long* full)",
        "mbarrier.arrive.shared::cta.b64 _, [%0];",
        _address("full"),
    ),
    "wait_barrier": Function(
        "void wait_barrier(unsigned long long* b, int phase) {\n"
        '  asm volatile("{\\n.reg .pred over;\\nagain:\\n"\n'
        '               "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\\n@!over bra again;\\n}"\n'
        f'               ::{_address("b")}, "r"(phase) : "memory");\n'
        "}",
        ptx=True,
    ),
    "release_slot": _asm(
        "void release_slot(unsigned long long* empty)",
        "mbarrier.arrive.shared::cta.b64 _, [%0];",
        _address("empty"),
    ),
}


class Lines(Protocol):
    """What writes a kernel: lines, texts of terms, names, and the functions that are called."""

    offsets: dict[str, int]

    def line(self, text: str) -> None: ...
    def values(self, *wanted: Term) -> list[Text]: ...
    def name(self, name: str) -> str: ...
    def access(self, name: str, row: Function) -> str: ...
    def offset(self, base: str, by: Text) -> str: ...


class CopyWriter:
    """Writes the statements of rings; `threads` are those of a block."""

    def __init__(self, out: Lines, threads: int) -> None:
        self.out, self.threads = out, threads
        self.rings: dict[str, Ring] = {}

    def statement(self, s: Statement) -> None:
        """One statement about rings or aliases."""
        out = self.out
        match s:
            case Ring():
                self.ring(s)
            case Alias(name, dtype, size, of):
                ctype = STORAGE[dtype]
                out.line(f"{ctype}* const {out.name(name)} = ({ctype}*){out.name(of)};  // {size} elements there")
            case Copy():
                (from_, guard) = out.values(s.start, s.pred if s.pred is not None else const(True, "bool"))
                size = s.width * DTYPES[self.rings[s.ring].dtype].bytes
                to, source = self.place(s.ring, s.slot, s.offset), out.offset(out.name(s.buffer), from_)
                out.line(f"{self.call('begin_copy')}<{size}>({to}, {source}, {guard.text});")
            case BulkCopy():
                in_bytes = binary("mul", s.count, const(DTYPES[self.rings[s.ring].dtype].bytes, s.count.dtype))
                from_, length = out.values(s.start, in_bytes)
                to, source = self.place(s.ring, s.slot, s.offset), out.offset(out.name(s.buffer), from_)
                out.line(
                    f"{self.call('begin_bulk_copy')}({to}, {source}, {length.text}, {self.barrier(s.ring, s.slot)});"
                )
            case Commit(None):
                out.line(f"{self.call('commit_copies')}();")
            case Commit(str(ring), slot) if slot is not None:
                out.line(f"{self.call('commit_bulk_copies')}({self.barrier(ring, slot)});")
            case Wait(pending):
                out.line(f"{self.call('wait_copies')}<{pending}>();")
            case WaitSlot(ring, side, slot, phase):
                (parity,) = out.values(phase)
                out.line(f"{self.call('wait_barrier')}({self.barrier(ring, slot, side)}, {parity.text});")
            case Release(ring, slot) if self.rings[ring].bulk:
                out.line(f"{self.call('release_slot')}({self.barrier(ring, slot, 'empty')});")

    def ring(self, s: Ring) -> None:
        """Declare a ring, and have its mbarriers ready."""
        out, name, ctype, size = self.out, self.out.name(s.name), STORAGE[s.dtype], s.slots * s.size
        self.rings[s.name] = s
        barriers = out.name(barriers_of(s.name))
        if out.offsets:
            at = out.offsets[s.name]
            out.line(f"{ctype}* const {name} = ({ctype}*)(smem + {at});  // {size} elements")
            word, first = "unsigned long long", at + barrier_offset(s)
            if s.bulk:
                out.line(f"{word}* const {barriers} = ({word}*)(smem + {first});  // {2 * s.slots} barriers")
        else:
            out.line(f"__shared__ __align__({SHARED_ALIGNMENT_BYTES}) {ctype} {name}[{size}];")
            if s.bulk:
                out.line(f"__shared__ unsigned long long {barriers}[{2 * s.slots}];")
        if s.bulk:
            out.line(f"{self.call('ready_barriers')}({barriers}, {s.slots}, {self.threads});")

    def call(self, name: str) -> str:
        """The name of a function, after noting that the text needs it."""
        return self.out.access(name, FUNCTIONS[name])

    def place(self, ring: str, slot: Term, offset: Term) -> str:
        """The address of an element of a slot."""
        (at,) = self.out.values(in_ring(self.rings[ring], slot, offset))
        return self.out.offset(self.out.name(ring), at)

    def barrier(self, ring: str, slot: Term, side: str = "full") -> str:
        """The address of an mbarrier of a slot."""
        number = slot if side == "full" else binary("add", slot, const(self.rings[ring].slots, slot.dtype))
        (at,) = self.out.values(number)
        return f"{self.out.name(barriers_of(ring))} + {at.at(SUM)}"


def barriers_of(ring: str) -> str:
    """The name of the array of a ring's mbarriers."""
    return f"{ring}_barriers"


def in_ring(ring: Ring, slot: Term, offset: Term) -> Term:
    """The element of the ring at an offset in a slot."""
    wide: DType = "i64" if "i64" in (slot.dtype, offset.dtype) else "i32"
    first = binary("mul", round_to(wide, "cast", slot), const(ring.size, wide))
    return binary("add", first, round_to(wide, "cast", offset))
