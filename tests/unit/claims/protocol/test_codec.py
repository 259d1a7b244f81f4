"""The wire form of coordination records: every released byte is kept, and every bad byte has one answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.claims.protocol.codec import (
    VERSION,
    ForeignError,
    MalformedError,
    UnknownVersionError,
    decode,
    encode,
)
from penstock.claims.protocol.records import (
    NUMBER_MAX,
    TEXT_CHARACTERS_MAX,
    BalancingGroup,
    Beat,
    ClaimingMessages,
    ClaimingPartition,
    ClaimRequest,
    ForgettingMember,
    ForgettingPartitions,
    FreeingPartition,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    MemberId,
    Record,
    ReleaseGroup,
    ReleasingPartition,
    RequestedTopic,
    ResumingGroup,
    Seeking,
    requested_topics,
)
from penstock.logs.log import Partition
from tests.unit.claims.protocol.any_records import records, texts

GOLDEN = Path(__file__).parents[3] / "golden" / "claims" / "v2"
GROUP = "shop"
WEB = Partition("web", "kQ2x", 3)
SENDER: dict[str, Any] = {"who": MemberId("anna", "5f3a"), "seq": 7}
BEATS = (Beat(WEB, 9, 1000, 25, 1), Beat(Partition("web", "kQ2x", 4), 2))
TOPICS = (RequestedTopic("hot", "Zz-1", ((0, 1),)), RequestedTopic("web", "kQ2x", ((0, 4), (7, 8))))


RELEASED: list[Record] = [
    JoiningGroup(**SENDER, if_last=41, heartbeat_seconds=2.5, wants=TOPICS),
    LeavingGroup(**SENDER, beats=BEATS),
    ForgettingMember(**SENDER, client_id="bert", if_last=12),
    BalancingGroup(**SENDER, if_changed=40),
    Heartbeat(**SENDER, wants=TOPICS, beats=BEATS),
    ClaimingPartition(
        **SENDER,
        requests=(ClaimRequest(WEB, 8, 6), ClaimRequest(Partition("hot", "Zz-1", 0))),
    ),
    ReleasingPartition(**SENDER, beats=BEATS, reason="above the fair share"),
    ClaimingMessages(**SENDER, partition=WEB, token=9, if_seeks=1, end=2000),
    Seeking(**SENDER, partition=WEB, if_token=9, if_seeks=1, position=60, reason="the log was cut"),
    FreeingPartition(**SENDER, partition=WEB, if_token=9, position=3, reason="released by an administrator"),
    ForgettingPartitions(**SENDER, partitions=(WEB,)),
    ReleaseGroup(**SENDER, pause_id="p-1", for_seconds=90.5, reason="Wartung über Nacht"),
    ResumingGroup(**SENDER, pause_id="p-1"),
]
MESSAGES = next(item for item in RELEASED if isinstance(item, ClaimingMessages))
RELEASE = next(item for item in RELEASED if isinstance(item, ReleasingPartition))
HEARTBEAT = next(item for item in RELEASED if isinstance(item, Heartbeat))
PAUSE = next(item for item in RELEASED if isinstance(item, ReleaseGroup))


def envelope(record: Record = MESSAGES, /, **content: Any) -> bytes:
    """The bytes of a good record with some of the fields around it overwritten."""
    return json.dumps({**json.loads(encode(record, GROUP, 8)), **content}).encode()


def changed(record: Record = MESSAGES, /, **content: Any) -> bytes:
    """The bytes of a good record with some of its own fields overwritten."""
    body = json.loads(encode(record, GROUP, 8))
    return json.dumps({**body, "record": {**body["record"], **content}}).encode()


# version 2 is what is on disk already


@pytest.mark.parametrize("record", RELEASED, ids=lambda record: type(record).__name__)
def test_version_2_is_written_byte_for_byte(record: Record) -> None:
    assert encode(record, GROUP, 8) == (GOLDEN / f"{type(record).__name__}.json").read_bytes()


@pytest.mark.parametrize("record", RELEASED, ids=lambda record: type(record).__name__)
def test_version_2_is_still_read(record: Record) -> None:
    assert decode((GOLDEN / f"{type(record).__name__}.json").read_bytes(), GROUP) == (record, 8)


def test_every_kind_has_a_golden_file() -> None:
    kinds = sorted(kind.__name__ for kind in get_args(Record))
    assert [kind for kind in kinds if not (GOLDEN / f"{kind}.json").is_file()] == []
    assert sorted(type(record).__name__ for record in RELEASED) == kinds


# records survive encoding and decoding unchanged


@given(records(), st.integers(1, NUMBER_MAX))
def test_a_record_survives_the_wire(record: Record, partitions: int) -> None:
    assert decode(encode(record, GROUP, partitions), GROUP) == (record, partitions)


@given(texts(), texts(), texts())
def test_adjacent_texts_are_decoded_separately(client_id: str, nonce: str, topic: str) -> None:
    record = ClaimingMessages(
        who=MemberId(client_id, nonce), seq=1, partition=Partition(topic, nonce, 0), token=1, end=1
    )
    assert decode(encode(record, topic, 1), topic)[0] == record


@pytest.mark.parametrize(
    "text",
    ["a/b", "/", "a\nb", "\x00", "größe-Ω-雪-🚰", "", '"},{"', "\u2028", "x" * TEXT_CHARACTERS_MAX],
    ids=["slash", "only slash", "newline", "nul", "unicode", "empty", "json", "line separator", "longest"],
)
def test_p5_any_text_is_a_client_id_a_group_and_a_topic(text: str) -> None:
    record = ClaimingPartition(who=MemberId(text, text), seq=1, requests=(ClaimRequest(Partition(text, text, 0)),))
    assert decode(encode(record, text, 1), text)[0] == record


def test_requested_spans_are_independent_of_order() -> None:
    numbers = [7, 0, 2, 1, 3, 2]
    assert requested_topics(Partition("web", "kQ2x", number) for number in numbers) == (
        RequestedTopic("web", "kQ2x", ((0, 4), (7, 8))),
    )


# malformed: refused by every reader alike


TOO_LONG = "x" * (TEXT_CHARACTERS_MAX + 1)
NOWHERE = {"topic": "web", "topic_id": "id", "number": 0}


def refused(content: bytes) -> bool:
    with pytest.raises(MalformedError):
        decode(content, GROUP)
    return True


@pytest.mark.parametrize("text", [TOO_LONG, "x" * 10_240], ids=["one over", "10 kB"])
def test_p5_an_invalid_id_is_refused_by_its_reader(text: str) -> None:
    assert refused(envelope(group=text))
    assert refused(changed(who=[text, "n"]))
    assert refused(changed(partition={**NOWHERE, "topic": text}))


@pytest.mark.parametrize("text", [TOO_LONG, "\ud800"], ids=["one over", "lone surrogate"])
def test_p5_an_invalid_id_is_refused_by_its_sender(text: str) -> None:
    with pytest.raises(MalformedError):
        encode(LeavingGroup(who=MemberId(text, "n"), seq=1), GROUP, 1)


BAD_NUMBERS = [-1, -(2**63), NUMBER_MAX + 1, 2**200, 1.0, 1.5, True, False, "1", [1], {}]


@pytest.mark.parametrize("number", BAD_NUMBERS, ids=repr)
@pytest.mark.parametrize("name", ["seq", "token", "end"])
def test_p6_an_invalid_number_is_refused(name: str, number: object) -> None:
    assert refused(changed(**{name: number}))
    assert refused(envelope(of=number))


@pytest.mark.parametrize("name", ["seq", "token", "end", "who", "partition"])
def test_p6_a_required_field_may_not_be_null(name: str) -> None:
    assert refused(changed(**{name: None}))


def test_a_coordination_topic_has_at_least_one_partition() -> None:
    assert refused(envelope(of=0))


def test_a_record_under_the_key_of_another_group_is_refused() -> None:
    assert refused(envelope(group="kitchen"))


@pytest.mark.parametrize(
    "partition",
    [{}, "web/0", ["web", "id", 0], *({**NOWHERE, "number": number} for number in (-1, 2**31, True, "0"))],
    ids=repr,
)
def test_p6_an_invalid_partition_is_refused(partition: object) -> None:
    assert refused(changed(partition=partition))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("who", ["anna"]),
        ("who", ["anna", 1]),
        ("who", ["anna", "n", "more"]),
        ("presence", {}),
        ("beats", None),
        ("beats", [{"partition": NOWHERE}]),
        ("beats", [{"partition": NOWHERE, "token": -1}]),
        ("beats", [{"partition": {**NOWHERE, "number": -1}, "token": 1}]),
        ("beats", {"web": 1}),
        ("wants", [["web", "id", [[0, 1]]]]),
        ("wants", [{"topic": "web", "topic_id": "id", "spans": [[0]]}]),
    ],
    ids=repr,
)
def test_a_heartbeat_with_a_bad_part_is_refused_as_a_whole(name: str, content: object) -> None:
    assert refused(changed(HEARTBEAT, **{name: content}))


@pytest.mark.parametrize("seconds", [True, "tomorrow", 2**53, 0, -1.5], ids=repr)
def test_an_invalid_time_is_refused(seconds: object) -> None:
    assert refused(changed(PAUSE, for_seconds=seconds))


def test_an_unknown_field_of_a_known_version_is_refused() -> None:
    assert refused(changed(priority=1))
    assert refused(envelope(priority=1))


def test_no_field_without_a_default_may_be_missing() -> None:
    body = json.loads(encode(MESSAGES, GROUP, 8))
    for name in ("who", "seq", "partition", "token", "end"):
        record = {key: content for key, content in body["record"].items() if key != name}
        assert refused(json.dumps({**body, "record": record}).encode())


# unknown: the readers of the group stop


@pytest.mark.parametrize("version", [0, 1, 3, -1, 2**70, "2", None, True, 2.5, 2.0, [2]], ids=repr)
def test_p6_a_record_of_another_version_stops_the_reader_and_is_named(version: object) -> None:
    with pytest.raises(UnknownVersionError) as stopped:
        decode(envelope(penstock=version), GROUP)
    assert GROUP in stopped.value.primary
    assert f"version {VERSION}" in stopped.value.primary


@pytest.mark.parametrize("kind", ["Claiming", "Record", "Presence", "", None, 1, ["Heartbeat"]], ids=repr)
def test_p6_a_record_of_another_kind_stops_the_reader(kind: object) -> None:
    with pytest.raises(UnknownVersionError):
        decode(changed(kind=kind), GROUP)


def test_a_newer_record_stops_the_reader_even_if_its_fields_are_strange() -> None:
    with pytest.raises(UnknownVersionError):
        decode(b'{"penstock":3}', GROUP)


def test_a_member_that_reads_a_version_1_record_stops_with_a_hint_to_use_another_topic() -> None:
    """It has no key, and one group lies in many partitions: of which group this one is does not matter."""
    for group in (GROUP, "kitchen"):
        old = json.dumps({"penstock": 1, "kind": "Heartbeat", "of": 8, "group": group}).encode()
        with pytest.raises(UnknownVersionError) as stopped:
            decode(old, GROUP)
        assert "claims.topic" in stopped.value.hint
    with pytest.raises(UnknownVersionError) as stopped:
        decode(b'{"penstock":3}', GROUP)
    assert "newest version" in stopped.value.hint


# foreign: skipped by every version alike


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"banana",
        b"Heartbeat/1/2/3",
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b"1",
        b'"penstock"',
        b"{}",
        b'{"kind":"Heartbeat"}',
        b"[" * 100_000,
        changed(who=["\ud800", "n"]),
    ],
    ids=lambda content: repr(content)[:24],
)
def test_p19_foreign_bytes_are_distinguished(content: bytes | None) -> None:
    with pytest.raises(ForeignError):
        decode(content, GROUP)


@pytest.mark.parametrize("record", RELEASED, ids=lambda record: type(record).__name__)
def test_p6_a_truncated_record_is_ignored(record: Record) -> None:
    whole = encode(record, GROUP, 8)
    for size in range(len(whole)):
        with pytest.raises(ForeignError):
            decode(whole[:size], GROUP)


@given(st.binary(max_size=64))
def test_any_bytes_raise_one_of_the_three_decode_errors(content: bytes) -> None:
    with pytest.raises((ForeignError, MalformedError, UnknownVersionError)):
        decode(content, GROUP)
