"""What Penstock relies on beyond the documented interface of a library: error texts and layouts in memory.

`pyproject.toml` bounds the version of each such library. If a test fails after an upgrade, the named place in the
source has to follow the library before the bound is raised.
"""

from __future__ import annotations

import errno
import io
from contextlib import suppress
from pathlib import Path

import msgspec
import obstore
import pyarrow as pa
import pyarrow.json as pj
import pytest
from deltalake import DeltaTable
from obstore.exceptions import UnknownConfigurationKeyError
from obstore.store import LocalStore, from_url
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.errors import UserError
from penstock.flow.decode.json import rows, screen
from penstock.job.storage_options import CLIENT_OPTIONS, OPTIONS, RETRY_OPTIONS
from penstock.lake.delta.library import library_errors
from penstock.logs.kafka.native import messages
from penstock.storage.failures import translate_errors


class Record(msgspec.Struct, forbid_unknown_fields=True):
    status: int | None = None


def test_pyarrow_names_the_column_that_a_json_record_gives_twice() -> None:
    options = pj.ParseOptions(explicit_schema=pa.schema([("status", pa.int64())]))
    with pytest.raises(pa.ArrowInvalid) as refused:
        pj.read_json(io.BytesIO(b'{"status":1,"status":2}'), parse_options=options)
    twice = rows.SPECIFIED_TWICE.search(str(refused.value))
    assert twice is not None and twice[1] == "status", f"flow/decode/json/rows.py cannot read {refused.value}"


def test_pyarrow_and_msgspec_report_a_field_that_the_schema_lacks() -> None:
    options = pj.ParseOptions(explicit_schema=pa.schema([("status", pa.int64())]), unexpected_field_behavior="error")
    with pytest.raises(pa.ArrowInvalid) as refused:
        pj.read_json(io.BytesIO(b'{"other":1}'), parse_options=options)
    assert rows.NEW_FIELD.search(str(refused.value))
    with pytest.raises(msgspec.ValidationError) as unknown:
        msgspec.json.decode(b'{"other":1}', type=Record)
    assert rows.NEW_FIELD.search(str(unknown.value))


def test_msgspec_names_the_field_and_the_kind_that_do_not_fit() -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(b'{"status":"x"}', type=Record)
    parts = screen._PLACE.fullmatch(str(refused.value))
    assert parts is not None, f"flow/decode/json/screen.py cannot read {refused.value}"
    kind = screen._ACTUAL.search(parts["problem"])
    assert kind is not None, f"flow/decode/json/screen.py cannot read {refused.value}"
    assert (parts["path"], kind["kind"]) == ("status", "str")


def test_msgspec_names_an_unknown_field() -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(b'{"other":1}', type=Record)
    match = screen._UNKNOWN.fullmatch(str(refused.value))
    assert match is not None, f"flow/decode/json/screen.py cannot read {refused.value}"
    assert match["name"] == "other"


def test_msgspec_reports_where_json_is_malformed() -> None:
    with pytest.raises(msgspec.DecodeError) as refused:
        msgspec.json.decode(b'{"status":1}x', type=Record)
    assert str(refused.value) == "JSON is malformed: trailing characters (byte 13)"


def test_librdkafka_keeps_the_length_of_a_header_key_before_it() -> None:
    """Its interface gives keys as C strings, and those of Kafka may hold NULs: without the length they would be cut."""
    assert messages._key_length_is_before(), "logs/kafka/native/messages.py has to find the length of header keys again"


def test_obstore_writes_the_number_of_an_os_error_into_its_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError) as refused, translate_errors("file/below"):
        obstore.put(LocalStore(str(tmp_path)), "file/below", b"")
    assert f"(os error {errno.ENOTDIR})" in refused.value.detail, "storage/failures.py reads this number"


def test_deltalake_reports_a_path_without_a_table(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError) as refused, library_errors("file/below"):
        DeltaTable(str(tmp_path / "file" / "below"))
    assert refused.value.primary == "no table can be at file/below", "lake/delta/library.py reads these texts"


def test_installed_librdkafka_has_a_checked_message_layout() -> None:
    """Any other is read call by call: slower, and right."""
    assert messages.READS_AT_ONCE, "add the version to logs/kafka/native/messages.py once its layout is checked"


def test_uvicorn_has_the_parts_of_a_connection_that_the_wal_server_extends() -> None:
    """It subclasses a protocol of uvicorn that is not documented, to bound heads and idle connections."""
    needed = {"connection_made", "data_received", "on_response_complete", "connection_lost"}
    assert needed <= vars(HttpToolsProtocol).keys(), "logs/wal/server.py has to follow uvicorn"


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/table", "s3a://bucket/table", "gs://bucket/table", "abfss://box@account.dfs.core.windows.net/t"],
)
def test_obstore_knows_every_storage_option(url: str) -> None:
    vendor, names = OPTIONS[url.partition(":")[0]]
    for name in sorted(names - CLIENT_OPTIONS - RETRY_OPTIONS):
        for spelling in (name,) if vendor == "azure_" else (name, vendor + name):
            # Other errors are about the value.
            with suppress(obstore.exceptions.BaseError):
                try:
                    from_url(url, config={spelling: "x"})  # type: ignore[call-overload]
                except UnknownConfigurationKeyError as error:
                    raise AssertionError(f"job/storage_options.py: obstore has no {spelling} for {url}") from error
