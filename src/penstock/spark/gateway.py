"""Spark's JVM: started so that only the end of this process ends it, and the master that its surroundings give it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from penstock.errors import UserError

_UNSTATED_MASTER = "local[*]"
"""What Spark says where nobody stated a master."""
_JVM_OPTIONS = "spark.driver.defaultJavaOptions"
_KEEPS_SIGNAL_MASK = "-Xrs"
"""Without it a JVM unblocks SIGTERM, and ends by it."""


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process, unless there is one: of an earlier session, or of `spark-submit`.

    A service manager and `timeout` send SIGTERM to every process of a service or group. The batch under way is to be
    finished first, so the JVM and the Python workers that it starts do not take part: they are a session of their own
    and block the signal. They end with this process, however it ends, because the JVM reads a pipe from it.
    """
    if SparkContext._gateway is not None:
        return
    # It prints a stack trace for what is raised anyway, and then told in our words.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    options = f"{settings.get(_JVM_OPTIONS, '')} {_KEEPS_SIGNAL_MASK}".strip()
    conf = SparkConf().setAll([*settings.items(), (_JVM_OPTIONS, options)])
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise UserError(
            "Spark's JVM did not start",
            detail="what it said is above" if error.getCondition() == "JAVA_GATEWAY_EXITED" else str(error),
            hint="Spark needs Java 17 or later (JAVA_HOME); check the settings of the job file's spark section",
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    SparkContext._ensure_initialized(gateway=gateway)


def given_master() -> str | None:
    """The master that `spark-submit`, its settings or the environment give; None if they are silent."""
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
