"""Fixtures of tests that need real tables, on local disk and on an S3 server, or a broker that is down."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.registry import LOGS
from tests.support.lake import BUCKET, Lake, s3_server


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    with s3_server() as options:
        yield options


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, s3_options: dict[str, str]) -> Lake:
    if request.param == "local":
        return Lake(str(tmp_path / "table"))
    return Lake(f"s3://{BUCKET}/{tmp_path.name}/table", s3_options)


@pytest.fixture
def local(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "table"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands stop waiting for a broker after a second instead of fifteen."""
    monkeypatch.setitem(LOGS, KafkaLogSpec, partial(KafkaLog, call_seconds_max=1.0))
