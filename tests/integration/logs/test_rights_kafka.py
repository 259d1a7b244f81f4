"""The Kafka rights in docs/operations.md: each command works with its row, and without one of them names it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.embedded.sample import MetricSample, end_markers, metric_records
from tests.support.guarded import Guarded, guarded_cluster
from tests.support.kafka import Produce, Topics
from tests.support.pages import ROOT
from tests.support.processes import WITH_SPARK, penstock
from tests.support.waiting import wait_until

SECONDS_MAX = 120
METRICS = MetricSample(records=4, hosts=1)
ANY = AclBindingFilter(
    ResourceType.ANY,
    None,  # type: ignore[arg-type]
    ResourcePatternType.ANY,
    None,  # type: ignore[arg-type]
    None,  # type: ignore[arg-type]
    AclOperation.ANY,
    AclPermissionType.ANY,
)
COLUMNS = {
    "Topics": (ResourceType.TOPIC, "TOPIC"),
    "Group": (ResourceType.GROUP, "JOB"),
    "Topics `__penstock*`": (ResourceType.TOPIC, "__penstock*"),
    "Output topic": (ResourceType.TOPIC, "windows"),
    "Transactional ids `penstock/JOB/*`": (ResourceType.TRANSACTIONAL_ID, "penstock/JOB/*"),
}
"""The columns of the table, with the resource that each means."""
COMMANDS = {
    "peek": "peek orders --bootstrap SERVER CLIENT",
    "init": "init orders --yes -o DRAFT --bootstrap SERVER CLIENT",
    "run --dry-run": "run JOB_FILE --dry-run",
    "verify": "verify JOB_FILE",
    "status": "status JOB_FILE",
    "run": "run JOB_FILE --once --json",
    "run in a group": "run JOB_FILE --once --json",
    "run that publishes": "run JOB_FILE --once --json",
    "claims list": "claims list JOB_FILE",
    "claims pause": "claims pause JOB_FILE --for 1h",
    "resume": "claims resume --job JOB_FILE",
    "quarantine": "quarantine replay JOB_FILE",
    "compact": "compact JOB_FILE",
    "vacuum": "vacuum JOB_FILE",
    "load": "load JOB_FILE ROWS",
    "rebuild": "rebuild JOB_FILE",
}
SETTINGS = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
WEB = """\
job: {job}
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [orders], group: {job}, client: {client}}}}}
claims: {{mode: {mode}}}
decode: json
schema: {{id: long, type: string}}
table: {{delta: {{path: {folder}/table}}}}
on: {{bad_share: 1}}
"""
KEYED = """\
job: {job}
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [orders], client: {client}}}}}
decode: json
schema: {{id: long, type: string}}
table: {{keyed: {{path: {folder}/orders, row_keys: [id], buckets: 1}}}}
"""
EXPORT = """\
job: {job}
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [orders], client: {client}}}}}
decode: json
route: {{by: field(type)}}
event_time: kafka.timestamp
types: {{new: {{schema: {{id: long, type: string}}}}}}
table: {{export: {{path: {folder}/export}}}}
"""
ROLLUP = """\
job: {job}
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [metrics], client: {client}}}}}
decode: telegraf
table:
  rollup: {{path: {folder}/windows, windows: [1m], lateness: 0s, publish: {{topic: windows, format: json, buckets: 1}}}}
"""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    column: str
    operation: str

    def binding(self, case: Case) -> AclBinding:
        kind, name = COLUMNS[self.column]
        name = name.replace("TOPIC", case.topic).replace("JOB", case.job)
        pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
        operation, allow = AclOperation[self.operation.upper()], AclPermissionType.ALLOW
        return AclBinding(kind, name.rstrip("*"), pattern, f"User:{case.user}", "*", operation, allow)


@dataclass(frozen=True, slots=True)
class Case:
    """One command of a user of its own, who has these rights."""

    command: str
    rights: tuple[Right, ...]
    missing: Right | None
    user: str

    @property
    def publishes(self) -> bool:
        return self.command == "run that publishes"

    @property
    def topic(self) -> str:
        return "metrics" if self.publishes else "orders"

    @property
    def job(self) -> str:
        own = self.publishes or (self.missing is not None and self.command.startswith("run"))
        return f"shop-{self.user}" if own else "shop"

    def __str__(self) -> str:
        lacking = f"-without-{self.missing.operation}-on-{self.missing.column}" if self.missing else ""
        return f"{self.command}{lacking}".replace("`", "").replace(" ", "-")


def rights_of_page() -> dict[str, tuple[Right, ...]]:
    """The rows of the table, by command."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = re.search(r"^Command \| Topics \|.*\n---.*\n((?:.+\n)+)", page, re.MULTILINE)
    assert table is not None
    rows: dict[str, tuple[Right, ...]] = {}
    for line in table[1].splitlines():
        commands, *cells = (cell.strip() for cell in line.split("|"))
        named = zip(COLUMNS, cells, strict=True)
        rights = tuple(Right(column, item) for column, cell in named for item in re.findall(r"\w+", cell))
        rows |= dict.fromkeys((item.replace("`", "").strip() for item in commands.split(",")), rights)
    return rows


