"""Whatever JSON records look like, the drafted job file is one that `check` accepts, or a `UserError` says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.errors import UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.log import Bounds, Partition
from penstock.peek.draft import job_name, job_text
from penstock.peek.profile import Profile
from penstock.peek.sample import Record, Sample
from penstock.tables.registry import DRAFTS, check_jobs

NAMES = st.sampled_from(
    ["id", "ID", "at", "type", "on", "null", "1", "", "a b", "a.b", "`x`", "ü", 'q"q', "date", "kafka_offset", "key",
     "_delete", "_penstock", "day", "_bucket", "before", "after", "op", "source", "payload", "kafka", "#", "{}",
     "\ud800", "a:b", "~"]
)  # fmt: skip
TEXTS = st.sampled_from(
    ["", "a", "b", "12.50", "1", "2026-03-01", "2026-03-01T10:00:00Z", "# x", "\n", "\ud800", "c", "x" * 99]
)
NUMBERS = st.sampled_from([0, 1, -1, 1.5, 2**70, 1_772_359_200, 1_772_359_200_000, 1e300])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
RECORDS = st.none() | TEXTS.map(lambda text: text.encode(errors="replace")) | st.dictionaries(NAMES, VALUES, max_size=6)
HEADERS = st.lists(
    st.tuples(st.sampled_from(["type", "a)b", "ü"]), st.sampled_from([None, b"a", b"b", b"\xff"])), max_size=2
)


def profile_of(rows: list[tuple[Any, bytes | None, list[tuple[str, bytes | None]]]]) -> Profile:
    records = tuple(
        Record(
            0,
            number,
            1_772_359_200_000 + number,
            key,
            json.dumps(value).encode() if isinstance(value, dict) else value,
            tuple(headers),
        )
        for number, (value, key, headers) in enumerate(rows)
    )
    return Profile(Sample("Some_Topic", {Partition("Some_Topic", "id", 0): Bounds(0, len(records))}, records))


def check(profile: Profile, kind: str, folder: Path) -> None:
    log = KafkaLogSpec("kafka:9092", topics=("Some_Topic",))
    text = job_text(profile, log, log.bootstrap, DRAFTS[kind].draft(profile))
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    [result] = check_jobs([path], {})
    assert not result.faults, text


@pytest.mark.parametrize("kind", DRAFTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(rows=[({"id": 1.5}, None, [])])
@given(
    rows=st.lists(st.tuples(RECORDS, st.sampled_from([None, b"a", b"1", b'{"id": 1}', b"\xff"]), HEADERS), max_size=12)
)
def test_any_records_give_a_job_file_that_check_accepts(kind: str, rows: list[Any], tmp_path: Path) -> None:
    profile = profile_of(rows)
    assert any(draft.suits(profile) for draft in DRAFTS.values())
    try:
        check(profile, kind, tmp_path)
    except UserError:
        return


def test_deeply_nested_records_are_in_a_profile(tmp_path: Path) -> None:
    deep = b'{"a": ' * 900 + b"1" + b"}" * 900
    lists = b'{"a": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    profile = profile_of([(deep, None, []), (lists, None, []), ({"n": 1}, None, [])])
    assert profile.fields["n",].present == 1
    check(profile, "delta", tmp_path)


def test_job_name_is_made_of_the_topic() -> None:
    assert [job_name(topic) for topic in ("web_requests", "Shop.Orders", "_x", "..", "a" * 99)] == [
        "web-requests", "shop.orders", "x", "job", "a" * 64,
    ]  # fmt: skip
