"""One process: a Spark session, a loop per job, and signals that stop them cleanly within a bound."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import cast

from pyspark.sql import SparkSession

from penstock.claims import StaticClaims
from penstock.claims.group import open_group
from penstock.engine.executor_watch import ExecutorWatch
from penstock.engine.loop import Loop, Retries, Turns
from penstock.engine.pulse import Pulse, SparkProgress
from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.errors import PenstockError
from penstock.events import JobCrashed, JobFailed, JobStarted, JobStopped, Listener
from penstock.failpoints import Failpoint, noop
from penstock.job.spark import merged_spark
from penstock.job.spec import JobSpec, kafka_of
from penstock.spark.failures import SparkGoneError
from penstock.spark.jars import JarSet
from penstock.spark.session import LateSession, SharedSession, jvm_exit_code, log_path, open_spark

_JOIN_SECONDS = 0.2


JobThread = tuple[threading.Thread, list[BaseException]]
"""The thread of one job, and the errors that ended it."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    once: bool = False
    failpoint: Failpoint | None = None
    session: SparkSession | None = None
    """The caller's, which stays open; None: one of the run's own."""
    jars: tuple[JarSet, ...] = ()
    """What the JVM of an own session can load besides Spark."""
    watched: bool = False
    """As in the environment."""


def run_jobs(jobs: Sequence[JobSpec], listener_for: Callable[[JobSpec], Listener], options: RunOptions) -> None:
    """Run jobs until they end, a signal stops them, or each has failed; then raise the first failure.

    One job's failure does not stop the others.
    """
    spec = merged_spark(jobs)
    light = all(job.sql is None for job in jobs)
    name = "penstock " + " ".join(job.name for job in jobs)
    spark = SharedSession(lambda: options.session or open_spark(spec, name, options.jars, light))
    stop, ended = threading.Event(), threading.Event()
    listeners = [listener_for(job) for job in jobs]
    threads = [_start(job, spark, listener, stop, options) for job, listener in zip(jobs, listeners, strict=True)]
    ExecutorWatch(spark.opened, listeners).start(ended)
    exit_code: int | None = None
    try:
        with _stopping(stop, spark, max(job.limits.shutdown_seconds_max for job in jobs)):
            while any(thread.is_alive() for thread, _ in threads):
                for thread, _ in threads:
                    thread.join(_JOIN_SECONDS)
                exit_code = jvm_exit_code()
                if exit_code is not None:
                    stop.set()
    finally:
        ended.set()
        if options.session is None:
            spark.stop()
    if exit_code is not None:
        raise SparkGoneError(f"its exit code is {exit_code}, its output is at the end of {log_path()}")
    for _, errors in threads:
        if errors:
            raise errors[0]


def _start(
    job: JobSpec, spark: SharedSession, listener: Listener, stop: threading.Event, options: RunOptions
) -> JobThread:
    at_step = options.failpoint.at_step if options.failpoint else noop
    progress = SparkProgress(job.name)
    claims = StaticClaims() if job.claims is None else open_group(kafka_of(job), job.claims, listener.event)

    def rounds() -> Turns:
        environment = Environment(
            at_step=at_step,
            listener=listener,
            failpoint=options.failpoint,
            watched=options.watched,
            stopping=stop.is_set,
        )
        session = LateSession(lambda: progress.follow(spark.current()))
        return open_rounds(job, cast(SparkSession, session), environment, claims)

    def turning() -> None:
        claims.working()
        if claims.shared:
            progress.begin_turn()

    retries = Retries(job.limits.transient_retries_max)
    loop = Loop(rounds, options.once, stop, retries, listener, turning)
    errors: list[BaseException] = []

    def body() -> None:
        listener.event(JobStarted(once=options.once))
        try:
            try:
                with Pulse(progress, claims.working) if claims.shared else nullcontext():
                    loop.run()
            finally:
                claims.close()
            listener.event(JobStopped())
        except PenstockError as error:
            listener.event(JobFailed(error=type(error).__name__, reason=error.primary, detail=error.detail))
            errors.append(error)
        except BaseException as error:  # noqa: BLE001, the top of a thread: a bug must reach the process's exit code
            listener.event(JobCrashed(error=type(error).__name__, reason=str(error)))
            errors.append(error)

    thread = threading.Thread(name=f"job {job.name}", target=body, daemon=True)
    thread.start()
    return thread, errors


@contextmanager
def _stopping(stop: threading.Event, spark: SharedSession, seconds_max: float) -> Iterator[None]:
    """First signal: finish the batch, within a bound. Bound passed, or second signal: abandon it.

    An abandoned batch is committed whole or not at all; its staged files are left to vacuum. Only the main thread of a
    process gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    timer = threading.Timer(seconds_max, spark.cancel_jobs)
    timer.daemon = True

    def signalled(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            spark.cancel_jobs()
        else:
            stop.set()
            timer.start()

    previous = {number: signal.signal(number, signalled) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        timer.cancel()
