"""Decoder layers as text: normalised projections, rotary pairs, grouped heads, causal scores, a gated product."""

from __future__ import annotations

from ir.loop import LoopProgram
from tests.egraph.written import program

EXTENTS = {"i": 3, "j": 3, "c": 4, "g": 2, "r": 2, "d": 4, "e": 4, "f": 6}


def layer(n: int, source: str) -> str:
    """The lines of layer n, which reads `source` and makes x`n`."""

    def norm(x: str, out: str, weight: str) -> str:
        return (
            f"{out}s := add[c]({x} * {x}) / f32(4.0)\n"
            f"{out} := bf16.op(bf16.cast({x} * rsqrt({out}s + f32(1e-05))) * {weight}[c])"
        )

    def rotary(x: str, out: str) -> str:
        turned = f"bf16.op(at({x}, d=R[d]) * S[d])"
        return f"{out} := bf16.op(bf16.op({x} * C[i, d]) + bf16.op({turned} * Z[i, d]))"

    return f"""
        {norm(source, f"n{n}", f"G{n}")}
        q{n} := bf16.op(bf16.op(add[c](n{n} * WQ{n}[c, g, r, d])) + BQ{n}[g, r, d])
        k{n} := bf16.op(bf16.op(add[c](n{n} * WK{n}[c, g, d])) + BK{n}[g, d])
        v{n} := bf16.op(bf16.op(add[c](n{n} * WV{n}[c, g, e])) + BV{n}[g, e])
        {rotary(f"q{n}", f"qr{n}")}
        {rotary(f"k{n}", f"kr{n}")}
        s{n} := add[d](qr{n} * at(kr{n}, i=j)) * f32(0.5) if j <= i else f32(-inf)
        m{n} := max[j](s{n})
        p{n} := exp(s{n} - m{n})
        o{n} := bf16.op(add[j](bf16.op(p{n}) * at(v{n}, i=j)) / add[j](p{n}))
        y{n} := bf16.op({source} + bf16.op(add[e, g, r](o{n} * WO{n}[g, r, e, c])))
        {norm(f"y{n}", f"u{n}", f"H{n}")}
        a{n} := bf16.op(add[c](u{n} * WG{n}[c, f]))
        b{n} := bf16.op(add[c](u{n} * WU{n}[c, f]))
        h{n} := bf16.op(bf16.op(a{n} * sigmoid(a{n})) * b{n})
        x{n} := bf16.op(y{n} + bf16.op(add[f](h{n} * WD{n}[f, c])))
    """


def decoder(layers: int) -> LoopProgram:
    """A stack of layers over the input X."""
    text, source = "", "X[i, c]"
    for n in range(layers):
        text += layer(n, source)
        source = f"x{n}"
    names = ("WQ", "WK", "WV", "WO", "WG", "WU", "WD", "BQ", "BK", "BV", "G", "H")
    dtypes = {f"{name}{n}": "bf16" for name in names for n in range(layers)}
    return program(text + source, EXTENTS, dtypes | dict.fromkeys("XCSZ", "bf16") | {"R": "i64"})
