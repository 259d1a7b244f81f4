"""The pages of the console, by a client without JavaScript."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.console.history import Point
from penstock.console.job_text import without_secret_values
from penstock.console.poller import read_job
from penstock.console.state import WatchedJob, job_files, watched_files
from penstock.errors import UserError
from penstock.logs.log import Partition
from penstock.reporting.model import Alert, AlertKind
from penstock.reporting.verdicts import Judgement, Verdict
from tests.support.console import console, fleet, state_of, watched
from tests.support.small_table import Load, SmallTable, small_job

SCRIPT = '<script>alert("1")</script>\'"><img src=x onerror=alert(1)>'
IMAGE = "<img src=x onerror=alert(1)>"
JOB = """\
job: web
log: {kafka: {bootstrap: "127.0.0.1:1", topics: [web], client: {sasl.password: hunter2}}}
decode: json
schema: {id: long}
table: {delta: {path: %s}}
"""


def test_the_overview_has_a_row_per_job_with_those_that_need_attention_on_top(tmp_path: Path) -> None:
    stopped = watched(tmp_path, "zebra", judgement=Judgement(Verdict.STOP, "records wait for 2h"))
    with console(tmp_path, watched(tmp_path, "orders"), watched(tmp_path, "clicks"), stopped) as client:
        page = client.get("/").text
        assert page.count('<th scope="row"') == 3
        places = [
            page.index(text) for text in ("Needs attention", ">zebra<", "records wait for 2h", "All well", ">clicks<")
        ]
        assert places == sorted(places)
        assert client.get("/jobs/clicks").status_code == 200
        assert client.get("/jobs/nothing").status_code == 404


def test_a_job_page_shows_its_pipe_partitions_commits_and_history(tmp_path: Path) -> None:
    job = watched(tmp_path, lags=(7, 0))
    with console(tmp_path, job) as client:
        history = state_of(client).history
        now = int(job.read_at or 0)
        for age in (45, 30, 15, 0):
            history.observe("orders", {"": Point(now - age, 7 + age, 1, 1000 - 10 * age)})
        assert job.status is not None
        history.add_commits("orders", ((it.version, it.at.timestamp(), it.as_json()) for it in job.status.commits))
        page = client.get("/jobs/orders").text
        for text in (
            "Plan",
            "21ms",
            "read 420ms, decode 310ms, write 550ms",
            "orders/0",
            "1,000,007",
            "83,300",
            ">52<",
            ">10<",
        ):
            assert text in page
        assert "<title>Lag, records: now 7, at least 7, at most 52</title>" in page
        for query in (
            "range=7d",
            "range=x",
            "page=-1",
            "page=9999999999999",
            "order=lag",
            "order=x",
            "q=%00",
            "lagging=1",
        ):
            assert client.get(f"/jobs/orders?{query}").status_code == 200


def test_of_a_thousand_partitions_one_page_is_shown_which_a_filter_narrows(tmp_path: Path) -> None:
    with console(tmp_path, watched(tmp_path, lags=range(1000))) as client:
        page = client.get("/jobs/orders").text
        assert page.count('<th scope="row">orders/') == 50 and "page 1 of 20" in page
        assert "orders/950" in client.get("/jobs/orders?page=20").text
        assert client.get("/jobs/orders?order=lag").text.index("orders/999") > 0
        page = client.get("/jobs/orders?q=orders/99&page=4").text
        assert page.count('<th scope="row">orders/') == 11 and "11 of 1000 partitions" in page
        assert "999 of 1000 partitions" in client.get("/jobs/orders?lagging=1").text


def test_every_page_answers_for_every_kind_of_table(tmp_path: Path) -> None:
    with console(tmp_path) as client:
        state = state_of(client)
        state.jobs.update({job.name: job for job in fleet(tmp_path, state.history)})
        for name in state.jobs:
            for path in ("", "/settings", "/table"):
                assert client.get(f"/jobs/{name}{path}").status_code == 200
        assert "records wait" in client.get("/activity").text


def test_script_in_any_name_or_text_is_shown_as_text(tmp_path: Path) -> None:
    hostile = watched(
        tmp_path, IMAGE, topic=SCRIPT, alerts=(Alert(AlertKind.LAG, SCRIPT),), judgement=Judgement(Verdict.ERR, SCRIPT)
    )
    hostile.text, hostile.owners = SCRIPT, {f"{SCRIPT}/0": SCRIPT}
    broken = replace(hostile, name="broken", error=SCRIPT, status=None)
    with console(tmp_path, hostile, broken) as client:
        state_of(client).record_action(SCRIPT, SCRIPT, SCRIPT, SCRIPT)
        paths = ["/", "/activity", "/jobs/broken", "/jobs/broken/settings", f"/jobs/{IMAGE}", f"/jobs/{IMAGE}/settings"]
        paths.append(f"/jobs/{IMAGE}?q={SCRIPT}&order={SCRIPT}&range={SCRIPT}")
        pages = [client.get(path).text for path in paths]
        for page in pages:
            assert "<script>" not in page and "<img src=x" not in page
        assert html.escape(SCRIPT, quote=False).split('"')[0] in pages[0]


def test_secrets_of_a_job_file_are_on_no_page(tmp_path: Path) -> None:
    text = """\
