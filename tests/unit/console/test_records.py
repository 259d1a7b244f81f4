"""Bytes of records as text: visible, bounded, and marked where the error is."""

from __future__ import annotations

import pytest

from penstock.console.records import CELL_CHARACTERS_MAX, cell_text, content_of, cut_content

BIDI = "\u202e"


def marked(value: bytes, error: str) -> list[str]:
    return [piece.text for piece in content_of(value, error).pieces if piece.marked]


def test_json_is_shown_member_by_member_with_the_text_of_its_numbers() -> None:
    content = content_of(b'{"id": 1.50, "tags": ["a", {}]}')
    assert (content.form, content.size_bytes) == ("JSON", 31)
    assert content.text == '{\n  "id": 1.50,\n  "tags": [\n    "a",\n    {}\n  ]\n}'


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (b'{"id": 1, "at": "x"}', 'at: expected timestamp, found string "x"', ['"at": "x"']),
        (b'{"a": {"b": [1, {"c": 2}]}}', "a.b[1].c: expected string, found number 2", ['"c": 2']),
        (b'{"id": x}', "not JSON at character 7: Expecting value", ["x"]),
        (b'{"id": 3', "not JSON at character 8: Expecting ',' delimiter", ["▮"]),
        (b"ab\xffcd", "value is not UTF-8 at byte 2", ["\\xff"]),
        (b'{"id": "\xff"}', "value is not UTF-8", ["\\xff"]),
        (b'{"id": tru}', "not JSON", ["t"]),
        (b'{"id": "a', "not JSON: input data was truncated", ["▮"]),
        (b'{"n": 1, "n": 2}', "n: given twice", ['"n" (given twice): 2']),
        (b'{"id": 1}', "other: is missing", []),
    ],
)
def test_the_place_that_an_error_names_is_marked(value: bytes, error: str, expected: list[str]) -> None:
    assert marked(value, error) == expected


def test_characters_that_do_not_print_are_escapes() -> None:
    assert content_of(f"a text\x00\x1b[31m{BIDI}b".encode()).text == "a text\\x00\\x1b[31m\\u202eb"
    assert content_of(f'{{"k": "{BIDI}"}}'.encode()).text == '{\n  "k": "\\u202e"\n}'


def test_binary_values_are_hex() -> None:
    content = content_of(bytes(range(0x80, 0x90)) + b"AB")
    assert (content.form, content.text.splitlines()[1][8:13]) == ("hex", "41 42")


def test_ten_megabytes_are_cut_and_their_size_is_stated() -> None:
    content = cut_content(b'{"x": "' + b"y" * 10_000_000 + b'"}', 1024)
    assert (content.form, content.cut, content.size_bytes, len(content.text)) == ("text", True, 10_000_009, 1024)


def test_an_error_beyond_what_is_shown_marks_nothing() -> None:
    assert not cut_content(b"z" * 5_000, 100, "not JSON at character 4000: Expecting value").marked


def test_deeply_nested_json_is_shown_down_to_a_bound() -> None:
    content = content_of(b"[" * 400 + b"]" * 400)
    assert content.form == "JSON"
    assert "…" in content.text


def test_a_cell_of_a_table_is_one_bounded_line() -> None:
    assert cell_text("a\nb") == "a\\nb"
    assert cell_text({"k": b"\xff"}) == '{"k": "\\\\xff"}'
    assert len(cell_text("x" * 10_000)) == CELL_CHARACTERS_MAX
