"""NVRTC takes every emitted operator, conversion, access and update for every target; refusals name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen import disassemble
from codegen.compile import CompileError, compile_all, compile_text, supported, to_ptx
from codegen.disassemble import DisassembleError, to_sass
from codegen.emit import emit
from codegen.resources import Resources, blocks_per_sm, complaints
from ir.dtype import DTYPES
from ir.kernel import KernelProgram
from ir.machine import H200, RTX4090, TARGETS
from ir.node import IRError
from ir.ops import BINARY, UNARY
from ir.term import Round, Term, binary, unary
from tests.codegen.hand_built import pointwise, register, row_scale
from tests.codegen.test_cpu import ALL, SCATTERS, VECTORS, copy_kernel, scatter_kernel


def every_operator(dtype: str) -> KernelProgram:
    """A kernel with every operator and conversion of a type."""
    x, y = register("a_", dtype), register("b_", dtype)
    terms: list[tuple[str, Term]] = [(f"to_{t}", Round(t, "cast", x)) for t in ALL]
    for op in (*UNARY, *BINARY):
        try:
            t = unary(op, x) if op in UNARY else binary(op, x, y)
            emit(pointwise("k", {"a": dtype, "b": dtype}, [("o", t)], 32))
        except IRError:
            continue
        terms.append((f"o_{op}", t))
    assert len(terms) > 20
    return pointwise(f"all_{dtype}", {"a": dtype, "b": dtype}, terms, 32)


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_every_operator_and_conversion_compiles(target: str) -> None:
    made = compile_all([(emit(every_operator(dtype)), dtype) for dtype in ALL], target)
    assert all(m.cubin[:4] == b"\x7fELF" and m.registers > 0 and m.target == target for m in made)


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_every_access_and_update_compiles(target: str) -> None:
    kernels = [
        copy_kernel(d, w, h) for d, w in VECTORS for h in ("default", "stream", "keep") if w > 1 or d == "bf16"
    ]
    kernels += [scatter_kernel(m, d) for m, d in SCATTERS]
    text = "\n".join(
        f"namespace k{n} {{\n{emit(k).replace(k.name, f'{k.name}_{n}')}\n}}" for n, k in enumerate(kernels)
    )
    made = compile_text(text, target)
    assert made.spill_bytes == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_kernel_uses_vector_accesses_on_every_target(target: str) -> None:
    made = compile_text(emit(row_scale()), target, "row_scale")
    assert (made.spill_bytes, made.shared_bytes) == (0, 8) and made.registers < 40
    for instruction in ("ld.global.nc.L1::no_allocate.v4.f32", "st.global.cs.v2.u32", "shfl.sync.bfly", "bar.sync"):
        assert instruction in made.ptx
    assert complaints(made.log) == []


def test_contraction_is_a_choice() -> None:
    text = emit(row_scale())
    assert "fma.rn.f32" in compile_text(text, "sm_80").ptx
    assert "fma.rn.f32" not in compile_text(text, "sm_80", contract=False).ptx


def test_division_and_square_root_are_not_approximate() -> None:
    x, y = register("a_", "f32"), register("b_", "f32")
    terms = [("q", binary("div", x, y)), ("s", unary("sqrt", x)), ("e", unary("exp", x))]
    ptx = to_ptx(emit(pointwise("k", {"a": "f32", "b": "f32"}, terms, 32)), "sm_90a")
    assert "div.rn.f32" in ptx and "sqrt.rn.f32" in ptx and ".ftz" not in ptx.replace("ex2.approx.ftz", "")


def test_an_unknown_target_is_refused_with_the_nearest() -> None:
    with pytest.raises(CompileError, match="target sm_91; the nearest that NVRTC knows is sm_90"):
        compile_text("", "sm_91")
    assert set(TARGETS) <= set(supported())


def test_a_compiler_error_shows_the_line() -> None:
    text = emit(row_scale()).replace("float sum = 0.0f;", "float sun = 0.0f;")
    line = next(n for n, t in enumerate(text.splitlines(), 1) if "sum = sum + v" in t)
    with pytest.raises(CompileError, match=rf'line {line}: identifier "sum" is undefined') as caught:
        compile_text(text, "sm_90a", "row_scale")
    assert f">{line:5}     sum = sum + v[i] * v[i];" in str(caught.value)


def test_spills_are_complained_of() -> None:
    x = 'extern "C" __global__ void __launch_bounds__(1024, 2) k(float* x) {{\n  float v[90];\n{}\n{}}}'
    fill = "#pragma unroll\n  for (int i = 0; i < 90; ++i) v[i] = x[i * 1024 + threadIdx.x];\n  __syncthreads();"
    use = "#pragma unroll\n  for (int i = 0; i < 90; ++i) x[i * 1024 + threadIdx.x] = v[89 - i] * v[i];\n"
    made = compile_text(x.format(fill, use), "sm_80")
    assert made.spill_bytes > 0 and complaints(made.log) == [f"{made.spill_bytes} bytes of registers are spilled"]


@pytest.mark.parametrize(
    ("used", "threads", "dynamic", "blocks"),
    [
        (Resources(32, 0, 0), 256, 0, 8),
        (Resources(168, 0, 0), 384, 0, 1),
        (Resources(64, 0, 0), 1024, 0, 1),
        (Resources(40, 0, 0), 128, 100_000, 2),
        (Resources(40, 0, 0), 128, 233_000, 0),
        (Resources(16, 0, 0), 32, 0, 32),
    ],
)
def test_blocks_that_fit_a_multiprocessor(used: Resources, threads: int, dynamic: int, blocks: int) -> None:
    assert blocks_per_sm(used, threads, dynamic, H200) == blocks


def test_fewer_threads_fit_on_a_consumer_card() -> None:
    assert blocks_per_sm(Resources(16, 0, 0), 1024, 0, RTX4090) == 1


def test_sass_comes_from_an_installed_tool() -> None:
    cubin = compile_text(emit(row_scale()), "sm_90a").cubin
    try:
        sass = to_sass(cubin)
    except DisassembleError as e:
        assert "pip install nvidia-cuda-nvdisasm" in str(e)
        pytest.skip("no disassembler is installed")
    assert "SHFL.BFLY" in sass


def test_a_missing_disassembler_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(disassemble, "PACKAGES", {})
    with pytest.raises(DisassembleError, match="neither nvdisasm nor cuobjdump is installed; pip install"):
        to_sass(b"")


def test_every_type_has_a_memory_type_of_its_size() -> None:
    sizes = "\n".join(f'static_assert(sizeof({_storage(d)}) == {DTYPES[d].bytes}, "");' for d in ALL)
    assert compile_text(sizes + '\nextern "C" __global__ void k() {}', "sm_80").cubin


def _storage(dtype: str) -> str:
    text = emit(pointwise("k", {"a": dtype}, [("b", register("a_", dtype))], 32))
    return text.split("const ")[1].split("*")[0]
