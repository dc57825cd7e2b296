"""The suite: 70 cases that count as one figure, and the programs beside it."""

from __future__ import annotations

from collections.abc import Iterator

from bench.cases import attention, layers, products, rows
from bench.cases.spec import Case

_MN = {"M": 8, "N": 64}
_MNK = {"M": 16, "N": 32, "K": 64}
_QKV = {"K": 3584, "NQ": 3584, "NKV": 512}
_QKV_TINY = {"M": 4, "K": 32, "NQ": 64, "NKV": 16}
_HEADS = {"B": 1, "H": 32, "HK": 32, "S": 2048, "L": 2048, "D": 128}
_HEADS_TINY = {"B": 1, "H": 4, "HK": 4, "S": 16, "L": 16, "D": 16}
_GROUPED_TINY = {**_HEADS_TINY, "HK": 2}
_DECODE = {"B": 8, "H": 28, "HK": 4, "S": 1, "L": 4096, "D": 128, "causal": False}
_DECODE_TINY = {"B": 2, "H": 4, "HK": 2, "S": 1, "L": 32, "D": 16}
_TINYLLAMA = {"hidden": 2048, "inter": 5632, "H": 32, "HK": 4, "D": 64, "bias": False}
_QWEN7B = {"hidden": 3584, "inter": 18944, "H": 28, "HK": 4, "D": 128, "bias": True}
_LAYER_TINY = {"hidden": 32, "inter": 48, "H": 4, "HK": 2, "D": 8}
_MIXTRAL = {"hidden": 4096, "inter": 14336, "E": 8, "topk": 2}
_MIXTRAL_TINY = {"Tk": 4, "hidden": 32, "inter": 48, "E": 4, "topk": 2}


def _pointwise_and_rows() -> Iterator[Case]:
    yield Case("pw.bias_gelu_res_8192x4096", 1, rows.bias_gelu_residual, {"M": 8192, "N": 4096}, _MN)
    yield Case("pw.bias_gelu_res_16x4096", 2, rows.bias_gelu_residual, {"M": 16, "N": 4096}, _MN)
    yield Case("pw.swiglu_4096x18944", 1, rows.swiglu, {"M": 4096, "N": 18944}, _MN)
    yield Case("rr.rmsnorm_4096x2048", 1, rows.rmsnorm_by_hand, {"M": 4096, "N": 2048}, _MN)
    yield Case("rr.rmsnorm_8192x8192", 1, rows.rmsnorm_by_hand, {"M": 8192, "N": 8192}, _MN)
    yield Case("rr.rmsnorm_1x3584", 2, rows.rmsnorm_by_hand, {"M": 1, "N": 3584}, _MN)
    yield Case("rr.rmsnormF_4096x4096", 3, rows.rmsnorm, {"M": 4096, "N": 4096}, _MN)
    yield Case("rr.add_rmsnorm_4096x4096", 1, rows.add_rmsnorm, {"M": 4096, "N": 4096}, _MN)
    yield Case("rr.layernorm_hand_4096x4096_fp32", 1, rows.layernorm_by_hand, {"M": 4096, "N": 4096}, _MN, "fp32")
    yield Case("rr.layernormF_4096x4096", 2, rows.layernorm, {"M": 4096, "N": 4096}, _MN)
    yield Case("rr.softmax_28x2048x2048", 1, rows.softmax, {"B": 28, "M": 2048, "N": 2048}, {"B": 2, **_MN})
    yield Case("rr.cross_entropy_4096x32000", 1, rows.cross_entropy, {"M": 4096, "V": 32000}, {"M": 8, "V": 100})
    yield Case("rr.logsumexp_16x128256", 2, rows.logsumexp, {"M": 16, "V": 128256}, {"M": 4, "V": 100})
    yield Case("rr.log_softmax_2048x32000", 3, rows.log_softmax, {"M": 2048, "V": 32000}, {"M": 4, "V": 100})
    yield Case("rr.var_mean_8192x4096_fp32", 3, rows.var_mean, {"M": 8192, "N": 4096}, _MN, "fp32")
    yield Case("rr.colsum_8192x4096", 2, rows.column_sum, {"M": 8192, "N": 4096}, _MN)
    yield Case("rr.cumsum_4096x4096_fp32", 3, rows.cumsum, {"M": 4096, "N": 4096}, _MN, "fp32")


