"""Emmy's own tuner on row programs, and its hot times beside ours of the same minutes on the same card.

Emmy (emmy-ml 0.3.22) is no dependency: it must be importable where this runs. It times itself by CUDA-graph replays of one
copy of the inputs; its best right schedule counts, one figure a case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROGRAMS = {
    "emmy.rmsnorm_1x32x2048": "nn.RMSNorm(2048)(torch.randn(1,32,2048))",
    "emmy.layernorm_4096x4096": "nn.LayerNorm(4096).half()(torch.randn(4096,4096,dtype=torch.float16))",
    "emmy.softmax_28x2048x2048": "nn.Softmax(dim=-1)(torch.randn(1,28,2048,2048,dtype=torch.float16))",
}
"""What it is given, by the name of our case for the same work."""
COMMAND = (sys.executable, "-W", "ignore", "-c", "from emmy.emmy import main; main()", "run")
NAME = "emmy"


def label(case: str) -> str:
    """The name of a case's rows beside it."""
    return f"{case} beside Emmy"


def tuning(case: str, out: Path, lines: int, lock: Path) -> subprocess.Popen[bytes]:
    """Its tuner on one program, begun; it leaves CASE.json and CASE.log in `out`."""
    arguments = ["-c", PROGRAMS[case], "--bench", "--warmup", "10", "--iters", "100", "--bench-backends", "eager"]
    arguments += ["--tune", str(lines), "--json", str(out / f"{case}.json")]
    home = out / "home"
    environment = {
        "EMMY_TUNE_DB": str(home / "tune.db"),
        "EMMY_CUBIN_CACHE": str(home / "cubin"),
        "EMMY_GPU_LOCK": str(lock),
        "EMMY_WORKERS": "4",
        "EMMY_FAST_MATH": "1",
        "HF_HUB_OFFLINE": "1",
    }
    home.mkdir(parents=True, exist_ok=True)
    with (out / f"{case}.log").open("w") as log:
        return subprocess.Popen([*COMMAND, *arguments], stdout=log, stderr=log, env=os.environ | environment)


def best_us(found: Mapping[str, Any]) -> float | None:
    """The time of its best right schedule, of those that it tuned and its own choice."""
    times = [p["total_us"] for p in found.get("pinned") or [] if p.get("status") == "ok" and not p.get("flags")]
    times.append((found.get("backends") or {}).get("Emmy", {}).get("latency_us"))
    return min((t for t in times if isinstance(t, int | float) and t > 0), default=None)


def figures(out: Path) -> dict[str, float]:
    """Its best times in us by our case, of those that are done."""
    found = {case: out / f"{case}.json" for case in PROGRAMS}
    times = {case: best_us(json.loads(path.read_text())) for case, path in found.items() if path.exists()}
    return {case: us for case, us in times.items() if us is not None}


def beside(rows: Sequence[dict[str, Any]], times: Mapping[str, float]) -> list[dict[str, Any]]:
    """The rows with its figure as one more contender, under the name of such rows."""
    out = []
    for row in rows:
        us = times.get(row["case"])
        if us is not None and "contenders" in row:
            hot = {"median_us": us, "samples_us": [us], "how": "emmy run --bench --tune"}
            row = {
                **row,
                "case": label(row["case"]),
                "contenders": {**row["contenders"], NAME: {"ok": True, "hot": hot}},
            }
        out.append(row)
    return out
