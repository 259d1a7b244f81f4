"""The promises on the installed Spark: `make spark VERSION=3.5.6` runs them on another one than the default."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.errors import UserError
from penstock.spark.jars import sets_to_read_tables
from tests.support.every_kind import KINDS, PARTITIONS, EveryKind
from tests.support.jobs import KILLED
from tests.support.kafka import Produce, Topics
from tests.support.processes import penstock as penstock_process


def test_every_kind_of_table_is_exact_after_a_kill_and_spark_reads_it(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    jobs = EveryKind(tmp_path, bootstrap, topic(PARTITIONS), str(tmp_path), spark={"master": "local[2]"})
    paths = jobs.write()
    jobs.fill(produce, 1000)
    for failpoint, code in (("staged:kill", KILLED), ("committed:kill", KILLED), ("", 0)):
        with penstock_process("run", *paths, "--once", "--json", failpoint=failpoint) as process:
            assert process.exit_code() == code, process.last_words
    jobs.assert_exact()
    if not sets_to_read_tables():
        with pytest.raises(UserError) as raised:
            penstock.session()
        assert "install a pyspark of one of these lines" in raised.value.hint
        return
    spark = penstock.session(
        conf={"spark.sql.shuffle.partitions": "1", "spark.databricks.delta.snapshotPartitions": "1"}
    )
    try:
        counts = {
            kind: penstock.read(spark, path).count()
            for kind, path in zip(KINDS, paths, strict=True)
            if kind != "export"
        }
        counts["export"] = sum(penstock.read(spark, paths[1], type=name).count() for name in ("cpu", "disk"))
    finally:
        spark.stop()
    # All but the window that is still open.
    assert (counts["delta"], counts["export"], counts["keyed"]) == (1000, 1000, 20)
    assert counts["rollup"] > 0
