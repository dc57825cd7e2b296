"""Memory accesses of several elements or with a cache hint, and atomic updates, as generated device functions."""

from __future__ import annotations

from dataclasses import dataclass

from codegen import cuda_ops as ops
from codegen.cuda_ops import Function
from ir.dtype import DTYPES, DType
from ir.node import IRError
from ir.ops import MONOIDS


@dataclass(frozen=True)
class Word:
    """A machine word of a memory access: its C++ type, PTX suffix, register constraint, and the name of its vectors."""

    ctype: str
    ptx: str
    register: str
    vector: str


_WORDS = {
    "float": Word("float", "f32", "f", "float"),
    "double": Word("double", "f64", "d", "double"),
    "int": Word("int", "s32", "r", "int"),
    "long long": Word("long long", "s64", "l", "longlong"),
}
_SMALL_WORDS = {
    1: Word("unsigned short", "u8", "h", "ushort"),
    2: Word("unsigned short", "u16", "h", "ushort"),
    4: Word("unsigned", "u32", "r", "uint"),
}


@dataclass(frozen=True)
class Hint:
    """How accesses go through the caches: the PTX of a load and of a store, and the L2 policy that both carry.

    Loads with a hint take the non-coherent path: buffers that the kernel writes are loaded plainly. PTX ISA: ld.global.nc,
    st, createpolicy.
    """

    load: str
    store: str
    policy: str = ""

    def ptx(self, instruction: str, predicate: str = "") -> str:
        """The instruction behind the making of its policy, where the integer operand `predicate` is not 0."""
        declared = [".reg .b64 policy;"] if self.policy else []
        declared += [".reg .pred on;"] if predicate else []
        steps = [f"createpolicy.fractional.{self.policy}.b64 policy, 1.0;"] if self.policy else []
        steps += [f"setp.ne.s32 on, {predicate}, 0;"] if predicate else []
        whole = f"{'@on ' if predicate else ''}{instruction}{', policy' if self.policy else ''};"
        return f"{{ {' '.join([*declared, *steps, whole])} }}" if declared else whole


HINTS = {
    "default": Hint("", ""),
    "stream": Hint("ld.global.nc.L1::no_allocate", "st.global.cs"),
    "keep": Hint("ld.global.nc.L2::cache_hint", "st.global.L2::cache_hint", "L2::evict_last"),
}
WIDEST_BYTES = 16


