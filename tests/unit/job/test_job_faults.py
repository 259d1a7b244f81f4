from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.job.faults import JobFileError
from penstock.tables.registry import load_job
from tests.unit.job.conftest import BASE, Faults, Load

PLACE = "kafka_partition, kafka_offset, kafka_topic"
GOLDEN = Path(__file__).parents[2] / "golden"


def test_all_faults_of_a_very_broken_file_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    with pytest.raises(JobFileError) as caught:
        load_job(Path("broken-job.yaml"), {})
    assert str(caught.value) + "\n" == (GOLDEN / "broken-job.txt").read_text(encoding="utf-8")
    assert "hunter2" not in str(caught.value)


def test_a_misspelt_key_is_reported_with_location_path_and_closest_match(tmp_path: Path, load: Load) -> None:
    with pytest.raises(JobFileError) as caught:
        load(BASE + "flush:\n  alowed_latency: 60s\n")
    assert (
        str(caught.value) == f"{tmp_path}/job.yaml:9:3 flush.alowed_latency: unknown key; did you mean allowed_latency?"
    )
    assert caught.value.exit_code == UserError.exit_code
    assert isinstance(caught.value, UserError)


def test_an_empty_mapping_lacks_the_four_required_keys(faults: Faults) -> None:
    assert faults("{}") == [(1, key, "required key is missing") for key in ("table", "log", "job", "decode")]


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "near"),
    [
        ("web-requests", "Web", 1, "job", ""),
        ("web-requests", "a" * 65, 1, "job", ""),
        ("web-requests", "'..'", 1, "job", ""),
        ("web-requests", "'.'", 1, "job", ""),
        ("web-requests", "_penstock", 1, "job", ""),
        ("web-requests", "5", 1, "job", ""),
        ("web-requests", "'${env:X}'", 1, "job", ""),
        ("kafka-1:9092", "kafka-1", 3, "log.kafka.bootstrap", ""),
        ("kafka-1:9092", "k:70000", 3, "log.kafka.bootstrap", ""),
        (", topics: [web_requests]", "", 3, "log.kafka.topics", ""),
        ("[web_requests]", "web_requests", 3, "log.kafka.topics", ""),
        ("[web_requests]", "[]", 3, "log.kafka.topics", ""),
        ("[web_requests]", "[a, a]", 3, "log.kafka.topics[1]", ""),
        ("[web_requests]", "[a], topic_pattern: a.*", 3, "log.kafka.topic_pattern", ""),
        ("[web_requests]", "[a], start: lattest", 3, "log.kafka.start", "latest"),
        ("[web_requests]", "[a], start: {}", 3, "log.kafka.start", ""),
        ("[web_requests]", "[a], start: {a: {0: 1}}", 3, "log.kafka.start.a", ""),
        ("topics: [web_requests]", "topic_pattern: a.*, start: {0: 1}", 3, "log.kafka.start", ""),
        ("[web_requests]", "[a, b], start: {0: 1}", 3, "log.kafka.start", ""),
        ("[web_requests]", "[a], start: {0: -1}", 3, "log.kafka.start.0", ""),
        ("[web_requests]", "[a], start: {0: x}", 3, "log.kafka.start.0", ""),
        ("[web_requests]", "[a], start: {-1: 5}", 3, "log.kafka.start.-1", ""),
        ("[web_requests]", "[a], transactional: yes", 3, "log.kafka.transactional", ""),
        ("[web_requests]", "[a], client: {enable.auto.commit: true}", 3, "log.kafka.client.enable.auto.commit", ""),
        ("[web_requests]", "[a], client: {group.id: x}", 3, "log.kafka.client.group.id", ""),
        ("[web_requests]", "[a], client: {check.crcs: [x]}", 3, "log.kafka.client.check.crcs", ""),
        ("[web_requests]", "[a], security: {protocol: SSL}", 3, "log.kafka.security", ""),
        ("decode: json", "decode: jason", 4, "decode", "json"),
        ("decode: json", "decode: {payload: gzip}", 4, "decode.format", ""),
        ("decode: json", "decode: raw", 5, "schema", ""),
        ("status: int", "status: itn", 5, "schema.status", "int"),
        ("s3://lake/web", "s4://lake/web", 7, "table.delta.path", ""),
        ("s3://lake/web", "s3:///web", 7, "table.delta.path", ""),
        ("s3://lake/web", "s3://lake/", 7, "table.delta.path", ""),
        ("s3://lake/web", "file://x/y", 7, "table.delta.path", ""),
        ("s3://lake/web", "/", 7, "table.delta.path", ""),
        ("s3://lake/web", "s3://l/w, quarantine: s3://l/q", 7, "table.delta.quarantine", ""),
        ("s3://lake/web", "x, partition_by: [statu]", 7, "table.delta.partition_by[0]", "status"),
        ("s3://lake/web", "x, partition_by: [meta]", 7, "table.delta.partition_by[0]", ""),
        ("s3://lake/web", "x, partition_by: [status, Status]", 7, "table.delta.partition_by[1]", ""),
    ],
)
def test_a_wrong_value_is_reported_at_its_location_with_the_closest_match(
    faults: Faults, old: str, new: str, line: int, key: str, near: str
) -> None:
    [(found_line, found_key, text)] = faults(BASE.replace(old, new))
    assert (found_line, found_key) == (line, key)
    assert f"did you mean {near}?" in text if near else "did you mean" not in text


