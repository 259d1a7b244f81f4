"""The storages that a contract is tried on: in memory, a local folder, a real S3 server and a real HDFS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from penstock.storage import Storage, open_storage
from tests.support.hdfs import HdfsCluster
from tests.support.memory_storage import MemoryStorage
from tests.support.s3_server import S3Server

BUCKET = "lake"
HDFS = pytest.param("hdfs", marks=pytest.mark.hdfs)
"""It needs jars that nothing else does, and half a minute: `make hdfs` runs what it is marked with."""


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    """A real S3 server with one bucket."""
    server = S3Server()
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="id", aws_secret_access_key="key", region_name="us-east-1"
    ).create_bucket(Bucket=BUCKET)
    yield endpoint
    server.stop()


@pytest.fixture(scope="module")
def s3_options(s3_endpoint: str) -> dict[str, str]:
    return {
        "aws_endpoint_url": s3_endpoint,
        "aws_access_key_id": "id",
        "aws_secret_access_key": "key",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with HdfsCluster(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


@pytest.fixture(params=["memory", "local", "s3", HDFS])
def storage(request: pytest.FixtureRequest, tmp_path: Path, s3_options: dict[str, str]) -> Storage:
    match request.param:
        case "hdfs":
            return open_storage(request.getfixturevalue("hdfs").url(tmp_path.name), {})
        case "memory":
            return MemoryStorage()
        case "local":
            return open_storage(str(tmp_path / "root"), {})
        case _:
            return open_storage(f"s3://{BUCKET}/{tmp_path.name}", s3_options)
