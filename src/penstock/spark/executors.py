"""The executors of a Spark session: how many there are, what was asked for, and what the cluster has."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from penstock.spark.failures import SPARK_ERRORS

_ASKED = {
    "spark.executor.instances": "executors",
    "spark.executor.cores": "cores each",
    "spark.executor.memory": "memory each",
    "spark.cores.max": "cores in all",
}
_MEMORY = "spark.executor.memory"
_MEMORY_DEFAULT = "1g"


def executor_count(spark: SparkSession) -> int:
    """How many executors have registered; the driver is not one."""
    return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1


def requested(spark: SparkSession) -> str:
    """What the settings of the session ask the cluster for."""
    conf = dict(spark.sparkContext.getConf().getAll())
    conf.setdefault(_MEMORY, _MEMORY_DEFAULT)
    return ", ".join(f"{conf[name]} {words}" for name, words in _ASKED.items() if name in conf)


def cluster_state(spark: SparkSession) -> str:
    """What a standalone master states of its workers; other clusters have displays of their own."""
    master = spark.sparkContext.master or ""
    if not master.startswith("spark://"):
        return f"see the display of {master}"
    try:
        workers = _workers(spark, master.partition(",")[0])
    except (*SPARK_ERRORS, AttributeError, TypeError) as error:
        return f"the master does not state what it has: {type(error).__name__}"
    alive = [worker for worker in workers if str(worker.state()) == "ALIVE"]
    free = [f"{worker.coresFree()} of {worker.cores()} cores, {worker.memoryFree()} of {worker.memory()} MiB"
            for worker in alive]  # fmt: skip
    count = f"{len(alive)} worker{'' if len(alive) == 1 else 's'}"
    return f"{count}; free: {'; '.join(free)}" if free else count


def _workers(spark: SparkSession, master: str) -> list[Any]:
    """Ask the master as its own web page does, because the port of that page is not known here."""
    jvm: Any = spark.sparkContext._jvm
    deploy, reflect = jvm.org.apache.spark.deploy, jvm.scala.reflect
    question = getattr(getattr(deploy, "DeployMessages$RequestMasterState$"), "MODULE$")
    answer_type = jvm.java.lang.Class.forName("org.apache.spark.deploy.DeployMessages$MasterStateResponse")
    tag = getattr(getattr(reflect, "ClassTag$"), "MODULE$").apply(answer_type)
    address = jvm.org.apache.spark.rpc.RpcAddress.fromSparkURL(master)
    endpoint = jvm.org.apache.spark.SparkEnv.get().rpcEnv().setupEndpointRef(address, "Master")
    return list(endpoint.askSync(question, tag).workers())
