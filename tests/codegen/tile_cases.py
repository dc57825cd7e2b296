"""Tile programs as text, by what they exercise, and inputs for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ir.dtype import Array, is_float, numpy_type, rounded
from ir.tile import TileProgram
from ir.tile_text import parse_tile


def padded(extent: int) -> int:
    """The next power of two."""
    return 1 << (extent - 1).bit_length()


def row(
    n: int, threads: int | str, rows: int = 1, extra: str = "", vector: str = "", blocks: int = 3, whole: bool = False,
    dtype: str = "f32",
) -> str:  # fmt: skip
    """exp(x - max) and its sum along rows, both stored; a `whole` row has no padding."""
    tile, many = n if whole else padded(n), rows * blocks - (rows > 1)
    return f"""tile row
schedule WORK=t{threads} TILE=i:{rows},j:{tile}{vector}{extra}
buffer x: {dtype}[{many}, {n}] input
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


def scan(monoid: str, n: int, threads: int | str, vector: str = "") -> str:
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


def positions(monoid: str, n: int, threads: int | str) -> str:
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


def written() -> dict[str, str]:
    """The programs of the text file, each under a line with its name."""
    _, *blocks = ("\n" + Path(__file__).with_suffix(".txt").read_text()).split("\n== ")
    return dict(b.split("\n", 1) for b in blocks)


CASES: dict[str, str] = {
    **written(),
    **{f"row of {n}, {t} threads, {r} rows": row(n, t, r) for n, t, r in [
        (1, 32, 1), (5, 64, 4), (32, 32, 1), (32, 256, 4), (100, 32, 1), (100, 256, 1), (1000, 64, 4), (1000, 256, 1),
    ]},
    **{f"whole row of {n} {d}, {t} threads, {r} rows{v}": row(n, t, r, vector=v, whole=True, dtype=d) for n, t, r, v, d in [
        (97, 96, 1, "", "f32"), (33, 64, 4, "", "bf16"), (1000, 288, 2, "/v4", "f32"), (100, 64, 4, "/v4", "bf16"),
        (1000, 160, 1, "/v8", "bf16"), (65, "32+c2", 1, "", "f32"),
    ]},
    "row in vectors": row(1000, 64, vector="/v4"),
    "row in lanes": row(100, 128, 4, " REDUCE=lanes"),
    "row in registers": row(10, 128, 4, " REDUCE=serial"),
    "row of 96 threads": row(300, 96),
    "row over blocks": row(1000, "64+c4", vector="/v4"),
    "two rows over blocks": row(600, "128+c2", 2),
    "row over blocks of a warp": row(300, "32+c8"),
    **{f"first {m} of ties, {n} by {t}": positions(m, n, t) for m, n, t in [
        ("argmax", 5, 32), ("argmax", 500, 128), ("argmin", 300, 64), ("argmin", 500, "32+c4"),
    ]},
    **{f"scan {m} of {n}, {t} threads{v}": scan(m, n, t, v) for m, n, t, v in [
        ("add", 10, 32, ""), ("max", 100, 64, "/v2"), ("add", 1000, 128, "/v4"), ("argmin", 300, 256, ""),
        ("add", 300, 64, ""), ("add", 1000, "64+c2", "/v4"),
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
