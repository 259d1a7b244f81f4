"""A batch with too many bad records stops the job; the error uses the terms of the job file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.flow.decode.decoder import decoder_for
from penstock.flow.write.manifest import Counts, Reason
from penstock.flow.write.quarantine import KINDS_MAX, OTHER_KIND, error_kinds, merged_reasons, reasons_of
from penstock.flow.write.report import TaskReport
from penstock.job.schema import job_type_name, parse_type
from penstock.job.spec import DecodeSpec, Policies, kafka_of
from penstock.logs.kafka.log import KafkaLog
from penstock.staging.bad_share import BadShareError, hint_for
from penstock.staging.read_checks import JUDGED_RECORDS_MIN, ReadChecks
from tests.support.lake import Lake
from tests.support.task_reports import sent
from tests.unit.flow.kafka_batches import kafka_batch
from tests.unit.flow.route.fanouts import fanout_flow, kafka_part, run
from tests.unit.flow.route.test_fanout import orders, record

SCHEMA = pa.schema(
    [("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("name", pa.string()), ("price", pa.decimal128(10, 2))]
)


def checks(tmp_path: Path, bad_share: float) -> ReadChecks:
    job = Lake(str(tmp_path / "t")).job
    return ReadChecks(replace(job, on=Policies(bad_share=bad_share)), KafkaLog(kafka_of(job)))


def counts(read: int, bad: int) -> Counts:
    return Counts(read=read, written=read - bad, quarantined=bad)


@pytest.mark.parametrize(
    ("read", "bad", "share", "stops"),
    [
        (1000, 960, 0.1, True),
        (1000, 101, 0.1, True),
        (1000, 100, 0.1, False),
        (JUDGED_RECORDS_MIN, JUDGED_RECORDS_MIN, 0.1, True),
        (JUDGED_RECORDS_MIN - 1, JUDGED_RECORDS_MIN - 1, 0.1, False),
        (1000, 1000, 1.0, False),
        (1000, 1, 0.0, True),
        (0, 0, 0.0, False),
    ],
)
def test_a_batch_of_some_size_with_more_bad_records_than_the_job_accepts_stops_it(
    read: int, bad: int, share: float, stops: bool, tmp_path: Path
) -> None:
    reasons = [Reason("not JSON at character N", bad, "orders/0 offset 7: not JSON at character 3")]
    if not stops:
        checks(tmp_path, share).refuse_bad_share(counts(read, bad), reasons)
        return
    with pytest.raises(BadShareError) as stopped:
        checks(tmp_path, share).refuse_bad_share(counts(read, bad), reasons)
    assert f"{bad} of {read}" in stopped.value.primary
    assert "orders/0 offset 7" in stopped.value.detail
    assert "decode.format" in stopped.value.hint
    assert stopped.value.exit_code == 2


def test_the_three_most_frequent_reasons_are_shown_with_examples() -> None:
    errors = ["a: given twice"] * 2 + ["b: given twice"] * 9 + ["c: given twice"] * 5 + ["d: given twice"] * 7
    reasons = [Reason(item, 1, f"t/0 offset {number}: {item}") for number, item in enumerate(errors)]
    error = BadShareError(counts(100, 23), 0.1, merged_reasons(reasons))
    assert [(reason.kind[0], reason.count) for reason in error.reasons] == [("b", 9), ("d", 7), ("c", 5)]
    assert "9 times b: given twice\n      as t/0 offset 2: b: given twice" in error.detail


def bad_of(*values: str) -> list[Reason]:
    """The reasons of records that do not fit `SCHEMA`, as the decoder reports them."""
    policies = Policies(new_column="quarantine")
    batch = kafka_batch([value.encode() for value in values])
    return reasons_of(("orders", 0), decoder_for(DecodeSpec("json"), SCHEMA, policies).decode(batch).bad)


def test_errors_that_differ_in_values_and_places_only_are_one_kind() -> None:
    (epochs,) = bad_of(*(f'{{"at": {1_700_000_000_000 + number}}}' for number in range(40)))
    assert (epochs.kind, epochs.count) == ("at: expected timestamp, found number", 40)
    assert epochs.example.endswith("at: expected timestamp, found number")
    kinds = error_kinds(
        pa.array(
            [
                "not JSON at character 12: Expecting value",
                'its type "a\\"b 7" is not known',
                'a[12].b: expected decimal(10,2), found string "x, found 5"',
                "event time 1970-01-01T00:00:00Z is before 2020-01-01",
            ]
        )
    )
    assert kinds.to_pylist() == [
        "not JSON at character N: Expecting value",
        'its type "…" is not known',
        "a[N].b: expected decimal(10,2), found string",
        "event time … is before …",
    ]


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ('{"at": 1700000000000}', ("`long`", "timestamp_millis(at)", "timestamp_seconds")),
        ('{"day": 1700000000000}', ("timestamp_millis(day)", "`day`")),
        ('{"at": "yesterday"}', ("2026-03-01T12:00:00Z",)),
        ('{"name": 7}', ("`long`", "`double`")),
        ('{"price": "cheap"}', ("`string`",)),
        ('{"price": 1.005}', ("wider",)),
        ('{"name": {"first": "a"}}', ("fields of an object",)),
        ('{"name": ["a"]}', ("list<string>",)),
        ('{"colour": "red"}', ("on.new_column", "`ignore`")),
        ("colour=red", ("decode.format", "decode.payload")),
        ("[1]", ("decode.format",)),
    ],
)
def test_the_hint_names_the_key_to_change_in_the_job_file(value: str, parts: tuple[str, ...]) -> None:
    (reason,) = bad_of(value)
    hint = hint_for(reason)
    assert all(part in hint for part in parts), hint


@pytest.mark.parametrize(
    "text",
    [
        *("string", "boolean", "byte", "short", "int", "long", "float", "double", "date", "timestamp", "binary"),
        *("decimal(10,2)", "list<long>", "map<string,list<decimal(5,1)>>"),
    ],
)
def test_types_are_called_as_the_job_file_spells_them(text: str) -> None:
    assert job_type_name(parse_type(text)) == text
    assert job_type_name(pa.struct([("a", parse_type(text))])) == f"{{a: {text}}}"


def test_a_task_reports_a_bounded_number_of_reasons() -> None:
    many = [Reason(f"field{chr(97 + number % 26)}{number}: given twice", 1, "x") for number in range(KINDS_MAX * 3)]
    reasons = merged_reasons(many)
    assert len(reasons) == KINDS_MAX + 1
    assert sum(item.count for item in reasons) == len(many)
    assert reasons[0].kind == OTHER_KIND
    assert sent(TaskReport(reasons=reasons)).reasons == reasons


def test_a_task_of_an_export_reports_reasons_too(tmp_path: Path) -> None:
    values = [record("order", "x"), record("order", "y"), record("visit", 1)]
    outcome = run(fanout_flow(tmp_path, [orders()]), kafka_part(values))
    result = {reason.kind: reason.count for reason in outcome.report.reasons}
    assert result == {"n: expected long, found string": 2, 'its type "…" is not known': 1}
