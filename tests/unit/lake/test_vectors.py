"""Deletion vectors have the bytes that Spark writes, and a damaged one is never read as another."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvariantError
from penstock.flow.write.manifest import Vector
from penstock.flow.write.names import parse_staged_name, staged_name
from penstock.lake.delta.vectors import bitmap_of, from_log, has_own_name, read_vector, staged_as, to_log, vectors_file

SPARK_FILE = bytes.fromhex(
    "010000003ad1d339640100000000000000000000003a3000000300000000000200010000000300000020000000260000002800000003000500"
    "320070113f0d9094aa81"
)
"""Written by Delta 4.0 for a delete of the rows 3, 5, 50, 70000 and 199999."""
SPARK_ROWS = [3, 5, 50, 70_000, 199_999]
SPARK_FIELD = {
    "storageType": "u",
    "pathOrInlineDv": "A%G&Cj1iJ:O5>wF:0MhR",
    "offset": 1,
    "sizeInBytes": 58,
    "cardinality": 5,
}
SPARK_NAME = "deletion_vector_7307ca36-3b29-4343-9bc8-f876c7267cca.bin"
NAME = staged_name("id-1", 0, 10, 20, "0" * 32)
LISTS = st.lists(st.lists(st.integers(0, 300_000), min_size=1, unique=True).map(sorted), min_size=1, max_size=4)


def written(*lists: list[int]) -> tuple[bytes, list[Vector]]:
    return vectors_file(NAME, [(bitmap_of(np.array(rows)), len(rows)) for rows in lists])


def test_a_file_of_vectors_has_the_bytes_and_a_field_the_text_that_spark_writes() -> None:
    assert written(SPARK_ROWS)[0] == SPARK_FILE
    vector = from_log(SPARK_FIELD)
    assert vector == Vector(SPARK_NAME, 1, 58, 5)
    assert read_vector(vector, io.BytesIO(SPARK_FILE)).tolist() == SPARK_ROWS


@given(lists=LISTS)
def test_each_vector_of_a_file_is_read_as_it_was_written(lists: list[list[int]]) -> None:
    data, vectors = written(*lists)
    assert [read_vector(vector, io.BytesIO(data)).tolist() for vector in vectors] == lists
    assert [from_log(to_log(vector)) for vector in vectors] == vectors
    assert {vector.path for vector in vectors} == {vectors[0].path} and has_own_name(vectors[0].path, data)


def test_a_file_of_vectors_follows_the_rules_of_the_staged_name_of_its_folder() -> None:
    path = written(SPARK_ROWS)[1][0].path
    assert parse_staged_name(staged_as(path)) == parse_staged_name(NAME) is not None
    assert staged_as(f"_bucket=0/{NAME}") == f"_bucket=0/{NAME}"
    assert staged_as(SPARK_NAME) == SPARK_NAME


@pytest.mark.parametrize("place", range(len(SPARK_FILE)))
def test_a_changed_byte_is_found(place: int) -> None:
    data, [vector] = written(SPARK_ROWS)
    changed = bytes(byte ^ (number == place) for number, byte in enumerate(data))
    assert not has_own_name(vector.path, changed)
    if place:
        with pytest.raises(InvariantError):
            read_vector(vector, io.BytesIO(changed))


def test_another_vector_of_the_same_file_is_not_read_by_mistake() -> None:
    data, [one, two] = written([1, 2], [3])
    with pytest.raises(InvariantError):
        read_vector(Vector(one.path, two.offset, two.size_bytes, one.rows), io.BytesIO(data))
    with pytest.raises(InvariantError):
        read_vector(one, io.BytesIO(data[: one.offset + 5]))
