"""The command line on a machine whose card is the fake device, which runs kernels on the CPU."""

from __future__ import annotations

import sys
from functools import partial
from unittest.mock import patch

from codegen import gpu
from codegen.worker import Worker
from eggtile import cli, cli_tune, tuning
from eggtile.fleet import Fleet
from extract.evidence import code_version
from extract.measurement import Where
from ir.machine import H200
from tests.eggtile.fake_device import command

EGGTILE = (sys.executable, "-c", "from tests.eggtile.fake_card import main; main()")


def main() -> None:
    """`eggtile` there."""
    place = Where(H200.name, H200.target, "13.0", "1", code_version())
    with (
        patch.object(gpu, "available", lambda: (True, "")),
        patch.object(gpu, "card", lambda: "fake"),
        patch.object(cli_tune, "place_at_hand", lambda: ("cpu", H200.target, "")),
        patch.object(cli_tune, "Fleet", partial(Fleet, eggtile=EGGTILE)),
        patch.object(tuning, "here", lambda machine, usable: place),
        patch.object(tuning, "Worker", lambda: Worker(command({}, emulated=True))),
    ):
        cli.main()


if __name__ == "__main__":
    main()
