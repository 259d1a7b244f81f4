"""The wire form of coordination records: every released byte is kept, and every bad byte has one answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.claims.protocol.codec import (
    NUMBER_MAX,
    TEXT_CHARACTERS_MAX,
    ForeignError,
    MalformedError,
    UnknownVersionError,
    decode,
    encode,
)
from penstock.claims.protocol.records import (
    Beat,
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    ClosingRanges,
    FinishingRange,
    ForgettingMember,
    GivingUpRange,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    OpeningRanges,
    Presence,
    RangeBeat,
    Record,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    ReturningRange,
    Seeking,
    Who,
)
from penstock.logs.log import Partition
from tests.unit.claims.protocol.any_records import records, texts

GOLDEN = Path(__file__).parents[3] / "golden" / "claims" / "v1"
WEB = Partition("web", "kQ2x", 3)
SAID: dict[str, Any] = {"group": "shop", "who": Who("anna", "5f3a"), "seq": 7}
BEATS = (Beat(WEB, 9, 1000, 25), Beat(Partition("web", "kQ2x", 4), 2))
RANGES = (RangeBeat(Partition("hot", "Zz-1", 0), 500, 77),)

RELEASED: list[Record] = [
    JoiningGroup(**SAID, if_last=41, presence=Presence(4, 1200)),
    LeavingGroup(**SAID),
    ForgettingMember(**SAID, client_id="bert", if_last=12),
    Heartbeat(**SAID, presence=Presence(), beats=BEATS, ranges=RANGES),
    ClaimingPartition(**SAID, partition=WEB, if_token=8, if_last=None, floor=6),
    ReleasingPartition(**SAID, partition=WEB, token=9, position=1000, reason="above the fair share"),
    ClaimingMessages(**SAID, partition=WEB, token=9, end=2000),
    Seeking(**SAID, partition=WEB, if_token=9, position=0, reason="the table was restored"),
    ReleaseGroup(**SAID, pause_id="p-1", until_at=1700000000.5, reason="Wartung über Nacht"),
    ResumingGroup(**SAID, pause_id="p-1"),
    OpeningRanges(**SAID, partition=WEB, token=9, start=1000, at_most_once=True),
    ClaimingRange(**SAID, partition=WEB, token=9, start=1000, end=1500, if_last=None),
    FinishingRange(**SAID, partition=WEB, token=9, start=1000, lease=77),
    ReturningRange(**SAID, partition=WEB, token=9, start=1000, lease=77),
    GivingUpRange(**SAID, partition=WEB, token=9, start=1000, if_last=80),
    ClosingRanges(**SAID, partition=WEB, token=9),
]
CLAIM = RELEASED[4]


def changed(record: Record = CLAIM, /, **content: Any) -> bytes:
    """The bytes of a good record with some of its fields overwritten."""
    return json.dumps({**json.loads(encode(record, 8)), **content}).encode()


# version 1 is what is on disk already


@pytest.mark.parametrize("record", RELEASED, ids=lambda record: type(record).__name__)
def test_version_1_is_written_byte_for_byte(record: Record) -> None:
    assert encode(record, 8) == (GOLDEN / f"{type(record).__name__}.json").read_bytes()


@pytest.mark.parametrize("record", RELEASED, ids=lambda record: type(record).__name__)
def test_version_1_is_still_read(record: Record) -> None:
    assert decode((GOLDEN / f"{type(record).__name__}.json").read_bytes()) == (record, 8)


def test_every_kind_has_a_golden_file() -> None:
    kinds = sorted(kind.__name__ for kind in get_args(Record))
    assert [kind for kind in kinds if not (GOLDEN / f"{kind}.json").is_file()] == []
    assert sorted(type(record).__name__ for record in RELEASED) == kinds


# whatever is said arrives as it was said


@given(records(), st.integers(1, NUMBER_MAX))
def test_a_record_survives_the_wire(record: Record, partitions: int) -> None:
    assert decode(encode(record, partitions)) == (record, partitions)


@given(texts(), texts(), texts())
def test_no_text_runs_into_its_neighbour(client_id: str, nonce: str, topic: str) -> None:
    record = ClaimingMessages(
        group=topic, who=Who(client_id, nonce), seq=1, partition=Partition(topic, nonce, 0), token=1, end=1
    )
    assert decode(encode(record, 1))[0] == record


@pytest.mark.parametrize(
    "text",
    ["a/b", "/", "a\nb", "\x00", "größe-Ω-雪-🚰", "", '"},{"', "\u2028", "x" * TEXT_CHARACTERS_MAX],
    ids=["slash", "only slash", "newline", "nul", "unicode", "empty", "json", "line separator", "longest"],
)
def test_p5_any_text_is_a_client_id_a_group_and_a_topic(text: str) -> None:
    record = ClaimingPartition(
        group=text, who=Who(text, text), seq=1, partition=Partition(text, text, 0), if_token=0, if_last=None
    )
    assert decode(encode(record, 1))[0] == record


# malformed: refused by every reader alike


TOO_LONG = "x" * (TEXT_CHARACTERS_MAX + 1)


@pytest.mark.parametrize("text", [TOO_LONG, "x" * 10_240, "\ud800"], ids=["one over", "10 kB", "lone surrogate"])
def test_p5_an_id_that_cannot_be_is_refused_by_its_reader(text: str) -> None:
    for content in (changed(group=text), changed(who=[text, "n"]), changed(partition=[text, "id", 0])):
        with pytest.raises(MalformedError):
            decode(content)


@pytest.mark.parametrize("text", [TOO_LONG, "\ud800"], ids=["one over", "lone surrogate"])
def test_p5_an_id_that_cannot_be_is_refused_by_its_sender(text: str) -> None:
    with pytest.raises(MalformedError):
        encode(LeavingGroup(group="shop", who=Who(text, "n"), seq=1), 1)


BAD_NUMBERS = [-1, -(2**63), NUMBER_MAX + 1, 2**200, 1.0, 1.5, 1e400, True, False, "1", [1], {}]


@pytest.mark.parametrize("number", BAD_NUMBERS, ids=repr)
@pytest.mark.parametrize("name", ["seq", "if_token", "if_last", "floor", "of"])
def test_p6_a_number_that_cannot_be_is_refused(name: str, number: object) -> None:
    with pytest.raises(MalformedError):
        decode(changed(**{name: number}))


@pytest.mark.parametrize("name", ["seq", "if_token", "floor", "of", "group", "who", "partition"])
def test_p6_what_must_be_there_may_not_be_null(name: str) -> None:
    with pytest.raises(MalformedError):
        decode(changed(**{name: None}))


def test_a_coordination_topic_has_at_least_one_partition() -> None:
    with pytest.raises(MalformedError):
        decode(changed(of=0))


@pytest.mark.parametrize(
    "partition",
    [["web", "id"], ["web", "id", 0, 0], ["web", "id", -1], ["web", "id", 2**31], ["web", "id", True], "web/0", {}],
    ids=repr,
)
def test_p6_a_partition_that_cannot_be_is_refused(partition: object) -> None:
    with pytest.raises(MalformedError):
        decode(changed(partition=partition))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("who", ["anna"]),
        ("who", ["anna", 1]),
        ("presence", [0]),
        ("presence", [-1, 0]),
        ("presence", [None, None]),
        ("presence", [True, 0]),
        ("beats", None),
        ("beats", [["web", "id", 0, 1, None]]),
        ("beats", [["web", "id", 0, -1, None, 0]]),
        ("beats", [["web", "id", 0, 1, -1, 0]]),
        ("beats", [["web", "id", 0, True, 1, 0]]),
        ("beats", {"web": 1}),
        ("ranges", [["web", "id", 0, 1]]),
        ("ranges", [["web", "id", 0, 1, False]]),
        ("ranges", [1]),
    ],
    ids=repr,
)
def test_a_heartbeat_with_a_bad_part_is_refused_as_a_whole(name: str, content: object) -> None:
    with pytest.raises(MalformedError):
        decode(changed(RELEASED[3], **{name: content}))


@pytest.mark.parametrize("flag", [0, 1, "true", None], ids=repr)
def test_a_flag_is_true_or_false(flag: object) -> None:
    with pytest.raises(MalformedError):
        decode(changed(RELEASED[10], at_most_once=flag))


@pytest.mark.parametrize("instant", [True, "tomorrow", 2**53, -(2**53), float("nan"), float("inf")], ids=repr)
def test_an_instant_is_a_bounded_number(instant: object) -> None:
    with pytest.raises(MalformedError):
        decode(changed(RELEASED[8], until_at=instant))


def test_an_unknown_field_of_a_known_version_is_refused() -> None:
    with pytest.raises(MalformedError):
        decode(changed(priority=1))


@pytest.mark.parametrize("record", RELEASED, ids=lambda record: type(record).__name__)
def test_no_field_may_be_missing(record: Record) -> None:
    body = json.loads(encode(record, 8))
    for name in body.keys() - {"penstock", "kind"}:
        with pytest.raises(MalformedError):
            decode(json.dumps({key: body[key] for key in body if key != name}).encode())


# unknown: the reader stops


@pytest.mark.parametrize("version", [0, 2, -1, 2**70, "1", None, True, 1.5, 1.0, [1]], ids=repr)
def test_p6_a_record_of_another_version_stops_the_reader(version: object) -> None:
    with pytest.raises(UnknownVersionError):
        decode(changed(penstock=version))


@pytest.mark.parametrize("kind", ["Claiming", "Record", "_Said", "Presence", "", None, 1, ["Heartbeat"]], ids=repr)
def test_p6_a_record_of_another_kind_stops_the_reader(kind: object) -> None:
    with pytest.raises(UnknownVersionError):
        decode(changed(kind=kind))


def test_a_newer_record_stops_the_reader_even_if_its_fields_are_strange() -> None:
    with pytest.raises(UnknownVersionError):
        decode(b'{"penstock":2}')


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
        b'{"penstock":' + b"9" * 5_000 + b"}",
    ],
    ids=lambda content: repr(content)[:24],
)
def test_p19_bytes_that_are_not_ours_are_told_apart(content: bytes | None) -> None:
    with pytest.raises(ForeignError):
        decode(content)


@pytest.mark.parametrize("record", RELEASED, ids=lambda record: type(record).__name__)
def test_p6_a_truncated_record_is_no_record(record: Record) -> None:
    whole = encode(record, 8)
    for size in range(len(whole)):
        with pytest.raises(ForeignError):
            decode(whole[:size])


@given(st.binary(max_size=64))
def test_no_bytes_end_in_another_error(content: bytes) -> None:
    with pytest.raises((ForeignError, MalformedError, UnknownVersionError)):
        decode(content)
