"""Failures of Spark as Penstock's errors: of a record, a task, the session, or the JVM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import FencedError, InvariantError, OutcomeUnknownError, PenstockError, TransientError, UserError

SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError, EOFError)
"""Whatever a call into Spark raises, also while its JVM dies."""
_CONNECTION_ERRORS = (Py4JNetworkError, ConnectionError, EOFError)
_CAUSE_CHARACTERS_MAX = 500
_CONDITION = re.compile(r"\[[A-Z][A-Z_.]+\] .*")
_CANNOT_RUN = re.compile(r"Cannot run program .*")
_CLUSTER_FAILURES = (
    (
        re.compile(r"^(?:[\w.]*\.)?KafkaException: .*", re.MULTILINE),
        "Kafka's client failed in a Spark task",
        "are the files of log.kafka.client on every executor, and every broker reachable from there?",
    ),
    (
        re.compile(r"ExecutorLostFailure.*|Executor heartbeat timed out.*"),
        "Spark lost the executors of a batch",
        "the batch will be planned again; if they were killed for their memory, give them more",
    ),
)

_BRANCHES = (UserError, TransientError, FencedError, OutcomeUnknownError, InvariantError)
_OWN_ERROR = re.compile(
    r"^penstock\.[\w.]*?(?P<name>\w+Error): (?P<primary>.*)"
    r"(?:\n  detail: (?P<detail>.*(?:\n(?!  hint: |\s*$|\tat ).*)*))?"
    r"(?:\n  hint: (?P<hint>.*))?",
    re.MULTILINE,
)


class BatchFailedError(TransientError):
    """The Spark job of a batch failed for a reason that may lie in a record."""


class SparkStoppedError(TransientError):
    """The SparkContext was stopped: the next attempt opens another one."""


class SparkGoneError(TransientError):
    """Spark's JVM has ended: this process cannot continue, a new one can."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            "Spark's JVM ended while the process ran",
            detail=detail,
            hint="start the process again: the tables are whole; if it was killed for its memory, raise "
            "spark.driver.memory in spark.conf or the limit of the machine",
        )


def spark_failure(error: Exception, spark: SparkSession) -> PenstockError:
    """The Penstock error for what a call into Spark raised."""
    try:
        if is_stopped(spark):
            return SparkStoppedError(
                "the SparkContext was stopped", detail=last_cause(error), hint="it will be opened again"
            )
    except SparkGoneError as gone:
        return gone
    if isinstance(error, _CONNECTION_ERRORS):
        return TransientError("the connection to Spark's JVM was lost", detail=last_cause(error))
    failed = "the Spark job of a batch failed"
    unexplained = BatchFailedError(failed, detail=last_cause(error), hint="the batch will be planned again")
    return task_error(error) or _cluster_error(error) or unexplained


@contextmanager
def spark_errors(spark: SparkSession) -> Iterator[None]:
    """Raise errors of Spark inside the block as Penstock errors."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise spark_failure(error, spark) from error
    except AttributeError as error:
        # A context that another thread stops loses its parts while PySpark uses them.
        if not is_stopped(spark):
            raise
        raise spark_failure(error, spark) from error


def is_stopped(spark: SparkSession) -> bool:
    """Whether the session's context was stopped; raises `SparkGoneError` if there is no JVM to ask."""
    context = spark.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except (*_CONNECTION_ERRORS, Py4JError) as error:
        raise SparkGoneError(str(error) or type(error).__name__) from error


def last_cause(error: Exception) -> str:
    """The line of an error that names its cause: Spark's own texts are a stack trace long."""
    unstarted = _CANNOT_RUN.search(str(error))
    if unstarted is not None:
        return unstarted[0][:_CAUSE_CHARACTERS_MAX]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error" in line or "Exception" in line]
    # Python's traceback ends with its error; Spark's message begins with it and goes on with the place in the query.
    return (causes[-1] if causes else lines[0] if lines else type(error).__name__)[:_CAUSE_CHARACTERS_MAX]


def refusal_of(error: Exception) -> str:
    """Why Spark refuses a query, such as one for a format that it does not know."""
    match = _CONDITION.search(str(error))
    return last_cause(error) if match is None else match[0][:_CAUSE_CHARACTERS_MAX]


def _cluster_error(error: Exception) -> TransientError | None:
    """A failure that no record can cause: the Kafka client of a task did not open, or an executor was lost."""
    text = str(getattr(error, "_desc", None) or error)
    for pattern, primary, hint in _CLUSTER_FAILURES:
        if match := pattern.search(text):
            return TransientError(primary, detail=match[0][:_CAUSE_CHARACTERS_MAX], hint=hint)
    return None


def task_error(error: Exception) -> PenstockError | None:
    """The Penstock error that failed a Spark job, as its branch of the tree; None if a task failed otherwise."""
    text = str(getattr(error, "_desc", None) or error)
    # The last one is what left the task; those before it are its causes.
    match = next(reversed(list(_OWN_ERROR.finditer(text))), None)
    for branch in _BRANCHES if match is not None else ():
        if match is not None and match["name"] in _names(branch):
            return branch(match["primary"], detail=match["detail"] or "", hint=match["hint"] or "")
    return None


def _names(branch: type[PenstockError]) -> set[str]:
    """The class names of a branch of the error tree."""
    return {branch.__name__}.union(*map(_names, branch.__subclasses__()))
