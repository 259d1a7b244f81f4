"""The page of a quarantine, over real tables without Spark."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from starlette.testclient import TestClient

from penstock.console.access import Access
from penstock.console.children import Children
from penstock.console.quarantined import literal_part
from penstock.console.state import WatchedJob
from penstock.logs.log import Partition
from tests.support.console import console, csrf_of, state_of, watched
from tests.support.small_table import Load, SmallTable
from tests.support.waiting import wait_until

PLACE = Partition("orders", "topic-id", 0)
SCRIPT = b'{"id": "<script>alert(1)</script>"}'
HOSTILE: dict[int, tuple[bytes | None, str]] = {
    0: (SCRIPT, 'id: expected long, found string "<script>alert(1)</script>"'),
    1: (b'{"id": 1, "extra": "x"}', "extra: is not a column"),
    2: (b"\xff\x00\x1b[31m", "value is not UTF-8 at byte 0"),
    3: (b'{"id": "' + b"9" * 10_000_000 + b'"}', 'id: expected long, found string "9…'),
}
URL = "/jobs/orders/quarantine"


def job_with_quarantine(folder: Path, contents: dict[int, tuple[bytes | None, str]]) -> WatchedJob:
    job = watched(folder)
    assert job.spec is not None
    table = SmallTable(job.spec)
    table.start(PLACE)
    table.commit(PLACE, Load(0, len(contents), (), [*contents], contents=contents))
    return job


def operated(client: TestClient, path: str, **fields: str) -> int:
    csrf = csrf_of(client.get(URL).text)
    return client.post(path, data={"csrf": csrf, "confirmed": "yes", **fields}, follow_redirects=False).status_code


def test_reasons_are_counted_and_choose_the_records_that_are_shown(tmp_path: Path) -> None:
    contents: dict[int, tuple[bytes | None, str]] = {30: (b"", "value is empty")}
    contents |= {n: (b'{"id": "x"}', f'id: expected long, found string "{n}"') for n in range(30)}
    job = job_with_quarantine(tmp_path, contents)
    with console(tmp_path, job, access=Access(operate_locally=True)) as client:
        page = client.get(URL).text
        assert "31 in quarantine" in page
        assert "page 1 of 2" in page
        assert page.count('class="reason"') == 20
        chosen = client.get(URL, params={"kind": "value is empty"}).text
        assert chosen.count('class="reason"') == 1
        assert client.get(URL, params={"page": "1"}).text.count('class="reason"') == 11
        assert client.get(URL, params={"page": "-1' or 1"}).status_code == 200


def test_hostile_records_are_text_and_the_page_stays_small(tmp_path: Path) -> None:
    with console(tmp_path, job_with_quarantine(tmp_path, HOSTILE), access=Access(operate_locally=True)) as client:
        page = client.get(URL).text
        assert len(page) < 40_000
        assert "<script>alert" not in page
        assert "<mark>&#34;id&#34;: &#34;&lt;script&gt;alert(1)&lt;/script&gt;&#34;</mark>" in page
        assert "9.5 MiB" in page
        assert "\x1b" not in page
        whole = client.get(f"{URL}/orders/0/3").text
        assert "The beginning of 9.5 MiB is shown" in whole
        assert len(whole) < 100_000
        assert client.get(f"{URL}/orders/0/99").status_code == 404
        assert client.get(f"{URL}/..%2f..%2fetc/0/0").status_code == 404


def test_who_only_reads_sees_kinds_of_errors_but_nothing_of_records(tmp_path: Path) -> None:
    with console(tmp_path, job_with_quarantine(tmp_path, HOSTILE)) as client:
        page = client.get(URL).text
        assert "id: expected long, found string" in page
        assert "alert(1)" not in page
        assert "extra" in page
        assert "<form" not in page
        for path in (f"{URL}/orders/0/0", f"{URL}/preview"):
            assert client.get(path).status_code == 403


def test_a_preview_states_what_would_fit_now_and_why_the_others_would_not(tmp_path: Path) -> None:
    job = job_with_quarantine(tmp_path, HOSTILE)
    assert job.spec is not None
    schema = pa.schema([("id", pa.int64()), ("extra", pa.string())])
    job.spec = replace(job.spec, schema=schema, on=replace(job.spec.on, new_column="add"))
    with console(tmp_path, job, access=Access(operate_locally=True)) as client:
        page = client.get(f"{URL}/preview").text
        assert "4 records, the only ones" in page
        assert "<span>fit now</span><strong>1</strong>" in page
        assert "<span>still do not fit</span><strong>3</strong>" in page
        assert "orders/0 offset 2: value is not UTF-8" in page
        chosen = client.get(f"{URL}/preview", params={"contains": "is not a column"}).text
        assert "<span>fit now</span><strong>1</strong>" in chosen
        assert "<span>still do not fit</span><strong>0</strong>" in chosen
        assert "No quarantined record matches" in client.get(f"{URL}/preview?contains=%00nothing").text


def test_a_replay_runs_as_a_process_of_its_own_and_its_result_stays(tmp_path: Path) -> None:
    job = job_with_quarantine(tmp_path, HOSTILE)
    job.path = tmp_path / "job.yaml"
    code = "import json, sys; print(json.dumps(dict(replayed=3, still_bad=1, filtered=0, left_to_log=0, remaining=1)))"
    with console(tmp_path, job, access=Access(operate_locally=True)) as client:
        state = state_of(client)
        state.children = Children((sys.executable, "-c", code))
        assert operated(client, f"{URL}/replay", contains="is not") == 303
        child = state.children.of("replay", "orders")
        assert child is not None
        arguments = ["quarantine", "replay", str(job.path), "--json", "--where-error=is not"]
        assert child.arguments == arguments
        wait_until(lambda: bool(state.history.notes("replay", "orders")))
        page = client.get(URL).text
        assert "<strong>3</strong> replayed, 1 still do not fit; 1 remain." in page


def test_discard_needs_the_name_of_the_job(tmp_path: Path) -> None:
    with console(tmp_path, job_with_quarantine(tmp_path, HOSTILE), access=Access(operate_locally=True)) as client:
        assert operated(client, f"{URL}/discard", typed="order") == 422
        assert "4 in quarantine" in client.get(URL).text
        assert operated(client, f"{URL}/discard", typed="orders") == 303
        assert "0 in quarantine" in client.get(URL).text


def test_a_table_that_is_away_is_a_text_on_the_page(tmp_path: Path) -> None:
    job = job_with_quarantine(tmp_path, HOSTILE)
    (tmp_path / "orders" / "_delta_log" / "00000000000000000001.json").write_text("{")
    with console(tmp_path, job) as client:
        answer = client.get(URL)
        assert answer.status_code == 200
        assert 'role="alert"' in answer.text


def test_the_text_that_selects_a_kind_is_in_every_error_of_it() -> None:
    assert literal_part('id: expected long, found string "…"') == "id: expected long, found string"
    assert literal_part("not JSON at character N: Expecting value") == "not JSON at character"
