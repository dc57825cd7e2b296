"""Tile programs that sweep long rows, and random ones, under a schedule that stages loads."""

from __future__ import annotations

import random

STAGES = ("shared", "async/d2", "async/d3", "async/d16", "bulk/d2", "bulk/d3", "shared+async/d3", "shared+bulk")


def three_sweeps(
    stage: str,
    n: int = 1000,
    tile: int = 128,
    threads: int = 32,
    rows: int = 1,
    many: int = 3,
    vector: str = "/v4",
    dtype: str = "f32",
    reduce: str = "",
) -> str:
    """The exponential of each row's values less their greatest, over its sum: the row is swept three times."""
    return f"""tile rows
schedule WORK=t{threads} TILE=i:{rows},j:{tile}{vector}{reduce} STAGE={stage}
buffer x: {dtype}[{many}, {n}] input
buffer z: f32[{many}, {n}] output
part i: grid {many}/{rows}, j: stream {n}/{tile}
  stream j carrying r0: max {dtype}[i, j]
    v1 = load x[i, j]
    v2 = where j < {n} of v1 else identity.max
    v3 = combine max r0, v2
    yield v3
  v4 = fold max over j of r0
  stream j carrying r1: add f32[i, j]
    v6 = load x[i, j]
    v7 = map exp(v6 - v4)
    v8 = where j < {n} of v7 else identity.add
    v9 = combine add r1, v8
    yield v9
  v10 = fold add over j of r1
  stream j
    v0 = load x[i, j]
    v5 = map exp(v0 - v4)
    v12 = map v5 / v10
    store z[i, j] = v12
"""


def random_rows(seed: int) -> str:
    """Some sweeps over rows of one or two buffers and of a weight, which fold or store what they load; STAGE is open."""
    rng = random.Random(seed)
    n, dtype = rng.choice([96, 256, 500, 512, 1000, 1001]), rng.choice(["f32", "f32", "bf16", "f64"])
    tile, rows = rng.choice([32, 64, 128]), rng.choice([1, 1, 2, 4])
    vector = rng.choice(["", "/v2", "/v4"])
    lines = [
        f"tile t{seed}",
        f"schedule WORK=t{rng.choice([32, 64])} TILE=i:{rows},j:{tile}{vector} STAGE={{stage}}",
        *(f"buffer {b}: {dtype}[5, {n}] input" for b in ("x", "u")),
        f"buffer w: {dtype}[{n}] input",
        f"buffer y: f64[5, {n}] output",
        "buffer s: f64[5] output",
        f"part i: grid 5/{rows}, j: stream {n}/{tile}",
    ]
    result, rowwise = "", False
    for k in range(rng.randint(1, 3)):
        sources = rng.sample(["x[i, j]", "x[i, j]", "u[i, j]", "w[j]"], rng.randint(1, 3))
        rowwise = rowwise or sources != ["w[j]"]
        lines += [f"  stream j carrying r{k}: add f64[{'i, j' if rowwise else 'j'}]"]
        lines += [f"    a{k}{m} = load {source}" for m, source in enumerate(sources)]
        terms = [f"f64.op(a{k}{m})" if dtype != "f64" else f"a{k}{m}" for m in range(len(sources))]
        value = " * ".join([*terms, *([result] if result else [])])
        lines += [
            f"    v{k} = map {value}",
            f"    m{k} = where j < {n} of v{k} else identity.add",
            f"    c{k} = combine add r{k}, m{k}",
        ]
        lines += [f"    yield c{k}", f"  g{k} = fold add over j of r{k}"]
        result = f"g{k}"
    store = ["  stream j", "    b0 = load x[i, j]", "    b1 = load u[i, j]"]
    values = [f"f64.op({b})" if dtype != "f64" else b for b in ("b0", "b1")]
    store += [f"    b2 = map {values[0]} + {values[1]} * {result}", "    store y[i, j] = b2"]
    return "\n".join([*lines, *store, f"  store s[i] = {result}", ""])
