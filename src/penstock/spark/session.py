"""The Spark session of a process and its JVM, with the settings that the flow relies on."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from socketserver import BaseServer
from typing import IO, Any

from pyspark import SparkConf, SparkContext, accumulators
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.errors import PenstockError, UnreachableError, UserError
from penstock.flow.worker import OWN_WORKER
from penstock.job.spark import DEFAULT_MASTER, SET_BY_PENSTOCK, is_local
from penstock.job.spec import SparkSpec
from penstock.spark.failures import SPARK_ERRORS, is_stopped, last_cause
from penstock.spark.jars import JarSet, home, resolve

LIGHT = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For a JVM that only distributes tasks: thorough compiling and many collectors would cost more than they gain."""
CONNECT_SECONDS_MAX = 10.0
LOG_BYTES_MAX = 10_000_000
_WORKER_ENVIRONMENT = {
    # There is a task for every core: further threads of Polars only take turns with those of other tasks.
    "POLARS_MAX_THREADS": "1",
    # Polars returns freed memory to the system after half a second, and the next batch asks for it page by page.
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000",
    OWN_WORKER: "1",
}
"""Of the Python workers. Measured for rollups: a sixth less CPU time."""
_SETTINGS = {
    **SET_BY_PENSTOCK,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.python.worker.reuse": "true",
    "spark.speculation": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.log.level": "ERROR",
    **{f"spark.executorEnv.{name}": value for name, value in _WORKER_ENVIRONMENT.items()},
}
_UNSTATED_MASTER = "local[*]"
"""Spark's default if no master is set."""
_JVM_OPTIONS = "spark.driver.defaultJavaOptions"
_KEEPS_SIGNAL_MASK = "-Xrs"
"""Without it a JVM unblocks SIGTERM, and ends by it."""
_PYTHON = "spark.pyspark.python"
_UNPACKING = re.compile(r"Utils\$?\.(?:unpack|fetchFile)|SparkContext\.addFile|addArchive")
"""In the stack of an error about spark.archives, which the driver unpacks too."""
_MISREAD_MASTER = ("Could not parse Master URL", "Invalid master URL", "Master must either be")


def open_spark(
    spark: SparkSpec, name: str = "penstock", jar_sets: Iterable[JarSet] = (), light: bool = False
) -> SparkSession:
    """Start Spark, or return the session that this process already has.

    `light`: records never pass through the JVM, because tasks read, decode and write them in Python and Arrow.
    """
    _check_reachable(spark.master)
    if is_local(spark.master) if spark.master else not may_be_given_a_master():
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # PySpark starts the Python of executors by this variable only.
    os.environ["PYSPARK_PYTHON"] = spark.conf.get(_PYTHON) or os.environ.get("PYSPARK_PYTHON") or sys.executable
    settings = {**_SETTINGS, **(LIGHT if light else {}), **spark.conf}
    jars = [str(jar) for jar_set in jar_sets for jar in resolve(jar_set)]
    if jars:
        settings["spark.jars"] = ",".join([*jars, *filter(None, [spark.conf.get("spark.jars")])])
    _start_jvm({**settings, **({"spark.master": spark.master} if spark.master else {})})
    master = chosen_master(spark.master, _running_master() or _given_master())
    _check_reachable(master)
    builder = SparkSession.builder.appName(name).master(master)
    for key, setting in settings.items():
        builder = builder.config(key, setting)
    try:
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        # PySpark logs what it also raises, with the stack of the JVM.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    except SPARK_ERRORS as error:
        raise _opening_error(error, master) from error
    return session


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process, unless there is one: of an earlier session, or of `spark-submit`.

    A service manager and `timeout` send SIGTERM to every process of a service or group. The current batch has to
    finish first, so the JVM and the Python workers that it starts do not take part: they are a session of their own
    and block the signal. They end with this process, however it ends, because the JVM reads a pipe from it.
    """
    if SparkContext._gateway is not None:
        return
    # They print stack traces for errors that are raised anyway.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for server in vars(accumulators).values():
        # Its name differs between releases of Spark.
        if isinstance(server, type) and issubclass(server, BaseServer):
            server.handle_error = lambda *_: None  # type: ignore[method-assign]
    options = f"{settings.get(_JVM_OPTIONS, '')} {_KEEPS_SIGNAL_MASK}".strip()
    conf = SparkConf().setAll([*settings.items(), (_JVM_OPTIONS, options)])
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with _open_log() as log:
            streams = {"stdout": log, "stderr": subprocess.STDOUT}
            gateway = launch_gateway(conf, {"start_new_session": True, **streams})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        exited = "JAVA_GATEWAY_EXITED" in str(error)
        raise UserError(
            "Spark's JVM did not start",
            detail=f"its output is at the end of {log_path()}" if exited else str(error),
            hint="Spark needs Java 17 or later (JAVA_HOME); check the settings of the job file's spark section",
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    SparkContext._ensure_initialized(gateway=gateway)


def log_path() -> Path:
    """Where the output of Spark's JVM and of its Python workers goes, of all processes of this user."""
    return home() / "spark.log"


