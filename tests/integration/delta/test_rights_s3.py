"""The rights on S3 in docs/operations.md: each command works with its row, and without one of them names it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import polars as pl
import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.storage import open_storage
from tests.support.kafka import Produce, Topics
from tests.support.lake import BUCKET, s3_server
from tests.support.pages import ROOT
from tests.support.processes import WITH_SPARK, penstock

ACTIONS = {"List": "ListBucket", "Read": "GetObject", "Write": "PutObject", "Delete": "DeleteObject"}
COMMANDS = {
    "run": "run JOB_FILE --once --json",
    "status": "status JOB_FILE",
    "verify": "verify JOB_FILE",
    "compact": "compact JOB_FILE",
    "vacuum": "vacuum JOB_FILE",
    "load": "load JOB_FILE ROWS",
    "run of an export": "run JOB_FILE --once --json",
    "rebuild": "rebuild JOB_FILE",
}
"""In an order in which the first prepare the others."""
HEAD = """\
job: {job}
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}}}
decode: json
"""
DELTA = """schema: {{id: long}}
table: {{delta: {{path: "s3://{bucket}/{job}", storage: {storage}}}}}
"""
EXPORT = """route: {{by: field(type)}}
event_time: at
types: {{a: {{schema: {{id: long, type: string, at: string}}}}}}
table: {{export: {{path: "s3://{bucket}/{job}", storage: {storage}}}}}
limits: {{transient_retries: 1}}
"""
KEYED = """schema: {{id: long}}
table: {{keyed: {{path: "s3://{bucket}/{job}", storage: {storage}, row_keys: [id], buckets: 1}}}}
"""
TEMPLATES = {"load": KEYED, "run of an export": EXPORT, "rebuild": EXPORT}


def policy(actions: list[str], resources: list[str]) -> str:
    statement = {"Effect": "Allow", "Action": actions, "Resource": resources}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


ADMIN, ALL_RIGHTS = "admin", policy(["s3:*"], ["*"])


@dataclass(frozen=True, slots=True)
class Case:
    """One command of a user of its own, who has these rights."""

    command: str
    rights: frozenset[str]
    missing: str | None
    user: str

    @property
    def job(self) -> str:
        if self.missing is not None and self.command.startswith(("run", "load")):
            return self.user
        return {KEYED: "devices", EXPORT: "export"}.get(TEMPLATES.get(self.command, DELTA), "orders")

    def policy(self) -> str:
        actions = [f"s3:{ACTIONS[right]}" for right in sorted(self.rights)]
        # Moto asks for the right to delete in bulk on the bucket itself.
        folders = [self.job, f"{self.job}_tombstones"] if self.command == "load" else [self.job]
        return policy(actions, [f"arn:aws:s3:::{BUCKET}", *(f"arn:aws:s3:::{BUCKET}/{folder}/*" for folder in folders)])

    def __str__(self) -> str:
        return self.command.replace(" ", "-") + (f"-without-{self.missing}" if self.missing else "")


def cases() -> list[Case]:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = re.search(r"^Command \| List \|.*\n---.*\n((?:.+\n)+)", page, re.MULTILINE)
    assert table is not None
    rows: dict[str, frozenset[str]] = {}
    for line in table[1].splitlines():
        commands, *cells = (cell.strip() for cell in line.split("|"))
        rights = frozenset(right for right, cell in zip(ACTIONS, cells, strict=True) if cell == "yes")
        rows |= dict.fromkeys((item.replace("`", "").strip() for item in commands.split(",")), rights)
    assert rows.keys() == COMMANDS.keys()
    # Exports are not denied what deltas are: that would be the same test again.
    denied = {command: rows[command] if command != "run of an export" else {"Delete"} for command in rows}
    wanted = [(command, missing) for command in COMMANDS for missing in (*sorted(denied[command]), None)]
    return [
        Case(command, rows[command] - {missing or ""}, missing, f"user-{number}")
        for number, (command, missing) in enumerate(wanted)
    ]


CASES = cases()


@pytest.fixture(scope="module")
def keys() -> Iterator[dict[str, dict[str, str]]]:
    """The storage options of each user, on a server that enforces their policies."""
    with s3_server() as options:
        iam: Any = boto3.client(
            "iam",
            endpoint_url=options["aws_endpoint_url"],
            aws_access_key_id="id",
            aws_secret_access_key="key",
            region_name="us-east-1",
        )
        result: dict[str, dict[str, str]] = {}
        for user, policy in {ADMIN: ALL_RIGHTS, **{case.user: case.policy() for case in CASES}}.items():
            iam.create_user(UserName=user)
            iam.put_user_policy(UserName=user, PolicyName="rights", PolicyDocument=policy)
            key = iam.create_access_key(UserName=user)["AccessKey"]
            own = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
            result[user] = {**options, **own, "max_retries": "1"}
        # From now on.
        headers = {"Content-Type": "text/plain"}
        urlopen(Request(f"{options['aws_endpoint_url']}/moto-api/reset-auth", b"0", headers)).close()
        yield result


@pytest.fixture(scope="module")
def orders(topic: Topics, produce: Produce) -> str:
    name = topic(2)
    for partition in range(2):
        # A file of each partition, so that there is something to compact.
        produce(name, ['{"id": 1, "type": "a", "at": "2026-01-01T00:00:00Z"}'], partition=partition)
    return name


def lose_logs(options: dict[str, str]) -> None:
    """Delete the logs of the export."""
    storage = open_storage(f"s3://{BUCKET}/export", options)
    for entry in storage.list("_penstock"):
        storage.delete(entry.path)


def outcome(case: Case, folder: Path, bootstrap: str, topic: str, storage: dict[str, str]) -> tuple[int, str]:
    """The exit code and all texts of the command."""
    job = folder / "job.yaml"
    template = HEAD + TEMPLATES.get(case.command, DELTA)
    values = {"job": case.job, "bootstrap": bootstrap, "topic": topic, "bucket": BUCKET}
    job.write_text(template.format(storage=json.dumps(storage), **values), encoding="utf-8")
    rows = folder / "rows.parquet"
    pl.DataFrame({"id": [1, 2]}).write_parquet(rows)
    words = COMMANDS[case.command].replace("JOB_FILE", str(job)).replace("ROWS", str(rows)).split()
    if words[0] in WITH_SPARK:
        with penstock(*words) as process:
            return process.exit_code(), f"{process.errors} {process.events_read}"
    done = CliRunner().invoke(app, words)
    return getattr(done.exception, "exit_code", done.exit_code), f"{done.output} {done.exception}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command_works_with_the_rights_of_the_page_and_names_one_that_is_missing(
    case: Case, tmp_path: Path, bootstrap: str, orders: str, keys: dict[str, dict[str, str]]
) -> None:
    if case.command == "rebuild":
        lose_logs(keys[ADMIN])
    code, text = outcome(case, tmp_path, bootstrap, orders, keys[case.user])
    if case.missing is None:
        assert code == 0, text
    else:
        # Of an export the other types go on, and this one is tried again.
        assert code == (75 if case.command == "run of an export" else 2), text
        assert f"s3:{ACTIONS[case.missing]}" in text, text