@pytest.mark.parametrize(
    ("section", "key", "near"),
    [
        ("columns: {status: kafka.offset}", "columns.status", ""),
        ("columns: {STATUS: kafka.offset}", "columns.STATUS", ""),
        ("columns: {x: meta.att}", "columns.x", "meta.at"),
        ("columns: {x: status.code}", "columns.x", ""),
        ("columns: {x: meta.tags.first}", "columns.x", ""),
        ("columns: {x: day(meta)}", "columns.x", ""),
        ("columns: {x: 'null'}", "columns.x", ""),
        ("columns: {x: [1]}", "columns.x", ""),
        ("columns: {x y: 1}", "columns.x y", ""),
        ("columns: {x: 99999999999999999999}", "columns.x", ""),
        ("columns: []", "columns", ""),
        ("sql: {}", "sql", ""),
        ("sql: {select: []}", "sql.select", ""),
        ("sql: {select: [statu]}", "sql.select[0]", "status"),
        ("sql: {select: [status, method as STATUS]}", "sql.select[1]", ""),
        ("sql: {select: ['status as `a b`']}", "sql.select[0]", ""),
        ("sql: {select: ['*', status]}", "sql.select[1]", ""),
        ("claims: dynamic", "claims", ""),
        ("flush: {allowed_latency: 60}", "flush.allowed_latency", ""),
        ("flush: {allowed_latency: 0s}", "flush.allowed_latency", ""),
        ("flush: {max_messages_per_batch: 1.5}", "flush.max_messages_per_batch", ""),
        ("flush: {max_messages_per_batch: true}", "flush.max_messages_per_batch", ""),
        ("flush: {max_messages_per_batch: -1}", "flush.max_messages_per_batch", ""),
        ("flush: {min_bytes_per_file: 0}", "flush.min_bytes_per_file", ""),
        ("flush: {min_bytes_per_file: 2MiB, max_bytes_per_batch: 1MiB}", "flush.min_bytes_per_file", ""),
        ("flush: fast", "flush", ""),
        ("flush:", "flush", ""),
        ("spark: {conf: {ui.enabled: 1}}", "spark.conf.ui.enabled", "spark.ui.enabled"),
        ("job: again", "job", ""),
        ("<<: {a: 1}", "<<", ""),
    ],
)
def test_a_wrong_section_is_reported_at_its_location_with_the_closest_match(
    faults: Faults, section: str, key: str, near: str
) -> None:
    [(found_line, found_key, text)] = faults(BASE + section + "\n")
    assert (found_line, found_key) == (8, key)
    assert f"did you mean {near}?" in text if near else "did you mean" not in text


