from __future__ import annotations

from penstock.job.document import resolve
from penstock.job.spec import Secret

ENV = {"HOST": "kafka-1", "PW": "hunter2", "EMPTY": ""}


def test_a_text_without_references_is_unchanged_and_not_secret() -> None:
    text, faults = resolve("costs 5$ {x}", ENV)
    assert (text, faults) == ("costs 5$ {x}", [])
    assert not isinstance(text, Secret)


def test_references_are_filled_in_anywhere_and_make_the_whole_a_secret() -> None:
    text, faults = resolve("${env:HOST}:9092,${env:HOST}:9093", ENV)
    assert (text, faults) == ("kafka-1:9092,kafka-1:9093", [])
    assert isinstance(text, Secret)
    assert repr(text) == "'******'"


def test_an_empty_environment_variable_counts_as_set() -> None:
    assert resolve("a${env:EMPTY}b", ENV) == ("ab", [])


def test_a_doubled_dollar_writes_a_plain_reference() -> None:
    text, faults = resolve("$${env:HOST}", ENV)
    assert (text, faults) == ("${env:HOST}", [])
    assert not isinstance(text, Secret)


def test_referenced_values_are_not_expanded_again() -> None:
    assert resolve("${env:A}", {"A": "${env:B}"})[0] == "${env:B}"


def test_each_missing_reference_is_a_fault_that_names_it_and_not_the_others() -> None:
    text = "${env:PW} ${env:NOPE} ${file:nope.txt} ${env:} ${env:PW"
    messages = [fault.message for fault in resolve(text, ENV)[1]]
    assert messages[0] == "environment variable NOPE is not set"
    assert messages[1] == "invalid reference ${file:nope.txt}"
    assert messages[2] == "invalid reference ${env:}"
    assert messages[3] == "a reference begins with ${ and is not closed"
    assert not any("hunter2" in message for message in messages)
