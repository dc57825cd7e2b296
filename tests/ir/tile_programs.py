"""Tile programs written by hand, as text: what a scheduled kernel of each shape looks like."""

CONTRACTION = """\
tile contraction
schedule WORK=w4 TILE=i:16,j:8,k:16
buffer a: bf16[37, 50] input
buffer b: bf16[50, 20] input
buffer bias: bf16[20] input
buffer y: bf16[37, 20] output
part i: grid 37/16, j: grid 20/8, k: stream 50/16
  stream k carrying acc: add f32[i, j]
    a0 = load a[i, k]                                         bf16[i, k]
    b0 = load b[k, j]                                         bf16[j, k]
    a1 = where k < 50 of a0 else identity.add                 bf16[i, k]
    b1 = where k < 50 of b0 else identity.add                 bf16[j, k]
    acc1 = mma over k of a1, b1 onto acc                      f32[i, j]
    yield acc1
  v0 = load bias[j]                                           bf16[j]
  v1 = map acc + v0                                           f32[i, j]
  v2 = map bf16.op(f32(0.5) * v1 * (f32(1.0) + tanh(v1)))     bf16[i, j]
  store y[i, j] = v2
"""

SPLIT_FOLD = """\
tile split_fold
schedule WORK=t128 TILE=i:1,s:1,c:128 REDUCE=split4
buffer x: f32[3, 1000] input
buffer p: f32[3, 4] scratch
part i: grid 3/1, s: grid 4/1, c: stream 250/128
  stream c carrying t: add f32[i, s, c]
    v0 = load x[i, s * 250 + c]                               f32[i, s, c]
    v1 = where c < 250 of v0 else identity.add                f32[i, s, c]
    t1 = combine add t, v1                                    f32[i, s, c]
    yield t1
  v2 = fold add over c of t                                   f32[i, s]
  store p[i, s] = v2
"""

SPLIT_MERGE = """\
tile split_merge
schedule WORK=t32 TILE=i:4,s:4
buffer p: f32[3, 4] scratch
buffer y: f32[3] output
part i: grid 3/4, s: whole 4/4
  v0 = load p[i, s]                                           f32[i, s]
  v1 = fold add over s of v0                                  f32[i]
  v2 = map v1 / f32(1000.0)                                   f32[i]
  store y[i] = v2
"""

SHARED = """\
tile shared
schedule WORK=t32+c4 TILE=s:4,r:4,c:256 REDUCE=split4
buffer x: f32[3, 1024] input
buffer y: f32[3] output
part i: grid 3/1, s: whole 4/4, r: whole 4/4, c: whole 256/256
  v0 = load x[i, s * 256 + c]                                 f32[i, s, c]
  v1 = fold max over c of v0                                  f32[i, s]
  v2 = share v1 over s as r                                   f32[i, r]
  v3 = fold max over r of v2                                  f32[i]
  store y[i] = v3
"""

CHAIN = """\
tile chain
schedule WORK=w4 TILE=h:1,i:16,j:16,d:8,e:8
buffer q: bf16[2, 40, 8] input
buffer k: bf16[1, 40, 8] input
buffer v: bf16[1, 40, 8] input
buffer o: bf16[2, 40, 8] output
part h: grid 2/1, i: grid 40/16, j: stream 40/16, d: whole 8/8, e: whole 8/8
  q0 = load q[h, i, d]                                        bf16[h, i, d]
  stream j carrying m: max f32[h, i], z: add f32[h, i], acc: add f32[h, i, e]
    k0 = load k[h // 2, j, d]                                 bf16[h, j, d]
    s0 = mma over d of q0, k0                                 f32[h, i, j]
    s1 = map s0 * f32(0.35355338)                             f32[h, i, j]
    s2 = where (j < 40) & (j <= i) of s1 else identity.max    f32[h, i, j]
    m1 = fold max over j of s2                                f32[h, i]
    m2 = combine max m, m1                                    f32[h, i]
    p0 = map exp(s2 - m2)                                     f32[h, i, j]
    r0 = map exp(m - m2)                                      f32[h, i]
    z1 = fold add over j of p0                                f32[h, i]
    z2 = map z * r0 + z1                                      f32[h, i]
    acc1 = map acc * r0                                       f32[h, i, e]
    p1 = convert p0 to bf16                                   bf16[h, i, j]
    v0 = load v[h // 2, j, e]                                 bf16[h, j, e]
    v1 = where j < 40 of v0 else identity.add                 bf16[h, j, e]
    acc2 = mma over j of p1, v1 onto acc1                     f32[h, i, e]
    yield m2, z2, acc2
  o0 = map bf16.op(acc / z)                                   bf16[h, i, e]
  store o[h, i, e] = o0
"""

GATHERED_CONTRACTION = """\
tile gathered_contraction
schedule WORK=w4 TILE=i:16,j:8,k:16
buffer x: f16[30, 32] input
buffer rows: i64[21] input
buffer w: f16[10, 32] input
buffer y: f32[21, 10] output
part i: grid 21/16, j: grid 10/8, k: stream 32/16
  r0 = load rows[i]                                           i64[i]
  stream k carrying acc: add f32[i, j]
    a0 = load x[r0, k]                                        f16[i, k]
    b0 = load w[j, k]                                         f16[j, k]
    acc1 = mma over k of a0, b0 onto acc                      f32[i, j]
    yield acc1
  store y[i, j] = acc
"""

PROGRAMS = {
    "contraction": CONTRACTION,
    "split_fold": SPLIT_FOLD,
    "split_merge": SPLIT_MERGE,
    "shared": SHARED,
    "chain": CHAIN,
    "gathered_contraction": GATHERED_CONTRACTION,
}
