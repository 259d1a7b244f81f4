"""JVMs for the Sparks of processes that tests start: one is lent to a process, and to another once that one has ended.

A JVM takes seconds of CPU before it runs its first task, and a process that is to be killed runs for one batch. It
finds the JVM that it is lent as under `spark-submit`, by its environment, and opens a context of its own in it; what a
killed process left running is stopped before another process gets the JVM.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from penstock.spark.session import LIGHT

FREE_MAX = 3
"""That wait for the next process; an idle JVM holds 400 MB."""
_SETTINGS = {**LIGHT, "spark.driver.memory": "512m", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}


class Jvm:
    """A JVM with the context of the process that has it, if that has opened one."""

    def __init__(self) -> None:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf = SparkConf(loadDefaults=False).setAll(list(_SETTINGS.items()))
        self._gateway: Any = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]

    @property
    def environment(self) -> Mapping[str, str]:
        """By which a process finds the JVM."""
        parameters = self._gateway.java_parameters
        return {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}

    def clear(self) -> bool:
        """Stop what a process left running; whether the JVM still answers."""
        try:
            contexts = getattr(getattr(self._gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$")
            running = contexts.getActive()
            if running.isDefined():
                running.get().stop()
        except (Py4JError, OSError):
            return False
        return True

    def end(self) -> None:
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait()


_free: list[Jvm] = []


def lend() -> Jvm:
    return _free.pop() if _free else Jvm()


@contextmanager
def lent() -> Iterator[Mapping[str, str]]:
    """The environment of a process that opens a Spark; it has ended by the end of the context."""
    jvm = lend()
    try:
        yield jvm.environment
    finally:
        take_back(jvm)


def take_back(jvm: Jvm) -> None:
    """Of a process that has ended."""
    if jvm.clear() and len(_free) < FREE_MAX:
        _free.append(jvm)
    else:
        jvm.end()