@pytest.mark.parametrize(
    ("expression", "message", "hint"),
    [
        ("day(n)", "day takes a time, a date or text, not long", "write day(timestamp_millis(n)), or timestamp_s"),
        ("hour(kafka.offset)", "hour takes a time, a date or text, not long", "write hour(timestamp_millis(kafka.o"),
        ("day(ok)", "day takes a time, a date or text, not boolean", "state another type in the schema"),
        ("timestamp_millis(s)", "timestamp_millis takes whole numbers, not string", "day and hour take times as"),
        ("timestamp_seconds(f)", "timestamp_seconds takes whole numbers, not double", "state another type in the"),
        ("lower(n)", "lower takes text, not long", "concat(n) is its text"),
        ("upper(kafka.key)", "upper takes text, not binary", "state another type in the schema"),
        ("substr(i, 1, 2)", "substr takes text, not int", "concat(i) is its text"),
        ("concat(s, f)", "concat takes text and whole numbers, not double", "state another type in the schema"),
        ("coalesce(s, i)", "coalesce takes one type, not string, int", "concat(...) makes text of a whole number"),
        ("coalesce(i, n)", "coalesce takes one type, not int, long", "state one type for them in the schema"),
        ("coalesce(n, 'x')", "the constant x is not of type long", "use a constant of type long"),
        ("day(concat(s, lower(i)))", "lower takes text, not int", "concat(i) is its text"),
        ("day('at')", "reads no field", "a field is written without quotes"),
        ("eu", "the schema has no field eu", "text is written \"'eu'\""),
    ],
)
def test_an_expression_over_another_type_is_a_fault_with_a_hint(
    faults: Faults, expression: str, message: str, hint: str
) -> None:
    schema = "schema: {s: string, i: int, n: long, f: double, ok: boolean, at: timestamp}\n"
    before, _, after = BASE.partition("schema:")
    text = before + schema + after.partition("\n")[2] + f'columns:\n  good: day(at)\n  bad: "{expression}"\n'
    [(line, key, found)] = faults(text)
    assert (line, key) == (10, "columns.bad")
    assert message in found and hint in found


@pytest.mark.parametrize("column", ["kafka.headers", "kafka.key", "coalesce(meta, meta)", "meta.tags", "1.5"])
def test_a_computed_partition_column_must_be_of_a_type_that_can_partition(faults: Faults, column: str) -> None:
    text = BASE.replace("s3://lake/web", "x, partition_by: [p]") + f"columns: {{p: '{column}'}}\n"
    assert [key for _, key, _ in faults(text)] == ["table.delta.partition_by[0]"]


def test_partition_columns_are_columns_of_the_projection(faults: Faults, load: Load) -> None:
    text = BASE.replace("s3://lake/web", "x, partition_by: [day]")
    load(text + 'sql: {select: [status, "substr(meta.at, 1, 10) as day"]}\n')
    load(text + 'sql: {select: [status, "substr(meta.at, 1, 10) day"]}\n')
    assert faults(text + "columns: {day: day(meta.at)}\nsql: {select: [status, method]}\n") == [
        (7, "table.delta.partition_by[0]", f"the table has no column 'day'; columns: status, method, {PLACE}")
    ]
    assert faults(text + "sql: {select: [status, meta as day]}\n") == [
        (7, "table.delta.partition_by[0]", "'day' cannot partition a table: it is a struct; use another column")
    ]


def test_a_table_needs_a_column_that_is_not_a_partition_column(faults: Faults) -> None:
    text = BASE.replace("s3://lake/web", "x, partition_by: [status]") + "place: none\nsql: {select: [status]}\n"
    assert faults(text) == [
        (7, "table.delta.partition_by", "every column is a partition column: the files would be empty")
    ]


def test_adding_new_columns_contradicts_a_stated_projection(faults: Faults) -> None:
    assert faults(BASE + "sql: {select: [status]}\non: {new_column: add}\n") == [
        (9, "on.new_column", "add contradicts sql.select, which states the columns; remove it, or remove sql.select")
    ]


def test_one_fault_does_not_cause_others(faults: Faults) -> None:
    text = BASE.replace("meta: {at: string", "meta: {at: strng") + "columns: {d: day(meta.at), e: dya(meta.at)}\n"
    text = text.replace("s3://lake/web", "x, partition_by: [d, e]")
    assert [key for _, key, _ in faults(text)] == ["schema.meta.at", "columns.e"]


def test_json_needs_a_schema(faults: Faults) -> None:
    text = "\n".join(line for line in BASE.splitlines() if not line.startswith("schema"))
    assert faults(text) == [
        (1, "schema", "required key is missing: decode json needs the fields and their types, or infer"),
    ]


