"""Texts of the scalar operators and of the small device functions they call, as rows of data.

A value of f16 or bf16 is a C++ `float` in expressions and an `unsigned short` in memory and in register arrays.
Integers of at most 16 bits are computed as int and cast back. i32 and i64 that hold data wrap; those that only
address memory are plain C++ arithmetic, which the compiler may assume not to overflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ir.dtype import DType

VALUE: dict[DType, str] = {
    "bool": "bool",
    "u8": "unsigned char",
    "i8": "signed char",
    "i16": "short",
    "i32": "int",
    "i64": "long long",
    "f16": "float",
    "bf16": "float",
    "f32": "float",
    "f64": "double",
}
STORAGE: dict[DType, str] = VALUE | {"f16": "unsigned short", "bf16": "unsigned short"}

# Precedence of C++ operators; an operand of a lower level than its place asks for is put in parentheses.
TERNARY, OR, AND, BIT_OR, BIT_XOR, BIT_AND, EQUAL, ORDER, SHIFT, SUM, PRODUCT, PREFIX, ATOM = range(13)


@dataclass(frozen=True)
class OpText:
    """A C++ expression over {x} and {y}: its own precedence, what its operands need, the functions it calls."""

    text: str
    level: int = ATOM
    x_level: int = TERNARY
    y_level: int = TERNARY
    calls: tuple[str, ...] = ()


def _infix(symbol: str, level: int) -> OpText:
    return OpText(f"{{x}} {symbol} {{y}}", level, level, level + 1)


def _call(name: str, operands: int, helper: bool = False) -> OpText:
    return OpText(f"{name}({'{x}, {y}' if operands == 2 else '{x}'})", calls=(name,) if helper else ())


def cast(row: OpText, ctype: str) -> OpText:
    """The same text, converted to `ctype`."""
    text = row.text if row.level >= PREFIX else f"({row.text})"
    return OpText(f"({ctype}){text}", PREFIX, row.x_level, row.y_level, row.calls)


_NEGATED = OpText("-{x}", PREFIX, ATOM)
_PLAIN = {"add": _infix("+", SUM), "sub": _infix("-", SUM), "mul": _infix("*", PRODUCT), "neg": _NEGATED}
_COMPARE = {
    "lt": _infix("<", ORDER),
    "le": _infix("<=", ORDER),
    "eq": _infix("==", EQUAL),
    "ne": _infix("!=", EQUAL),
    "not": OpText("!{x}", PREFIX, PREFIX),
}
_BITS = {
    "and": _infix("&", BIT_AND),
    "or": _infix("|", BIT_OR),
    "xor": _infix("^", BIT_XOR),
    "invert": OpText("~{x}", PREFIX, PREFIX),
}
_C_MATH_1 = (
    "exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh erf floor ceil trunc rint"
)


def _float_ops(f: str, one: str) -> dict[str, OpText]:
    return {
        **_PLAIN,
        **_COMPARE,
        **{op: _call(op + f, 1) for op in _C_MATH_1.split()},
        **{op: _call(op + f, 2) for op in ("pow", "atan2", "fmod")},
        "abs": _call(f"fabs{f}", 1),
        "div": _infix("/", PRODUCT),
        "recip": OpText(f"{one} / {{x}}", PRODUCT, PREFIX),
        "sigmoid": OpText(f"{one} / ({one} + exp{f}(-{{x}}))", PRODUCT, PREFIX),
        **{op: _call(op, 1, helper=True) for op in ("exp_coarse", "sigmoid_coarse")},
        "isnan": _call("isnan", 1),
        "max": _call("max_nan", 2, helper=True),
        "min": _call("min_nan", 2, helper=True),
        "floordiv": OpText(f"floor{f}({{x}} / {{y}})", ATOM, PRODUCT, PREFIX),
        "truncdiv": OpText(f"trunc{f}({{x}} / {{y}})", ATOM, PRODUCT, PREFIX),
        **{
            op: _call(name, 2, helper=True)
            for op, name in (("mod", "floor_mod"), ("mulz", "mulz"), ("addz", "addz"))
        },
    }


_WRAPPING = {
    **{op: _call(f"wrap_{op}", 2, helper=True) for op in ("add", "sub", "mul")},
    **{op: _call(f"wrap_{op}", 1, helper=True) for op in ("neg", "abs")},
}
_INTEGER = {
    **_COMPARE,
    **_BITS,
    "isnan": OpText("false"),
    "abs": _call("abs", 1),
    "max": _call("max", 2),
    "min": _call("min", 2),
    "pow": _call("int_pow", 2, helper=True),
    "floordiv": _call("floor_div", 2, helper=True),
    "truncdiv": _call("trunc_div", 2, helper=True),
    "mod": _call("floor_mod", 2, helper=True),
    "fmod": _call("trunc_mod", 2, helper=True),
    "shl": _call("shift_left", 2, helper=True),
    "shr": _call("shift_right", 2, helper=True),
}
_INDEX = {**_INTEGER, **_PLAIN}
# Forms that are right only where the emitter has shown both operands non-negative, or a constant divisor or count.
DIRECT = {
    "floordiv": _infix("/", PRODUCT),
    "truncdiv": _infix("/", PRODUCT),
    "mod": _infix("%", PRODUCT),
    "fmod": _infix("%", PRODUCT),
    "shl": _infix("<<", SHIFT),
    "shr": _infix(">>", SHIFT),
}


def _narrow_ops(ctype: str, signed: bool) -> dict[str, OpText]:
    wide = _INDEX if signed else _INDEX | {"abs": OpText("{x}", PREFIX, PREFIX)}
    return {op: row if op in _COMPARE or op == "isnan" else cast(row, ctype) for op, row in wide.items()}


_ANY, _ALL = _infix("||", OR), _infix("&&", AND)
_BOOL = {
    **_COMPARE,
    **dict.fromkeys(("add", "max", "or"), _ANY),
    **dict.fromkeys(("mul", "min", "and"), _ALL),
    "xor": _infix("!=", EQUAL),
    **{op: OpText("!{x}", PREFIX, PREFIX) for op in ("neg", "invert")},
    "abs": OpText("{x}", PREFIX, PREFIX),
    "isnan": OpText("false"),
}
OP_TEXT: dict[str, dict[str, OpText]] = {
    "float": _float_ops("f", "1.0f"),
    "double": _float_ops("", "1.0"),
    "index": _INDEX,
    "int": {**_INTEGER, **_WRAPPING},
    "long long": {**_INTEGER, **_WRAPPING},
    "short": _narrow_ops("short", True),
    "signed char": _narrow_ops("signed char", True),
    "unsigned char": _narrow_ops("unsigned char", False),
    "bool": _BOOL,
}


# ---- device functions


@dataclass(frozen=True)
class Function:
    """A device function, written only where it is called. Rows with PTX give way to the prelude's own on a CPU.

    In the text $T is the operand type, $U its unsigned counterpart and $L its negative infinity.
    """

    text: str
    ptx: bool = False
    needs: tuple[tuple[str, str], ...] = ()
    template: str = ""


_UNSIGNED = {"int": "unsigned", "long long": "unsigned long long"}
_LEAST = {"float": "__int_as_float(0xff800000)", "double": "__longlong_as_double(0xfff0000000000000)"}
_INT_FUNCTIONS = {
    "wrap_add": Function("$T wrap_add($T a, $T b) { return ($T)(($U)a + ($U)b); }"),
    "wrap_sub": Function("$T wrap_sub($T a, $T b) { return ($T)(($U)a - ($U)b); }"),
    "wrap_mul": Function("$T wrap_mul($T a, $T b) { return ($T)(($U)a * ($U)b); }"),
    "wrap_neg": Function("$T wrap_neg($T a) { return ($T)(0 - ($U)a); }"),
    "wrap_abs": Function("$T wrap_abs($T a) { return a < 0 ? ($T)(0 - ($U)a) : a; }"),
    # A zero divisor counts as 1, and the least integer divided by -1 wraps.
    "trunc_div": Function(
        "$T trunc_div($T a, $T b) { return b == 0 ? a : b == -1 ? ($T)(0 - ($U)a) : a / b; }",
    ),
    "trunc_mod": Function("$T trunc_mod($T a, $T b) { return b == 0 || b == -1 ? 0 : a % b; }"),
    "floor_div": Function(
        "$T floor_div($T a, $T b) {\n"
        "  if (b == 0 || b == -1) return b ? ($T)(0 - ($U)a) : a;\n"
        "  const $T q = a / b;\n"
        "  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;\n"
        "}"
    ),
    "floor_mod": Function(
        "$T floor_mod($T a, $T b) {\n"
        "  if (b == 0 || b == -1) return 0;\n"
        "  const $T r = a % b;\n"
        "  return r != 0 && (r < 0) != (b < 0) ? r + b : r;\n"
        "}"
    ),
    "int_pow": Function(
        "$T int_pow($T a, $T n) {\n"
        "  if (n < 0) return a == 1 ? 1 : a == -1 ? (n & 1 ? -1 : 1) : 0;\n"
        "  $U r = 1, s = ($U)a;\n"
        "  for (; n; n >>= 1, s *= s)\n"
        "    if (n & 1) r *= s;\n"
        "  return ($T)r;\n"
        "}"
    ),
    "shift_left": Function("$T shift_left($T a, $T n) { return ($U)n < 8 * sizeof($T) ? ($T)(($U)a << n) : 0; }"),
    "shift_right": Function(
        "$T shift_right($T a, $T n) { return ($U)n < 8 * sizeof($T) ? a >> n : a < 0 ? -1 : 0; }"
    ),
}
_FLOAT_FUNCTIONS = {
    "floor_mod": Function(
        "$T floor_mod($T a, $T b) {\n"
        "  const $T r = fmod(a, b);\n"
        "  return r != 0 && (b < 0) != (r < 0) ? r + b : r;\n"
        "}"
    ),
    "mulz": Function("$T mulz($T a, $T b) { return a * (isfinite(b) ? b : 0); }"),
    "addz": Function("$T addz($T a, $T b) { return a == $L ? a : a + b; }"),
}


def _nan_pair(op: str) -> Function:
    return Function(
        f"float {op}_nan(float a, float b) {{\n"
        f"  float r;\n"
        f'  asm("{op}.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));\n'
        f"  return r;\n"
        f"}}",
        ptx=True,
    )


def _pairs(op: str, dtype: str) -> Function:
    return Function(
        f"void {op}2_{dtype}(unsigned short* a, const unsigned short* b) {{\n"
        f"  unsigned x = a[0] | (unsigned)a[1] << 16;\n"
        f"  const unsigned y = b[0] | (unsigned)b[1] << 16;\n"
        f'  asm("{op}.NaN.{dtype}x2 %0, %0, %1;" : "+r"(x) : "r"(y));\n'
        f"  a[0] = (unsigned short)x;\n"
        f"  a[1] = (unsigned short)(x >> 16);\n"
        f"}}",
        ptx=True,
    )


def _convert(name: str, ptx: str, to: str, to_reg: str, of: str, of_reg: str) -> Function:
    return Function(
        f"{to} {name}({of} x) {{\n"
        f"  {to} r;\n"
        f'  asm("{ptx} %0, %1;" : "={to_reg}"(r) : "{of_reg}"(x));\n'
        f"  return r;\n"
        f"}}",
        ptx=True,
    )


def _asm(head: str, *instructions: str) -> Function:
    lines = (f'  asm volatile("{i}" ::: "memory");' for i in instructions)
    return Function("\n".join([f"{head} {{", *lines, "}"]), ptx=True)


def _functions() -> Iterator[tuple[tuple[str, str], Function]]:
    for ctype, unsigned in _UNSIGNED.items():
        for name, row in _INT_FUNCTIONS.items():
            yield (name, ctype), Function(row.text.replace("$T", ctype).replace("$U", unsigned))
    for ctype in ("float", "double"):
        for name, row in _FLOAT_FUNCTIONS.items():
            yield (name, ctype), Function(row.text.replace("$T", ctype).replace("$L", _LEAST[ctype]))
    for op, sign, of_zeros in (("max", ">", "!"), ("min", "<", "")):
        yield (f"{op}_nan", "float"), _nan_pair(op)
        for dtype in ("bf16", "f16"):
            yield (f"{op}2_{dtype}", ""), _pairs(op, dtype)
        first = f"a != a || a {sign} b || (a == b && {of_zeros}signbit(a))"  # -0.0 is less than 0.0
        text = f"double {op}_nan(double a, double b) {{ return {first} ? a : b; }}"
        yield (f"{op}_nan", "double"), Function(text)


FUNCTIONS: dict[tuple[str, str], Function] = {
    **dict(_functions()),
    # exp(x) as the square of 2**(x * log2(e) / 2), so that subnormal results are kept by the product.
    ("exp_coarse", "float"): Function(
        "float exp_coarse(float x) {\n"
        "  float r;\n"
        '  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 0.72134752f));\n'
        "  return r * r;\n"
        "}",
        ptx=True,
    ),
    ("sigmoid_coarse", "float"): Function(
        "float sigmoid_coarse(float x) {\n"
        "  float r;\n"
        '  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + exp_coarse(-x)));\n'
        "  return r;\n"
        "}",
        ptx=True,
        needs=(("exp_coarse", "float"),),
    ),
    ("exp_coarse", "double"): Function("double exp_coarse(double x) { return exp(x); }"),
    ("sigmoid_coarse", "double"): Function("double sigmoid_coarse(double x) { return 1.0 / (1.0 + exp(-x)); }"),
    ("from_bf16", ""): Function("float from_bf16(unsigned short h) { return __uint_as_float((unsigned)h << 16); }"),
    # The compiler cannot see that the words stay the same, so it keeps nothing that it made of them before.
    ("repack", ""): Function(
        "void repack(unsigned short* v) {\n"
        "#pragma unroll\n"
        "  for (int k = 0; k < size; k += 2) {\n"
        "    unsigned w = v[k] | (unsigned)v[k + 1] << 16;\n"
        '    asm volatile("" : "+r"(w));\n'
        "    v[k] = (unsigned short)w;\n"
        "    v[k + 1] = (unsigned short)(w >> 16);\n"
        "  }\n"
        "}",
        ptx=True,
        template="template <int size>",
    ),
    # The kernel begins while the one before it ends; nothing is touched before the wait. It lets the next one begin after
    # that: before it, several kernels would fill the card's slots, and whichever come free first get all of a small grid.
    ("after_earlier_kernels", ""): Function(
        "void after_earlier_kernels() {\n"
        "#if __CUDA_ARCH__ >= 900\n"
        '  asm volatile("griddepcontrol.wait;" ::: "memory");\n'
        '  asm volatile("griddepcontrol.launch_dependents;");\n'
        "#endif\n"
        "}",
        ptx=True,
    ),
    # Threads of a cluster: its blocks begin in any order, and none may be written to before it has.
    ("cluster_arrive", ""): _asm("void cluster_arrive()", "barrier.cluster.arrive.relaxed.aligned;"),
    ("cluster_wait", ""): _asm("void cluster_wait()", "barrier.cluster.wait.aligned;"),
    ("cluster_barrier", ""): _asm(
        "void cluster_barrier()", "barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;"
    ),
    ("cluster_gather", ""): Function(
        "void cluster_gather() {\n"
        "  unsigned rank;\n"
        '  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));\n'
        '  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");\n'
        '  if (rank == 0) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");\n'
        "}",
        ptx=True,
    ),
    ("store_first", ""): Function(
        "void store_first(T* p, T v) {\n"
        "  T* there;\n"
        '  asm("mapa.u64 %0, %1, 0;" : "=l"(there) : "l"(p));\n'
        "  *there = v;\n"
        "}",
        ptx=True,
        template="template <class T>",
    ),
    ("store_all", ""): Function(
        "void store_all(T* p, T v) {\n"
        "#pragma unroll\n"
        "  for (int k = 0; k < blocks; ++k) {\n"
        "    T* there;\n"
        '    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(k));\n'
        "    *there = v;\n"
        "  }\n"
        "}",
        ptx=True,
        template="template <int blocks, class T>",
    ),
    # With a zero for the lower half, the pair of two roundings is the f32 that the upper one widens to.
    ("round_bf16", ""): Function(
        "float round_bf16(float x) {\n"
        "  unsigned r;\n"
        '  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(x), "f"(0.0f));\n'
        "  return __uint_as_float(r);\n"
        "}",
        ptx=True,
    ),
    ("from_f16", ""): _convert("from_f16", "cvt.f32.f16", "float", "f", "unsigned short", "h"),
    ("to_bf16", ""): _convert("to_bf16", "cvt.rn.bf16.f32", "unsigned short", "h", "float", "f"),
    ("to_f16", ""): _convert("to_f16", "cvt.rn.f16.f32", "unsigned short", "h", "float", "f"),
    # Rounding to odd first leaves the rounding to 16 bits as the only one (Boldo and Melquiond, 2008).
    ("to_odd", ""): Function(
        "float to_odd(double x) {\n"
        "  const float r = __double2float_rz(x);\n"
        "  return (double)r == x || x != x ? r : __uint_as_float(__float_as_uint(r) | 1);\n"
        "}"
    ),
}

# Conversions of float to integer truncate. Out of range they saturate for i32 and i64 (NaN gives 0 and the least
# integer); narrower types keep the low bits of the i64, as PyTorch does for u8.
FLOAT_TO_INT: dict[tuple[str, DType], str] = {
    ("float", "i32"): "__float2int_rz",
    ("double", "i32"): "__double2int_rz",
    ("float", "i64"): "__float2ll_rz",
    ("double", "i64"): "__double2ll_rz",
}

# C++ words, built-in names and the names that emitted text defines itself: no variable may take them.
_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr
    continue decltype default delete do double else enum explicit export extern false float for friend goto if inline
    int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    return short signed sizeof static struct switch template this throw true try typedef typeid typename union
    unsigned using virtual void volatile while xor xor_eq block thread blockIdx threadIdx smem max min abs isnan isinf
    exp log pow sin cos tan sqrt floor ceil trunc rint erf fmod y0 y1 yn j0 j1 jn gamma float2 float4 int2 int4 uint2
    uint4 double2 longlong2 load store main
"""
RESERVED = frozenset(_WORDS.split()) | {name for name, _ in FUNCTIONS}
