from __future__ import annotations

from pathlib import Path

from penstock.job.document import resolve
from penstock.job.spec import Secret

ENV = {"HOST": "kafka-1", "PW": "hunter2", "EMPTY": ""}


def test_a_text_without_references_is_unchanged_and_not_secret() -> None:
    text, faults = resolve("costs 5$ {x}", ENV, Path())
    assert (text, faults) == ("costs 5$ {x}", [])
    assert not isinstance(text, Secret)


def test_references_are_filled_in_anywhere_and_make_the_whole_a_secret() -> None:
    text, faults = resolve("${env:HOST}:9092,${env:HOST}:9093", ENV, Path())
    assert (text, faults) == ("kafka-1:9092,kafka-1:9093", [])
    assert isinstance(text, Secret)
    assert repr(text) == "'******'"


def test_a_referenced_file_is_read_relative_to_the_job_file_without_its_last_newline(tmp_path: Path) -> None:
    (tmp_path / "pw.txt").write_text("s3cr3t\n", encoding="utf-8")
    assert resolve("${file:pw.txt}", ENV, tmp_path)[0] == "s3cr3t"
    assert resolve(f"${{file:{tmp_path}/pw.txt}}", ENV, Path("/nowhere"))[0] == "s3cr3t"


def test_an_empty_environment_variable_counts_as_set() -> None:
    assert resolve("a${env:EMPTY}b", ENV, Path()) == ("ab", [])


def test_a_doubled_dollar_writes_a_plain_reference() -> None:
    text, faults = resolve("$${env:HOST}", ENV, Path())
    assert (text, faults) == ("${env:HOST}", [])
    assert not isinstance(text, Secret)


def test_referenced_values_are_not_expanded_again() -> None:
    assert resolve("${env:A}", {"A": "${env:B}"}, Path())[0] == "${env:B}"


def test_each_missing_reference_is_a_fault_that_names_it_and_not_the_others(tmp_path: Path) -> None:
    (tmp_path / "bin").write_bytes(b"\xffsecret\xfe")
    text = "${env:PW} ${env:NOPE} ${file:nope.txt} ${vault:x} ${env:} ${file:bin} ${file:.} ${env:PW"
    messages = [fault.message for fault in resolve(text, ENV, tmp_path)[1]]
    assert messages[0] == "environment variable NOPE is not set"
    assert messages[1] == "file nope.txt cannot be read: No such file or directory"
    assert messages[2] == "invalid reference ${vault:x}"
    assert messages[3] == "invalid reference ${env:}"
    assert messages[4] == "file bin is not UTF-8"
    assert messages[5] == "file . cannot be read: Is a directory"
    assert messages[6] == "a reference begins with ${ and is not closed"
    assert not any("hunter2" in message or "secret" in message for message in messages)


def test_an_impossible_file_name_is_a_fault() -> None:
    assert len(resolve("${file:a\0b}", ENV, Path())[1]) == 1
