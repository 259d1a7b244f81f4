"""The timeline of claims as geometry, and changes as sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.claims.admin.history import JudgedRecord, RecordVerdict, Tenure
from penstock.claims.protocol.records import ClaimingPartition, ClaimRequest, ForgettingMember, MemberId, ReleaseGroup
from penstock.console.access import Access
from penstock.console.pages.claims import LEFT, ROWS_MAX, WIDTH, event_of, owners_before, timeline_of
from penstock.job.spec import ClaimsSpec
from penstock.logs.log import Partition
from tests.support.console import console, watched

ANNA = MemberId("anna", "1")


def place(number: int) -> Partition:
    return Partition("orders", "id", number)


def test_bars_span_the_times_in_which_a_member_held_a_partition() -> None:
    tenures = [
        Tenure(place(0), "anna", 1, None, 50.0),
        Tenure(place(0), "bert", 2, 50.0, None),
        Tenure(place(1), "bert", 1, 75.0, None),
    ]
    timeline = timeline_of(tenures, 0.0, 100.0)
    assert [(name, len(bars)) for name, bars in timeline.rows] == [("orders/0", 2), ("orders/1", 1)]
    [first, second], [third] = (bars for _, bars in timeline.rows)
    half = (WIDTH - LEFT) / 2
    assert [(bar.x, bar.width) for bar in (first, second, third)] == [
        (LEFT, half),
        (LEFT + half, half),
        (LEFT + 1.5 * half, half / 2),
    ]
    assert second.colour == third.colour != first.colour
    assert first.title == "orders/0: anna, token 1, before to 01-01 00:00:50"


def test_a_thousand_partitions_are_drawn_up_to_a_bound() -> None:
    timeline = timeline_of([Tenure(place(n), "anna", 1, 0.0) for n in range(1000)], 0.0, 1.0)
    assert (len(timeline.rows), timeline.hidden) == (ROWS_MAX, 1000 - ROWS_MAX)


def test_changes_are_sentences_and_refusals_are_named() -> None:
    gone = JudgedRecord(1, 5.0, ForgettingMember(who=ANNA, seq=1, client_id="bert", if_last=0), RecordVerdict.APPLIED)
    paused = ReleaseGroup(who=ANNA, seq=2, pause_id="p", for_seconds=60.0, reason="deploy")
    refused = JudgedRecord(2, 6.0, paused, RecordVerdict.REFUSED, "it is paused")
    assert [event and (event.kind, event.text) for event in map(event_of, (gone, refused))] == [
        ("gone", "anna declared bert gone"),
        ("pause", "anna paused the group for 60 s: deploy (refused: it is paused)"),
    ]


def test_a_claim_after_another_member_is_a_takeover() -> None:
    before = owners_before([Tenure(place(0), "bert", 1, 1.0, 2.0), Tenure(place(0), "anna", 2, 3.0)])
    claim = ClaimingPartition(who=ANNA, seq=1, requests=(ClaimRequest(place(0), 1), ClaimRequest(place(1), 0)))
    event = event_of(JudgedRecord(1, 3.0, claim, RecordVerdict.APPLIED), before)
    assert event is not None
    assert (event.kind, event.text) == ("takeover", "anna claimed orders/0, orders/1, held by bert before")


def test_a_job_without_a_group_is_explained(tmp_path: Path) -> None:
    with console(tmp_path, watched(tmp_path), access=Access(operate_locally=True)) as client:
        page = client.get("/jobs/orders/claims")
        assert page.status_code == 200
        assert "A single process reads every partition" in page.text


def test_a_broker_that_is_away_is_a_text_on_the_page_at_once(tmp_path: Path) -> None:
    job = watched(tmp_path)
    assert job.spec is not None
    assert job.status is not None
    job.spec = replace(job.spec, claims=ClaimsSpec())
    job.status = replace(job.status, log_error="Kafka at 127.0.0.1:1 <b>does not answer")
    with console(tmp_path, job) as client:
        for page in ("claims", "explorer"):
            answer = client.get(f"/jobs/orders/{page}")
            assert answer.status_code == 200
            assert "Kafka at 127.0.0.1:1 &lt;b&gt;does not answer" in answer.text
