"""What of the tool chain is here, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import shutil
from dataclasses import dataclass

import torch

from codegen.disassemble import HOW_TO_GET, DisassembleError, disassembler

NEEDED = ("egglog", "numpy", "scipy", "networkx", "nvidia-cuda-nvrtc", "cuda-bindings", "rich", "typer")


@dataclass(frozen=True)
class Finding:
    """One part of the tool chain: its state, and what to do about it."""

    part: str
    state: str
    remedy: str = ""


def diagnose() -> list[Finding]:
    """One finding per part, in the order in which a program needs them."""
    found = [Finding("torch", torch.__version__)]
    found += [_package(name, f"pip install {name}") for name in NEEDED]
    compiler = shutil.which("g++")
    found.append(Finding("g++ (run --on cpu)", compiler or "missing", "" if compiler else "install g++"))
    found.append(_sass())
    if torch.cuda.is_available():
        found.append(Finding("GPU", torch.cuda.get_device_name()))
    else:
        found.append(Finding("GPU", "none", "timing needs one; all else works without"))
    found.append(_package("cupy-cuda13x", "on a GPU, pip install 'eggtile[gpu]'"))
    return found


def _sass() -> Finding:
    try:
        return Finding("disassembler (--ir sass)", disassembler()[0].name)
    except DisassembleError:
        return Finding("disassembler (--ir sass)", "missing", HOW_TO_GET)


def _package(name: str, remedy: str) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "missing", remedy)
