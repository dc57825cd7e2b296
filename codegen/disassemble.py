"""Cubin to SASS by NVIDIA's disassembler, from wherever one is installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ir.node import IRError

TOOLS = {"nvdisasm": ("-c",), "cuobjdump": ("-sass",)}
# Folders of packages that carry the tools: the pip packages of CUDA 12 and 13, and Triton.
PACKAGES = {
    "nvidia": ("cu13/bin", "cuda_nvdisasm/bin", "cuda_cuobjdump/bin", "cuda_nvcc/bin"),
    "triton": ("backends/nvidia/bin",),
}
HOW_TO_GET = "pip install nvidia-cuda-nvdisasm, or put a CUDA toolkit's bin on PATH"


class DisassembleError(IRError):
    """No SASS: no tool is there, or it refused the cubin."""


def disassembler() -> tuple[Path, tuple[str, ...]]:
    """The tool and its options; raises `DisassembleError` where none is installed."""
    for tool, options in TOOLS.items():
        for path in _candidates(tool):
            return path, options
    raise DisassembleError(f"neither {' nor '.join(TOOLS)} is installed; {HOW_TO_GET}")


def to_sass(cubin: bytes) -> str:
    """The instructions of every kernel in the cubin, as text."""
    tool, options = disassembler()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, *options, file.name], capture_output=True, text=True)
    if done.returncode:
        raise DisassembleError(f"{tool.name} refuses the cubin: {done.stderr.strip()}")
    return done.stdout


def _candidates(tool: str) -> Iterator[Path]:
    on_path = shutil.which(tool)
    if on_path:
        yield Path(on_path)
    for package, folders in PACKAGES.items():
        spec = importlib.util.find_spec(package)
        roots = spec.submodule_search_locations if spec else None
        for root in roots or ():
            yield from (path for f in folders if (path := Path(root) / f / tool).exists())