job: web # password: hunter2
log:
  kafka:
    bootstrap: "user:hunter2@broker:9092"
    client: {sasl.username: me, sasl.password: hunter2, ssl.key.pem: hunter2, sasl.oauthbearer.client.secret: 'hunter2',
      sasl.jaas.config: "x password=hunter2;"}
  wal: {url: "https://me:hunter2@wal:1", token: &token hunter2}
table:
  delta:
    path: x
    storage: {account_key: "${env:KEY}", sas_token: {nested: [hunter2]}}
    options:
      AWS_SECRET_ACCESS_KEY: >
        hunter2
        hunter2
other: *token
"""
    shown = without_secret_values(text)
    assert "hunter2" not in shown
    for kept in ("job: web", "sasl.username: me", "${env:KEY}", "path: x"):
        assert kept in shown
    assert without_secret_values("a: [hunter2") == ""


def test_a_job_whose_file_disappears_is_shown_with_the_reason_and_recovers(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    text = JOB % (tmp_path / "table")
    path.write_text(text)
    jobs = watched_files(job_files(tmp_path))
    with console(tmp_path, *jobs.values()) as client:
        state, job = state_of(client), jobs["web"]
        assert "being read for the first time" in client.get("/jobs/web").text
        read_job(job, state)
        assert "not started" in client.get("/jobs/web").text
        assert "sasl.password: ******" in client.get("/jobs/web/settings").text
        path.unlink()
        read_job(job, state)
        assert f"the job file {path} cannot be read" in client.get("/").text
        assert "What follows is from" in client.get("/jobs/web").text
        path.write_text(text.replace("schema", "shema"))
        read_job(job, state)
        assert "shema" in client.get("/jobs/web").text
        path.write_text(text + "\n")
        read_job(job, state)
        assert job.error == "" and client.get("/jobs/web").status_code == 200
        assert [note.text for note in state.history.notes("verdict", "web")] == ["STOP", "ERR", "STOP"]


def test_the_table_page_shows_columns_with_their_changes_and_file_sizes(tmp_path: Path) -> None:
    table = SmallTable(small_job("127.0.0.1:1", "orders", tmp_path))
    table.start(Partition("orders", "id", 0))
    table.commit(Partition("orders", "id", 0), Load(0, 3, [0, 1, 2]))
    job = WatchedJob("orders", None, table.job)
    with console(tmp_path, job) as client:
        page = client.get("/jobs/orders/table").text
        for text in (
            '<th scope="row">id</th><td><code>int64</code>',
            "create table",
            "below 1.0 KiB",
            "<strong>3</strong>",
        ):
            assert text in page
        assert client.get("/jobs/orders/table?table=../../etc").status_code == 200


def test_a_history_that_cannot_be_written_ends_no_reading(tmp_path: Path) -> None:
    job = WatchedJob("orders", None, small_job("127.0.0.1:1", "orders", tmp_path))
    with console(tmp_path, job) as client:
        state = state_of(client)
        state.history.close()
        read_job(job, state)
        assert "ProgrammingError" in job.error and job.status is not None


def test_two_files_with_one_job_name_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(JOB.replace("web", "'../web'", 1) % tmp_path)
    (tmp_path / "other.yaml").write_text("services: {}")
    assert [path.name for path in job_files(tmp_path)] == ["a.yaml", "b.yaml"]
    assert list(watched_files([tmp_path / "a.yaml"])) == [".._web"]
    for paths in (job_files(tmp_path), [tmp_path / "missing.yaml"]):
        with pytest.raises(UserError):
            watched_files(paths)
