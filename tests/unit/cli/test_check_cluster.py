"""The table of `penstock check --cluster`, and what differs between an executor and the driver."""

from __future__ import annotations

import platform

import pytest

from penstock.cli.check import _print_executors
from penstock.engine.cluster_check import ExecutorReport, _compared, versions_here


def test_each_executor_is_a_line_and_each_fault_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    faults = {"log": "Kafka at kafka:9093 does not answer"}
    _print_executors([ExecutorReport("a 0", "3.11.7", faults=faults), ExecutorReport("b 1", "3.11.7", faults=faults)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["executor", "python", "packages", "log", "storage"]
    assert lines[1] == ["a", "0", "3.11.7", "ok", "failed", "ok"]
    assert lines[3:] == [["log:", *["Kafka", "at", "kafka:9093", "does", "not", "answer"]]]


def test_other_versions_than_those_of_the_driver_are_a_fault() -> None:
    same = {"executor": "a 0", "python": platform.python_version(), "versions": versions_here(), "faults": {}}
    assert _compared(same).faults == {}
    other = _compared({**same, "python": "3.10.1", "versions": {**versions_here(), "polars": "0.1"}})
    assert "Python 3.10, here 3." in other.faults["packages"]
    assert "polars 0.1, here " in other.faults["packages"]
