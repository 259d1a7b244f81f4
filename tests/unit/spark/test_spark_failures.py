"""What Spark raises is sorted by who can have caused it, and a stopped session is opened once for all jobs."""

from __future__ import annotations

import random
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.engine.loop import Loop, Retries
from penstock.errors import TransientError, UserError
from penstock.events import NullListener
from penstock.job.spec import SparkSpec
from penstock.spark.failures import (
    BatchFailedError,
    SparkGoneError,
    SparkStoppedError,
    spark_errors,
    spark_failure,
)
from penstock.spark.session import SharedSession, _open_log, chosen_master, open_spark
from tests.unit.engine.test_loop import CAUGHT_UP, Patient, Script

CA_MISSING = """\
An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "reader.py", line 128, in _read
    consumer = Consumer(dict(self.settings))
cimpl.KafkaException: KafkaError{code=_INVALID_ARG,val=-186,str="Failed to create consumer: ssl.ca.location failed"}
"""
LOST = "Job aborted: ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited"


@dataclass(slots=True)
class Context:
    """A SparkContext that only answers whether it is stopped."""

    stopped: bool = False
    gone: bool = False

    @property
    def _jsc(self) -> Context:
        return self

    def sc(self) -> Context:
        if self.gone:
            raise ConnectionRefusedError(111, "Connection refused")
        return self

    def isStopped(self) -> bool:  # noqa: N802, Java's name
        return self.stopped


@dataclass(slots=True)
class Session:
    sparkContext: Context = field(default_factory=Context)  # noqa: N815, Spark's name

    def stop(self) -> None:
        self.sparkContext.stopped = True


def session(**state: Any) -> SparkSession:
    return cast(SparkSession, Session(Context(**state)))


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "refused"), Py4JNetworkError("Answer is empty"), EOFError()]
)
def test_a_lost_jvm_ends_the_process_with_a_retryable_exit_code(error: Exception) -> None:
    result = spark_failure(error, session(gone=True))
    assert isinstance(result, SparkGoneError)
    assert result.exit_code == 75


def test_a_stopped_spark_context_is_reopened_after_any_other_error() -> None:
    assert isinstance(spark_failure(PySparkException(CA_MISSING), session(stopped=True)), SparkStoppedError)


def test_a_context_that_another_thread_stops_under_a_call_is_opened_again() -> None:
    """PySpark's objects lose their parts then, as in `None.setCallSite`."""
    with pytest.raises(SparkStoppedError), spark_errors(session(stopped=True)):
        raise AttributeError("'NoneType' object has no attribute 'setCallSite'")
    with pytest.raises(AttributeError), spark_errors(session()):
        raise AttributeError("a bug of ours")


@pytest.mark.parametrize("text", [CA_MISSING, LOST])
def test_errors_that_no_record_can_cause_are_not_isolated(text: str) -> None:
    result = spark_failure(PySparkException(text), session())
    assert isinstance(result, TransientError)
    assert not isinstance(result, BatchFailedError)
    assert result.detail and result.detail in text


def test_errors_that_a_record_may_have_caused_are_isolated() -> None:
    with pytest.raises(BatchFailedError), spark_errors(session()):
        raise PySparkException("Python worker exited unexpectedly (crashed)")


def test_a_loop_opens_its_rounds_again_on_another_session() -> None:
    scripts = [Script(SparkStoppedError("stopped")), Script(CAUGHT_UP)]
    opened = list(scripts)
    Loop(lambda: opened.pop(0), True, Patient(), Retries(3, random.Random(7)), NullListener()).run()
    assert [script.closed for script in scripts] == [True, True]


def test_a_loop_does_not_try_again_without_a_jvm() -> None:
    with pytest.raises(SparkGoneError):
        Loop(lambda: Script(SparkGoneError("killed")), True, threading.Event(), Retries(3), NullListener()).run()


def test_of_many_jobs_that_find_the_session_stopped_one_opens_the_next() -> None:
    opened: list[SparkSession] = []

    def open_session() -> SparkSession:
        opened.append(session())
        return opened[-1]

    shared = SharedSession(open_session)
    shared.current().stop()
    result: list[SparkSession] = []
    threads = [threading.Thread(target=lambda: result.append(shared.current())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for item in threads:
        item.join()
    assert len(opened) == 2
    assert all(session is opened[1] for session in result)


def test_an_unreachable_spark_master_is_reported_at_once_with_its_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TransientError) as raised:
            open_spark(SparkSpec(f"spark://{address}"))
    assert f"spark://{address}" in raised.value.primary
    assert "refused" in raised.value.detail


def test_the_master_of_spark_submit_is_obeyed_and_a_contradiction_is_an_error() -> None:
    assert chosen_master(None, None) == "local[*,4]"
    assert chosen_master(None, "yarn") == "yarn"
    assert chosen_master("local[2]", None) == "local[2]"
    assert chosen_master("yarn", "yarn") == "yarn"
    with pytest.raises(UserError) as raised:
        chosen_master("local[2]", "yarn")
    assert "local[2]" in raised.value.primary and "yarn" in raised.value.primary


def test_a_home_that_cannot_be_written_does_not_keep_spark_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "file" / "home"))
    with _open_log() as log:
        log.write(b"output of the JVM")
    assert capfd.readouterr().err == "output of the JVM"
