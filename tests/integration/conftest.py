"""Fixtures of tests that need real tables: on local disk and on an S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lake import BUCKET, Lake, s3_server


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
