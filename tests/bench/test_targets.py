"""The table of targets: a promise is kept only by enough right measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import seconds, targets
from bench.targets import Target, ratios, spread, table, worst
from tests.bench.test_protocol import row

TARGET = Target("suite", "least", 1.4, 1.6, ("a",), ratios("eager"), worst)


def judged(target: Target, ratio: float, processes: int = 5) -> str:
    rows = {"a": [row(eggtile=[1.0], eager=[ratio])] * processes}
    return target.verdict(target.measured(rows))


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.3, "not met"), (1.392, "met"), (1.5, "met"), (1.7, "met, and the hoped for")]
)
def test_a_ratio_is_held_against_the_target_less_a_hundredth(ratio: float, verdict: str):
    assert judged(TARGET, ratio) == verdict


def test_too_few_processes_or_cases_do_not_meet_a_target():
    assert judged(TARGET, 9.0, processes=4) == "not met: 4 of 5 processes"
    assert judged(replace(TARGET, cases=("a", "b")), 9.0) == "not met: 1 of 2 measured"


def test_wrong_values_are_no_measurement():
    rows = {"a": [row(eggtile=[1.0], eager=[9.0], ok=False)] * 5}
    assert TARGET.verdict(TARGET.measured(rows)) == "not measured"


def test_a_time_is_met_when_its_slowest_sample_is():
    target = Target("command", "s", 5.0, None, ("x",), targets.seconds("process"), spread, at_most=True)
    rows = {"x": [{"seconds": {"process": [4.0, 4.1, 4.2, 4.3, 4.9]}, "machine": "m", "commit": "c"}]}
    assert target.verdict(target.measured(rows)) == "met"
    rows["x"][0]["seconds"] = {"process": [4.0, 4.1, 4.2, 4.3, 5.1]}
    assert target.verdict(target.measured(rows)) == "not met"


def test_bandwidth_is_least_traffic_over_time_over_the_copy_rate():
    rows = {"a": [row(eggtile=[0.5, 0.002, 1.0, 0.002, 0.002])]}
    assert targets.bandwidths(rows) == [[pytest.approx(0.5)]]


def test_a_table_without_measurements_says_so_and_takes_an_area():
    header, rows = table({}, "gemm")
    assert [r[0] for r in rows] == ["gemm"]
    assert dict(zip(header, rows[0], strict=True))["verdict"] == "not measured"
    assert {t.area for t in targets.TARGETS} == {r[0] for r in table({})[1]}


def test_every_timed_command_and_program_has_its_target():
    assert set(seconds.COMMANDS) == set(targets.COMMANDS)
    assert set(seconds.PROGRAMS) == set(targets.COMPILES)