def cases() -> list[Case]:
    """Each command with its rights, and without each of them, in an order in which the first prepares the others."""
    wanted = [
        (command, missing)
        for command, rights in rights_of_page().items()
        for missing in (*rights, None)
        # A process that may not create the topics is one that comes first, so it has a cluster of its own in
        # test_claims_access.py.
        if missing is None or missing.operation != "Create"
    ]
    order = ("run in a group", "run", "run that publishes")
    wanted.sort(key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    rows = rights_of_page()
    return [
        Case(command, tuple(right for right in rows[command] if right != missing), missing, f"user-{number}")
        for number, (command, missing) in enumerate(wanted)
    ]


CASES = cases()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A cluster with the topics, and every right granted to its user."""
    users = {case.user: case.user for case in CASES}
    with guarded_cluster(tmp_path_factory.mktemp("guarded"), users, {}) as running:
        for name in ("orders", "metrics", "windows"):
            Topics(running.bootstrap)(name=name)
        Produce(running.bootstrap)("orders", ['{"id": 1, "type": "new"}', '{"id": 2, "type": "new"}', "no JSON"])
        Produce(running.bootstrap)("metrics", [value for _, value in metric_records(METRICS)])
        Produce(running.bootstrap)("metrics", end_markers(METRICS, 1))
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        bindings = {right.binding(case) for case in CASES for right in case.rights}
        for future in admin.create_acls(list(bindings)).values():
            future.result(SECONDS_MAX)
        wait_until(lambda: len(admin.describe_acls(ANY).result(SECONDS_MAX)) == len(bindings))
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rights")


def arguments(case: Case, cluster: Guarded, folder: Path) -> list[str]:
    client = {**SETTINGS, "sasl.username": case.user, "sasl.password": case.user}
    mode = "group" if "claims" in case.command or case.command in ("run in a group", "resume") else "static"
    template = {"run that publishes": ROLLUP, "load": KEYED, "rebuild": EXPORT}.get(case.command, WEB)
    place = folder / case.job
    job = folder / f"{case.user}.yaml"
    values = {"job": case.job, "bootstrap": cluster.sasl_bootstrap, "client": as_yaml(client), "folder": place}
    job.write_text(template.format(mode=mode, **values), encoding="utf-8")
    rows = folder / "rows.parquet"
    pl.DataFrame({"id": [1, 2], "type": "new"}).write_parquet(rows)
    words = {
        "JOB_FILE": [str(job)],
        "ROWS": [str(rows)],
        "SERVER": [cluster.sasl_bootstrap],
        "DRAFT": [str(folder / f"{case.user}-draft.yaml")],
        "CLIENT": [item for name, value in client.items() for item in ("-X", f"{name}={value}")],
    }
    return [item for word in COMMANDS[case.command].split() for item in words.get(word, [word])]


def as_yaml(client: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in client.items()) + "}"


def outcome(case: Case, cluster: Guarded, folder: Path) -> tuple[int, str]:
    """The exit code and all texts of the command."""
    words = arguments(case, cluster, folder)
    if words[0] in WITH_SPARK and "--dry-run" not in words:
        with penstock(*words) as process:
            return process.exit_code(), f"{process.errors} {process.events_read}"
    done = CliRunner().invoke(app, words)
    return getattr(done.exception, "exit_code", done.exit_code), f"{done.output} {done.exception}"


def lose_job_log(cluster: Guarded, folder: Path) -> None:
    """Let somebody with every right run the export, and delete its log."""
    job = folder / "export.yaml"
    place = folder / "shop"
    if not job.exists():
        values = {"job": "shop", "bootstrap": cluster.bootstrap, "client": "{}", "folder": place}
        job.write_text(EXPORT.format(**values), encoding="utf-8")
        with penstock("run", str(job), "--once", "--json") as process:
            assert process.exit_code() == 0, process.last_words
    shutil.rmtree(place / "export" / "_penstock" / "shop", ignore_errors=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command_works_with_the_rights_of_the_page_and_names_one_that_is_missing(
    case: Case, guarded: Guarded, folder: Path
) -> None:
    if case.command == "rebuild":
        lose_job_log(guarded, folder)
    code, text = outcome(case, guarded, folder)
    if case.missing is None:
        assert code == 0, text
        assert "mirror refused" not in text
        return
    kind, name = COLUMNS[case.missing.column]
    # What the mirror may not write is only reported.
    only_reported = kind == ResourceType.GROUP and case.command.startswith("run")
    assert code == (0 if only_reported else 2), text
    assert re.search(rf"grant [\w, ]*\b{case.missing.operation}\b", text), text
    assert name.replace("TOPIC", case.topic).replace("JOB", case.job).rstrip("*") in text, text