@pytest.mark.parametrize(
    "bent",
    [
        BASE.replace("web-requests", '"${env:PW}!"'),
        BASE.replace("kafka-1:9092", "${env:PW}"),
        BASE.replace("[web_requests]", '["${env:PW} x", a], start: {hunter: 1}'),
        BASE.replace("[web_requests]", '["${env:PW}"], start: {hunter: 1}'),
        BASE.replace("[web_requests]", '[a], start: "${env:PW}"'),
        BASE.replace("[web_requests]", '[a], client: {check.crcs: "${env:PW}"}'),
        BASE.replace("topics: [web_requests]", 'topic_pattern: "(${env:PW}"'),
        BASE.replace("decode: json", 'decode: "${env:PW}"'),
        BASE.replace("status: int", 'status: "${env:PW}"'),
        BASE.replace("status: int", 'status: "list<${env:PW}>"'),
        BASE.replace("s3://lake/web", '"${env:PW}://x/y"'),
        BASE.replace("s3://lake/web", 'x, partition_by: ["${env:PW}"]'),
        BASE.replace("s3://lake/web", 'x, partition_by: [hunter]') + 'sql: {select: [status, "1 as ${env:PW}"]}\n',
        BASE + 'columns: {x: "${env:PW}"}\n',
        BASE + 'columns: {x: "${env:PW}("}\n',
        BASE + 'columns: {x: "meta.${env:PW}"}\n',
        BASE + 'sql: {select: ["${env:PW}"], where: "sum(${env:PW}"}\n',
        BASE + 'flush: {allowed_latency: "${env:PW}", min_bytes_per_file: "${env:PW}"}\n',
        BASE + 'on: {gap: "${env:PW}"}\n',
        BASE + 'limits: {transient_retries: "${env:PW}"}\n',
        BASE + 'on: {gap: "${env:PW}${env:NOPE}"}\n',
    ],
)  # fmt: skip
def test_referenced_values_are_never_printed(load: Load, bent: str) -> None:
    try:
        answer = repr(load(bent))
    except JobFileError as error:
        answer = str(error) + repr(error) + repr(error.__cause__) + repr(error.__context__)
        answer += "".join(str(fault.as_json()) for fault in error.faults)
    assert "hunter2" not in answer


def test_a_file_that_cannot_be_read_is_reported_with_the_reason(tmp_path: Path) -> None:
    missing, folder, latin = tmp_path / "no.yaml", tmp_path, tmp_path / "latin.yaml"
    latin.write_bytes("job: a\nx: Größe\n".encode("latin-1"))
    for path, text in (
        (missing, f"{missing}: cannot be read: No such file or directory"),
        (folder, f"{folder}: cannot be read: Is a directory"),
        (latin, f"{latin}:2:6 not UTF-8 from here on"),
        (Path("a\0b"), "a\\x00b: cannot be read: not a file name"),
    ):
        with pytest.raises(JobFileError) as caught:
            load_job(path, {})
        assert str(caught.value) == text


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the file is empty"),
        ("\n\n# nothing\n", 1, "the file is empty"),
        ("job: a\nlog: [\n", 3, "not valid YAML: "),
        ("job: a\n  log: b\n", 2, "not valid YAML: mapping values are not allowed in this context"),
        ("- job\n", 1, "a job file is a mapping of keys such as job, log and table"),
    ],
)
def test_a_file_that_is_not_a_job_file_is_reported_as_such(faults: Faults, text: str, line: int, message: str) -> None:
    [(found_line, key, fault)] = faults(text)
    assert (found_line, key) == (line, "")
    assert fault.startswith(message)


def test_unprintable_characters_in_keys_do_not_break_the_line(load: Load) -> None:
    with pytest.raises(JobFileError) as caught:
        load(BASE + '"a\\nb\\e[31m": 1\n')
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("share", ["1.5", "150%", "-0.1", "many", "true", "[0.1]"])
def test_a_share_outside_of_0_to_1_is_a_fault(faults: Faults, share: str) -> None:
    [(_, key, text)] = faults(BASE + f"on: {{bad_share: {share}}}\n")
    assert key == "on.bad_share" and text.startswith("expected a")