def _products() -> Iterator[Case]:
    for n, prio in ((1024, 2), (2048, 1), (4096, 1), (8192, 1)):
        dims = dict.fromkeys("MNK", n)
        yield Case(f"mm.sq{n}", prio, products.matmul, dims, _MNK, max_autotune=n in (2048, 4096))
    square = dict.fromkeys("MNK", 4096)
    yield Case("mm.sq4096_fp16", 2, products.matmul, square, _MNK, "fp16")
    yield Case("mm.sq4096_tf32", 3, products.matmul, square, _MNK, "fp32", tf32=True)
    batches = ((1, 1), (16, 1), (128, 1), (512, 2), (2048, 2), (4096, 1))
    for m, prio in batches:
        dims = {"M": m, "N": 5632, "K": 2048}
        yield Case(f"lin.tl_up_m{m}", prio, products.linear, dims, _MNK, max_autotune=m in (1, 16))
    for m in (1, 4096):
        yield Case(f"lin.tl_down_m{m}", 2, products.linear, {"M": m, "N": 2048, "K": 5632}, _MNK)
    for m, prio in batches:
        dims = {"M": m, "N": 18944, "K": 3584}
        yield Case(f"lin.qw_up_m{m}", prio, products.linear, dims, _MNK, max_autotune=m in (128, 4096))
    for m in (1, 16, 4096):
        yield Case(f"lin.qw_down_m{m}", 2, products.linear, {"M": m, "N": 3584, "K": 18944}, _MNK)
    up = {"N": 5632, "K": 2048}
    yield Case("ep.bias_gelu_4096x5632x2048", 1, products.bias_gelu, {"M": 4096, **up}, _MNK, max_autotune=True)
    yield Case("ep.bias_gelu_16x5632x2048", 2, products.bias_gelu, {"M": 16, **up}, _MNK)
    yield Case("ep.relu_xbias_4096", 1, products.relu_of_biased_rows, square, _MNK, max_autotune=True)
    yield Case("mlp.gated_tl_m16", 1, products.gated_up, {"M": 16, **up}, _MNK)
    yield Case("mlp.gated_tl_m2048", 1, products.gated_up, {"M": 2048, **up}, _MNK, max_autotune=True)
    yield Case("mlp.gated_qw_m1", 1, products.gated_up, {"M": 1, "N": 18944, "K": 3584}, _MNK)
    yield Case("nm.rmsnorm_lin_tl_m2048", 1, products.norm_linear, {"M": 2048, **up}, _MNK)
    yield Case("qkv.qw_m1", 2, products.qkv, {"M": 1, **_QKV}, _QKV_TINY)
    yield Case("qkv.qw_m16", 1, products.qkv, {"M": 16, **_QKV}, _QKV_TINY)
    lora = {"M": 2048, "N": 3584, "K": 3584, "R": 16}
    yield Case("lora.qw_m2048_r16", 2, products.lora, lora, {"M": 4, "N": 32, "K": 64, "R": 4})


def _attention() -> Iterator[Case]:
    a = attention
    full = {**_HEADS, "causal": False}
    window = {**_HEADS, "S": 4096, "L": 4096, "W": 1024}
    yield Case("at.hand_causal_32x2048x128", 1, a.by_hand, _HEADS, _HEADS_TINY, max_autotune=True)
    yield Case("at.hand_full_32x2048x128", 1, a.textbook, _HEADS, _HEADS_TINY)
    yield Case("at.sdpa_causal_32x2048x128", 1, a.library, _HEADS, _HEADS_TINY)
    yield Case("at.sdpa_full_32x2048x128", 2, a.library, full, _HEADS_TINY)
    yield Case("at.sdpa_gqa28_4_causal_2048x128", 1, a.library, {**_HEADS, "H": 28, "HK": 4}, _GROUPED_TINY)
    yield Case("at.sdpa_causal_32x2048x64_fp16", 3, a.library, {**_HEADS, "D": 64}, _HEADS_TINY, "fp16")
    yield Case("at.sdpa_decode_gqa_b8_kv4096", 1, a.library, _DECODE, _DECODE_TINY)
    yield Case("at.hand_decode_gqa_b8_kv4096", 1, a.by_hand, _DECODE, _DECODE_TINY)
    yield Case("at.window1024_32x4096x128", 2, a.windowed, window, {**_HEADS_TINY, "W": 4})
    product = {"B": 32, "M": 2048, "L": 2048, "D": 128}
    yield Case("at.softmax_v_32x2048x2048x128", 2, a.softmax_product, product, {"B": 2, "M": 8, "L": 16, "D": 16})
    yield Case(
        "rope.qk_28_4_2048x128",
        1,
        a.rotary,
        {"B": 1, "H": 28, "HK": 4, "S": 2048, "D": 128},
        {"H": 4, "HK": 2, "S": 8, "D": 16},
    )


