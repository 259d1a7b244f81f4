"""Spark dies, is stopped, or is sent a signal with its process: nothing is lost, and a supervisor knows what to do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import polars as pl
import psutil

from penstock.errors import TransientError
from tests.support import spark_jvms
from tests.support.forked import Forked
from tests.support.jobs import KILLED, assert_every_record_once, numbered, numbered_job, offsets_in
from tests.support.kafka import Produce, Topics
from tests.support.processes import EXIT_SECONDS_MAX, command_json, penstock
from tests.support.waiting import wait_until


def family_of(pid: int) -> list[psutil.Process]:
    """The JVM of a process, and the Python workers that it started."""
    return psutil.Process(pid).children(recursive=True)


def jvm_of(pid: int) -> psutil.Process:
    [jvm] = [item for item in family_of(pid) if item.name() == "java"]
    return jvm


def test_a_killed_jvm_ends_the_process_with_a_clear_error_and_a_killed_process_ends_its_jvm(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    job = numbered_job(tmp_path, bootstrap, name)
    places = produce(name, numbered(range(500)))
    with penstock("run", str(job), "--json", failpoint="writing:stop", own_spark=True) as process:
        process.wait_stopped()
        jvm_of(process.pid).kill()
        process.send(signal.SIGCONT)
        assert process.exit_code() == TransientError.exit_code
        assert "Spark's JVM ended" in process.errors
        assert "Traceback" not in process.errors
    assert not offsets_in(tmp_path / "table")
    with penstock("run", str(job), "--json", own_spark=True) as process:
        process.wait_for("batch committed")
        family = family_of(process.pid)
        assert len(family) > 1
        process.send(signal.SIGKILL)
        assert process.exit_code() == KILLED
        wait_until(lambda: not any(item.is_running() and item.status() != psutil.STATUS_ZOMBIE for item in family))
    assert_every_record_once(tmp_path / "table", places)
    assert command_json("verify", str(job))["ok"]


def test_a_signal_to_the_whole_group_ends_a_process_as_one_to_the_process_does(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    """As `timeout` sends it to a group, and a service manager to every process of a service.

    This process starts as in production: nothing of it is forked, and Spark has its own daemon for its workers.
    """
    name = topic()
    job = numbered_job(tmp_path, bootstrap, name)
    places = produce(name, numbered(range(500)))
    plain = {"SPARK_SUBMIT_OPTS": ""}
    with penstock(
        "run", str(job), "--json", failpoint="writing:stop", environment=plain, through=("setsid",)
    ) as process:
        process.wait_stopped()
        os.killpg(process.pid, signal.SIGTERM)
        for item in family_of(process.pid):
            item.send_signal(signal.SIGTERM)
        process.send(signal.SIGCONT)
        assert process.exit_code() == 0, process.last_words
        assert "Traceback" not in process.errors
        assert process.events_read[-1]["event"] == "job stopped"
    assert_every_record_once(tmp_path / "table", places)


def test_a_stopped_context_is_opened_again_and_costs_no_record(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    """Two jobs of one process: one finds the context stopped under its batch, and both go on with the next one."""
    names = [topic(2), topic(2)]
    jobs = []
    for number, name in enumerate(names):
        produce(name, [b'{"number": %d, "day": "d"}' % item for item in range(300)])
        folder = tmp_path / f"job{number}"
        folder.mkdir()
        path = numbered_job(folder, bootstrap, name)
        path.write_text(path.read_text().replace("job: numbered", f"job: job{number}"))
        jobs.append(path)
    with spark_jvms.lent() as environment:
        process = Forked("tests.fault.stopping_spark", [str(job) for job in jobs], environment)
        output = process.stdout.read()
        assert process.wait(EXIT_SECONDS_MAX) == 0, output + process.stderr.read()
    assert "the SparkContext was stopped" in output
    assert "record isolated" not in output
    for job in jobs:
        assert pl.read_delta(str(job.parent / "table")).height == 300
