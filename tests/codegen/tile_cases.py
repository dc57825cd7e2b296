"""Tile programs as text, by what they exercise, and inputs for them."""

from __future__ import annotations

import numpy as np

from ir.dtype import Array, is_float, numpy_type, rounded
from ir.tile import TileProgram
from ir.tile_text import parse_tile


def padded(extent: int) -> int:
    """The next power of two."""
    return 1 << (extent - 1).bit_length()


def row(n: int, threads: int, rows: int = 1, extra: str = "", vector: str = "", blocks: int = 3) -> str:
    """exp(x - max) and its sum along rows, both stored."""
    tile, many = padded(n), rows * blocks - (rows > 1)
    return f"""tile row
schedule WORK=t{threads} TILE=i:{rows},j:{tile}{vector}{extra}
buffer x: f32[{many}, {n}] input
buffer y: f32[{many}] output
buffer z: f32[{many}, {n}] output
part i: grid {many}/{rows}, j: whole {n}/{tile}
  v0 = load x[i, j]
  m0 = where j < {n} of v0 else identity.max
  m1 = fold max over j of m0
  e0 = map exp(v0 - m1)
  e1 = where j < {n} of e0 else identity.add
  s1 = fold add over j of e1
  store y[i] = s1
  o = map e0 / s1
  store z[i, j] = o
"""


def scan(monoid: str, n: int, threads: int, vector: str = "") -> str:
    """Inclusive prefixes along rows, two rows a block."""
    return f"""tile scan
schedule WORK=t{threads} TILE=i:2,k:{padded(n)}{vector}
buffer x: f32[3, {n}] input
buffer y: {"i64" if monoid.startswith("arg") else "f32"}[3, {n}] output
part i: grid 3/2, k: whole {n}/{padded(n)}
  v0 = load x[i, k]
  s = scan {monoid} over k of v0
  store y[i, k] = s
"""


def positions(monoid: str, n: int, threads: int) -> str:
    """The position of the largest or least value of rows."""
    return f"""tile positions
schedule WORK=t{threads} TILE=i:1,k:{padded(n)}
buffer ties: f32[6, {n}] input
buffer y: i64[6] output
part i: grid 6/1, k: whole {n}/{padded(n)}
  v0 = load ties[i, k]
  v1 = where k < {n} of v0 else identity.{monoid}
  s = fold {monoid} over k of v1
  store y[i] = s
"""