def _layers_and_layouts() -> Iterator[Case]:
    prefill, decode = {"B": 1, "S": 2048, "L": 0}, {"B": 1, "S": 1, "L": 1024}
    tiny_prefill, tiny_decode = {"S": 8, **_LAYER_TINY}, {"L": 8, **_LAYER_TINY}
    yield Case("layer.tinyllama_prefill2048", 1, layers.decoder, {**prefill, **_TINYLLAMA}, tiny_prefill)
    yield Case("layer.tinyllama_decode_b1_kv1024", 1, layers.decoder, {**decode, **_TINYLLAMA}, tiny_decode)
    yield Case(
        "layer.qwen7b_prefill2048", 1, layers.decoder, {**prefill, **_QWEN7B}, tiny_prefill, max_autotune=True
    )
    yield Case("moe.hf_loop_t16", 2, layers.expert_loop, {"Tk": 16, **_MIXTRAL}, _MIXTRAL_TINY, graphable=False)
    yield Case("moe.gather_t2", 2, layers.gathered_experts, {"Tk": 2, **_MIXTRAL}, _MIXTRAL_TINY)
    batch, batch_tiny = {"B": 1024, "M": 64, "N": 64, "K": 64}, {"B": 4, "M": 8, "N": 8, "K": 8}
    yield Case("bmm.1024x64x64x64", 2, products.bmm, batch, batch_tiny)
    heads = {"B": 8, "S": 2048, "H": 32, "D": 128}
    yield Case("tr.split_heads_8x2048x32x128", 2, rows.split_heads, heads, {"B": 1, "S": 4, "H": 2, "D": 8})
    yield Case("tr.gelu_t_add_8192", 1, rows.gelu_transpose_add, {"M": 8192, "N": 8192}, _MN)
    vocabulary = {"M": 2048, "K": 2048, "V": 32000}
    yield Case(
        "fl.linear_ce_2048x2048x32000", 1, products.linear_cross_entropy, vocabulary, {"M": 4, "K": 16, "V": 50}
    )


def _emmy() -> Iterator[Case]:
    """The programs on which Emmy 0.3.22 is timed, at its shapes and dtypes."""
    square = dict.fromkeys("MNK", 4096)
    yield Case("emmy.rmsnorm_1x32x2048", 4, rows.rmsnorm_default, {"B": 1, "M": 32, "N": 2048}, {"N": 64}, "fp32")
    yield Case("emmy.relu_xbias_16x16x64", 4, products.relu_of_biased_rows, {"M": 16, "N": 16, "K": 64}, {}, "fp32")
    yield Case("emmy.layernorm_4096x4096", 4, rows.layernorm, {"M": 4096, "N": 4096}, _MN, "fp16")
    yield Case(
        "emmy.softmax_28x2048x2048", 4, rows.softmax, {"B": 28, "M": 2048, "N": 2048}, {"B": 2, **_MN}, "fp16"
    )
    yield Case("emmy.linear_4096", 4, products.linear, square, _MNK, "fp16")
    yield Case("emmy.sdpa_full_32x2048x128", 4, attention.library, {**_HEADS, "causal": False}, _HEADS_TINY, "fp16")
    yield Case("emmy.sdpa_causal_32x2048x128", 4, attention.library, _HEADS, _HEADS_TINY, "fp16")


