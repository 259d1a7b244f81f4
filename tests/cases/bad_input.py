"""A job over one topic, for records that do not fit its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from penstock.job.spec import JobSpec
from penstock.tables.registry import load_job

JOB = """
job: bad-input
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}
decode: json
schema: {{{schema}}}
columns: {{partition: kafka.partition, offset: kafka.offset}}
place: none
table:
  delta: {{path: {table}}}
on: {{{on}}}
"""
SCHEMA = "id: long, text: string, share: double, user: {age: int}, tags: [int]"
GOOD = b'{"id": 7, "text": "seven"}'


def job_of(
    folder: Path, bootstrap: str, topic: str, schema: str = SCHEMA, on: str = "bad_record: quarantine"
) -> JobSpec:
    path = folder / "job.yaml"
    table = json.dumps(str(folder / "table"))
    path.write_text(JOB.format(bootstrap=bootstrap, topic=topic, schema=schema, table=table, on=on))
    return load_job(path)


def rows(path: str) -> list[dict[str, Any]]:
    return pl.read_delta(path).sort("partition", "offset").to_dicts()
