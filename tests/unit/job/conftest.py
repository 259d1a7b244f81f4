"""A valid job file for tests to modify, and fixtures that load a text as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from penstock.job.faults import JobFileError
from penstock.job.spec import JobSpec
from penstock.tables.registry import load_job
from tests.unit.job.descriptors import GARMADON

Load: TypeAlias = Callable[..., JobSpec]
Faults: TypeAlias = Callable[..., list[tuple[int | None, str, str]]]

ENV = {"KAFKA_BROKERS": "kafka-1:9092", "PW": "hunter2"}
BASE = """\
job: web-requests
log:
  kafka: {bootstrap: "kafka-1:9092", topics: [web_requests]}
decode: json
schema: {meta: {at: string, tags: [string]}, method: string, status: int}
table:
  delta: {path: s3://lake/web}
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a text as a job file."""

    def loading(text: str, env: Mapping[str, str] | None = None) -> JobSpec:
        path = tmp_path / "job.yaml"
        path.write_text(text, encoding="utf-8")
        return load_job(path, ENV if env is None else env)

    return loading


@pytest.fixture
def descriptors(tmp_path: Path) -> None:
    """A descriptor set in the folder of the job file."""
    (tmp_path / "garmadon.desc").write_bytes(GARMADON)


@pytest.fixture
def faults(load: Load) -> Faults:
    """The faults of a text as (line, key, message and hint)."""

    def finding(text: str, env: Mapping[str, str] | None = None) -> list[tuple[int | None, str, str]]:
        with pytest.raises(JobFileError) as caught:
            load(text, env)
        return [(f.line, f.key, f"{f.message}; {f.hint}" if f.hint else f.message) for f in caught.value.faults]

    return finding