CASES: dict[str, str] = {
    "pointwise on odd extents": """tile p
schedule WORK=t128 TILE=i:4,j:32
buffer x: f32[7, 45] input
buffer z: f32[45] input
buffer y: f32[7, 45] output
part i: grid 7/4, j: grid 45/32
  v0 = load x[i, j]
  z0 = load z[j]
  v1 = map exp(v0) * z0
  store y[i, j] = v1
""",
    "one point a thread": """tile p
schedule WORK=points128
buffer x: f32[70, 45] input
buffer y: f32[70] output
part i: grid 70/64, k: stream 45/1
  stream k carrying m: add f32[i, k]
    v0 = load x[i, k]
    m2 = combine add m, v0
    yield m2
  m3 = fold add over k of m
  store y[i] = m3
""",
    "transpose": """tile p
schedule WORK=t256 TILE=i:32,j:32
buffer x: f32[37, 45] input
buffer y: f32[45, 37] output
part i: grid 37/32, j: grid 45/32
  v0 = load x[i, j]
  store y[j, i] = v0
""",
    "two transposes in vectors": """tile p
schedule WORK=t128 TILE=i:32/v4,j:32
buffer x: f32[64, 64] input
buffer w: f32[64, 64] input
buffer y: f32[64, 64] output
part i: grid 64/32, j: grid 64/32
  v0 = load x[i, j]
  v1 = load w[i, j]
  v2 = map v0 + v1
  store y[j, i] = v2
""",
    "transpose inside a stream": """tile p
schedule WORK=t64 TILE=j:32,k:16
buffer x: f32[45, 40] input
buffer y: f32[45] output
part j: grid 45/32, k: stream 40/16
  stream k carrying s: add f32[j]
    v0 = load x[j, k]
    w0 = where k < 40 of v0 else identity.add
    f = fold add over k of w0
    s2 = combine add s, f
    yield s2
  store y[j] = s
""",
    "batches of transposes": """tile p
schedule WORK=t256 TILE=b:2,i:16,j:16
buffer x: bf16[3, 20, 24] input
buffer y: bf16[3, 24, 20] output
part b: grid 3/2, i: grid 20/16, j: grid 24/16
  v0 = load x[b, i, j]
  store y[b, j, i] = v0
""",
    "one value in two places": """tile p
schedule WORK=t64 TILE=i:64
buffer x: f32[50] input
buffer y: f32[100] output
part i: grid 50/64
  v0 = load x[i]
  store y[i] = v0
  store y[i + 50] = v0
""",
    "no axes at all": """tile p
schedule WORK=t32
buffer x: f32[] input
buffer y: f32[] output
part
  v0 = load x[]
  v1 = map v0 + f32(1.0)
  store y[] = v1
""",
    "fold of columns": """tile c
schedule WORK=t256 TILE=j:32,k:64
buffer x: f32[50, 70] input
buffer y: f32[70] output
part j: grid 70/32, k: whole 50/64
  v0 = load x[k, j]
  m0 = where k < 50 of v0 else identity.add
  m1 = fold add over k of m0
  store y[j] = m1
""",
    "fold of everything": """tile c
schedule WORK=t256 TILE=j:128,k:64
buffer x: f32[50, 70] input
buffer y: f32[] output
part j: whole 70/128, k: whole 50/64
  v0 = load x[k, j]
  m0 = where (k < 50) & (j < 70) of v0 else identity.add
  m1 = fold add over k, j of m0
  store y[] = m1
""",
    "stream with two states": """tile c
schedule WORK=t64 TILE=i:2,k:128/v2
buffer x: f32[5, 500] input
buffer y: f32[5] output
buffer z: f32[5] output
part i: grid 5/2, k: stream 500/128
  stream k carrying m: max f32[i], s: add f32[i]
    v0 = load x[i, k]
    v1 = where k < 500 of v0 else identity.max
    v2 = fold max over k of v1
    m2 = combine max m, v2
    e = map exp(v0 - m2)
    e1 = where k < 500 of e else identity.add
    f = fold add over k of e1
    s2 = map s * exp(m - m2) + f
    yield m2, s2
  store y[i] = m
  store z[i] = s
""",
    "stream with a state a position": """tile c
schedule WORK=t64 TILE=i:2,k:128/v2
buffer x: f32[5, 500] input
buffer y: f32[5] output
part i: grid 5/2, k: stream 500/128
  stream k carrying s: add f32[i, k]
    v0 = load x[i, k]
    v1 = where k < 500 of v0 else identity.add
    s2 = combine add s, v1
    yield s2
  t = fold add over k of s
  store y[i] = t
""",
    "states that change places": """tile c
schedule WORK=t32 TILE=k:1
buffer x: f32[7] input
buffer y: f32[2] output
part k: stream 7/1
  stream k carrying a: add f32[], b: max f32[]
    v = load x[k]
    c = fold add over k of v
    d = map a + c
    yield b, d
  store y[0] = a
  store y[1] = b
""",
    "store inside a stream": """tile c
schedule WORK=t64 TILE=i:1,k:64
buffer x: f32[3, 100] input
buffer y: f32[3, 100] output
part i: grid 3/1, k: stream 100/64
  stream k carrying c: add f32[i]
    v = load x[i, k]
    w = where k < 100 of v else identity.add
    p = scan add over k of w
    q = map p + c
    store y[i, k] = q
    t = fold add over k of w
    c2 = combine add c, t
    yield c2
""",
    "gather": """tile c
schedule WORK=t128 TILE=i:1,k:64
buffer x: f32[9, 50] input
buffer where_: i64[5] input
buffer y: f32[5, 50] output
part i: grid 5/1, k: grid 50/64
  q = load where_[i]
  v0 = load x[q, k]
  store y[i, k] = v0
""",
    "gather along vectors": """tile c
schedule WORK=t32 TILE=k:64/v4
buffer x: f32[9] input
buffer where_: i64[64] input
buffer y: f32[64] output
part k: grid 64/64
  q = load where_[k]
  v0 = load x[q]
  store y[k] = v0
""",
    "indices past the ends": """tile c
schedule WORK=t128 TILE=k:64
buffer x: f32[50] input
buffer y: f32[50] output
part k: grid 50/64
  a = load x[k - 2]
  b = load x[k + 2]
  v = map (a if k < 10 else b)
  store y[k] = v
""",
    "contraction": """tile c
schedule WORK=t128 TILE=m:16,n:32,k:4
buffer a: f32[20, 30] input
buffer b: f32[30, 40] input
buffer y: f32[20, 40] output
part m: grid 20/16, n: grid 40/32, k: stream 30/4
  stream k carrying acc: add f32[m, n]
    v0 = load a[m, k]
    v1 = load b[k, n]
    w0 = where k < 30 of v0 else identity.add
    w1 = where k < 30 of v1 else identity.add
    acc2 = mma over k of w0, w1 onto acc
    yield acc2
  store y[m, n] = acc
""",
    "two parts": """tile c
schedule WORK=t64 TILE=k:64,j:64
buffer x: f32[50] input
buffer y: f32[50] output
buffer z: f32[100] output
part k: grid 50/64
  a = load x[k]
  store y[k] = a
part j: grid 100/64
  a = map f32.cast(j)
  store z[j] = a
""",
    "axes that never meet": """tile c
schedule WORK=t128 TILE=i:1,j:256,k:512
buffer x: f32[5, 250] input
buffer w: f32[5, 500] input
buffer y: f32[5] output
part i: grid 5/1, j: whole 250/256, k: whole 500/512
  a = load x[i, j]
  b = load w[i, k]
  a1 = where j < 250 of a else identity.add
  b1 = where k < 500 of b else identity.add
  a2 = fold add over j of a1
  b2 = fold add over k of b1
  v = map a2 * b2
  store y[i] = v
""",
    "bf16 rows in vectors": """tile c
schedule WORK=t64 TILE=i:1,j:512/v8
buffer x: bf16[3, 512] input
buffer w: f32[512] input
buffer y: bf16[3, 512] output
part i: grid 3/1, j: whole 512/512
  v0 = load x[i, j]
  w0 = load w[j]
  m = fold max over j of v0
  v1 = map v0 * v0
  v2 = fold add over j of v1
  v3 = map bf16.op(v0 * rsqrt(v2) * w0 + m)
  store y[i, j] = v3
""",
    "prefixes of bf16": """tile c
schedule WORK=t64 TILE=i:1,j:512/v8
buffer x: bf16[3, 400] input
buffer y: bf16[3, 400] output
part i: grid 3/1, j: whole 400/512
  v0 = load x[i, j]
  v1 = where j < 400 of v0 else identity.add
  v2 = scan add over j of v1
  v3 = map bf16.op(v2)
  store y[i, j] = v3
""",
    "f16 widens into f32 states": """tile c
schedule WORK=t64 TILE=k:64
buffer x: f16[300] input
buffer y: f32[] output
buffer z: f32[300] output
part k: stream 300/64
  stream k carrying m: max f32[k]
    v0 = load x[k]
    v1 = where k < 300 of v0 else identity.max
    m2 = combine max m, v1
    store z[k] = v0
    yield m2
  t = fold max over k of m
  store y[] = t
""",
    "scatter": """tile c
schedule WORK=t128 TILE=k:64
buffer x: f32[50] input
buffer where_: i64[50] input
buffer y: f32[9] input
part k: grid 50/64
  a = load x[k]
  b = load where_[k]
  store add y[b] = a
""",
    "nothing to do": """tile c
schedule WORK=t64 TILE=k:64
buffer x: f32[0] input
buffer y: f32[0] output
part k: grid 0/64
  a = load x[k]
  store y[k] = a
""",
    "rows of no elements": """tile c
schedule WORK=t64 TILE=i:1,k:1
buffer x: f32[4, 0] input
buffer y: f32[4] output
part i: grid 4/1, k: stream 0/1
  stream k carrying s: add f32[i]
    a = load x[i, k]
    w = where k < 0 of a else identity.add
    f = fold add over k of w
    s2 = combine add s, f
    yield s2
  store y[i] = s
""",
    "index of two digits": """tile c
schedule WORK=t64 TILE=k:256/v4
buffer x: f32[4, 64] input
buffer y: f32[256] output
part k: grid 256/256
  a = load x[k // 64, k % 64]
  store y[k] = a
""",
    "folds of many types": """tile c
schedule WORK=t64 TILE=i:1,j:128
buffer b: bool[3, 100] input
buffer n: i64[3, 100] input
buffer d: f64[3, 100] input
buffer h: f16[3, 100] input
buffer s: i8[3, 100] input
buffer any_: bool[3] output
buffer total: i64[3] output
buffer product: f64[3] output
buffer most: f16[3] output
buffer least: i8[3] output
part i: grid 3/1, j: whole 100/128
  b0 = load b[i, j]
  n0 = load n[i, j]
  d0 = load d[i, j]
  h0 = load h[i, j]
  s0 = load s[i, j]
  b1 = where j < 100 of b0 else identity.or
  n1 = where j < 100 of n0 else identity.add
  d1 = where j < 100 of d0 else identity.mul
  h1 = where j < 100 of h0 else identity.max
  s1 = where j < 100 of s0 else identity.min
  b2 = fold or over j of b1
  n2 = fold add over j of n1
  d2 = fold mul over j of d1
  h2 = fold max over j of h1
  s2 = fold min over j of s1
  store any_[i] = b2
  store total[i] = n2
  store product[i] = d2
  store most[i] = h2
  store least[i] = s2
""",
    "integers wrap": """tile c
schedule WORK=t64 TILE=k:64
buffer n: i32[64] input
buffer y: i32[64] output
part k: grid 64/64
  a = load n[k]
  b = map a * i32(65537) * a + i32(7)
  store y[k] = b
""",
    "strided and offset": """tile c
schedule WORK=t64 TILE=i:4,j:16
buffer x: f32[6, 10] input strides [1, 8] offset 3 align 4
buffer y: f32[6, 10] output
part i: grid 6/4, j: grid 10/16
  a = load x[i, j]
  store y[i, j] = a
""",
    **{f"row of {n}, {t} threads, {r} rows": row(n, t, r) for n, t, r in [
        (1, 32, 1), (5, 64, 4), (32, 32, 1), (32, 256, 4), (100, 32, 1), (100, 256, 1), (1000, 64, 4), (1000, 256, 1),
    ]},
    "row in vectors": row(1000, 64, vector="/v4"),
    "row in lanes": row(100, 128, 4, " REDUCE=lanes"),
    "row in registers": row(10, 128, 4, " REDUCE=serial"),
    "row of 96 threads": row(300, 96),
    **{f"first {m} of ties, {n} by {t}": positions(m, n, t) for m, n, t in [
        ("argmax", 5, 32), ("argmax", 500, 128), ("argmin", 300, 64),
    ]},
    **{f"scan {m} of {n}, {t} threads{v}": scan(m, n, t, v) for m, n, t, v in [
        ("add", 10, 32, ""), ("max", 100, 64, "/v2"), ("add", 1000, 128, "/v4"), ("argmin", 300, 256, ""),
        ("add", 300, 64, ""),
    ]},
}  # fmt: skip


def program(name: str) -> TileProgram:
    """The tile program of a case."""
    return parse_tile(CASES[name])


def inputs(p: TileProgram, seed: int = 0) -> dict[str, Array]:
    """Values for the inputs of a program; `where_` holds positions, some out of range where that is legal."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for b in p.buffers:
        if b.role != "input":
            continue
        if b.name == "where_":
            out[b.name] = rng.integers(-2, 11, b.shape)
        elif b.name == "ties":
            out[b.name] = rng.integers(0, 4, b.shape).astype(np.float32)
            out[b.name][1, 2:4] = np.nan
            out[b.name][2], out[b.name][3] = -np.inf, np.inf
        elif b.dtype == "bool":
            out[b.name] = rng.random(b.shape) < 0.01
        elif is_float(b.dtype):
            out[b.name] = rounded(rng.standard_normal(b.shape), b.dtype)
        else:
            out[b.name] = rng.integers(-(1 << 30), 1 << 30, b.shape).astype(numpy_type(b.dtype))
    return out