@dataclass(frozen=True)
class Access:
    """`width` elements of a storage type moved at once; `hint` is a row of HINTS."""

    dtype: DType
    width: int
    hint: str = "default"

    def __post_init__(self) -> None:
        bytes_ = self.width * DTYPES[self.dtype].bytes
        if bytes_ > WIDEST_BYTES or self.width & (self.width - 1) or self.width < 1:
            raise IRError(f"an access of {self.width} x {self.dtype} is not a power of two of at most 16 bytes")

    @property
    def suffix(self) -> str:
        """What follows `load` or `store` in the function's name."""
        return f"{self.width}" if self.hint == "default" else f"{self.width}_{self.hint}"

    @property
    def word(self) -> Word:
        """The machine word that the access is made of."""
        size = DTYPES[self.dtype].bytes
        return _WORDS[ops.STORAGE[self.dtype]] if size >= 4 else _SMALL_WORDS[min(4, size * self.width)]

    @property
    def parts(self) -> list[str]:
        """The words of the local variable `w`."""
        size = DTYPES[self.dtype].bytes
        count = 1 if size < 4 and size * self.width <= 4 else self.width * size // (4 if size < 4 else size)
        return ["w"] if count == 1 else [f"w.{c}" for c in "xyzw"[:count]]

    @property
    def vector(self) -> str:
        """The C++ type of `w`."""
        return self.word.ctype if len(self.parts) == 1 else f"{self.word.vector}{len(self.parts)}"

    def place(self, element: int) -> tuple[str, int]:
        """The word that holds an element, and its shift in bits."""
        size = DTYPES[self.dtype].bytes
        each = max(1, 4 // size)
        return self.parts[element // each], 8 * size * (element % each)


def load(access: Access) -> Function:
    """`loadN(v, p)`: v[0..N) = p[0..N)."""
    ctype, read = ops.STORAGE[access.dtype], _read(access)
    lines = [f"const {access.vector} {read}"] if access.hint == "default" else [f"{access.vector} w;", read]
    return _function(f"void load{access.suffix}({ctype}* v, const {ctype}* p)", [*lines, *_taken_apart(access)])


def load_or(access: Access) -> Function:
    """`loadN_or(v, p, on, other)`: v[0..N) = on ? p[0..N) : other, chosen a word at a time.

    A load with a hint is one predicated instruction, where a branch around it would part it from its neighbours.
    """
    ctype, size = ops.STORAGE[access.dtype], DTYPES[access.dtype].bytes
    bits = f"(unsigned)({'unsigned char' if size == 1 else 'unsigned short'})other" if size < 4 else "other"
    copies = access.width // len(access.parts)
    same = " | ".join(f"{bits} << {8 * size * k}" if k else bits for k in range(copies))
    read = f"if (on) {_read(access)}" if access.hint == "default" else _read(access, predicated=True)
    lines = [f"{access.vector} w;", f"{' = '.join(access.parts)} = {same};", read]
    head = f"void load{access.suffix}_or({ctype}* v, const {ctype}* p, bool on, {ctype} other)"
    return _function(head, [*lines, *_taken_apart(access)])


def _read(access: Access, predicated: bool = False) -> str:
    """What loads into the local variable `w`, and leaves it as it is where it is `predicated` by a false `on`."""
    parts, hint = access.parts, HINTS[access.hint]
    if access.hint == "default":
        return f"w = *(const {access.vector}*)p;"
    operands = _braced([f"%{k}" for k in range(len(parts))])
    kind, inputs = ("+", '"l"(p), "r"((int)on)') if predicated else ("=", '"l"(p)')
    outputs = ", ".join(f'"{kind}{access.word.register}"({w})' for w in parts)
    load = f"{hint.load}{_lanes(parts)}.{access.word.ptx} {operands}, [%{len(parts)}]"
    return f'asm volatile("{hint.ptx(load, f"%{len(parts) + 1}" if predicated else "")}" : {outputs} : {inputs});'


def _taken_apart(access: Access) -> list[str]:
    return [f"v[{k}] = {_unpacked(access, k)};" for k in range(access.width)]


def store(access: Access) -> Function:
    """`storeN(p, v)`: p[0..N) = v[0..N)."""
    ctype, parts = ops.STORAGE[access.dtype], access.parts
    lines = [f"{access.vector} w;"]
    for part in parts:
        packed = [_packed(access, k) for k in range(access.width) if access.place(k)[0] == part]
        lines.append(f"{part} = {' | '.join(packed)};")
    if access.hint == "default":
        lines.append(f"*({access.vector}*)p = w;")
    else:
        operands = _braced([f"%{k + 1}" for k in range(len(parts))])
        inputs = ", ".join(f'"{access.word.register}"({w})' for w in parts)
        hint = HINTS[access.hint]
        ptx = hint.ptx(f"{hint.store}{_lanes(parts)}.{access.word.ptx} [%0], {operands}")
        lines.append(f'asm volatile("{ptx}" ::"l"(p), {inputs} : "memory");')
    return _function(f"void store{access.suffix}({ctype}* p, const {ctype}* v)", lines)


def _function(head: str, lines: list[str], template: str = "") -> Function:
    return Function("\n  ".join([f"{head} {{", *lines]) + "\n}", ptx=True, template=template)


def _lanes(parts: list[str]) -> str:
    return "" if len(parts) == 1 else f".v{len(parts)}"


def _braced(operands: list[str]) -> str:
    return operands[0] if len(operands) == 1 else f"{{{', '.join(operands)}}}"


def _unpacked(access: Access, element: int) -> str:
    word, shift = access.place(element)
    if DTYPES[access.dtype].bytes >= 4:
        return word
    shifted = f"({word} >> {shift})" if shift else word
    return f"({shifted} & 1)" if access.dtype == "bool" else f"({ops.STORAGE[access.dtype]}){shifted}"


def _packed(access: Access, element: int) -> str:
    _, shift = access.place(element)
    ctype = ops.STORAGE[access.dtype]
    value = f"v[{element}]"
    if DTYPES[access.dtype].bytes >= 4:
        return value
    if not ctype.startswith("unsigned") and ctype != "bool":
        value = f"(unsigned {ctype.removeprefix('signed ')}){value}"
    return f"(unsigned){value} << {shift}" if shift else value


# ---- atomic updates

_ATOMIC = {"add": "atomicAdd", "max": "atomicMax", "min": "atomicMin", "and": "atomicAnd", "or": "atomicOr"}
_NATIVE = {
    "add": ("float", "double", "int", "long long"),
    **dict.fromkeys(("max", "min", "and", "or"), ("int", "long long")),
}
# How a storage type becomes the word that compare-and-swap takes, and back.
_BITS: dict[str, tuple[str, str, str]] = {
    "float": ("int", "__float_as_int({})", "__int_as_float({})"),
    "double": ("unsigned long long", "__double_as_longlong({})", "__longlong_as_double({})"),
    "int": ("int", "{}", "{}"),
    "long long": ("unsigned long long", "{}", "(long long){}"),
    "short": ("unsigned short", "(unsigned short){}", "(short){}"),
    "unsigned short": ("unsigned short", "{}", "{}"),
}


@dataclass(frozen=True)
class Update:
    """The text that is called before `(pointer, value)`, and the functions it needs by name."""

    callee: str
    functions: dict[str, Function]


def update(monoid: str, dtype: DType) -> Update:
    """How a buffer of `dtype` is updated atomically under `monoid`."""
    if MONOIDS[monoid].pair:
        raise IRError(f"{monoid} keeps a pair, so no atomic update of a buffer exists")
    ctype = ops.STORAGE[dtype]
    if ctype in _NATIVE.get(monoid, ()):
        return Update(f"atomic_{monoid}", {f"atomic_{monoid}": _native(monoid, ctype)})
    combine = f"{monoid}_{dtype}"
    swap = _swap_byte(ctype) if DTYPES[dtype].bytes == 1 else _swap(ctype)
    return Update(f"atomic_update<{combine}>", {combine: _combine(combine, monoid, dtype), "atomic_update": swap})


def _native(monoid: str, ctype: str) -> Function:
    word = "unsigned long long" if ctype == "long long" and monoid in ("add", "and", "or") else ctype
    call = f"{_ATOMIC[monoid]}(({word}*)p, ({word})v)" if word != ctype else f"{_ATOMIC[monoid]}(p, v)"
    return Function(f"void atomic_{monoid}({ctype}* p, {ctype} v) {{ {call}; }}", ptx=True)


def _combine(name: str, monoid: str, dtype: DType) -> Function:
    ctype, value = ops.STORAGE[dtype], ops.VALUE[dtype]
    row = ops.OP_TEXT[value][MONOIDS[monoid].combine]
    half = ctype != value
    x, y = (f"from_{dtype}({n})" if half else n for n in "ab")
    result = row.text.format(x=x, y=y)
    needs = tuple((n, value) for n in row.calls)
    needs += ((f"from_{dtype}", ""), (f"to_{dtype}", "")) if half else ()
    text = f"{ctype} {name}({ctype} a, {ctype} b) {{ return {f'to_{dtype}({result})' if half else result}; }}"
    return Function(text, needs=needs)


def _swap(ctype: str) -> Function:
    word, to, of = _BITS[ctype]
    result = to.format(f"f({of.format('seen')}, v)")
    return _function(
        f"void atomic_update({ctype}* p, {ctype} v)",
        [
            f"{word} old = *({word}*)p, seen;",
            "do {",
            "  seen = old;",
            f"  old = atomicCAS(({word}*)p, seen, ({word}){result});",
            "} while (old != seen);",
        ],
        "template <auto f>",
    )


def _swap_byte(ctype: str) -> Function:
    """Through the aligned word around the byte, whose other bytes keep their values."""
    return _function(
        f"void atomic_update({ctype}* p, {ctype} v)",
        [
            "unsigned* const word = (unsigned*)((unsigned long long)p & ~3ull);",
            "const unsigned shift = 8 * ((unsigned long long)p & 3);",
            "unsigned old = *word, seen;",
            "do {",
            "  seen = old;",
            f"  const unsigned next = (unsigned char)f(({ctype})(seen >> shift), v);",
            "  old = atomicCAS(word, seen, (seen & ~(255u << shift)) | next << shift);",
            "} while (old != seen);",
        ],
        "template <auto f>",
    )