def _open_log() -> IO[bytes]:
    """The log to append to, begun again if it is too large; where it cannot be written, the process's error stream."""
    path = log_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".old.log"))
        return path.open("ab")
    except OSError:
        return os.fdopen(os.dup(2), "wb")


def _given_master() -> str | None:
    """The master that `spark-submit`, its settings or the environment give; None if they give none."""
    master = SparkConf().get("spark.master")
    return None if master == _UNSTATED_MASTER else master


def may_be_given_a_master() -> bool:
    """Whether something may state a master that is known only once the JVM runs."""
    named = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "MASTER")
    return any(name in os.environ for name in named) or (Path(_find_spark_home()) / "conf").exists()  # type: ignore[no-untyped-call]


def jvm_exit_code() -> int | None:
    """How the JVM that this process started has ended; None while it runs, or if it is not ours."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    return None if process is None else process.poll()


def chosen_master(stated: str | None, given: str | None) -> str:
    """The master of the job file, or the one that Spark was started with; both only if they agree."""
    if stated and given and stated != given:
        raise UserError(
            f"the job file states spark.master: {stated}, but Spark was started with the master {given}",
            hint="state one of them; `spark-submit --master` applies if the job file states none",
        )
    return stated or given or DEFAULT_MASTER


class SharedSession:
    """The one session of a process: opened for its first batch, and again if it is stopped."""

    def __init__(self, open_session: Callable[[], SparkSession]) -> None:
        self._open_session = open_session
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def current(self) -> SparkSession:
        """A session whose context runs; raises `SparkGoneError` if the JVM has ended."""
        with self._lock:
            if self._session is None:
                self._session = self._open_session()
            elif is_stopped(self._session):
                # Python still holds the stopped context for the one of this process.
                self._session.stop()
                self._session = self._open_session()
            return self._session

    def opened(self) -> SparkSession | None:
        """The session, if a batch needed one so far."""
        return self._session

    def cancel_jobs(self) -> None:
        """Cancel the Spark jobs of all threads; if Spark does not answer, there are none."""
        if self._session is not None:
            with suppress(*SPARK_ERRORS, AttributeError):
                self._session.sparkContext.cancelAllJobs()

    def stop(self) -> None:
        """Stop Spark; a JVM that has ended is not an error."""
        if self._session is not None:
            with suppress(*SPARK_ERRORS):
                self._session.stop()


class LateSession:
    """Stands for a Spark session that is opened when it is first used: a run with nothing new needs no Spark."""

    def __init__(self, open_session: Callable[[], SparkSession]) -> None:
        self._open_session = open_session

    @cached_property
    def _session(self) -> SparkSession:
        return self._open_session()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def running_session() -> SparkSession | None:
    """The session that this process already has."""
    return None if _running_master() is None else SparkSession.builder.getOrCreate()


def _running_master() -> str | None:
    running = SparkContext._active_spark_context
    return None if running is None or running._jsc is None else running.master


def _check_reachable(master: str | None) -> None:
    """Raise if no standalone master answers: Spark itself takes a minute, and then only reports a stopped context."""
    if master is None or not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS_MAX).close()
            return
        except OSError as error:
            reasons.append(f"{address}: {error}")
    hint = "is the master up and its port open from here? check spark.master"
    raise UnreachableError(f"the Spark master {master} cannot be reached", detail="; ".join(reasons), hint=hint)


def _opening_error(error: Exception, master: str) -> PenstockError:
    cause = last_cause(error)
    if any(text in str(error) for text in _MISREAD_MASTER):
        return UserError(f"Spark does not know the master {master}", detail=cause, hint="check spark.master")
    if _UNPACKING.search(str(error)):
        hint = "make the archive with `penstock pack`, and check the path in spark.archives"
        return UserError("Spark cannot fetch or unpack a file that it ships to executors", detail=cause, hint=hint)
    return UnreachableError(
        f"Spark could not be started on the master {master}",
        detail=cause,
        hint="is the cluster up, and does it accept applications from here?",
    )
