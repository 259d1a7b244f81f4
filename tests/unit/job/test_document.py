from __future__ import annotations

import pytest

from penstock.job.document import Document, read_document
from penstock.job.faults import Finding, InvalidValueError, Place


def read(text: str) -> Document:
    return read_document(text, {})


def test_on_off_yes_and_no_stay_texts_as_keys_and_as_values() -> None:
    document = read("on: {gap: no}\noff: yes\ny: [On, OFF, y, n]\n")
    assert document.values == {"on": {"gap": "no"}, "off": "yes", "y": ["On", "OFF", "y", "n"]}


def test_times_dates_octals_and_underscores_stay_texts() -> None:
    document = read("a: 12:30:45\nb: 2024-01-02\nc: 0777\nd: 1_000\ne: 0x1F\nf: .inf\ng: =\n")
    assert document.values == {
        "a": "12:30:45",
        "b": "2024-01-02",
        "c": "0777",
        "d": "1_000",
        "e": "0x1F",
        "f": ".inf",
        "g": "=",
    }


def test_numbers_true_and_false_have_their_kind_and_quotes_make_texts() -> None:
    document = read("a: -5\nb: 1.5\nc: 1e3\nd: true\ne: False\nf: '5'\ng: 0\n")
    assert document.values == {"a": -5, "b": 1.5, "c": 1000.0, "d": True, "e": False, "f": "5", "g": 0}


def test_keys_are_texts_also_where_they_look_like_numbers() -> None:
    assert read("{0: 10, true: 1, null: 2}").values == {"0": 10, "true": 1, "null": 2}


def test_every_key_and_value_knows_its_line_and_column() -> None:
    document = read("a:\n  b: [x, yy]\n")
    assert document.key_places[("a", "b")] == Place(2, 3)
    assert document.value_places[("a", "b", 1)] == Place(2, 10)


def test_a_fault_of_a_missing_key_points_at_its_parent() -> None:
    document = read("x: 1\na:\n  b: 2\n")
    assert document.place(Finding(("a", "c", "d"), "missing")) == Place(2, 1)
    assert document.place(Finding(("q",), "missing")) == Place(1, 1)


def test_a_key_given_twice_is_named_with_its_first_line() -> None:
    document = read("a: 1\nb: 2\na: 3\n")
    assert document.values == {"a": 1, "b": 2}
    assert document.findings == [Finding(("a",), "given twice, first in line 1", place=Place(3, 1))]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("# only a comment\n", 1),
        ("- a\n- b\n", 1),
        ("just a text", 1),
        ("a: [1, 2\nb: 3\n", 2),
        ("a: 1\n\tb: 2\n", 2),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: *unknown\n", 1),
        ("a: 1\nb: \x07\n", 2),
        ('a: "\\UFFFFFFFF"\n', 1),
        ('a: "\\ud800"\n', 1),
        ("ä: \x07\n", 1),
        ("a: 'open\n", 2),
        ("a: 1\nb: !!python/name:os.system x", 2),
        ("a: !!int 1", 1),
        ("a: 1\nb: !own {b: 1}", 2),
        ("a: " + "[" * 60 + "]" * 60, 1),
        ("a: " + "[" * 5000, 1),
    ],
)
def test_a_file_that_is_not_a_yaml_mapping_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(InvalidValueError) as caught:
        read(text)
    assert caught.value.place is not None
    assert caught.value.place.line == line


@pytest.mark.parametrize(
    "text",
    [
        "a: ~",
        "a:",
        "a: [1, null]",
        "? [a, b]\n: 1",
        "a: " + "9" * 50,
        "a: 1e999",
        '"${env:X}": 1',
        "a: &x {b: *x}",
    ],
)
def test_invalid_yaml_values_are_reported_and_left_out(text: str) -> None:
    document = read(text)
    assert len(document.findings) == 1
    assert document.values in ({}, {"a": {}}) or document.findings[0].key[:2] == ("a", "b")


def test_aliases_that_multiply_are_bounded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    document = read("\n".join(lines))
    assert len([finding for finding in document.findings if "too large" in finding.message]) == 1


def test_a_yaml_alias_is_resolved() -> None:
    assert read("a: &x {b: 1}\nc: *x\n").values == {"a": {"b": 1}, "c": {"b": 1}}