def _norms() -> Iterator[Case]:
    """Normalised rows at a size where only the rate of memory counts."""
    for dtype in ("bf16", "fp32"):
        for name, build in (("rmsnorm", rows.rmsnorm), ("layernorm", rows.layernorm)):
            yield Case(f"norm.{name}_16384x4096_{dtype}", 4, build, {"M": 16384, "N": 4096}, _MN, dtype)


def _small() -> Iterator[Case]:
    small = {"B": 1, "H": 8, "HK": 8, "S": 512, "L": 512, "D": 64}
    yield Case("small.matmul_4x2x3", 4, products.matmul, {"M": 4, "N": 2, "K": 3}, {}, "fp32")
    yield Case("small.matmul_512", 4, products.matmul, dict.fromkeys("MNK", 512), _MNK, "fp32")
    yield Case("small.hand_causal_8x512x64", 4, attention.by_hand, small, _HEADS_TINY, "fp32")


def _others() -> Iterator[Case]:
    yield Case("x.gelu_by_hand", 4, rows.gelu_by_hand, _MN, _MN)
    yield Case("x.swiglu_chunks", 4, rows.swiglu_chunks, _MN, _MN)
    yield Case("x.masked_softmax", 4, rows.masked_softmax, {"B": 2, **_MN}, {})
    yield Case("x.unit_rows", 4, rows.unit_rows, _MN, {})
    yield Case("x.standardise", 4, rows.standardise, _MN, {}, "fp32")
    yield Case("x.channels_last", 4, rows.channels_last, {"B": 2, "C": 8, "H": 5, "W": 7}, {})
    yield Case("x.residual", 4, products.residual, _MNK, {})
    yield Case("x.gated_mlp", 4, products.gated_mlp, _MNK, {})
    yield Case("x.linear_logsumexp", 4, products.linear_logsumexp, {"M": 4, "K": 16, "V": 50}, {})
    yield Case("x.softcapped", 4, attention.softcapped, _HEADS, _HEADS_TINY)
    yield Case("x.sloped", 4, attention.sloped, _HEADS, _HEADS_TINY)
    rotary = {"B": 1, "H": 4, "HK": 2, "S": 8, "D": 16}
    yield Case("x.rotary_attention", 4, attention.rotary_attention, rotary, {})
    yield Case("x.dense_experts", 4, layers.dense_experts, _MIXTRAL_TINY, {})


def _held_out() -> Iterator[Case]:
    """Programs at sizes and dtypes that no weight of the schedule model was fitted to and nothing in it looked at."""
    yield Case("held.gelu_by_hand_3000x5120", 4, rows.gelu_by_hand, {"M": 3000, "N": 5120}, _MN, "fp16")
    yield Case("held.swiglu_chunks_1536x11008", 4, rows.swiglu_chunks, {"M": 1536, "N": 11008}, _MN)
    yield Case("held.rmsnorm_6000x3072", 4, rows.rmsnorm, {"M": 6000, "N": 3072}, _MN, "fp16")
    yield Case("held.layernorm_2500x1600", 4, rows.layernorm, {"M": 2500, "N": 1600}, _MN, "fp32")
    yield Case("held.softmax_6x1000x1536", 4, rows.softmax, {"B": 6, "M": 1000, "N": 1536}, {"B": 2, **_MN}, "fp32")
    yield Case("held.logsumexp_700x50304", 4, rows.logsumexp, {"M": 700, "V": 50304}, {"M": 4, "V": 100})
    yield Case("held.unit_rows_12000x768", 4, rows.unit_rows, {"M": 12000, "N": 768}, _MN, "fp32")
    yield Case("held.colsum_20000x1536", 4, rows.column_sum, {"M": 20000, "N": 1536}, _MN, "fp32")
    yield Case("held.cumsum_2000x8192", 4, rows.cumsum, {"M": 2000, "N": 8192}, _MN, "fp32")
    yield Case(
        "held.channels_last_32x192x40x40",
        4,
        rows.channels_last,
        {"B": 32, "C": 192, "H": 40, "W": 40},
        {"B": 2, "C": 8, "H": 5, "W": 7},
    )


CASES: tuple[Case, ...] = (*_pointwise_and_rows(), *_products(), *_attention(), *_layers_and_layouts())
EXTRAS: tuple[Case, ...] = (*_emmy(), *_norms(), *_small(), *_others(), *_held_out())
