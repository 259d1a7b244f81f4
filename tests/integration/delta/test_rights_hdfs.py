"""The rights on HDFS in docs/operations.md: `rwx` to run, `r-x` to look; without them the error names the path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hdfs import HOME, HdfsCluster
from tests.support.kafka import Produce, Topics
from tests.support.processes import penstock

pytestmark = pytest.mark.hdfs

JOB = """
job: web
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}}}
decode: json
schema: {{id: long}}
table: {{delta: {{path: "{url}", storage: {{dfs.replication: "1"}}}}}}
"""


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with HdfsCluster(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


def command(user: str, *words: str) -> tuple[int, str]:
    """The exit code of a command that a user of HDFS runs, and its texts."""
    with penstock(*words, environment={"HADOOP_USER_NAME": user}) as process:
        return process.exit_code(), process.errors + json.dumps(process.events_read)


def test_a_job_needs_its_folder_and_others_may_look_while_they_may_read(
    hdfs: HdfsCluster, topic: Topics, produce: Produce, bootstrap: str, tmp_path: Path
) -> None:
    folder, name, job = f"{HOME}/rights", topic(), tmp_path / "job.yaml"
    produce(name, ['{"id": 1}'])
    job.write_text(JOB.format(bootstrap=bootstrap, topic=name, url=f"{hdfs.address}{folder}/web"), encoding="utf-8")
    hdfs.shell("-mkdir", folder)
    code, text = command("shop", "run", str(job), "--once", "--json")
    assert code == 2, text
    assert "permission" in text and folder in text
    hdfs.shell("-chown", "shop", folder)
    code, text = command("shop", "run", str(job), "--once", "--json")
    assert code == 0, text
    for verb in ("status", "verify"):
        code, text = command("guest", verb, str(job))
        assert code == 0, text
    hdfs.shell("-chmod", "700", folder)
    for verb in ("status", "verify"):
        code, text = command("guest", verb, str(job))
        assert code == 2, text
        assert "permission" in text and folder in text
