"""`python -m tests.determinism`: one program gives one e-graph and one choice, whatever the hash seed, run and egglog.

Every interpreter that is named runs each hash seed in a process of its own, and the first seed twice:
`python -m tests.determinism python /path/to/another/bin/python`. Without names it is this interpreter.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from egraph.dump import to_data, to_text
from egraph.saturate import saturate
from extract.forms import forms
from ir.loop import LoopProgram
from ir.loop_text import show_form
from ir.machine import H200
from tests.egraph.layers import decoder
from tests.egraph.test_streams import CASES
from tests.egraph.written import program
from tests.extract.test_forms import chain, exponentials, layers

SEEDS = ("0", "1", "77")
PROGRAMS: Mapping[str, LoopProgram] = {
    "a chain of products": program("u := add[d](X[i, d] * Y[d, e])\nadd[e](u * Z[e, c])"),
    "attention with a sink": program(CASES["attention with a sink"][0]),
    "normalised rows times a matrix": program(CASES["normalised rows times a matrix"][0]),
    "a normalised exponential": exponentials(4096, 4096),
    "two products around one": chain(b=64, i=2048, j=2048, d=64, e=64),
    "two decoder layers": decoder(2),
    "layers that share a table": layers(2, table=True),
}


def told(most: int) -> dict[str, list[str]]:
    """Per program, of the first ones, a digest of its dump, of its listing, and the text of its best forms."""
    found = {}
    for name, p in list(PROGRAMS.items())[:most]:
        graph = saturate(p)
        k = 1 if len(graph.classes) > 100 else 4
        texts = [json.dumps(to_data(graph)), to_text(graph)]
        chosen = [f"{show_form(f)} {f.cost_us!r}" for f in forms(graph, H200, k=k)]
        found[name] = [hashlib.sha256(t.encode()).hexdigest() for t in texts] + chosen
    return found


def asked(python: str, seed: str, most: int = len(PROGRAMS)) -> tuple[str, dict[str, list[str]]]:
    """What another process says of the first programs, and the egglog that it has."""
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [python, "-m", "tests.determinism", "--tell", str(most)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    egglog, found = json.loads(done.stdout)
    return egglog, found


def differences(pythons: Sequence[str]) -> list[str]:
    """A line for every program that some process sees otherwise than the first one."""
    first: dict[str, list[str]] = {}
    lines = []
    for python in pythons:
        for seed in (SEEDS[0], *SEEDS):
            egglog, found = asked(python, seed)
            first = first or found
            differ = [n for n in found if found[n] != first[n]]
            print(
                f"egglog {egglog}, hash seed {seed}: {len(found) - len(differ)} of {len(found)} the same",
                flush=True,
            )
            for n in differ:
                parts = ["dump", "listing"] + [f"form {k}" for k in range(len(found[n]) - 2)]
                which = [p for p, a, b in zip(parts, found[n], first[n], strict=False) if a != b] or ["forms"]
                lines.append(f"egglog {egglog}, hash seed {seed}: {n} differs in {', '.join(which)}")
    return lines


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    parser.add_argument("--tell", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tell is not None:
        print(json.dumps((version("egglog"), told(given.tell))))
        return 0
    lines = differences(given.pythons)
    print("\n".join(lines) or "one graph and one choice a program")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
