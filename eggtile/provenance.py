"""What a measurement was taken on: the card and its clocks as found, software versions, and the commit."""

from __future__ import annotations

import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "triton", "egglog", "numpy", "scipy", "cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cudnn-cu13")
CLOCKS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")


def query(*fields: str) -> dict[str, str]:
    """Fields of the first card as nvidia-smi prints them; empty where there is none. Nothing is set."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        return {}
    values = answer.stdout.strip().split(", ")
    return dict(zip(fields, values, strict=True)) if answer.returncode == 0 else {}


def machine_name() -> str:
    """The card, or the processor and its cores where there is no card."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} cores"


def versions() -> dict[str, str]:
    """Python, the driver, CUDA and the packages that a time depends on."""
    found = {"python": platform.python_version(), "cuda": torch.version.cuda or "none", **query("driver_version")}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the tree, `+` where it has changes; None where the code lies in no checkout of its own."""
    git = ["git", "-C", str(ROOT)]
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return None
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    if head.returncode:
        return None
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")


def taken_on() -> dict[str, Any]:
    """What every recorded figure carries: machine, versions, commit and time."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"machine": machine_name(), "versions": versions(), "commit": commit(), "time": now}
