"""One program of each kernel shape at a real size, as a suite for `eggtile bench bench.cases.programs`."""

from __future__ import annotations

from bench.cases import case

NAMES = (
    "emmy.rmsnorm_1x32x2048",
    "small.matmul_4x2x3",
    "small.matmul_512",
    "emmy.relu_xbias_16x16x64",
    "rr.layernorm_hand_4096x4096_fp32",
    "rr.softmax_28x2048x2048",
    "rr.logsumexp_16x128256",
    "small.hand_causal_8x512x64",
    "at.sdpa_gqa28_4_causal_2048x128",
)
CASES = tuple(case(name) for name in NAMES)
