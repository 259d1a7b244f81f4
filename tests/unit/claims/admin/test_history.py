"""The history of a group: which records are listed, and with which verdicts."""

from __future__ import annotations

import json

from penstock.claims.admin.history import History, JudgedRecord, RecordVerdict
from penstock.claims.protocol.records import (
    ClaimingPartition,
    ClaimRequest,
    Heartbeat,
    JoiningGroup,
    ReleasingPartition,
)
from penstock.claims.protocol.snapshots import Snapshot
from penstock.cli.claims.text import record_json, record_text
from tests.support.coordination import ANNA, BERT, CLEO, WEB, Log, web


def read(log: Log, start: int = 0, *snapshots: Snapshot) -> list[JudgedRecord]:
    """The history of a log from an offset on; record n is appended n seconds after 1000."""
    reader = History(start, snapshots)
    for offset in range(start, len(log.records)):
        reader.read(offset, 1000.0 + offset, log.records[offset])
    assert reader.count == len(log.records) - start
    return reader.records


def snapshot(log: Log) -> Snapshot:
    return Snapshot("topic-id", "shop", 0.0, log.state.copy())


def test_every_record_is_listed_with_its_verdict() -> None:
    log = Log(ANNA, BERT)
    log.claim(ANNA)
    log.append(ClaimingPartition, BERT, requests=(ClaimRequest(WEB, 0),))
    log.release(ANNA, 1, 75, reason="above the fair share")
    records = read(log)
    assert [type(record.record) for record in records[:2]] == [JoiningGroup, JoiningGroup]
    claimed, refused, released = records[2:]
    assert (claimed.offset, claimed.at, claimed.record) == (2, 1002.0, log.records[2])
    assert (claimed.verdict, claimed.reason) == (RecordVerdict.APPLIED, "")
    assert (refused.verdict, refused.reason) == (RecordVerdict.REFUSED, "the partitions changed meanwhile")
    assert (released.verdict, released.record) == (RecordVerdict.APPLIED, log.records[4])


def test_heartbeats_are_listed_only_if_they_are_refused() -> None:
    log = Log(ANNA)
    log.beat(ANNA, 0)
    log.beat(CLEO, 7)
    [joined, refused] = read(log)
    assert isinstance(joined.record, JoiningGroup)
    assert isinstance(refused.record, Heartbeat)
    assert (refused.verdict, refused.reason) == (RecordVerdict.REFUSED, "the sender is not a member")


def test_a_claim_names_the_partitions_that_it_did_not_get() -> None:
    log = Log(ANNA, BERT)
    log.claim(ANNA, web(0))
    log.append(ClaimingPartition, BERT, requests=(ClaimRequest(web(0), 0), ClaimRequest(web(1), 0)))
    last = read(log)[-1]
    assert (last.verdict, last.reason) == (RecordVerdict.APPLIED, f"not granted: {web(0)}")


def test_verdicts_of_a_log_without_its_beginning_begin_with_the_oldest_snapshot() -> None:
    log = Log(ANNA, BERT)
    log.claim(ANNA)
    old = snapshot(log)
    log.release(ANNA, 1, 75)
    newer = snapshot(log)
    log.claim(BERT)
    log.claim(CLEO)
    claimed, released, again, refused = read(log, 2, newer, old)
    assert claimed.verdict is RecordVerdict.UNKNOWN
    assert [released.verdict, again.verdict] == [RecordVerdict.APPLIED, RecordVerdict.APPLIED]
    assert (refused.verdict, refused.reason) == (RecordVerdict.REFUSED, "the sender is not a member")
    assert old.state.claim(WEB).held_by(ANNA), "the snapshot itself is not changed"


def test_without_a_snapshot_no_verdict_is_invented() -> None:
    log = Log(ANNA)
    log.claim(ANNA)
    assert [item.verdict for item in read(log, 1)] == [RecordVerdict.UNKNOWN]


def test_foreign_record_is_reported() -> None:
    reader = History(0)
    reader.read(0, 5.0, None, "not a record of Penstock")
    reader.read(1, 6.0, None)
    assert reader.records == [JudgedRecord(0, 5.0, None, RecordVerdict.FOREIGN, "not a record of Penstock")]
    assert (reader.count, reader.exists) == (2, False)


def test_a_record_is_shown_as_it_is_in_the_log() -> None:
    log = Log(ANNA)
    log.claim(ANNA)
    log.release(ANNA, 1, 75, reason="behind")
    released = read(log)[-1]
    assert isinstance(released.record, ReleasingPartition)
    place = {"topic": WEB.topic, "topic_id": WEB.topic_id, "number": WEB.number}
    assert json.loads(json.dumps(record_json(released))) == {
        "offset": 2,
        "at": "1970-01-01T00:16:42.000Z",
        "verdict": "applied",
        "who": "anna",
        "kind": "ReleasingPartition",
        "record": {
            "beats": [{"partition": place, "token": 1, "position": 75}],
            "reason": "behind",
        },
    }
    text = record_text(released)
    assert text.startswith("1970-01-01T00:16:42.000Z  2  anna  ReleasingPartition  ")
    assert f"beats partition {WEB.topic}/{WEB.number} token 1 position 75, reason behind" in text
    assert text.endswith("applied")


def test_tenures_have_the_owners_of_a_partition_one_after_the_other() -> None:
    log = Log(ANNA, BERT)
    log.claim(ANNA, web(0))
    log.release(ANNA, 1, 75)
    log.claim(BERT, WEB)
    reader = History(0)
    for offset, record in enumerate(log.records):
        reader.read(offset, 1000.0 + offset, record)
    assert [(tenure.owner, tenure.start_at, tenure.end_at) for tenure in reader.tenures] == [
        (ANNA.client_id, 1002.0, 1003.0),
        (BERT.client_id, 1004.0, None),
    ]


def test_a_tenure_that_began_before_the_oldest_snapshot_has_no_start() -> None:
    log = Log(ANNA)
    log.claim(ANNA, web(0))
    before = snapshot(log)
    log.release(ANNA, 1, 75)
    reader = History(2, [before])
    for offset in range(2, len(log.records)):
        reader.read(offset, 1000.0 + offset, log.records[offset])
    [tenure] = reader.tenures
    assert (tenure.owner, tenure.start_at, tenure.end_at) == (ANNA.client_id, None, 1002.0)
