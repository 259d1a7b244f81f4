"""What importing the package does, and what it offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

import penstock
from penstock.errors import UserError
from penstock.spark.delta_spark import _explanation, spark_path
from tests.scenarios.local_spark import local_session


def test_importing_the_package_loads_no_spark_and_starts_no_thread() -> None:
    program = (
        "import sys, threading, penstock; "
        "assert not {'pyspark', 'deltalake', 'polars', 'confluent_kafka'} & set(sys.modules), sorted(sys.modules); "
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_package_exports_its_documented_names() -> None:
    assert penstock.__all__ == ["check", "foreach_batch", "read", "run", "session", "status", "verify", "write"]
    assert all(callable(getattr(penstock, name)) for name in penstock.__all__)
    with pytest.raises(AttributeError):
        _ = penstock.rede


@pytest.mark.parametrize(
    "text",
    [
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure the provider name is correct",
        "[DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG] This Delta operation requires the SparkSession",
        "[TABLE_OR_VIEW_NOT_FOUND] The table or view `delta`.`/lake/t` cannot be found.",
    ],
)
def test_a_session_without_delta_gets_an_error_naming_the_packages(text: str) -> None:
    """The texts are those of Spark 4.0: without the jar, with the jar and no settings, and without either in SQL."""
    error = _explanation(local_session(), "/lake/t", AnalysisException(text))
    assert isinstance(error, UserError)
    for needed in ("io.delta:delta-spark_2.13:", "DeltaSparkSessionExtension", "DeltaCatalog"):
        assert needed in error.hint


def test_paths_are_translated_for_spark() -> None:
    assert spark_path("s3://lake/t") == "s3a://lake/t"
    assert spark_path("/lake/t") == "/lake/t"
    assert spark_path("hdfs://name/lake/t") == "hdfs://name/lake/t"
    assert spark_path("lake/t") == str(Path("lake/t").absolute())


FORK_AFTER_IMPORT = """
import os, signal, penstock.cli.app
if (child := os.fork()) == 0:
    signal.alarm(20)
    import polars
    polars.concat([polars.DataFrame({"a": [1, 2]})] * 2).lazy().group_by("a").len().collect()
    os._exit(0)
raise SystemExit(os.waitpid(child, 0)[1])
"""


def test_importing_penstock_leaves_polars_usable_in_forked_processes() -> None:
    """Polars starts threads with its first call, and a process that is forked after it hangs, such as Spark workers."""
    assert subprocess.run([sys.executable, "-c", FORK_AFTER_IMPORT], check=False).returncode == 0
